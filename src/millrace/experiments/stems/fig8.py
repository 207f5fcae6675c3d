"""Q4: R.key = T.key, where T has an index and a scan. An index join, a hash join, and SteMs with both.

The index answers one lookup at a time; the scan of T is faster in all, but returns T in random order, so that
for long few tuples of R meet theirs. The run with both access methods is the production eddy's: the SteM
bounces tuples of R back, and the eddy asks the index for those whose answer it expects before the scan's.
Nobody is told how large T is: what the scan will have returned by when is learned from its pace.
"""

from __future__ import annotations

import numpy as np

from millrace.clock import VirtualClock
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.stems.watched import (
    Modules,
    Watched,
    WatchedIndex,
    over_time,
    scan,
    table_r,
    table_t,
    until,
    watch,
)
from millrace.options import Options

SCAN_ALONE, INDEX_ALONE, QUICK = "scan-alone", "index-alone", "quick-index"


def run(settings: Settings) -> Outcome:
    """Run the join three ways."""
    draw = np.random.default_rng(settings.seed)
    tuples = settings.whole("tuples")
    tables = {"R": table_r(draw, tuples, min(250, tuples)), "T": table_t(draw, tuples)}
    spec = block(tables, "R.key = T.key", all_columns=True, rows={"T": None})
    lookup = settings["lookup"] / (10 if settings.ablated == QUICK else 1)
    scan_end = tuples / settings["rate_t"]

    def side(begin: float, *, index: bool, scanned: bool) -> Watched:
        def access(clock: VirtualClock) -> Modules:
            indexes = [WatchedIndex("T.key", ["key"], tables["T"], clock, lookup, 1)] if index else []
            scans = [scan("T", tables["T"], clock, settings["rate_t"])] if scanned else []
            return {"R": [scan("R", tables["R"], clock, settings["rate_r"])], "T": [*indexes, *scans]}

        return watch(spec, access, Options(batch_size=1), lambda done: settings.progress(begin + done / 3))

    joined = side(0.0, index=True, scanned=False)
    hashed = side(1 / 3, index=False, scanned=True)
    hybrid = side(2 / 3, index=settings.ablated != SCAN_ALONE, scanned=settings.ablated != INDEX_ALONE)
    answered = hybrid.answered
    if not joined.answer == hashed.answer == hybrid.answer or len(hybrid.times) != tuples:
        raise ExecutionError(f"{len(joined.times)}, {len(hashed.times)} and {len(hybrid.times)} results")

    moments = np.linspace(0, hybrid.end, 1000)
    best = np.maximum(joined.count(moments), hashed.count(moments))
    behind = (best - hybrid.count(moments)) / tuples
    early = _crossing(joined, hashed)
    begun = moments[(joined.count(moments) >= 5) & (moments <= early / 2)]
    share = float((hybrid.count(begun) / joined.count(begun)).min()) if len(begun) else 0.0
    scanned_at = {
        key: (place + 1) / settings["rate_t"] for place, key in enumerate(tables["T"]["key"].to_pylist())
    }
    late = sum(when > scanned_at[key] for when, key in answered) / max(1, len(answered))
    after = sum(when - settings["lookup"] > scan_end for when, _ in answered)
    curves = (joined.curve("index join"), hashed.curve("hash join"), hybrid.curve("SteMs, hybrid"))
    zoomed = [until(each, 1.2 * early) for each in curves]
    return Outcome(
        (
            over_time("(i) the beginning", zoomed),
            over_time("(ii) the whole run", curves, marks=((scan_end, "end of T's scan"),)),
        ),
        {
            "end_index_join": joined.end,
            "end_hash_join": hashed.end,
            "end_hybrid": hybrid.end,
            "crossing": early,
            "lookups": len(answered),
            "redundant_share": late,
            "most_behind": float(behind.max()),
            "early_share": share,
            "redundant": late / max(0.1, 5 * 2 * settings["lookup"] / scan_end) if answered else 2.0,
            "late_lookups": after,
            "crossing_share": early / hashed.end,
            "index_join_over_hash_join": joined.end / hashed.end,
            "end_over_hash_join": hybrid.end / hashed.end,
        },
    )


def _crossing(one: Watched, other: Watched) -> float:
    """Return when the other has as many results as this one, having had fewer."""
    moments = np.linspace(0, min(one.end, other.end), 2000)
    ahead = one.count(moments) > other.count(moments)
    return float(moments[np.flatnonzero(ahead)[-1]]) if ahead.any() else 0.0
