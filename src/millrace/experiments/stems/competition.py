"""R.key = T.key, where T has two access methods and one of them stalls half-way.

In the first case the other one is a slower scan of another copy of T, in the second an index. All of them
build into the same SteM, so what one has brought is there for the others: duplicates end as they are built,
and the index is not asked for what a scan has returned.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from millrace.arrivals.access_modules import IndexAM, ScanAM
from millrace.clock import VirtualClock
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.stems.watched import (
    INT,
    Modules,
    Watched,
    WatchedIndex,
    over_time,
    scan,
    table_r,
    table_t,
    watch,
)
from millrace.options import Options

ALONE, WORSE, TWICE = "alone", "worse-alone", "own-stems"
_CASES: Mapping[str, tuple[str, ...]] = {
    "fast scan alone": ("fast",),
    "slow scan alone": ("slow",),
    "two scans": ("fast", "slow"),
    "index alone": ("index",),
    "scan and index": ("fast", "index"),
}


def run(settings: Settings) -> Outcome:
    """Run the join with each access method of T alone, and with two."""
    draw = np.random.default_rng(settings.seed)
    tuples = settings.whole("tuples")
    tables = {"R": table_r(draw, tuples, 1), "T": table_t(draw, tuples)}
    copy = tables["T"]
    joined = tables["R"].num_columns + copy.num_columns
    if settings.ablated == TWICE:
        # No tuple of one scan is identical to one of the other, so the SteM keeps both.
        tables["T"], copy = (copy.append_column("scan", pa.array([n] * tuples, INT)) for n in (1, 2))
    copy = copy.take(draw.permutation(tuples))
    spec = block(tables, "R.key = T.key", all_columns=True)
    stalls, goes_on = tuples / 2 / settings["fast"], tuples / 2 / settings["fast"] + settings["stall"]

    def side(modules: tuple[str, ...], begin: float) -> Watched:
        def access(clock: VirtualClock) -> Modules:
            stall = (tuples // 2, settings["stall"])
            made: dict[str, ScanAM | IndexAM] = {
                "fast": scan("T, fast", tables["T"], clock, settings["fast"], stall=stall),
                "slow": scan("T, slow", copy, clock, settings["slow"]),
                "index": WatchedIndex("T.key", ["key"], tables["T"], clock, settings["lookup"], 1),
            }
            wanted = modules[:1] if settings.ablated == ALONE else modules
            if settings.ablated == WORSE and len(modules) > 1:
                wanted = modules[1:]
            r = scan("R", tables["R"], clock, settings["rate"])
            return {"R": [r], "T": [made[each] for each in wanted]}

        done = Options(batch_size=1), lambda done: settings.progress((begin + done) / len(_CASES))
        return watch(spec, access, *done)

    ran = {name: side(modules, float(i)) for i, (name, modules) in enumerate(_CASES.items())}
    scans = ran["two scans"]

    lasts = {name: float(each.times[-1]) for name, each in ran.items()}
    early = np.linspace(0, stalls, 200)
    behind = (ran["fast scan alone"].count(early) - scans.count(early)).max() / tuples
    lookups = ran["scan and index"].answered
    scanned = tables["T"]["key"].to_pylist()[: tuples // 2]
    came = {key: (place + 1) / settings["fast"] for place, key in enumerate(scanned)}
    redundant = sum(came.get(key, when) < when for when, key in lookups) / max(1, len(lookups))
    (built,) = (state.inserted for state in scans.figures.state if state.name == "SteM(T)")
    probes = sum(m.tuples_in for m in scans.figures.modules if m.name == "SteM(R)" and m.action == "probe")
    results = [{row[:joined] for row in each.answer} for each in ran.values()]
    once = settings.ablated == TWICE or all(len(each.times) == tuples for each in ran.values())
    if not once or any(found != results[0] or len(found) != tuples for found in results):
        raise ExecutionError(f"{[len(each.times) for each in ran.values()]} results of {tuples}")
    marks = ((stalls, "the fast scan stalls"), (goes_on, "and goes on"))
    return Outcome(
        [
            over_time(title, [ran[name].curve(name) for name in names], marks=marks)
            for title, names in (
                ("two scans", ("fast scan alone", "slow scan alone", "two scans")),
                ("a scan and an index", ("fast scan alone", "index alone", "scan and index")),
            )
        ],
        {
            **{f"last_{name.replace(' ', '_')}": when for name, when in lasts.items()},
            "lookups": len(lookups),
            "redundant_share": redundant,
            "redundant": redundant / max(0.1, 5 * 2 * settings["lookup"] / (2 * stalls)) if lookups else 2.0,
            "built_twice": max(built, probes) / tuples - 1,
            "behind_fast": max(0.0, float(behind)),
            "end_over_slow": scans.end / ran["slow scan alone"].end,
            "wait_over_half_index": (lasts["scan and index"] - stalls) / (tuples / 2 * settings["lookup"]),
        },
    )
