"""Avnur & Hellerstein 2000, *Eddies*, figures 4 to 13: what back-pressure and lotteries learn.

The paper's modules are threads with queues of fixed size between them, and its tuples are routed one by
one. Here ten are routed together, in figure 11 one by one, and ten fill a queue. One processor serves all
modules. Static orders are eddies that keep to one order, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lab.access import Index, PacedScan
from lab.figures.engine import (
    SCALE,
    Array,
    Cost,
    Costs,
    Noting,
    Ran,
    RemoteIndex,
    all_batches,
    batches,
    chain,
    join_of,
    key,
    run,
    selection,
    share_of,
)
from lab.figures.figure import Curve, Outcome, Panel, Parameter, Settings, figure
from lab.joins import block
from lab.queues import ROUTE, Backpressure
from millrace.engine.access.modules import IndexAM
from millrace.engine.access.paths import Access
from millrace.engine.access.schedule import Source
from millrace.engine.eddy.run import Run
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.policies import Fixed, Lottery, Naive, Policy, WindowedLottery
from millrace.limits.clock import VirtualClock
from millrace.options import Options

PAPER = "Avnur & Hellerstein 2000"
NAIVE, LOTTERY, WINDOWED = "naive", "lottery", "windowed lottery"
EQUAL, WINDOWED_EQUAL = "lottery, equal turns", "windowed lottery, equal turns"
POLICIES: Mapping[str, type[Policy]] = {
    NAIVE: Naive,
    LOTTERY: Lottery,
    EQUAL: Lottery,
    WINDOWED: WindowedLottery,
    WINDOWED_EQUAL: WindowedLottery,
}
EVEN, NO_QUEUES, ALL_TICKETS = "even-tickets", "no-queues", "all-tickets"
STUCK, STUCK_T, STILL, PUNCTUAL = "stuck", "stuck-t", "no-queues-even-tickets", "punctual"
BROKEN = {
    EVEN: "every lottery's tickets are replaced by even shares, which leaves back-pressure",
    NO_QUEUES: "queues never fill, so that nothing turns tuples away from a module",
    ALL_TICKETS: "the naive eddy gets the lottery's tickets",
    STUCK: "the lottery keeps to one order",
    STUCK_T: "the lottery keeps to S⋈T first",
    STILL: "queues never fill, and the lottery's tickets are replaced by even shares",
    PUNCTUAL: "no table is delayed",
}
ORDERS: Mapping[str, tuple[str, str]] = {
    "s1 first": ("s1", "s2"),
    "s2 first": ("s2", "s1"),
    "R⋈S first": ("R", "T"),
    "S⋈T first": ("T", "R"),
    "A first": ("A", "B"),
    "B first": ("B", "A"),
}
"""Static orders of modules; what is not among them is a policy."""

SELECTIONS, JOINS, INDEXES = list(ORDERS)[:2], list(ORDERS)[2:4], list(ORDERS)[4:]
SAMPLES = 60
BATCH = Parameter("batch", 10, 1, 1_000, "tuples", "that are routed together; the paper's is 1")
ALONE = replace(BATCH, default=1, meaning="that are routed together, as in the paper")
QUEUE = Parameter("queue", 10, 1, 100_000, "tuples", "in a module's input queue when it is full")
BUFFER = Parameter("buffer", 500, 1, 100_000, "tuples", "in the eddy when it takes no more")
EDDY = Parameter(
    "eddy", 3.5, 0.0, 100.0, "delay units", "that an eddy takes to route a tuple, where it costs"
)


def broken(*names: str) -> dict[str, str]:
    """Return some of the broken engines."""
    return {name: BROKEN[name] for name in names}


def eddy(
    spec: JoinSpec,
    sources: Mapping[str, Source],
    settings: Settings,
    clock: VirtualClock,
    plan: str,
    *,
    rows: int,
    access: Access | None = None,
    reading: Noting | None = None,
) -> Ran:
    """Run an eddy on the paper's system by a policy or a static order, whole or broken as the settings say.

    The other arguments are those of :func:`lab.figures.engine.run`.
    """
    without, joins, learns = settings.ablated, len(spec.relations) > 1, plan not in ORDERS
    policy: Policy = Fixed(ORDERS.get(plan, ()))
    if learns and plan != NAIVE and without in (STUCK, STUCK_T):
        policy = Fixed(("T",) if without == STUCK_T else ())
    elif learns and plan == NAIVE and without == ALL_TICKETS:
        policy = Lottery()
    elif learns:
        policy = Naive() if without.endswith(EVEN) else POLICIES[plan]()
    # Turns on the processor in proportion to tickets are lottery scheduling, which the paper's threads did
    # not have.
    by_tickets = plan not in (EQUAL, WINDOWED_EQUAL)
    queue = None if learns and without.startswith(NO_QUEUES) else settings["queue"]
    return run(
        spec,
        sources,
        Options(architecture="joins" if joins else "auto", batch_size=settings["batch"], online=joins),
        clock=clock,
        policy=policy,
        eddy=Backpressure(queue, settings["buffer"], by_tickets=by_tickets),
        rows=rows,
        access=access or {},
        reading=reading,
    )


def place(cost: Any, orders: Sequence[Any]) -> Array:
    """Return where a cost lies between the best static order's (0) and the worst one's (1)."""
    least, most = np.min(orders, axis=0), np.max(orders, axis=0)
    return np.asarray((cost - least) / (most - least))


# Figures 4 to 6: SELECT * FROM U WHERE s1() AND s2() (sections 4.1 and 4.2).

COST, KEPT = 5.0, 0.5
Pair = tuple[tuple[float, float], tuple[float, float]]
"""Two selections: delay units for each tuple, and the share of tuples that pass."""


def run_pair(pair: Pair, plan: str, settings: Settings, routing: float) -> tuple[float, float]:
    """Run the query, with an eddy that takes ``routing`` units for a tuple.

    Returns:
        Delay units for each tuple, and the share of tuples that met s1 first.
    """
    draw, tuples = np.random.default_rng(settings.seed), settings["tuples"]
    passing = {name: draw.random(tuples) < kept for name, kept in zip(("s1", "s2"), pair[1], strict=True)}
    costs = dict(zip(passing, pair[0], strict=True))
    table, clock = pa.table(passing), VirtualClock(costs=Costs({ROUTE: routing}))
    order = ORDERS.get(plan, tuple(passing))
    spec = block({"U": table}, predicates=[selection("U", name, costs[name], clock) for name in order])
    rows = int(np.logical_and(*passing.values()).sum())
    ran = eddy(spec, {"U": batches(table, settings["batch"])}, settings, clock, plan, rows=rows)
    return ran.seconds / tuples, share_of(ran.figures, "U", "s1")


@figure(
    "eddies-fig4-6",
    f"{PAPER}, figures 4 to 6",
    """
    # Flow conservation leaves 3.6 % at the worst point (costs 3 and 5, where one tuple in seven takes the
    # dear one first); half as much again for the first full queues.
    fig4_free_naive_over_best ≤ 1.06 | 4: the free naive eddy nearly matches the best | nearly matches |
        no-queues
    fig4_naive_over_best ≤ 1.06 | 4: so it does where it costs | nearly matches | no-queues
        but 1.06 to 1.2: the eddy that figures 5 and 6 need is slower than the cheap selection, whose queue
        then never fills: back-pressure sees nothing there. No cost of the eddy gives all three figures: up
        to 2 units figure 4 comes out, from 3.5 on figures 5 and 6
    fig4_free_lottery_over_best ≤ 1.06 | 4: the free lottery does, too | best curve
    # Control: tickets decide about tuples alone, and not about turns on the processor.
    fig4_free_equal_turns_over_best ≤ 1.06 | 4: with equal turns, too
    # More than nothing: with even tickets both are the same eddy.
    0.001 ≤ fig4_lottery_gain | 4: the lottery improves the naive eddy | slightly improving | even-tickets
    0.35 ≤ fig5_naive_place ≤ 0.65 | 5: the naive eddy is half-way | half-way | all-tickets
    # Half of what even shares leave, 0.47; with equal turns three quarters of it.
    fig5_lottery_place ≤ 0.25 | 5: the lottery is near the best order | near the best | even-tickets
    fig5_equal_turns_place ≤ 0.35 | 5: it is near with equal turns, too | | even-tickets
    # Optimal routing has 1, even shares 0.
    0.4 ≤ fig6_naive_by_cost | 6: back-pressure sees costs: a dearer s1 is met later | | no-queues
    # As far as the lottery counts as even, below; a hundredth for the ends of the run.
    -0.2 ≤ fig6_naive_by_selectivity ≤ 0.01 | 6: it barely sees selectivity | barely, the wrong way |
        all-tickets
    # A full queue of each module.
    fig6_free_conservation_error ≤ 0.08 | 6: with a free eddy, it is flow conservation | | no-queues
    0.4 ≤ fig6_lottery_by_selectivity | 6: the lottery sees selectivity | | even-tickets
    0.4 ≤ fig6_equal_turns_by_selectivity | 6: with equal turns, too | | even-tickets
    # A fifth to either side. With a free eddy it is an urn, and any value comes out.
    0.3 ≤ fig6_lottery_where_alike ≤ 0.7 | 6: the lottery is even where both are alike | close to 50 % |
        stuck
    0.3 ≤ fig6_equal_turns_where_alike ≤ 0.7 | 6: with equal turns, too | close to 50 % | stuck
    """,
    parameters=(
        Parameter("tuples", 5_000, 500, 1_000_000, "tuples", "in table U; the paper's has 50,000"),
        Parameter("points", 9, 3, 33, "points", "on each curve; an odd number has a middle"),
        *(EDDY, ALONE, QUEUE, BUFFER),
    ),
    broken=broken(EVEN, NO_QUEUES, ALL_TICKETS, STUCK),
    small={"tuples": 600, "points": 3},
)
def fig4_6(settings: Settings) -> Outcome:
    """Two selections of different cost or selectivity.

    Back-pressure alone finds the cheaper selection and cannot tell a selective one; a lottery is near the
    best order in both cases. The paper does not say what its eddy itself costs: at 3.5 delay units a tuple,
    queues are not full all the time, and figures 5 and 6 come out; figure 4 does with a free eddy.

    The cost of s1 goes from 1 to 9 while s2 costs 5, and the share that s1 keeps from 10 % to 90 %. With an
    eddy that is free, both queues are full, and back-pressure can be worked out. Let both selections cost
    the same, s1 keep ``k`` and s2 a half, and ``x`` be the share of tuples that meet s1 first. With equal
    turns both work on as many: ``x + (1 - x) / 2 = (1 - x) + k x``, so ``x = 1 / (3 - 2 k)``, from 36 % at
    ``k`` = 10 % to 83 % at 90 %.
    """
    cost, kept = (np.linspace(low, high, settings["points"]) for low, high in ((1, 9), (0.1, 0.9)))
    dear: list[Pair] = [((float(x), COST), (KEPT, KEPT)) for x in cost]
    keeping: list[Pair] = [((COST, COST), (float(x), KEPT)) for x in kept]
    policies = (NAIVE, LOTTERY, EQUAL)

    def sweep(pairs: Sequence[Pair], plans: Sequence[str], routing: float) -> list[dict[str, Array]]:
        """Return times, and shares of tuples that met s1 first, by plan."""
        done = {plan: np.array([run_pair(each, plan, settings, routing) for each in pairs]) for plan in plans}
        return [{plan: found[:, kind] for plan, found in done.items()} for kind in (0, 1)]

    plans = (*SELECTIONS, *policies)
    costs, by_cost = sweep(dear, plans, settings["eddy"])
    times, by_kept = sweep(keeping, plans, settings["eddy"])
    free_costs, _ = sweep(dear, plans, 0.0)
    _, free_by_kept = sweep(keeping, (NAIVE,), 0.0)

    def over_best(found: Mapping[str, Array], plan: str) -> float:
        return float((found[plan] / np.minimum(*(found[name] for name in SELECTIONS))).max())

    apart = np.flatnonzero(abs(kept - KEPT) > 0.05)  # where both are alike, there is nothing to find
    best = np.minimum(*(costs[name] for name in SELECTIONS)).mean()
    figures = {
        "fig4_naive_over_best": over_best(costs, NAIVE),
        "fig4_free_naive_over_best": over_best(free_costs, NAIVE),
        "fig4_free_lottery_over_best": over_best(free_costs, LOTTERY),
        "fig4_free_equal_turns_over_best": over_best(free_costs, EQUAL),
        "fig4_lottery_gain": (costs[NAIVE] - costs[LOTTERY]).mean() / best,
        "fig6_free_by_selectivity": free_by_kept[NAIVE][0] - free_by_kept[NAIVE][-1],
        "fig6_free_conservation_error": abs(free_by_kept[NAIVE] - 1 / (3 - 2 * kept)).max(),
    }
    for name, plan in zip(("naive", "lottery", "equal_turns"), policies, strict=True):
        places = place(times[plan], [times[order] for order in SELECTIONS])
        figures[f"fig5_{name}_place"] = float(places[apart].mean())
        figures[f"fig6_{name}_by_cost"] = by_cost[plan][0] - by_cost[plan][-1]
        figures[f"fig6_{name}_by_selectivity"] = by_kept[plan][0] - by_kept[plan][-1]
        figures[f"fig6_{name}_where_alike"] = by_kept[plan][len(kept) // 2]
    costly, keeps = "cost of s1 (delay units)", "share of tuples that s1 keeps"
    time, share = "time for each tuple (delay units)", "share of tuples that meet s1 first"
    first = {name: by_cost[name] for name in policies}
    first_by_kept = {**{name: by_kept[name] for name in policies}, "naive, free eddy": free_by_kept[NAIVE]}
    panels = [
        Panel.over("4: two 50 % selections; s2 costs 5", costly, time, cost, costs, static=SELECTIONS),
        Panel.over("4: the same with a free eddy", costly, time, cost, free_costs, static=SELECTIONS),
        Panel.over("5: both cost 5; s2 keeps 50 %", keeps, time, kept, times, static=SELECTIONS),
        Panel.over("6: as the cost varies", costly, share, cost, first),
        Panel.over("6: as the selectivity varies", keeps, share, kept, first_by_kept),
    ]
    return Outcome(panels, figures)


# Figures 7 to 9: R ⋈ S ⋈ T (section 4.3).
#
# SELECT * FROM R, S, T WHERE R.a = S.a AND S.b = T.b. Tuples are read as fast as the eddy takes them, a
# batch of each table in turn. R ⋈ S is a hash ripple join; S ⋈ T is one too, or an index join. A hash ripple
# join takes a delay unit for each tuple routed to it, to insert it and to probe: the paper's hash joins "all
# have the same cost". Which of both joins comes first matters for tuples of S alone.


@dataclass(frozen=True)
class Version:
    """One version of the query: a name for the legend, what a tuple of S meets in R and in T, the better
    order, and whether S ⋈ T is an index join instead of a hash ripple join.
    """

    name: str
    matches: tuple[float, float]
    best: str
    by_index: bool = False


VERSIONS = (
    Version("index beats hash", (1.8, 0.1), "S⋈T first", by_index=True),
    Version("hash beats index", (0.2, 0.1), "R⋈S first", by_index=True),
    Version("hash, 20 %", (0.2, 1.0), "R⋈S first"),
    Version("hash, 180 %", (1.8, 1.0), "S⋈T first"),
)


def run_version(version: Version, plan: str, settings: Settings, routing: float) -> tuple[float, float]:
    """Run one version by a static order or a policy, with an eddy that takes ``routing`` units for a tuple.

    Returns:
        Delay units for each tuple of S, and the share of S that met the better join first.
    """
    data, spec, rows = chain(settings["scale"], settings.seed, *version.matches)
    lookup = settings["index"] if version.by_index else 1.0
    clock = VirtualClock(
        costs=Costs({join_of(spec, "R", "S"): 1.0, join_of(spec, "S", "T"): lookup, ROUTE: routing})
    )
    sources = all_batches(data, settings["batch"])
    access: Access = {}
    if version.by_index:
        del sources["T"]
        access = {"T": [Index("T by b", ("b",), data["T"], clock)]}
    ran = eddy(spec, sources, settings, clock, plan, rows=rows, access=access)
    return ran.seconds / data["S"].num_rows, share_of(ran.figures, "S", ORDERS[version.best][0])


@figure(
    "eddies-fig7-9",
    f"{PAPER}, figures 7 to 9",
    """
    # R and T are an eighth of S and come beside it; until they have come tickets say little, and what was
    # earned then has to be outweighed: as long again.
    fig7_lottery_place ≤ 0.25 | 7: the lottery performs nearly optimally | nearly optimal | even-tickets
    # A tenth of the way between both orders.
    0.1 ≤ fig7_naive_behind | 7: the naive eddy is behind the lottery | | even-tickets
    0.3 ≤ fig7_naive_place ≤ 0.9 | 7: the naive eddy is between the best and the worst order | in between |
        all-tickets
        but 0.9 to 1.05: a lookup costs 3 units, so that the index join is the bottleneck in either order:
        its queue stays full, and fresh tuples of S meet the hash join first, which is the worse order
    # An eddy of 3 units gives 0.69, of 4 units 0.48. Figure 9 then loses the lead of its dearest query, for
    # queues that are empty show no costs, so that other claims have a free eddy.
    0.3 ≤ fig7_dear_eddy_naive_place ≤ 0.9 | 7: so it is if the eddy costs | in between | all-tickets
    fig8_lottery_place ≤ 0.25 | 8: the lottery performs nearly optimally | nearly optimal | even-tickets
    # Even shares leave 0.49 of the way and 0.5 of the tuples: three quarters of the way, a fifth more tuples.
    fig7_dear_eddy_lottery_equal_turns_place ≤ 0.35 | 7: with equal turns, too, if it costs | | even-tickets
    fig8_dear_eddy_lottery_equal_turns_place ≤ 0.35 | 8: with equal turns, too, if it costs | | even-tickets
    0.75 ≤ fig9_lottery_least_share | 9: the lottery routes most tuples in the optimal order | | even-tickets
    0.6 ≤ fig9_dear_eddy_lottery_equal_turns_least_share | 9: with equal turns, too, if it costs | |
        even-tickets
    # A mistake there costs 3.3 units, elsewhere 0.8 to 3.2: hardly more is lost than at the start.
    0.9 ≤ fig9_lottery_dearest_share | 9: quite close where the hash join should be first | quite close |
        even-tickets
    0 ≤ fig9_dearest_lead | 9: closer than in any other query | | stuck-t
    """,
    parameters=(
        SCALE,
        Parameter("index", 3.0, 0.1, 1000.0, "delay units", "of a lookup; random reads cost more"),
        *(EDDY, BATCH, QUEUE, BUFFER),
    ),
    broken=broken(EVEN, ALL_TICKETS, STUCK_T),
    small={"scale": 0.03},
)
def fig7_9(settings: Settings) -> Outcome:
    """Joins of different cost and selectivity.

    With a hash join that multiplies tuples and a selective index join, and with two hash joins, a lottery
    performs nearly optimally. It is not strict about the optimal order, but close to it where a mistake is
    dearest: where the hash join should precede the index join.

    With a free eddy and equal turns, tickets have no choice, and a lottery is the naive eddy: the join that
    also gets what the other returns stays full, so that fresh tuples go to the other. So the lottery with
    equal turns, like one more naive eddy, is run by an eddy that costs more than a lookup.
    """

    def measured(policies: Sequence[str], routing: float) -> tuple[dict[str, Array], ...]:
        """Return costs, places between the static orders and shares in the better one, by plan."""
        plans = (*JOINS, *policies)
        found = {p: np.array([run_version(v, p, settings, routing) for v in VERSIONS]).T for p in plans}
        costs = {plan: cost for plan, (cost, _) in found.items()}
        places = {plan: place(costs[plan], [costs[order] for order in JOINS]) for plan in policies}
        return costs, places, {plan: found[plan][1] for plan in policies}

    costs, places, shares = measured((NAIVE, LOTTERY), 0.0)
    dear, dear_places, dear_shares = measured((NAIVE, LOTTERY, EQUAL), settings["eddy"])
    figures: dict[str, float] = {
        "fig7_naive_behind": places[NAIVE][0] - places[LOTTERY][0],
        "fig9_lottery_dearest_share": shares[LOTTERY][1],
        "fig9_dearest_lead": shares[LOTTERY][1] - np.delete(shares[LOTTERY], 1).max(),
    }
    for prefix, place_of, share_in in (("", places, shares), ("dear_eddy_", dear_places, dear_shares)):
        for plan, where in place_of.items():
            name = f"{prefix}{key(plan)}"
            figures[f"fig7_{name}_place"] = where[0]
            figures[f"fig8_{name}_place"] = where[2:].max()
            figures[f"fig9_{name}_least_share"] = share_in[plan].min()
    names = [each.name for each in VERSIONS]
    time, share = "time for each tuple of S (delay units)", "share of S in the optimal order"
    hashed = {plan: values[2:] for plan, values in costs.items()}
    by_index = ({plan: values[0] for plan, values in each.items()} for each in (costs, dear))
    titles = ("7: R⋈S by hashing (1.8 matches), S⋈T by index (0.1)", "7: the same with an eddy that costs")
    shown = {**shares, f"{EQUAL}, dear eddy": dear_shares[EQUAL]}
    panels = [
        *(Panel.bars(title, time, each, static=JOINS) for title, each in zip(titles, by_index, strict=True)),
        Panel.grouped("8: R⋈S and S⋈T by hashing", time, names[2:], hashed, static=JOINS),
        Panel.grouped("9: tuples of S that went to the better join first", share, names, shown),
    ]
    return Outcome(panels, figures)


# Figures 10 and 11: a scanned table and two external indexes, R.x = A.x AND R.y = B.y, that change (section
# 4.4).
#
# Both indexes know the same small share of R, at random. An index join is like a selection on R: which one
# comes first decides how many tuples meet the other.


@dataclass(frozen=True)
class Indexed:
    """A table and, for each of its columns, one with the values that an index knows."""

    data: Mapping[str, pa.Table]
    spec: JoinSpec
    rows: int

    @classmethod
    def drawn(cls, tuples: int, known: float, seed: int) -> Indexed:
        """Draw a table, and indexes that know a share of its keys."""
        draw = np.random.default_rng(seed)
        x, y, known_x, known_y = (draw.permutation(tuples) for _ in range(4))
        few = round(known * tuples)
        a, b = known_x[:few], known_y[:few]
        data = {"R": pa.table({"x": x, "y": y}), "A": pa.table({"x": a}), "B": pa.table({"y": b})}
        return cls(data, block(data, "R.x = A.x", "R.y = B.y"), int((np.isin(x, a) & np.isin(y, b)).sum()))

    def run(
        self,
        plan: str,
        settings: Settings,
        costs: tuple[Cost, Cost],
        index: Callable[[str, str, VirtualClock], IndexAM],
        reading: Noting | None = None,
    ) -> Ran:
        """Run an eddy by a static order or a policy.

        A tuple takes so many seconds at the joins with A and with B; ``index`` makes an index on a table, by
        the table's alias and the column.
        """
        places = (join_of(self.spec, "R", alias) for alias in "AB")
        clock = VirtualClock(costs=Costs(dict(zip(places, costs, strict=True))))
        sources: dict[str, Source] = {"R": batches(self.data["R"], settings["batch"])}
        access: Access = {alias: [index(alias, column, clock)] for alias, column in ("Ax", "By")}
        return eddy(self.spec, sources, settings, clock, plan, rows=self.rows, access=access, reading=reading)


@figure(
    "eddies-fig10",
    f"{PAPER}, figure 10",
    """
    # By the paper's numbers the better static order has 300 lookups of 5 s to do behind the change, the eddy
    # what waits in queues and one in a hundred of the rest: a few dozen. Half of that lead.
    3 ≤ lead | the eddy is much faster than either static plan | about 1,500 s against 80 s | no-queues
    3 ≤ equal_turns_lead | so it is with equal turns | | no-queues
    slow_lookups_left ≤ 0.3 | behind the change it does few slow lookups | about 10 of 300 | no-queues
    """,
    parameters=(
        Parameter("tuples", 30_000, 300, 1_000_000, "tuples", "in the scanned table"),
        Parameter("known", 0.01, 0.001, 1.0, "", "share of the table that each index knows"),
        Parameter("slow", 5.0, 0.1, 100.0, "s", "of a lookup in the slow index"),
        Parameter("change", 30.0, 1.0, 1000.0, "s", "until the indexes change places"),
        Parameter("left", 1 / 30, 0.0, 0.9, "", "share of the table not looked up when they change"),
        *(BATCH, QUEUE, BUFFER),
    ),
    broken=broken(NO_QUEUES),
    small={"tuples": 600, "known": 0.1, "left": 0.1, "slow": 20.0, "batch": 1, "queue": 1},
)
def fig10(settings: Settings) -> Outcome:
    """Two indexes change places.

    When a fast remote index becomes slow and a slow one fast, an eddy with a windowed lottery changes the
    order of its index joins at once and is far ahead of both static plans.
    """
    tuples, change = settings["tuples"], settings["change"]
    query = Indexed.drawn(tuples, settings["known"], settings.seed)
    each = change / (tuples * (1 - settings["left"]))
    seconds, behind = dict[str, float](), dict[str, int]()
    for plan in (*INDEXES, WINDOWED, WINDOWED_EQUAL):
        indexes = list[RemoteIndex]()

        def index(alias: str, column: str, clock: VirtualClock, made: list[RemoteIndex] = indexes) -> IndexAM:
            def delay(now: float) -> float:
                return settings["slow"] if (now < change) == (alias == "B") else 0.0

            made.append(RemoteIndex(column, query.data[alias], clock, delay))
            return made[-1]

        seconds[plan] = query.run(plan, settings, (each, each), index).seconds
        lookups = [lookup for index in indexes for lookup in index.lookups]
        behind[plan] = sum(1 for began, took in lookups if took and began >= change)
    better = min(INDEXES, key=lambda plan: seconds[plan])
    figures = {
        "lead": seconds[better] / seconds[WINDOWED],
        "equal_turns_lead": seconds[better] / seconds[WINDOWED_EQUAL],
        "slow_lookups_left": behind[WINDOWED] / max(1, behind[better]),
    }
    return Outcome([Panel.bars("Time to completion", "time (s)", seconds, static=INDEXES)], figures)


@figure(
    "eddies-fig11",
    f"{PAPER}, figure 11",
    """
    # Half-way between even and optimal.
    0.75 ≤ after_quarter_1 | most tuples go to index 1 while it is cheap | most of 1,000 |
        no-queues-even-tickets
    # Optimal is a half: all of the first quarter, and none of the second.
    0.25 ≤ fall | in the second quarter the share falls | to about 50 % | no-queues-even-tickets
    # A share so far that is even from then on bends by 0.17 of the fall, and learning adds as much.
    bent ≤ 0.35 | almost in a straight line | near-linear | no-queues-even-tickets
    # Optimal is a sixth: from 1/2 to 2/3, and back.
    0.05 ≤ rise | in the third quarter it rises | the pattern repeats | stuck
    0.05 ≤ second_fall | in the fourth it falls again | the pattern repeats | stuck
    0.1 ≤ equal_turns_fall | with equal turns it falls, too | | no-queues-even-tickets
    0.02 ≤ equal_turns_rise | and rises | | stuck
    """,
    parameters=(
        Parameter("tuples", 4_000, 400, 1_000_000, "tuples", "in the scanned table"),
        Parameter("cheap", 1.0, 0.001, 1000.0, "delay units", "of a lookup in the cheap index"),
        Parameter("dear", 100.0, 0.001, 1000.0, "delay units", "of a lookup in the dear index"),
        *(ALONE, QUEUE, BUFFER),
    ),
    broken=broken(STILL, STUCK),
)
def fig11(settings: Settings) -> Outcome:
    """Costs that toggle.

    An eddy follows costs that change: the share of tuples that go to index 1 first rises, drifts to a half
    almost linearly, rises and falls again, always favouring the cheaper index.

    The costs toggle after each quarter of the table.
    """
    query, figures = Indexed.drawn(settings["tuples"], 0.1, settings.seed), dict[str, float]()
    curves = []
    for prefix, plan in (("", WINDOWED), ("equal_turns_", WINDOWED_EQUAL)):
        at, shares = _toggled(query, plan, settings)
        curves.append(Curve(plan, at, shares))
        ends = [float(np.interp(quarter / 4, at, shares)) for quarter in range(1, 5)]
        fall = ends[0] - ends[1]
        inside = [(n, s) for n, s in zip(at, shares, strict=True) if 1 / 4 <= n <= 1 / 2]
        bent = max(abs(s - (ends[0] - fall * (n - 1 / 4) * 4)) for n, s in inside)
        figures |= {f"{prefix}after_quarter_{i + 1}": end for i, end in enumerate(ends)}
        figures |= {f"{prefix}fall": fall, f"{prefix}rise": ends[2] - ends[1]}
        figures |= {f"{prefix}second_fall": ends[2] - ends[3]}
        figures[f"{prefix}bent"] = bent / fall if fall > 0.05 else 1.0
    label, marks = "share that went to index 1 first, so far", [(n / 4, "toggle") for n in (1, 2, 3)]
    title = "Costs toggle after each quarter"
    return Outcome([Panel(title, "share of the table scanned", label, curves, marks=marks)], figures)


def _toggled(query: Indexed, plan: str, settings: Settings) -> tuple[list[float], list[float]]:
    """Return shares of the table scanned, and of its tuples so far the share that met index 1 first."""
    tuples, begun = settings["tuples"], 0

    def cost(cheap_quarters: int) -> Callable[[], float]:
        return lambda: settings["cheap" if (4 * begun // tuples) % 2 == cheap_quarters else "dear"]

    at, shares = [0.0], [0.5]

    def note(started: Run, _: str, read: int) -> None:
        nonlocal begun
        begun = min(read, tuples - 1)
        if read == tuples or read / tuples >= at[-1] + 1 / SAMPLES:
            at.append(read / tuples)
            shares.append(share_of(started.figures(), "R", "A"))

    def index(alias: str, column: str, clock: VirtualClock) -> IndexAM:
        return Index(alias, [column], query.data[alias], clock)

    query.run(plan, settings, (cost(0), cost(1)), index, note)
    return at, shares


# Figures 12 and 13: R ⋈ S ⋈ T with a table that comes late (section 4.4).


def run_delayed(plan: str, settings: Settings, late: str, routing: float) -> tuple[float, float, Array]:
    """Run R⋈S 100 %, S⋈T 20 % by a static order or a policy, with one table late.

    It is the 20 % version of figure 8 with R and T exchanged. Any eddy does as much work a second.

    Returns:
        Seconds to completion; the share of S that was read when R began to arrive; and samples of the share
        of S read, and of its tuples so far the share that went to the join with R first, shape ``(2, n)``.
    """
    data, spec, rows = chain(settings["scale"], settings.seed, 1.0, 0.2)
    tuples = data["S"].num_rows
    unit = settings["unit"] / (1 + routing)
    joins = {join_of(spec, other, "S"): unit for other in "RT"}
    clock = VirtualClock(costs=Costs({**joins, ROUTE: routing * unit}))
    delay = 0.0 if settings.ablated == PUNCTUAL else settings["scale"] * settings["delay"]
    samples = [(0.0, 0.0, 0.0)]

    def note(started: Run, alias: str, read: int) -> None:
        if alias == "S" and read / tuples >= samples[-1][1] + 1 / SAMPLES:
            samples.append((clock.now(), read / tuples, share_of(started.figures(), "S", "R")))

    sources = all_batches(data, settings["batch"])
    access: Access = {late: [PacedScan(late, sources.pop(late), clock, stall=(0, delay))]}
    ran = eddy(spec, sources, settings, clock, plan, rows=rows, access=access, reading=note)
    samples.append((clock.now(), 1.0, share_of(ran.figures, "S", "R")))
    arrived = max(read for when, read, _ in samples if when <= delay)
    return ran.seconds, arrived, np.array([sample[1:] for sample in samples]).T


@figure(
    "eddies-fig12-13",
    f"{PAPER}, figures 12 and 13",
    """
    # 43 % of S is read during the delay; each tuple of it kept for R meets two joins instead of 1.2: 22 %
    # more time, of which at least a third is seen.
    1.08 ≤ fig12_eddy_over_best | 12: the eddy pays for R's delay | not as well as it could | punctual
    # 43 % of the way if all of S went wrong during the delay, and as much of the rest until tickets turn.
    fig12_eddy_place ≤ 0.6 | 12: but behind the delay it corrects itself | far better than worst | stuck
    fig12_equal_turns_place ≤ 0.6 | 12: with equal turns, too, if the eddy costs | | stuck
    # Half of the cost of R's delay.
    fig12_eddy_late_s_over_best ≤ 1.1 | 12: a delay of S affects all plans alike | identically | stuck
    # That join drops all tuples, the other one 80 %; the first half of the delay is for learning.
    0.65 ≤ fig13_eddy_during_delay | 13: it favours the silent join | most S tuples | punctual
    0.5 ≤ fig13_equal_turns_during_delay | 13: with equal turns, too, if it costs | | punctual
    # R⋈S then keeps every tuple; some come before tickets turn.
    fig13_eddy_behind ≤ 0.3 | 13: then it throttles that join | quickly, at 43.5 % of S | stuck
    fig13_equal_turns_behind ≤ 0.5 | 13: with equal turns, too, if it costs | | stuck
    """,
    parameters=(
        SCALE,
        Parameter("delay", 10.0, 0.0, 1000.0, "s", "before the first tuple of R"),
        Parameter("unit", 0.00022, 1e-6, 1.0, "s", "of a delay unit: 43 % of S come in the paper's delay"),
        *(EDDY, BATCH, QUEUE, BUFFER),
    ),
    broken=broken(PUNCTUAL, STUCK),
    small={"batch": 80, "queue": 80},
)
def fig12_13(settings: Settings) -> Outcome:
    """A table that comes late.

    An eddy with a windowed lottery does not adapt well to an initial delay of R: it keeps tuples of S
    waiting in the join with R, which is silent and seems selective, and pays for it when R arrives. Then it
    quickly throttles that join. A delay of S affects both joins alike. R and T are named the other way
    round than in figure 8.

    The lottery with equal turns is run by an eddy that costs, for the reason given in figure 7, and compared
    with static orders of such an eddy.
    """
    figures, curves, panels, marks = dict[str, float](), list[Curve](), list[Panel](), []
    for name, plan, cost in (("eddy", WINDOWED, 0.0), ("equal_turns", WINDOWED_EQUAL, settings["eddy"])):
        plans = (*JOINS, plan)
        done = {late: {each: run_delayed(each, settings, late, cost) for each in plans} for late in "RS"}
        seconds = {late: {each: ran[0] for each, ran in runs.items()} for late, runs in done.items()}
        worse, best, ours = seconds["R"].values()
        _, arrived, (read, r_first) = done["R"][plan]
        until = arrived or 0.4  # the moment of the delay's end; without a delay, where it would be
        figures[f"fig12_{name}_over_best"] = ours / best
        figures[f"fig12_{name}_place"] = float(place(ours, (best, worse)))
        figures[f"fig12_{name}_late_s_over_best"] = seconds["S"][plan] / min(seconds["S"].values())
        figures[f"fig13_{name}_during_delay"] = _between(read, r_first, until / 2, until)
        figures[f"fig13_{name}_behind"] = _between(read, r_first, until, 1.0)
        curves.append(Curve(f"{plan}, dear eddy" if cost else plan, read, r_first))
        if not cost:
            marks = [(arrived, "R begins")]
            panels += [Panel.bars(f"12: {t} is delayed", "time (s)", seconds[t], static=JOINS) for t in "RS"]
    label = "share that went to R⋈S first, so far"
    panels.append(Panel("13: tuples of S that meet R first", "share of S read", label, curves, marks=marks))
    return Outcome(panels, figures)


def _between(read: Array, r_first: Array, low: float, high: float) -> float:
    """Return the share that went to R first of what was read between two shares of S."""
    below, above = (float(np.interp(end, read, r_first)) for end in (low, high))
    return min(1.0, max(0.0, (above * high - below * low) / (high - low)))
