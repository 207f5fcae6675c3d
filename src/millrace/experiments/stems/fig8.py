"""Q4: R.key = T.key, where T has an index and a scan. An index join, a hash join, and SteMs with both.

The index answers one lookup at a time; the scan of T is faster in all, but returns T in random order, so that
for long few tuples of R meet theirs. The run with both access methods is the production eddy's: the SteM
bounces tuples of R back, and the eddy asks the index for those whose answer it expects before the scan's.
Nobody is told how large T is: what the scan will have returned by when is learned from its pace.
"""

from __future__ import annotations

import numpy as np

from millrace.clock import VirtualClock
from millrace.experiments.experiment import Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.lab.indexes import RemoteIndex
from millrace.experiments.stems.watched import (
    Watched,
    check_answers,
    over_time,
    scan,
    table_r,
    table_t,
    until,
    watch,
)

SCAN_ALONE, INDEX_ALONE, QUICK = "scan-alone", "index-alone", "quick-index"


def run(settings: Settings) -> Outcome:
    """Run the join three ways."""
    draw = np.random.default_rng(settings.seed)
    tuples, lookup, rate = settings["tuples"], settings["lookup"], settings["rate_t"]
    tables = {"R": table_r(draw, tuples, min(250, tuples)), "T": table_t(draw, tuples)}
    spec = block(tables, "R.key = T.key", all_columns=True, rows={"T": None})
    takes = lookup / (10 if settings.ablated == QUICK else 1)
    scan_end = tuples / rate

    def side(*, index: bool, scanned: bool) -> Watched:
        clock = VirtualClock()
        indexes = [RemoteIndex(["key"], tables["T"], clock, takes)] if index else []
        scans = [scan("T", tables["T"], clock, rate)] if scanned else []
        r = scan("R", tables["R"], clock, settings["rate_r"])
        return watch(spec, clock, {"R": [r], "T": [*indexes, *scans]})

    joined = side(index=True, scanned=False)
    hashed = side(index=False, scanned=True)
    hybrid = side(index=settings.ablated != SCAN_ALONE, scanned=settings.ablated != INDEX_ALONE)
    check_answers(tuples, joined, hashed, hybrid)
    answered = hybrid.answered

    moments = np.linspace(0, hybrid.end, 1000)
    best = np.maximum(joined.count(moments), hashed.count(moments))
    early = _crossing(joined, hashed)
    begun = moments[(joined.count(moments) >= 5) & (moments <= early / 2)]
    scanned_at = {key: (place + 1) / rate for place, key in enumerate(tables["T"]["key"].to_pylist())}
    late = sum(when > scanned_at[key] for when, key in answered) / max(1, len(answered))
    figures = {
        "most_behind": ((best - hybrid.count(moments)) / tuples).max(),
        "early_share": (hybrid.count(begun) / joined.count(begun)).min() if len(begun) else 0.0,
        "redundant": late / max(0.1, 5 * 2 * lookup / scan_end) if answered else 2.0,
        "late_lookups": sum(when - lookup > scan_end for when, _ in answered),
        "crossing_share": early / hashed.end,
        "index_join_over_hash_join": joined.end / hashed.end,
        "end_over_hash_join": hybrid.end / hashed.end,
    }
    curves = [joined.curve("index join"), hashed.curve("hash join"), hybrid.curve("SteMs, hybrid")]
    panels = [
        over_time("(i) the beginning", [until(each, 1.2 * early) for each in curves]),
        over_time("(ii) the whole run", curves, marks=[(scan_end, "end of T's scan")]),
    ]
    return Outcome(panels, figures)


def _crossing(one: Watched, other: Watched) -> float:
    """Return when the other has as many results as this one, having had fewer."""
    moments = np.linspace(0, min(one.end, other.end), 2000)
    ahead = one.count(moments) > other.count(moments)
    return float(moments[np.flatnonzero(ahead)[-1]]) if ahead.any() else 0.0
