"""R.key = T.key, where T has two access methods and one of them stalls half-way.

In the first case the other one is a slower scan of another copy of T, in the second an index. All of them
build into the same SteM, so what one has brought is there for the others: duplicates end as they are built,
and the index is not asked for what a scan has returned.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from lab.experiments.experiment import Outcome, Settings
from lab.experiments.lab.block import block
from lab.experiments.lab.indexes import RemoteIndex
from lab.experiments.stems.watched import INT, Watched, over_time, scan, table_r, table_t, watch
from millrace.engine.arrivals.access_modules import IndexAM, ScanAM
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock

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
    tuples, broken = settings["tuples"], settings.ablated
    tables = {"R": table_r(draw, tuples, 1), "T": table_t(draw, tuples)}
    copy = tables["T"]
    joined = tables["R"].num_columns + copy.num_columns
    if broken == TWICE:
        # No tuple of one scan is identical to one of the other, so the SteM keeps both.
        tables["T"], copy = (copy.append_column("scan", pa.array([n] * tuples, INT)) for n in (1, 2))
    copy = copy.take(draw.permutation(tuples))
    spec = block(tables, "R.key = T.key", all_columns=True)
    half = tuples // 2

    def side(modules: tuple[str, ...]) -> Watched:
        clock = VirtualClock()
        stall = (half, settings["stall"])
        made: dict[str, ScanAM | IndexAM] = {
            "fast": scan("T, fast", tables["T"], clock, settings["fast"], stall=stall),
            "slow": scan("T, slow", copy, clock, settings["slow"]),
            "index": RemoteIndex(["key"], tables["T"], clock, settings["lookup"]),
        }
        if broken == ALONE:
            modules = modules[:1]
        if broken == WORSE:
            modules = modules[-1:]
        r = scan("R", tables["R"], clock, settings["rate"])
        return watch(spec, clock, {"R": [r], "T": [made[each] for each in modules]})

    ran = {name: side(modules) for name, modules in _CASES.items()}
    answers = [{row[:joined] for row in each.answer} for each in ran.values()]
    counts = [len(each.times) for each in ran.values()]
    once = broken == TWICE or counts == [tuples] * len(ran)
    if not once or any(found != answers[0] or len(found) != tuples for found in answers):
        raise ExecutionError(f"{counts} results of {tuples}")

    scans, lookups = ran["two scans"], ran["scan and index"].answered
    stalls = tuples / 2 / settings["fast"]
    early = np.linspace(0, stalls, 200)
    behind = (ran["fast scan alone"].count(early) - scans.count(early)).max() / tuples
    came = {key: (n + 1) / settings["fast"] for n, key in enumerate(tables["T"]["key"].to_pylist()[:half])}
    redundant = sum(came.get(key, when) < when for when, key in lookups) / max(1, len(lookups))
    (built,) = (state.inserted for state in scans.figures.state if state.name == "SteM(T)")
    probes = sum(m.tuples_in for m in scans.figures.modules if m.name == "SteM(R)" and m.action == "probe")
    figures = {
        "redundant": redundant / max(0.1, 5 * 2 * settings["lookup"] / (2 * stalls)) if lookups else 2.0,
        "built_twice": max(built, probes) / tuples - 1,
        "behind_fast": max(0.0, float(behind)),
        "end_over_slow": scans.end / ran["slow scan alone"].end,
        "wait_over_half_index": (ran["scan and index"].times[-1] - stalls)
        / (tuples / 2 * settings["lookup"]),
    }
    marks = ((stalls, "the fast scan stalls"), (stalls + settings["stall"], "and goes on"))
    shown = {
        "two scans": ("fast scan alone", "slow scan alone", "two scans"),
        "a scan and an index": ("fast scan alone", "index alone", "scan and index"),
    }
    panels = [
        over_time(title, [ran[name].curve(name) for name in names], marks=marks)
        for title, names in shown.items()
    ]
    return Outcome(panels, figures)
