"""Figures 7 and 8: joins with a remote index, which answers one lookup at a time, as modules or over SteMs.

Q1: R.a = S.x, where S can only be asked. An index join and SteMs both ask for the 250 values of ``a`` that
there are, in the order in which R brings them, so the remote source is as busy in one as in the other. In the
index join a tuple waits for the lookups of all before it; what it looks for may be in the cache already. With
SteMs the queue for the cache is another one than the queue for the index.

Q4: R.key = T.key, where T has an index and a scan. An index join, a hash join, and SteMs with both. The scan
of T is faster in all, but returns T in random order, so that for long few tuples of R meet theirs. The run
with both access methods is the production eddy's: the SteM bounces tuples of R back, and the eddy asks the
index for those whose answer it expects before the scan's. Nobody is told how large T is: what the scan will
have returned by when is learned from its pace.
"""

from __future__ import annotations

import numpy as np

from lab.experiments.experiment import Curve, Outcome, Settings
from lab.experiments.lab.block import block
from lab.experiments.lab.indexes import RemoteIndex
from lab.experiments.stems.watched import (
    Watched,
    check_answers,
    over_time,
    scan,
    table_r,
    table_s,
    table_t,
    until,
    watch,
)
from millrace.engine.arrivals.access_methods import Access
from millrace.limits.clock import VirtualClock

ENCAPSULATED, UNBLOCKED, SLOWER = "encapsulated", "unblocked", "slower"
SCAN_ALONE, INDEX_ALONE, QUICK = "scan-alone", "index-alone", "quick-index"


def fig7(settings: Settings) -> Outcome:
    """Run Q1 both ways."""
    draw = np.random.default_rng(settings.seed)
    values, broken = settings["values"], settings.ablated
    tables = {"R": table_r(draw, settings["tuples"], values), "S": table_s(values)}
    spec = block(tables, "R.a = S.x", all_columns=True)

    def side(architecture: str, lookup: float) -> Watched:
        clock = VirtualClock()
        index = RemoteIndex(["x"], tables["S"], clock, lookup)
        access: Access = {"R": [scan("R", tables["R"], clock, settings["rate"])], "S": [index]}
        return watch(spec, clock, access, architecture=architecture)

    lookup = settings["lookup"]
    join = side("stems" if broken == UNBLOCKED else "joins", lookup)
    slower = lookup * (1.1 if broken == SLOWER else 1.0)
    stems = side("joins" if broken == ENCAPSULATED else "stems", slower)
    check_answers(tables["R"].num_rows, join, stems)
    join_probes, stems_probes = (np.array([when for when, _ in each.answered]) for each in (join, stems))

    moments = np.linspace(0, join.end, 500)
    ahead = int((stems.count(moments) - join.count(moments)).min())
    straight = len(stems.times) * moments / stems.end
    bend = np.abs(stems.count(moments) - straight)[moments <= stems.end].max()
    apart = np.abs(np.searchsorted(join_probes, moments) - np.searchsorted(stems_probes, moments)).max()
    figures = {
        "half_join": join.share_at(0.5) / join.end,
        "half_stems": stems.share_at(0.5) / stems.end,
        "bend": float(bend) / len(stems.times),
        "probes_apart": max(apart - 1, *(abs(len(each) - values) for each in (join_probes, stems_probes)))
        / values,
        "end_ratio": stems.end / join.end,
        "behind": -min(0, ahead) / max(np.bincount(tables["R"]["a"].to_numpy())),
    }
    probes = {"index join": join_probes, "SteMs": stems_probes}
    curves = [Curve(name, (0, *each), range(len(each) + 1)) for name, each in probes.items()]
    panels = [
        over_time("(i) results", [join.curve("index join"), stems.curve("SteMs")]),
        over_time("(ii) probes into S", curves, "lookups answered"),
    ]
    return Outcome(panels, figures)


def fig8(settings: Settings) -> Outcome:
    """Run Q4 three ways."""
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
