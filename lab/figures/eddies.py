"""Avnur & Hellerstein 2000, *Eddies*, figures 4 to 13: what back-pressure and lotteries learn.

The paper's modules are threads with queues of fixed size between them, and its tuples are routed one by
one. Here ten are routed together, in figure 11 one by one, and ten fill a queue. One processor serves all
modules. Static orders are eddies that keep to one order, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lab.figures.engine import (
    Array,
    Cost,
    Costs,
    Noting,
    Ran,
    RemoteIndex,
    Started,
    all_batches,
    batches,
    block,
    join_of,
    key,
    run,
    selection,
    share_of,
)
from lab.figures.figure import Claim, Curve, Figure, Outcome, Panel, Parameter, Settings, at_least, at_most
from millrace.engine.arrivals.access_methods import Access
from millrace.engine.arrivals.access_modules import Index, IndexAM, Scan
from millrace.engine.arrivals.schedule import Source
from millrace.engine.policies import Fixed, Lottery, Naive, Policy, WindowedLottery
from millrace.engine.router.back_pressure import ROUTE, Backpressure
from millrace.engine.spec import JoinSpec
from millrace.limits.clock import VirtualClock
from millrace.options import Options

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
SAMPLES = 60


def eddy(
    spec: JoinSpec,
    sources: Mapping[str, Source],
    settings: Settings,
    clock: VirtualClock,
    plan: str | Sequence[str],
    *,
    rows: int,
    access: Access | None = None,
    reading: Noting | None = None,
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
    broken, joins = settings.ablated, len(spec.relations) > 1
    policy: Policy = Fixed(tuple(plan))
    if isinstance(plan, str):
        kind = POLICIES[plan]
        if kind is Naive and broken == ALL_TICKETS:
            kind = Lottery
        elif broken.endswith(EVEN):
            kind = Naive
        policy = kind()
        if plan != NAIVE and broken in (STUCK, STUCK_T):
            policy = Fixed(("T",) if broken == STUCK_T else ())
    endless = broken.startswith(NO_QUEUES) and isinstance(plan, str)
    # Turns on the processor in proportion to tickets are lottery scheduling, which the paper's threads did
    # not have.
    equal = plan in (EQUAL, WINDOWED_EQUAL)
    return run(
        spec,
        sources,
        Options(architecture="joins" if joins else "auto", batch_size=settings["batch"], online=joins),
        clock=clock,
        policy=policy,
        queues=Backpressure(None if endless else settings["queue"], settings["buffer"], by_tickets=not equal),
        rows=rows,
        access=access or {},
        reading=reading,
    )


def place(cost: float, orders: Sequence[float]) -> float:
    """Return where a cost lies between the best static order's (0) and the worst one's (1)."""
    return (cost - min(orders)) / (max(orders) - min(orders))


# Figures 4 to 6: SELECT * FROM U WHERE s1() AND s2() (sections 4.1 and 4.2).

COST, KEPT = 5.0, 0.5
SELECTIONS = {"s1 first": ("s1", "s2"), "s2 first": ("s2", "s1")}


@dataclass(frozen=True)
class Pair:
    """Two selections: delay units for each tuple, and the share of tuples that pass."""

    costs: tuple[float, float]
    kept: tuple[float, float]


def run_pair(pair: Pair, plan: str, settings: Settings, routing: float) -> Ran:
    """Run the query by a policy or a static order, with an eddy that takes ``routing`` units for a tuple."""
    draw = np.random.default_rng(settings.seed)
    passing = {f"s{i + 1}": draw.random(settings["tuples"]) < kept for i, kept in enumerate(pair.kept)}
    table = pa.table(passing)
    clock = VirtualClock(costs=Costs({ROUTE: routing}))
    costs = dict(zip(passing, pair.costs, strict=True))
    order = SELECTIONS.get(plan, tuple(passing))
    spec = block({"U": table}, predicates=[selection("U", name, costs[name], clock) for name in order])
    rows = int(np.logical_and(*passing.values()).sum())
    sources: dict[str, Source] = {"U": batches(table, settings["batch"])}
    return eddy(spec, sources, settings, clock, order if plan in SELECTIONS else plan, rows=rows)


def sweep(
    pairs: Sequence[Pair], plans: Sequence[str], settings: Settings, routing: float
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return delay units for each tuple, and the share of tuples that met s1 first, by plan."""
    done = {plan: [run_pair(pair, plan, settings, routing) for pair in pairs] for plan in plans}
    costs = {
        plan: np.array([each.seconds for each in runs]) / settings["tuples"] for plan, runs in done.items()
    }
    return costs, {plan: np.array([each.share("U", "s1") for each in runs]) for plan, runs in done.items()}


