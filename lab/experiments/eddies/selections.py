"""Figures 4 to 6: ``SELECT * FROM U WHERE s1() AND s2()`` (Avnur & Hellerstein 2000, sections 4.1 and 4.2).

U has 50,000 tuples of 100 bytes; what is in them does not matter and is left out. A selection is a spin loop
of some delay units and a decision drawn at random. One processor serves both selections and nothing else.

Back-pressure alone can be worked out. Let both selections cost the same, both queues be full, s1 keep ``k``
and s2 a half, and ``x`` be the share of tuples that meet s1 first. With equal turns both work on as many:
``x + (1 - x) / 2 = (1 - x) + k x``, so ``x = 1 / (3 - 2 k)``: from 36 % at ``k`` = 10 % to 83 % at 90 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lab.experiments.eddies.engine import DRAWN, LOTTERY, NAIVE, eddy, place
from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.block import block, selection
from lab.experiments.lab.run import Finished, batches, finish
from millrace.limits.clock import VirtualClock

COST, KEPT = 5.0, 0.5
ORDERS = {"s1 first": ("s1", "s2"), "s2 first": ("s2", "s1")}
"""Static orders: an eddy that keeps to the order of the WHERE clause."""

_COST, _KEPT = "cost of s1 (delay units)", "share of tuples that s1 keeps"
_TIME, _SHARE = "time for each tuple (delay units)", "share of tuples that meet s1 first"


@dataclass(frozen=True)
class Pair:
    """Two selections: delay units for each tuple, and the share of tuples that pass."""

    costs: tuple[float, float]
    kept: tuple[float, float]


def run_pair(pair: Pair, plan: str, settings: Settings) -> Finished:
    """Run the query by a policy or a static order; time is in delay units."""
    draw = np.random.default_rng(settings.seed)
    passing = {f"s{i + 1}": draw.random(settings["tuples"]) < kept for i, kept in enumerate(pair.kept)}
    table = pa.table(passing)
    clock = VirtualClock()
    costs = dict(zip(passing, pair.costs, strict=True))
    order = ORDERS.get(plan, tuple(passing))
    spec = block({"U": table}, predicates=[selection("U", name, costs[name], clock) for name in order])
    sources = {"U": batches(table, settings["batch"])}
    run = eddy(spec, sources, settings, clock, order if plan in ORDERS else plan)
    return finish(run, clock, int(np.logical_and(*passing.values()).sum()))


def sweep(
    pairs: Sequence[Pair], plans: Sequence[str], settings: Settings
) -> tuple[dict[str, np.ndarray], ...]:
    """Return delay units for each tuple and the share of tuples that met s1 first, by plan."""
    done = {plan: [run_pair(pair, plan, settings) for pair in pairs] for plan in plans}
    costs = {
        plan: np.array([run.seconds for run in runs]) / settings["tuples"] for plan, runs in done.items()
    }
    return costs, {plan: np.array([run.share("U", "s1") for run in runs]) for plan, runs in done.items()}


def by_cost(settings: Settings) -> tuple[np.ndarray, list[Pair]]:
    """Return figure 4's costs of s1, and its selections."""
    x = np.linspace(1, 9, settings["points"])
    return x, [Pair((float(cost), COST), (KEPT, KEPT)) for cost in x]


def by_kept(settings: Settings) -> tuple[np.ndarray, list[Pair]]:
    """Return the shares that figure 5's s1 keeps, and its selections."""
    x = np.linspace(0.1, 0.9, settings["points"])
    return x, [Pair((COST, COST), (float(kept), KEPT)) for kept in x]


def fig4(settings: Settings) -> Outcome:
    """Vary the cost of s1 from 1 to 9 while s2 costs 5."""
    x, pairs = by_cost(settings)
    found, _ = sweep(pairs, (*ORDERS, NAIVE, LOTTERY), settings)
    best = np.minimum(*(found[name] for name in ORDERS))
    over = {name: (costs / best).max() for name, costs in found.items()}
    figures = {
        "naive_over_best": over[NAIVE],
        "lottery_over_best": over[LOTTERY],
        "lottery_gain": (found[NAIVE] - found[LOTTERY]).mean() / best.mean(),
        "worst_over_best": max(over[name] for name in ORDERS),
    }
    panel = Panel.over("Two 50 % selections; s2 costs 5 delay units", _COST, _TIME, x, found)
    return Outcome([panel], figures)


def fig5(settings: Settings) -> Outcome:
    """Vary the share that s1 keeps from 10 % to 90 %."""
    x, pairs = by_kept(settings)
    found, _ = sweep(pairs, (*ORDERS, NAIVE, LOTTERY, DRAWN), settings)
    told = np.flatnonzero(abs(x - KEPT) > 0.05)  # where both are alike, there is nothing to find

    def mean_place(plan: str) -> float:
        return float(np.mean([place(found[plan][i], [found[order][i] for order in ORDERS]) for i in told]))

    plans = {"naive": NAIVE, "lottery": LOTTERY, "equal_turns": DRAWN}
    panel = Panel.over("Both selections cost 5 delay units; s2 keeps 50 %", _KEPT, _TIME, x, found)
    return Outcome([panel], {f"{name}_place": mean_place(plan) for name, plan in plans.items()})


def fig6(settings: Settings) -> Outcome:
    """Follow the share of tuples that meet s1 first in both sweeps."""
    plans = (NAIVE, LOTTERY)
    (costs, dearer), (kept, keeping) = by_cost(settings), by_kept(settings)
    (_, by_costs), (_, by_keeps) = (sweep(pairs, plans, settings) for pairs in (dearer, keeping))
    figures = {
        f"{name}_by_{what}": found[name][0] - found[name][-1]
        for name in plans
        for what, found in (("cost", by_costs), ("selectivity", by_keeps))
    }
    figures["conservation_error"] = abs(by_keeps[NAIVE] - 1 / (3 - 2 * kept)).max()
    figures["lottery_where_alike"] = by_keeps[LOTTERY][len(kept) // 2]
    panels = [
        Panel.over("As the cost varies (figure 4)", _COST, _SHARE, costs, by_costs),
        Panel.over("As the selectivity varies (figure 5)", _KEPT, _SHARE, kept, by_keeps),
    ]
    return Outcome(panels, figures)
