"""Avnur & Hellerstein 2000, *Eddies*, figures 4 to 13: what back-pressure and lotteries learn.

The paper's modules are threads with queues of fixed size between them, and its tuples are routed one by
one. Here ten are routed together, in figure 11 one by one, and ten fill a queue. One processor serves all
modules. Static orders are eddies that keep to one order, as in the paper.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lab.figures.engine import (
    Ran,
    Started,
    batches,
    block,
    run,
    selection,
)
from lab.figures.figure import Claim, Figure, Outcome, Panel, Parameter, Settings
from millrace.engine.arrivals.access_methods import Access
from millrace.engine.arrivals.schedule import Source
from millrace.engine.policies import Candidate, Fixed, Lottery, Naive, Policy, WindowedLottery
from millrace.engine.policies.base import Shares
from millrace.engine.router.back_pressure import Backpressure
from millrace.engine.spec import JoinSpec
from millrace.engine.tuples import Signature
from millrace.limits.clock import VirtualClock
from millrace.options import Options

NAIVE, LOTTERY, WINDOWED = "naive", "lottery", "windowed lottery"
DRAWN, WINDOWED_DRAWN = "lottery, equal turns", "windowed lottery, equal turns"
POLICIES: Mapping[str, type[Policy]] = {
    NAIVE: Naive,
    LOTTERY: Lottery,
    DRAWN: Lottery,
    WINDOWED: WindowedLottery,
    WINDOWED_DRAWN: WindowedLottery,
}
EVEN, NO_QUEUES, ALL_TICKETS = "even-tickets", "no-queues", "all-tickets"
STUCK, STUCK_T, STILL, PUNCTUAL = "stuck", "stuck-t", "no-queues-even-tickets", "punctual"
SAMPLES = 60


class EqualTurns(Policy):
    """Draws one module for each batch, so that modules have equal turns on the processor.

    An eddy with queues gives modules turns in proportion to the shares that a policy divides tuples by
    (lottery scheduling of the processor), which the paper's threads did not have. With one share at a time
    all turns are equal, and tickets decide about tuples alone.
    """

    def __init__(self, policy: Policy, batch: int, seed: int) -> None:
        self._policy = policy
        self._random = random.Random(seed)
        self.hold = batch

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return one operator."""
        shares = self._policy.choose(signature, candidates)
        (drawn,) = self._random.choices([operator for operator, _ in shares], [share for _, share in shares])
        return ((drawn, 1.0),)


def eddy(
    spec: JoinSpec,
    sources: Mapping[str, Source],
    settings: Settings,
    clock: VirtualClock,
    plan: str | Sequence[str],
    *,
    rows: int,
    access: Access | None = None,
    reading: Callable[[Started, str, int], None] | None = None,
) -> Ran:
    """Run an eddy on the paper's system, whole or broken as the settings say.

    Args:
        spec: The block.
        sources: That it reads.
        settings: With ``batch``, ``queue`` and ``buffer``.
        clock: Its time.
        plan: Name of a policy, or a static order of modules.
        rows: Of the result.
        access: Access modules by alias.
        reading: Called before each batch of a source is read, and at its end.
    """
    batch, broken, joins = settings["batch"], settings.ablated, len(spec.relations) > 1
    policy: Policy
    if isinstance(plan, str):
        equal = plan in (DRAWN, WINDOWED_DRAWN)
        kind = POLICIES[plan]
        if kind is Naive:
            kind = Lottery if broken == ALL_TICKETS else kind
        elif broken.endswith(EVEN):
            kind, equal = Naive, False
        policy = EqualTurns(kind(), batch, settings.seed) if equal else kind()
        if plan != NAIVE and broken in (STUCK, STUCK_T):
            policy = Fixed(("T",) if broken == STUCK_T else ())
    else:
        policy, equal = Fixed(tuple(plan)), False
    return run(
        spec,
        sources,
        Options(
            architecture="joins" if joins else "auto",
            batch_size=batch,
            online=joins,
            reoptimize_every=batch if equal else Options().reoptimize_every,
        ),
        clock=clock,
        policy=policy,
        queues=Backpressure(
            None if broken.startswith(NO_QUEUES) and isinstance(plan, str) else settings["queue"],
            settings["buffer"],
        ),
        rows=rows,
        access=access or {},
        reading=reading,
    )


def place(cost: float, orders: Sequence[float]) -> float:
    """Return where a cost lies between the best static order's (0) and the worst one's (1)."""
    return (cost - min(orders)) / (max(orders) - min(orders))


# Figures 4 to 6: SELECT * FROM U WHERE s1() AND s2() (sections 4.1 and 4.2).
#
# A selection is a spin loop of some delay units and a decision drawn at random. Back-pressure alone can be
# worked out. Let both selections cost the same, both queues be full, s1 keep k and s2 a half, and x be the
# share of tuples that meet s1 first. With equal turns both work on as many: x + (1 - x) / 2 = (1 - x) + k
# x, so x = 1 / (3 - 2 k): from 36 % at k = 10 % to 83 % at 90 %.

COST, KEPT = 5.0, 0.5
SELECTIONS = {"s1 first": ("s1", "s2"), "s2 first": ("s2", "s1")}


@dataclass(frozen=True)
class Pair:
    """Two selections: delay units for each tuple, and the share of tuples that pass."""

    costs: tuple[float, float]
    kept: tuple[float, float]