def fig4_6(settings: Settings) -> Outcome:
    """Vary the cost of s1 from 1 to 9 while s2 costs 5, and the share that s1 keeps from 10 % to 90 %.

    With an eddy that takes its turns on the processor, and with one that is free. Where it is free, both
    queues are full, and back-pressure can be worked out. Let both selections cost the same, s1 keep ``k``
    and s2 a half, and ``x`` be the share of tuples that meet s1 first. With equal turns both work on as
    many: ``x + (1 - x) / 2 = (1 - x) + k x``, so ``x = 1 / (3 - 2 k)``, from 36 % at ``k`` = 10 % to 83 %
    at 90 %.
    """
    cost, kept = (np.linspace(low, high, settings["points"]) for low, high in ((1, 9), (0.1, 0.9)))
    dear = [Pair((float(x), COST), (KEPT, KEPT)) for x in cost]
    keeping = [Pair((COST, COST), (float(x), KEPT)) for x in kept]
    policies = (NAIVE, LOTTERY, EQUAL)
    plans = (*SELECTIONS, *policies)
    costs, by_cost = sweep(dear, plans, settings, settings["eddy"])
    times, by_kept = sweep(keeping, plans, settings, settings["eddy"])
    free_costs, _ = sweep(dear, plans, settings, 0.0)
    _, free_by_kept = sweep(keeping, (NAIVE,), settings, 0.0)

    def over_best(found: Mapping[str, Array], plan: str) -> float:
        return float((found[plan] / np.minimum(*(found[name] for name in SELECTIONS))).max())

    def mean_place(plan: str) -> float:
        apart = np.flatnonzero(abs(kept - KEPT) > 0.05)  # where both are alike, there is nothing to find
        return float(
            np.mean([place(times[plan][i], [times[order][i] for order in SELECTIONS]) for i in apart])
        )

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
        figures[f"fig5_{name}_place"] = mean_place(plan)
        figures[f"fig6_{name}_by_cost"] = by_cost[plan][0] - by_cost[plan][-1]
        figures[f"fig6_{name}_by_selectivity"] = by_kept[plan][0] - by_kept[plan][-1]
        figures[f"fig6_{name}_where_alike"] = by_kept[plan][len(kept) // 2]
    costly, keeps = "cost of s1 (delay units)", "share of tuples that s1 keeps"
    time, share = "time for each tuple (delay units)", "share of tuples that meet s1 first"
    panels = [
        Panel.over("4: two 50 % selections; s2 costs 5", costly, time, cost, costs, static=SELECTIONS),
        Panel.over("4: the same with a free eddy", costly, time, cost, free_costs, static=SELECTIONS),
        Panel.over("5: both cost 5; s2 keeps 50 %", keeps, time, kept, times, static=SELECTIONS),
        Panel.over("6: as the cost varies", costly, share, cost, {name: by_cost[name] for name in policies}),
        Panel.over(
            "6: as the selectivity varies",
            keeps,
            share,
            kept,
            {**{name: by_kept[name] for name in policies}, "naive, free eddy": free_by_kept[NAIVE]},
        ),
    ]
    return Outcome(panels, figures)


# Figures 7 to 9: R ⋈ S ⋈ T (section 4.3), and 12 and 13 with a table that comes late (section 4.4).
#
# SELECT * FROM R, S, T WHERE R.a = S.a AND S.b = T.b. R and T have 10,000 tuples, S 80,000. Tuples are read
# as fast as the eddy takes them, a batch of each table in turn. R ⋈ S is a hash ripple join; S ⋈ T is one
# too, or an index join. A hash ripple join takes a delay unit for each tuple routed to it, to insert it and
# to probe: the paper's hash joins "all have the same cost". Which of both joins comes first matters for
# tuples of S alone.

RANGE = (500, 5500)
"""Values of R.a (table 1); those of S.a are 0 to 5000, so that a tuple of S meets 1.8 of R on the average."""

JOINS = {"R⋈S first": ("R", "T"), "S⋈T first": ("T", "R")}


@dataclass(frozen=True)
class Version:
    """One version of the query.

    Attributes:
        name: For the legend.
        r_matches: Tuples of R that one of S meets: 1.8 as in table 1, or fewer where R.a and S.a are drawn
            from as many more values.
        t_matches: Tuples of T that one of S meets; at most 1.
        best: The better order.
        by_index: Whether S ⋈ T is an index join instead of a hash ripple join.
    """

    name: str
    r_matches: float
    t_matches: float
    best: str
    by_index: bool = False


INDEX_FIRST = Version("index beats hash", 1.8, 0.1, "S⋈T first", by_index=True)
HASH_FIRST = Version("hash beats index", 0.2, 0.1, "R⋈S first", by_index=True)
SELECTIVE = Version("hash, 20 %", 0.2, 1.0, "R⋈S first")
MULTIPLYING = Version("hash, 180 %", 1.8, 1.0, "S⋈T first")
THINNING = Version("R⋈S 100 %, S⋈T 20 %", 1.0, 0.2, "S⋈T first")
"""Figures 12 and 13: the 20 % version of figure 8 with R and T exchanged."""


def tables(version: Version, scale: float, seed: int) -> dict[str, pa.Table]:
    """Draw the tables; columns that are not joined on are left out."""
    draw = np.random.default_rng(seed)
    r_size, s_size, t_size = (max(1, round(scale * rows)) for rows in (10_000, 80_000, 10_000))
    if version.r_matches == 1.8:
        low, high = (round(scale * bound) for bound in RANGE)
        r, s = draw.integers(low, high, r_size), draw.integers(0, high - low, s_size)
    else:
        values = round(r_size / version.r_matches)
        r, s = draw.integers(0, values, r_size), draw.integers(0, values, s_size)
    values = round(t_size / version.t_matches)
    return {
        "R": pa.table({"a": r}),
        "S": pa.table({"a": s, "b": draw.integers(0, values, s_size)}),
        "T": pa.table({"b": draw.permutation(t_size)}),
    }


def chain(data: Mapping[str, pa.Table]) -> JoinSpec:
    """Return the block."""
    return block(data, "R.a = S.a", "S.b = T.b")


def results(data: Mapping[str, pa.Table]) -> int:
    """Count the results."""
    a, b = (np.asarray(data["S"].column(name)) for name in "ab")
    meets_r = np.bincount(np.asarray(data["R"].column("a")), minlength=int(a.max()) + 1)
    meets_t = np.bincount(np.asarray(data["T"].column("b")), minlength=int(b.max()) + 1)
    return int((meets_r[a] * meets_t[b]).sum())


def run_version(version: Version, plan: str, settings: Settings, routing: float) -> tuple[float, float]:
    """Run one version by a static order or a policy, with an eddy that takes ``routing`` units for a tuple.

    Returns:
        Delay units for each tuple of S, and the share of S that met the better join first.
    """
    data = tables(version, settings["scale"], settings.seed)
    spec = chain(data)
    lookup = settings["index"] if version.by_index else 1.0
    costs = {join_of(spec, "R", "S"): 1.0, join_of(spec, "S", "T"): lookup, ROUTE: routing}
    clock = VirtualClock(costs=Costs(costs))
    sources = all_batches(data, settings["batch"])
    access: Access = {}
    if version.by_index:
        del sources["T"]
        access = {"T": [Index("T by b", ("b",), data["T"], clock)]}
    ran = eddy(spec, sources, settings, clock, JOINS.get(plan, plan), rows=results(data), access=access)
    return ran.seconds / data["S"].num_rows, ran.share("S", JOINS[version.best][0])


def fig7_9(settings: Settings) -> Outcome:
    """Run four versions of the query: a hash join and an index join, and two hash joins.

    With a free eddy and equal turns, tickets have no choice, and a lottery is the naive eddy: the join that
    also gets what the other returns stays full, so that fresh tuples go to the other. So the lottery with
    equal turns, like one more naive eddy, is run by an eddy that costs more than a lookup.
    """
    versions = (INDEX_FIRST, HASH_FIRST, SELECTIVE, MULTIPLYING)

    def measured(policies: Sequence[str], routing: float) -> tuple[dict[str, Array], ...]:
        """Return costs, places between the static orders and shares in the better one, by plan."""
        plans = (*JOINS, *policies)
        found = {p: np.array([run_version(v, p, settings, routing) for v in versions]).T for p in plans}
        costs = {plan: cost for plan, (cost, _) in found.items()}
        orders = np.array([costs[order] for order in JOINS])
        places = {p: (costs[p] - orders.min(0)) / (orders.max(0) - orders.min(0)) for p in policies}
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
            name = key(plan)
            figures[f"fig7_{prefix}{name}_place"] = where[0]
            figures[f"fig8_{prefix}{name}_place"] = where[2:].max()
            figures[f"fig9_{prefix}{name}_least_share"] = share_in[plan].min()
    names = [each.name for each in versions]
    time, share = "time for each tuple of S (delay units)", "share of S in the optimal order"
    hashed = {plan: values[2:] for plan, values in costs.items()}
    by_index = ({plan: values[0] for plan, values in each.items()} for each in (costs, dear))
    titles = ("7: R⋈S by hashing (1.8 matches), S⋈T by index (0.1)", "7: the same with an eddy that costs")
    shown = {**shares, f"{EQUAL}, dear eddy": dear_shares[EQUAL]}
    panels = [
        *(Panel.bars(title, time, each, static=JOINS) for title, each in zip(titles, by_index, strict=True)),
        Panel.grouped("8: R⋈S and S⋈T by hashing", "", time, names[2:], hashed, static=JOINS),
        Panel.grouped("9: tuples of S that went to the better join first", "", share, names, shown),
    ]
    return Outcome(panels, figures)


def run_delayed(plan: str, settings: Settings, late: str, routing: float = 0.0) -> tuple[float, float, Array]:
    """Run the query by a static order or a policy, with one table late; as much work a second for any eddy.

    Returns:
        Seconds to completion; the share of S that was read when R began to arrive; and samples of the share
        of S read, and of its tuples so far the share that went to the join with R first, shape ``(2, n)``.
    """
    data = tables(THINNING, settings["scale"], settings.seed)
    tuples, batch = data["S"].num_rows, settings["batch"]
    spec = chain(data)
    unit = settings["unit"] / (1 + routing)
    joins = {join_of(spec, other, "S"): unit for other in "RT"}
    clock = VirtualClock(costs=Costs({**joins, ROUTE: routing * unit}))
    delay = 0.0 if settings.ablated == PUNCTUAL else settings["scale"] * settings["delay"]
    samples = [(0.0, 0.0, 0.0)]

    def note(started: Started, alias: str, read: int) -> None:
        if alias == "S" and read / tuples >= samples[-1][1] + 1 / SAMPLES:
            samples.append((clock.now(), read / tuples, share_of(started.figures(), "S", "R")))

    sources = all_batches(data, batch)
    access: Access = {late: [Scan(late, sources.pop(late), clock, stall=(0, delay))]}
    rows = results(data)
    ran = eddy(spec, sources, settings, clock, JOINS.get(plan, plan), rows=rows, access=access, reading=note)
    samples.append((clock.now(), 1.0, ran.share("S", "R")))
    arrived = max(read for when, read, _ in samples if when <= delay)
    return ran.seconds, arrived, np.array([sample[1:] for sample in samples]).T


def fig12_13(settings: Settings) -> Outcome:
    """Run both orders and the eddies with R late, and with S late, and follow the tuples of S.

    The lottery with equal turns is run by an eddy that costs, for the reason given in figure 7, and compared
    with static orders of such an eddy.
    """
    done = {
        (plan, late, routing): run_delayed(plan, settings, late, routing)
        for eddy_of, routing in ((WINDOWED, 0.0), (WINDOWED_EQUAL, settings["eddy"]))
        for plan in (*JOINS, eddy_of)
        for late in "RS"
    }
    late_r, late_s = (
        {p: ran[0] for (p, late, cost), ran in done.items() if late == t and not cost} for t in "RS"
    )
    figures: dict[str, float] = {}
    curves = []
    for name, plan, cost in (("eddy", WINDOWED, 0.0), ("equal_turns", WINDOWED_EQUAL, settings["eddy"])):
        seconds = {late: [done[p, late, cost][0] for p in (*JOINS, plan)] for late in "RS"}
        worse, best, ours = seconds["R"]
        _, arrived, (read, r_first) = done[plan, "R", cost]
        until = arrived or 0.4  # the moment of the delay's end; without a delay, where it would be
        figures[f"fig12_{name}_over_best"] = ours / best
        figures[f"fig12_{name}_place"] = place(ours, (best, worse))
        figures[f"fig12_{name}_late_s_over_best"] = seconds["S"][2] / min(seconds["S"])
        figures[f"fig13_{name}_during_delay"] = _between(read, r_first, until / 2, until)
        figures[f"fig13_{name}_behind"] = _between(read, r_first, until, 1.0)
        curves.append(Curve(f"{plan}, dear eddy" if cost else plan, read, r_first))
    panels = [
        *(
            Panel.bars(f"12: {late} is delayed", "time (s)", each, static=JOINS)
            for late, each in (("R", late_r), ("S", late_s))
        ),
        Panel(
            "13: tuples of S that meet R first",
            "share of S read",
            "share that went to R⋈S first, so far",
            curves,
            marks=[(done[WINDOWED, "R", 0.0][1], "R begins")],
        ),
    ]
    return Outcome(panels, figures)


def _between(read: Array, r_first: Array, low: float, high: float) -> float:
    """Return the share that went to R first of what was read between two shares of S."""
    below, above = (float(np.interp(end, read, r_first)) for end in (low, high))
    return min(1.0, max(0.0, (above * high - below * low) / (high - low)))


# Figures 10 and 11: a scanned table and two external indexes, R.x = A.x AND R.y = B.y, that change (section
# 4.4).
#
# Both indexes know the same small share of R, at random. An index join is like a selection on R: which one
# comes first decides how many tuples meet the other.

INDEXES = {"A first": ("A", "B"), "B first": ("B", "A")}


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

    def clock(self, a: Cost, b: Cost) -> VirtualClock:
        """Return a clock for one run, by the seconds that a tuple takes at the joins with A and with B."""
        return VirtualClock(costs=Costs({join_of(self.spec, "R", "A"): a, join_of(self.spec, "R", "B"): b}))

    def run(
        self,
        plan: str,
        settings: Settings,
        clock: VirtualClock,
        indexes: Mapping[str, IndexAM],
        reading: Noting | None = None,
    ) -> Ran:
        """Run an eddy by a static order or a policy."""
        sources: dict[str, Source] = {"R": batches(self.data["R"], settings["batch"])}
        access: Access = {alias: [index] for alias, index in indexes.items()}
        order = INDEXES.get(plan, plan)
        return eddy(
            self.spec, sources, settings, clock, order, rows=self.rows, access=access, reading=reading
        )


def fig10(settings: Settings) -> Outcome:
    """Run both static orders and eddies while a slow index and a fast one change places."""
    tuples, change = settings["tuples"], settings["change"]
    query = Indexed.drawn(tuples, settings["known"], settings.seed)
    each = change / (tuples * (1 - settings["left"]))

    def slow(*, early: bool) -> Callable[[float], float]:
        return lambda now: settings["slow"] if (now < change) == early else 0.0

    seconds: dict[str, float] = {}
    behind: dict[str, int] = {}
    for plan in (*INDEXES, WINDOWED, WINDOWED_EQUAL):
        clock = query.clock(each, each)
        indexes = {
            "A": RemoteIndex("x", query.data["A"], clock, slow(early=False)),
            "B": RemoteIndex("y", query.data["B"], clock, slow(early=True)),
        }
        seconds[plan] = query.run(plan, settings, clock, indexes).seconds
        lookups = [lookup for index in indexes.values() for lookup in index.lookups]
        behind[plan] = sum(1 for began, took in lookups if took and began >= change)
    better = min(INDEXES, key=lambda plan: seconds[plan])
    figures = {
        "lead": seconds[better] / seconds[WINDOWED],
        "equal_turns_lead": seconds[better] / seconds[WINDOWED_EQUAL],
        "slow_lookups_left": behind[WINDOWED] / max(1, behind[better]),
    }
    return Outcome([Panel.bars("Time to completion", "time (s)", seconds, static=INDEXES)], figures)


def fig11(settings: Settings) -> Outcome:
    """Toggle the costs after each quarter of the table, and follow the tuples."""
    tuples = settings["tuples"]
    query = Indexed.drawn(tuples, 0.1, settings.seed)
    figures: dict[str, float] = {}
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
    panel = Panel(
        "Costs toggle after each quarter",
        "share of the table scanned",
        "share that went to index 1 first, so far",
        curves,
        marks=[(quarter / 4, "toggle") for quarter in (1, 2, 3)],
    )
    return Outcome([panel], figures)


def _toggled(query: Indexed, plan: str, settings: Settings) -> tuple[list[float], list[float]]:
    """Return shares of the table scanned, and of its tuples so far the share that met index 1 first."""
    tuples = settings["tuples"]
    begun = 0

    def cost(*, first: bool) -> Callable[[], float]:
        return lambda: settings["cheap" if (4 * begun // tuples) % 2 == (0 if first else 1) else "dear"]

    at, shares = [0.0], [0.5]

    def note(started: Started, _: str, read: int) -> None:
        nonlocal begun
        begun = min(read, tuples - 1)
        if read == tuples or read / tuples >= at[-1] + 1 / SAMPLES:
            at.append(read / tuples)
            shares.append(share_of(started.figures(), "R", "A"))

    clock = query.clock(cost(first=True), cost(first=False))
    indexes = {alias: Index(alias, [key], query.data[alias], clock) for alias, key in ("Ax", "By")}
    query.run(plan, settings, clock, indexes, note)
    return at, shares


_BATCH = Parameter("batch", 10, 1, 1_000, "tuples", "that are routed together; the paper's is 1")
_ALONE = replace(_BATCH, default=1, meaning="that are routed together, as in the paper")
_QUEUE = Parameter("queue", 10, 1, 100_000, "tuples", "in a module's input queue when it is full")
_BUFFER = Parameter("buffer", 500, 1, 100_000, "tuples", "in the eddy when it takes no more")
_SCALE = Parameter("scale", 1.0, 0.02, 10.0, "", "of all tables: R and T 10,000 tuples, S 80,000")
_EDDY = Parameter(
    "eddy", 3.5, 0.0, 100.0, "delay units", "that an eddy takes to route a tuple, where it costs"
)

BROKEN = {
    EVEN: "every lottery's tickets are replaced by even shares, which leaves back-pressure",
    NO_QUEUES: "queues never fill, so that nothing turns tuples away from a module",
    ALL_TICKETS: "the naive eddy gets the lottery's tickets",
    STUCK: "the lottery keeps to one order",
    STUCK_T: "the lottery keeps to S⋈T first",
    STILL: "queues never fill, and the lottery's tickets are replaced by even shares",
    PUNCTUAL: "no table is delayed",
}


def _broken(*names: str) -> dict[str, str]:
    return {name: BROKEN[name] for name in names}


_CLAIMS_4_6 = (
    # Flow conservation leaves 3.6 % at the worst point (costs 3 and 5, where one tuple in seven takes the
    # dear one first); half as much again for the first full queues.
    at_most(
        1.06,
        "fig4_free_naive_over_best",
        "4: the free naive eddy nearly matches the best",
        "nearly matches",
        NO_QUEUES,
    ),
    Claim(
        "4: so it does where it costs",
        "fig4_naive_over_best",
        high=1.06,
        paper="nearly matches",
        fails=NO_QUEUES,
        cause="the eddy that figures 5 and 6 need is slower than the cheap selection, whose queue then "
        "never fills: back-pressure sees nothing there. No cost of the eddy gives all three "
        "figures: up to 2 units figure 4 comes out, from 3.5 on figures 5 and 6",
        found=(1.06, 1.2),
    ),
    at_most(1.06, "fig4_free_lottery_over_best", "4: the free lottery does, too", "best curve"),
    # Control: tickets decide about tuples alone, and not about turns on the processor.
    at_most(1.06, "fig4_free_equal_turns_over_best", "4: with equal turns, too"),
    # More than nothing: with even tickets both are the same eddy.
    at_least(
        0.001, "fig4_lottery_gain", "4: the lottery improves the naive eddy", "slightly improving", EVEN
    ),
    Claim("5: the naive eddy is half-way", "fig5_naive_place", 0.35, 0.65, "half-way", ALL_TICKETS),
    # Half of what even shares leave, 0.47; with equal turns three quarters of it.
    at_most(0.25, "fig5_lottery_place", "5: the lottery is near the best order", "near the best", EVEN),
    at_most(0.35, "fig5_equal_turns_place", "5: it is near with equal turns, too", fails=EVEN),
    # Optimal routing has 1, even shares 0.
    at_least(
        0.4, "fig6_naive_by_cost", "6: back-pressure sees costs: a dearer s1 is met later", fails=NO_QUEUES
    ),
    # As far as the lottery counts as even, below; a hundredth for the ends of the run.
    Claim(
        "6: it barely sees selectivity",
        "fig6_naive_by_selectivity",
        -0.2,
        0.01,
        "barely, the wrong way",
        ALL_TICKETS,
    ),
    # A full queue of each module.
    at_most(
        0.08, "fig6_free_conservation_error", "6: with a free eddy, it is flow conservation", fails=NO_QUEUES
    ),
    at_least(0.4, "fig6_lottery_by_selectivity", "6: the lottery sees selectivity", fails=EVEN),
    at_least(0.4, "fig6_equal_turns_by_selectivity", "6: with equal turns, too", fails=EVEN),
    # A fifth to either side. With a free eddy it is an urn, and any value comes out.
    Claim(
        "6: the lottery is even where both are alike",
        "fig6_lottery_where_alike",
        0.3,
        0.7,
        "close to 50 %",
        STUCK,
    ),
    Claim("6: with equal turns, too", "fig6_equal_turns_where_alike", 0.3, 0.7, "close to 50 %", STUCK),
)

_CLAIMS_7_9 = (
    # R and T are an eighth of S and come beside it; until they have come tickets say little, and what was
    # earned then has to be outweighed: as long again.
    at_most(0.25, "fig7_lottery_place", "7: the lottery performs nearly optimally", "nearly optimal", EVEN),
    # A tenth of the way between both orders.
    at_least(0.1, "fig7_naive_behind", "7: the naive eddy is behind the lottery", fails=EVEN),
    Claim(
        "7: the naive eddy is between the best and the worst order",
        "fig7_naive_place",
        low=0.3,
        high=0.9,
        paper="in between",
        fails=ALL_TICKETS,
        cause="a lookup costs 3 units, so that the index join is the bottleneck in either order: its "
        "queue stays full, and fresh tuples of S meet the hash join first, which is the worse order",
        found=(0.9, 1.05),
    ),
    # An eddy of 3 units gives 0.69, of 4 units 0.48. Figure 9 then loses the lead of its dearest query, for
    # queues that are empty show no costs, so that other claims have a free eddy.
    Claim("7: so it is if the eddy costs", "fig7_dear_eddy_naive_place", 0.3, 0.9, "in between", ALL_TICKETS),
    at_most(0.25, "fig8_lottery_place", "8: the lottery performs nearly optimally", "nearly optimal", EVEN),
    # Even shares leave 0.49 of the way and 0.5 of the tuples: three quarters of the way, a fifth more tuples.
    at_most(
        0.35, "fig7_dear_eddy_lottery_equal_turns_place", "7: with equal turns, too, if it costs", fails=EVEN
    ),
    at_most(
        0.35, "fig8_dear_eddy_lottery_equal_turns_place", "8: with equal turns, too, if it costs", fails=EVEN
    ),
    at_least(
        0.75, "fig9_lottery_least_share", "9: the lottery routes most tuples in the optimal order", fails=EVEN
    ),
    at_least(
        0.6,
        "fig9_dear_eddy_lottery_equal_turns_least_share",
        "9: with equal turns, too, if it costs",
        fails=EVEN,
    ),
    # A mistake there costs 3.3 units, elsewhere 0.8 to 3.2: hardly more is lost than at the start.
    at_least(
        0.9,
        "fig9_lottery_dearest_share",
        "9: quite close where the hash join should be first",
        "quite close",
        EVEN,
    ),
    at_least(0.0, "fig9_dearest_lead", "9: closer than in any other query", fails=STUCK_T),
)

_CLAIMS_10 = (
    # By the paper's numbers the better static order has 300 lookups of 5 s to do behind the change, the eddy
    # what waits in queues and one in a hundred of the rest: a few dozen. Half of that lead.
    at_least(
        3.0,
        "lead",
        "the eddy is much faster than either static plan",
        "about 1,500 s against 80 s",
        NO_QUEUES,
    ),
    at_least(3.0, "equal_turns_lead", "so it is with equal turns", fails=NO_QUEUES),
    at_most(
        0.3, "slow_lookups_left", "behind the change it does few slow lookups", "about 10 of 300", NO_QUEUES
    ),
)

_CLAIMS_11 = (
    # Half-way between even and optimal.
    at_least(0.75, "after_quarter_1", "most tuples go to index 1 while it is cheap", "most of 1,000", STILL),
    # Optimal is a half: all of the first quarter, and none of the second.
    at_least(0.25, "fall", "in the second quarter the share falls", "to about 50 %", STILL),
    # A share so far that is even from then on bends by 0.17 of the fall, and learning adds as much.
    at_most(0.35, "bent", "almost in a straight line", "near-linear", STILL),
    # Optimal is a sixth: from 1/2 to 2/3, and back.
    at_least(0.05, "rise", "in the third quarter it rises", "the pattern repeats", STUCK),
    at_least(0.05, "second_fall", "in the fourth it falls again", "the pattern repeats", STUCK),
    at_least(0.1, "equal_turns_fall", "with equal turns it falls, too", fails=STILL),
    at_least(0.02, "equal_turns_rise", "and rises", fails=STUCK),
)

_CLAIMS_12_13 = (
    # 43 % of S is read during the delay; each tuple of it kept for R meets two joins instead of 1.2: 22 %
    # more time, of which at least a third is seen.
    at_least(
        1.08, "fig12_eddy_over_best", "12: the eddy pays for R's delay", "not as well as it could", PUNCTUAL
    ),
    # 43 % of the way if all of S went wrong during the delay, and as much of the rest until tickets turn.
    at_most(
        0.6, "fig12_eddy_place", "12: but behind the delay it corrects itself", "far better than worst", STUCK
    ),
    at_most(0.6, "fig12_equal_turns_place", "12: with equal turns, too, if the eddy costs", fails=STUCK),
    # Half of the cost of R's delay.
    at_most(
        1.1, "fig12_eddy_late_s_over_best", "12: a delay of S affects all plans alike", "identically", STUCK
    ),
    # That join drops all tuples, the other one 80 %; the first half of the delay is for learning.
    at_least(0.65, "fig13_eddy_during_delay", "13: it favours the silent join", "most S tuples", PUNCTUAL),
    at_least(0.5, "fig13_equal_turns_during_delay", "13: with equal turns, too, if it costs", fails=PUNCTUAL),
    # R⋈S then keeps every tuple; some come before tickets turn.
    at_most(0.3, "fig13_eddy_behind", "13: then it throttles that join", "quickly, at 43.5 % of S", STUCK),
    at_most(0.5, "fig13_equal_turns_behind", "13: with equal turns, too, if it costs", fails=STUCK),
)

FIGURES: tuple[Figure, ...] = (
    Figure(
        id="eddies-fig4-6",
        title="Two selections of different cost or selectivity",
        source="Avnur & Hellerstein 2000, figures 4 to 6",
        says="Back-pressure alone finds the cheaper selection and cannot tell a selective one; a lottery "
        "is near the best order in both cases. The paper does not say what its eddy itself costs: at "
        "3.5 delay units a tuple, queues are not full all the time, and figures 5 and 6 come out; "
        "figure 4 does with a free eddy.",
        measure=fig4_6,
        claims=_CLAIMS_4_6,
        parameters=(
            Parameter("tuples", 5_000, 500, 1_000_000, "tuples", "in table U; the paper's has 50,000"),
            Parameter("points", 9, 3, 33, "points", "on each curve; an odd number has a middle"),
            _EDDY,
            _ALONE,
            _QUEUE,
            _BUFFER,
        ),
        broken=_broken(EVEN, NO_QUEUES, ALL_TICKETS, STUCK),
        small={"tuples": 600, "points": 3},
        seconds=150,
    ),
    Figure(
        id="eddies-fig7-9",
        title="Joins of different cost and selectivity",
        source="Avnur & Hellerstein 2000, figures 7 to 9",
        says="With a hash join that multiplies tuples and a selective index join, and with two hash "
        "joins, a lottery performs nearly optimally. It is not strict about the optimal order, but "
        "close to it where a mistake is dearest: where the hash join should precede the index join.",
        measure=fig7_9,
        claims=_CLAIMS_7_9,
        parameters=(
            _SCALE,
            Parameter("index", 3.0, 0.1, 1000.0, "delay units", "of a lookup; random reads cost more"),
            _EDDY,
            _BATCH,
            _QUEUE,
            _BUFFER,
        ),
        broken=_broken(EVEN, ALL_TICKETS, STUCK_T),
        small={"scale": 0.03},
        seconds=250,
    ),
    Figure(
        id="eddies-fig10",
        title="Two indexes change places",
        source="Avnur & Hellerstein 2000, figure 10",
        says="When a fast remote index becomes slow and a slow one fast, an eddy with a windowed lottery "
        "changes the order of its index joins at once and is far ahead of both static plans.",
        measure=fig10,
        claims=_CLAIMS_10,
        parameters=(
            Parameter("tuples", 30_000, 300, 1_000_000, "tuples", "in the scanned table"),
            Parameter("known", 0.01, 0.001, 1.0, "", "share of the table that each index knows"),
            Parameter("slow", 5.0, 0.1, 100.0, "s", "of a lookup in the slow index"),
            Parameter("change", 30.0, 1.0, 1000.0, "s", "until the indexes change places"),
            Parameter("left", 1 / 30, 0.0, 0.9, "", "share of the table not looked up when they change"),
            _BATCH,
            _QUEUE,
            _BUFFER,
        ),
        broken=_broken(NO_QUEUES),
        small={"tuples": 600, "known": 0.1, "left": 0.1, "slow": 20.0, "batch": 1, "queue": 1},
        seconds=20,
    ),
    Figure(
        id="eddies-fig11",
        title="Costs that toggle",
        source="Avnur & Hellerstein 2000, figure 11",
        says="An eddy follows costs that change: the share of tuples that go to index 1 first rises, "
        "drifts to a half almost linearly, rises and falls again, always favouring the cheaper "
        "index.",
        measure=fig11,
        claims=_CLAIMS_11,
        parameters=(
            Parameter("tuples", 4_000, 400, 1_000_000, "tuples", "in the scanned table"),
            Parameter("cheap", 1.0, 0.001, 1000.0, "delay units", "of a lookup in the cheap index"),
            Parameter("dear", 100.0, 0.001, 1000.0, "delay units", "of a lookup in the dear index"),
            _ALONE,
            _QUEUE,
            _BUFFER,
        ),
        broken=_broken(STILL, STUCK),
        seconds=10,
    ),
    Figure(
        id="eddies-fig12-13",
        title="A table that comes late",
        source="Avnur & Hellerstein 2000, figures 12 and 13",
        says="An eddy with a windowed lottery does not adapt well to an initial delay of R: it keeps "
        "tuples of S waiting in the join with R, which is silent and seems selective, and pays for "
        "it when R arrives. Then it quickly throttles that join. A delay of S affects both joins "
        "alike. R and T are named the other way round than in figure 8.",
        measure=fig12_13,
        claims=_CLAIMS_12_13,
        parameters=(
            _SCALE,
            Parameter("delay", 10.0, 0.0, 1000.0, "s", "before the first tuple of R"),
            Parameter(
                "unit", 0.00022, 1e-6, 1.0, "s", "of a delay unit: 43 % of S come in the paper's delay"
            ),
            _EDDY,
            _BATCH,
            _QUEUE,
            _BUFFER,
        ),
        broken=_broken(PUNCTUAL, STUCK),
        small={"batch": 80, "queue": 80},
        seconds=90,
    ),
)
