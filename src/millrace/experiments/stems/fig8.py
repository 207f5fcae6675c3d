"""Q4: R.key = T.key, where T has an index and a scan. An index join, a hash join, and SteMs with both.

The index answers one lookup at a time; the scan of T is faster in all, but returns T in random order, so that
for long few tuples of R meet theirs. The run with both access methods is the production eddy's: the SteM
bounces tuples of R back, and the eddy asks the index for those whose answer it expects before the scan's.
"""

from __future__ import annotations

import numpy as np

from millrace.clock import VirtualClock
from millrace.experiments.experiment import Check, Experiment, Outcome, Panel, Parameter, Settings
from millrace.experiments.stems.watched import (
    Modules,
    Watched,
    WatchedIndex,
    block_of,
    scan,
    table_r,
    table_t,
    until,
    watch,
)
from millrace.options import Options


def run(settings: Settings) -> Outcome:
    """Run the join three ways."""
    draw = np.random.default_rng(settings.seed)
    tuples = settings.whole("tuples")
    tables = {"R": table_r(draw, tuples, min(250, tuples)), "T": table_t(draw, tuples)}
    spec = block_of(tables, "R.key = T.key")
    scan_end = tuples / settings["rate_t"]

    def side(begin: float, *, index: bool, scanned: bool) -> tuple[Watched, list[tuple[float, int]]]:
        made: list[WatchedIndex] = []

        def access(clock: VirtualClock) -> Modules:
            if index:
                made.append(WatchedIndex("T.key", ["key"], tables["T"], clock, settings["lookup"], 1))
            scans = [scan("T", tables["T"], clock, settings["rate_t"])] if scanned else []
            return {"R": [scan("R", tables["R"], clock, settings["rate_r"])], "T": [*made, *scans]}

        found = watch(spec, access, Options(batch_size=1), lambda done: settings.progress(begin + done / 3))
        return found, made[0].answered if made else []

    joined, _ = side(0.0, index=True, scanned=False)
    hashed, _ = side(1 / 3, index=False, scanned=True)
    hybrid, answered = side(2 / 3, index=not settings.ablated, scanned=True)

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
            Panel("(i) the beginning", "time (s)", "results", zoomed, kind="steps"),
            Panel(
                "(ii) the whole run",
                "time (s)",
                "results",
                curves,
                kind="steps",
                marks=((scan_end, "end of T's scan"),),
            ),
        ),
        {
            "end_index_join": joined.end,
            "end_hash_join": hashed.end,
            "end_hybrid": hybrid.end,
            "crossing": early,
            "lookups": len(answered),
            "redundant_share": late,
            "most_behind": float(behind.max()),
        },
        (
            Check(
                "the three return the same answer",
                joined.answer == hashed.answer == hybrid.answer and len(hybrid.times) == tuples,
                f"{len(joined.times)}, {len(hashed.times)} and {len(hybrid.times)} results",
            ),
            Check(
                "the index join is ahead of the hash join at first, and behind in the end",
                0 < early < hashed.end / 2 and joined.end > 1.2 * hashed.end,
                f"overtaken at {early:.0f} s; ends at {joined.end:.0f} and {hashed.end:.0f} s",
            ),
            # "tracks the best of these two". A lookup more or less is under way, and near the end of the
            # scan one may be asked for what the scan returns: two results, or 1 % of many.
            Check(
                "the hybrid is never behind the better of the two by more than 1 % of the results",
                float(behind.max()) <= max(0.01, 2 / tuples),
                f"{behind.max():.1%} at most",
            ),
            # "performs much like the index join by routing most of the R tuples to the T index"
            Check(
                "until half-way to where the hash join catches up, it has as many results as the index join",
                share >= 0.95,
                f"{share:.0%} of them at least",
            ),
            # "almost no redundant work": what is under way, or next, may come by the scan meanwhile. With
            # so few tuples that two lookups last for a good part of the scan it is more.
            Check(
                "at most 10 % of the lookups return what the scan has returned already",
                late <= max(0.1, 5 * 2 * settings["lookup"] / scan_end) and bool(answered),
                f"{late:.1%} of {len(answered)}",
            ),
            Check(
                "no lookup begins after the scan's end",
                after == 0,
                f"{after} do",
            ),
            # "slightly more than that of the hash join"
            Check(
                "it ends with the hash join, within 5 %",
                hybrid.end <= 1.05 * hashed.end,
                f"{hybrid.end:.1f} and {hashed.end:.1f} s",
            ),
        ),
    )


def _crossing(one: Watched, other: Watched) -> float:
    """Return when the other has as many results as this one, having had fewer."""
    moments = np.linspace(0, min(one.end, other.end), 2000)
    ahead = one.count(moments) > other.count(moments)
    return float(moments[np.flatnonzero(ahead)[-1]]) if ahead.any() else 0.0


EXPERIMENT = Experiment(
    id="stems-fig8",
    title="an index join that turns into a hash join",
    source="Raman, Deshpande & Hellerstein 2003, section 4.3, figure 8",
    claim=(
        "With an index and a scan on T, the eddy tracks the better of index join and hash join: it behaves "
        "like the index join while most of the scan is to come, like the hash join later, and ends no more "
        "than slightly after the hash join."
    ),
    mechanism="the index beside the scan: without it tuples wait for the scan as long as it flows",
    parameters=(
        Parameter("tuples", 1000, 100, 100_000, "tuples", "in R and in T, one for each key"),
        Parameter("rate_r", 10.0, 0.01, 1e6, "tuples/s", "of the scan of R"),
        Parameter("rate_t", 17.0, 0.01, 1e6, "tuples/s", "of the scan of T, which ends at about 59 s"),
        Parameter("lookup", 0.2, 1e-4, 100.0, "s", "that a lookup in T takes; one at a time"),
    ),
    run=run,
)
