"""Figures 4 to 6: ``SELECT * FROM U WHERE s1() AND s2()`` (Avnur & Hellerstein 2000, sections 4.1 and 4.2).

U has 50,000 tuples of 100 bytes; what is in them does not matter and is left out. A selection is a spin loop
of some delay units and a decision drawn at random. One processor serves both selections and nothing else.

Back-pressure alone can be worked out. Let both selections cost the same, both queues be full, s1 keep ``k``
and s2 a half, and ``x`` be the share of tuples that meet s1 first. With equal turns both work on as many:
``x + (1 - x) / 2 = (1 - x) + k x``, so ``x = 1 / (3 - 2 k)``: from 36 % at ``k`` = 10 % to 83 % at 90 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.clock import VirtualClock
from millrace.experiments.eddies.engine import DRAWN, LOTTERY, NAIVE, eddy, finished, place
from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.lab.run import Finished
from millrace.experiments.lab.selections import selection
from millrace.experiments.lab.sources import batches

COST, KEPT = 5.0, 0.5
ORDERS = {"s1 first": ("s1", "s2"), "s2 first": ("s2", "s1")}
"""Static orders: an eddy that keeps to the order of the WHERE clause."""


@dataclass(frozen=True)
class Pair:
    """Two selections: delay units for each tuple, and the share of tuples that pass."""

    costs: tuple[float, float]
    kept: tuple[float, float]


def run_pair(pair: Pair, plan: str, settings: Settings) -> Finished:
    """Run the query by a policy or a static order; time is in delay units."""
    draw = np.random.default_rng(settings.seed)
    tuples = settings.whole("tuples")
    table = pa.table({f"s{i + 1}": draw.random(tuples) < kept for i, kept in enumerate(pair.kept)})
    clock = VirtualClock()
    costs = dict(zip(("s1", "s2"), pair.costs, strict=True))
    order = ORDERS.get(plan, ("s1", "s2"))
    spec = block({"U": table}, predicates=[selection("U", name, costs[name], clock) for name in order])
    run = eddy(
        spec,
        {"U": batches(table, settings.whole("batch"))},
        settings,
        clock,
        order if plan in ORDERS else plan,
    )
    both = np.logical_and(*(column.to_numpy() for column in table.columns))
    return finished(run, clock, int(both.sum()))


def sweep(pairs: list[Pair], plans: tuple[str, ...], settings: Settings) -> tuple[dict[str, np.ndarray], ...]:
    """Return delay units for each tuple and the share of tuples that met s1 first, by plan."""
    costs: dict[str, list[float]] = {name: [] for name in plans}
    shares: dict[str, list[float]] = {name: [] for name in plans}
    for i, pair in enumerate(pairs):
        for name in plans:
            done = run_pair(pair, name, settings)
            costs[name].append(done.seconds / settings.whole("tuples"))
            shares[name].append(done.share("U", "s1"))
        settings.progress((i + 1) / len(pairs))
    return tuple({name: np.array(found[name]) for name in plans} for found in (costs, shares))


def spread(settings: Settings, low: float, high: float) -> np.ndarray:
    """Return the values of x."""
    return np.linspace(low, high, settings.whole("points"))


def by_cost(settings: Settings) -> list[Pair]:
    """Return figure 4's selections: the cost of s1 varies."""
    return [Pair((float(cost), COST), (KEPT, KEPT)) for cost in spread(settings, 1, 9)]


def by_kept(settings: Settings) -> list[Pair]:
    """Return figure 5's selections: the share that s1 keeps varies."""
    return [Pair((COST, COST), (float(kept), KEPT)) for kept in spread(settings, 0.1, 0.9)]


def fig4(settings: Settings) -> Outcome:
    """Vary the cost of s1 from 1 to 9 while s2 costs 5."""
    plans = (*ORDERS, NAIVE, LOTTERY)
    found, _ = sweep(by_cost(settings), plans, settings)
    best = np.minimum(*(found[name] for name in ORDERS))
    over = {name: float((found[name] / best).max()) for name in plans}
    x = spread(settings, 1, 9)
    panel = Panel(
        "Two 50 % selections; s2 costs 5 delay units",
        "cost of s1 (delay units)",
        "time for each tuple (delay units)",
        [Curve(name, x.tolist(), values.tolist()) for name, values in found.items()],
    )
    figures = {"naive_over_best": over[NAIVE], "lottery_over_best": over[LOTTERY]}
    figures |= {"lottery_gain": float((found[NAIVE] - found[LOTTERY]).mean() / best.mean())}
    return Outcome((panel,), figures | {"worst_over_best": max(over[name] for name in ORDERS)})


def fig5(settings: Settings) -> Outcome:
    """Vary the share that s1 keeps from 10 % to 90 %."""
    plans = (*ORDERS, NAIVE, LOTTERY, DRAWN)
    found, _ = sweep(by_kept(settings), plans, settings)
    x = spread(settings, 0.1, 0.9)
    told = np.flatnonzero(abs(x - KEPT) > 0.05)  # where both are alike, there is nothing to find
    places = {
        name: float(np.mean([place(found[name][i], [found[order][i] for order in ORDERS]) for i in told]))
        for name in (NAIVE, LOTTERY, DRAWN)
    }
    panel = Panel(
        "Both selections cost 5 delay units; s2 keeps 50 %",
        "share of tuples that s1 keeps",
        "time for each tuple (delay units)",
        [Curve(name, x.tolist(), values.tolist()) for name, values in found.items()],
    )
    figures = {"naive_place": places[NAIVE], "lottery_place": places[LOTTERY]}
    return Outcome((panel,), figures | {"equal_turns_place": places[DRAWN]})


def fig6(settings: Settings) -> Outcome:
    """Follow the share of tuples that meet s1 first in both sweeps."""
    plans = (NAIVE, LOTTERY)
    (_, costs), (_, kept) = (sweep(pairs(settings), plans, settings) for pairs in (by_cost, by_kept))
    x = spread(settings, 0.1, 0.9)
    figures = {
        f"{name}_by_{what}": float(found[name][0] - found[name][-1])
        for name in plans
        for what, found in (("cost", costs), ("selectivity", kept))
    }
    figures["conservation_error"] = float(abs(kept[NAIVE] - 1 / (3 - 2 * x)).max())
    figures["lottery_where_alike"] = float(kept[LOTTERY][len(x) // 2])
    panels = [
        Panel(
            title,
            label,
            "share of tuples that meet s1 first",
            [Curve(p, at.tolist(), found[p].tolist()) for p in plans],
        )
        for title, label, at, found in (
            ("As the cost varies (figure 4)", "cost of s1 (delay units)", spread(settings, 1, 9), costs),
            ("As the selectivity varies (figure 5)", "share of tuples that s1 keeps", x, kept),
        )
    ]
    return Outcome(panels, figures)
