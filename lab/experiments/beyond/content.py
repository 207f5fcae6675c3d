"""Content-sensitive routing: a table of two parts that want opposite orders, told apart by an attribute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.chain import chain, results
from lab.experiments.lab.costs import MICRO, Costs
from lab.experiments.lab.run import all_batches, finish
from lab.experiments.lab.work import COST
from millrace.engine.runs.eddy_run import EddyRun
from millrace.limits.clock import VirtualClock
from millrace.options import Options

BLIND, DEAR = "blind", "dear"
_DIVIDE = 0.1
"""What it takes to divide a tuple, over what a probe takes; measured, it is less."""

_KEYS = 2000
_FEW, _MANY = 0.1, 4
"""Share of the keys that have a match, for the part that a join thins out; matches of a key of the other."""

_BATCH = 2000
_ORDERS = {"R first": ("S", "R", "T"), "T first": ("S", "T", "R")}


def tables(tuples: int, seed: int, *, told: bool) -> dict[str, pa.Table]:
    """Return S, R and T: half of S finds little in R and much in T, the other half the other way round.

    Where it is ``told``, the attribute ``part`` tells the halves apart; else nothing in a tuple does.
    """
    random = np.random.default_rng(seed)
    part = random.integers(0, 2, tuples)
    # Keys with many matches lie anywhere among those with few: what a key is worth is not seen on it.
    names = random.permutation(2 * _KEYS)
    few, many = names[:_KEYS], names[_KEYS:]
    drawn = random.integers(0, _KEYS, (2, tuples))
    a, b = (np.where(part == side, many[keys], few[keys]) for side, keys in enumerate(drawn))
    shown = np.array(["left", "right"])[part if told else random.integers(0, 2, tuples)]
    matched = np.concatenate([random.choice(few, round(_FEW * _KEYS), replace=False), np.repeat(many, _MANY)])
    return {
        "S": pa.table({"part": shown, "noise": random.integers(0, 1000, tuples), "a": a, "b": b}),
        "R": pa.table({"a": random.permutation(matched)}),
        "T": pa.table({"b": random.permutation(matched)}),
    }


def work(data: dict[str, pa.Table], options: Options, divide: float) -> float:
    """Return the seconds that an eddy works; what it samples is charged like other probes."""
    probes = {("probe", 1): MICRO, ("probe", 2): MICRO}
    clock = VirtualClock(costs=Costs({**probes, ("divide", 0): divide * MICRO}, probes))
    eddy = EddyRun(chain(data), all_batches(data, _BATCH), options, clock=clock)
    return finish(eddy, clock, results(data)).seconds + (10 * divide) * eddy.sampled * MICRO


def run(settings: Settings) -> Outcome:
    """Run every single order, an eddy that looks at signatures alone, and one that looks at content."""
    common = Options(
        batch_size=_BATCH, reoptimize_every=10 * _BATCH, transfer=False, seed=settings.seed, by_content=False
    )
    sides = {
        **{name: replace(common, policy="fixed", order=order) for name, order in _ORDERS.items()},
        "eddy": common,
        "eddy by content": replace(common, by_content=settings.ablated != BLIND),
    }
    divide = 1.0 if settings.ablated == DEAR else _DIVIDE
    seconds = {}
    for title, known in (("an attribute tells", True), ("nothing tells", False)):
        data = tables(settings["tuples"], settings.seed, told=known)
        seconds[title] = {name: work(data, options, divide) for name, options in sides.items()}
    told, untold = seconds.values()
    best, least = (min(each[name] for name in _ORDERS) for each in (told, untold))
    figures = {
        "content_over_best_order": told["eddy by content"] / best,
        "eddy_over_best_order": told["eddy"] / best,
        "untold_over_best_order": untold["eddy by content"] / least,
        "untold_over_eddy": untold["eddy by content"] / untold["eddy"],
    }
    return Outcome([Panel.bars(title, COST, each) for title, each in seconds.items()], figures)