def run_pair(pair: Pair, plan: str, settings: Settings) -> Ran:
    """Run the query by a policy or a static order; time is in delay units."""
    draw = np.random.default_rng(settings.seed)
    passing = {f"s{i + 1}": draw.random(settings["tuples"]) < kept for i, kept in enumerate(pair.kept)}
    table = pa.table(passing)
    clock = VirtualClock()
    costs = dict(zip(passing, pair.costs, strict=True))
    order = SELECTIONS.get(plan, tuple(passing))
    spec = block({"U": table}, predicates=[selection("U", name, costs[name], clock) for name in order])
    rows = int(np.logical_and(*passing.values()).sum())
    sources: dict[str, Source] = {"U": batches(table, settings["batch"])}
    return eddy(spec, sources, settings, clock, order if plan in SELECTIONS else plan, rows=rows)


def sweep(pairs: Sequence[Pair], settings: Settings) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return delay units for each tuple, and the share of tuples that met s1 first, by plan."""
    plans = (*SELECTIONS, NAIVE, LOTTERY, DRAWN)
    done = {plan: [run_pair(pair, plan, settings) for pair in pairs] for plan in plans}
    costs = {
        plan: np.array([each.seconds for each in runs]) / settings["tuples"] for plan, runs in done.items()
    }
    return costs, {plan: np.array([each.share("U", "s1") for each in runs]) for plan, runs in done.items()}


def fig4_6(settings: Settings) -> Outcome:
    """Vary the cost of s1 from 1 to 9 while s2 costs 5, and the share that s1 keeps from 10 % to 90 %."""
    cost = np.linspace(1, 9, settings["points"])
    kept = np.linspace(0.1, 0.9, settings["points"])
    by_cost, dearer = sweep([Pair((float(x), COST), (KEPT, KEPT)) for x in cost], settings)
    by_kept, keeping = sweep([Pair((COST, COST), (float(x), KEPT)) for x in kept], settings)
    best = np.minimum(*(by_cost[name] for name in SELECTIONS))
    over = {name: float((costs / best).max()) for name, costs in by_cost.items()}
    apart = np.flatnonzero(abs(kept - KEPT) > 0.05)  # where both are alike, there is nothing to find

    def mean_place(plan: str) -> float:
        orders = [[by_kept[order][i] for order in SELECTIONS] for i in apart]
        return float(np.mean([place(by_kept[plan][i], two) for i, two in zip(apart, orders, strict=True)]))

    figures = {
        "fig4_naive_over_best": over[NAIVE],
        "fig4_lottery_over_best": over[LOTTERY],
        "fig4_equal_turns_over_best": over[DRAWN],
        "fig4_lottery_gain": (by_cost[NAIVE] - by_cost[LOTTERY]).mean() / best.mean(),
        "fig5_naive_place": mean_place(NAIVE),
        "fig5_lottery_place": mean_place(LOTTERY),
        "fig5_equal_turns_place": mean_place(DRAWN),
        "fig6_conservation_error": abs(keeping[NAIVE] - 1 / (3 - 2 * kept)).max(),
    }
    for name, plan in (("naive", NAIVE), ("lottery", LOTTERY), ("equal_turns", DRAWN)):
        figures[f"fig6_{name}_by_cost"] = dearer[plan][0] - dearer[plan][-1]
        figures[f"fig6_{name}_by_selectivity"] = keeping[plan][0] - keeping[plan][-1]
    costs, keeps = "cost of s1 (delay units)", "share of tuples that s1 keeps"
    time, share = "time for each tuple (delay units)", "share of tuples that meet s1 first"
    policies = (NAIVE, LOTTERY, DRAWN)
    panels = [
        Panel.over("4: two 50 % selections; s2 costs 5", costs, time, cost, by_cost, static=SELECTIONS),
        Panel.over("5: both cost 5; s2 keeps 50 %", keeps, time, kept, by_kept, static=SELECTIONS),
        Panel.over("6: as the cost varies", costs, share, cost, {name: dearer[name] for name in policies}),
        Panel.over(
            "6: as the selectivity varies", keeps, share, kept, {name: keeping[name] for name in policies}
        ),
    ]
    return Outcome(panels, figures)


FIGURES: tuple[Figure, ...] = (
    Figure(
        id="eddies-fig4-6",
        title="Two selections of different cost or selectivity",
        source="Avnur & Hellerstein 2000, figures 4 to 6",
        says="Back-pressure alone sees costs and not selectivities; a lottery sees both.",
        measure=fig4_6,
        claims=(
            # Flow conservation leaves 3.6 % at the worst point (costs 3 and 5); half as much again for the
            # first full queues.
            Claim(
                "the naive eddy nearly matches the better order",
                "fig4_naive_over_best",
                high=1.06,
                paper="nearly",
                fails=NO_QUEUES,
            ),
        ),
        parameters=(
            Parameter("tuples", 50_000, 500, 1_000_000, "tuples", "in table U"),
            Parameter("points", 9, 3, 33, "points", "on each curve; an odd number has a middle"),
            Parameter("batch", 10, 1, 1_000, "tuples", "that are routed together; the paper's is 1"),
            Parameter("queue", 10, 1, 100_000, "tuples", "in a module's input queue when it is full"),
            Parameter("buffer", 500, 1, 100_000, "tuples", "in the eddy when it takes no more"),
        ),
        broken={NO_QUEUES: "queues never fill, so that nothing turns tuples away from a module"},
        small={"tuples": 1_000, "points": 3},
        seconds=200,
    ),
)
