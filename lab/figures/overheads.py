"""Deshpande 2004, *An Initial Study of Overheads of Eddies*, figures 5 to 7: what an eddy costs.

All plans of these queries cost the same, so that there is nothing to win. The paper sets an eddy beside a
static plan for decisions that are renewed every X tuples. Here tuples travel in batches: what a run takes is
``a + b·batches + c·tuples``, of which an eddy has its own a, b and c; batches are those read of the first
table. To decide every X tuples it reads batches of X. The static plan keeps to its own, as in the paper.

Tables have the four columns of the paper's queries. Processor time is compared, in which other programs
show less; sides take turns, and the static plan appears twice, which shows the noise.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import process_time, thread_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.access import Index
from lab.figures.engine import MICRO, all_batches, key
from lab.figures.figure import Outcome, Panel, Parameter, Settings, figure
from lab.joins import block, run_block, run_plan
from millrace.engine.access.paths import Access
from millrace.engine.plan.expressions import Call, Column, ColumnRef, Compare, Literal, Predicate
from millrace.engine.plan.spec import JoinSpec
from millrace.errors import ExecutionError
from millrace.limits.clock import WallClock
from millrace.options import Options
from millrace.predicates import PredicateSpec

SINGLE, LASTING = "single-tuples", "lasting"
KEY, BELOW = "unique2", {"two": 2, "four": 4, "ten": 10}
EVERY = (1, 10, 100, 1000)
"""X: tuples between two decisions."""

TWICE = 2.2
"""What the paper calls "only about twice"."""

FEW = 100
"""Tuples of a run for each of X, and of one whose batches have one tuple each: these take long."""

Point = tuple[int, int]
"""Tuples of the first table, and of a batch."""


def wisconsin(rows: int, seed: int) -> pa.Table:
    """Draw a table of the Wisconsin benchmark, of its columns those that the queries name."""
    drawn = np.random.default_rng(seed).permutation(rows).astype(np.int32)
    return pa.table({KEY: np.arange(rows, dtype=np.int32), **{k: drawn % n for k, n in BELOW.items()}})


@dataclass(frozen=True)
class Query:
    """A query of the paper's figure 4, in which each tuple of the first table becomes one result.

    ``tables`` are scanned, ``access`` returns the indexes for one run. Its runs take at most a ``share`` of
    the tuples of other queries.
    """

    name: str
    spec: JoinSpec
    tables: Mapping[str, pa.Table]
    access: Callable[[], Access] = dict
    share: float = 1.0

    def seconds(self, point: Point, every: int, *, static: bool) -> float:
        """Return the processor time of one run, repeated while it is short.

        Raises:
            ExecutionError: The number of rows is wrong.
        """
        tuples, batch = point
        joins = len(self.spec.relations) > 1
        options = Options(
            architecture="static" if static else "joins" if joins else "stems",
            policy=None if static or joins else "rank",
            batch_size=batch,
            reoptimize_every=every,
            online=joins,  # symmetric hash joins
        )
        sources = all_batches({alias: table.slice(0, tuples) for alias, table in self.tables.items()}, batch)
        gc.collect()
        runs, began = 0, process_time()
        while not runs or process_time() - began < 0.03:
            if static and not joins:
                found = run_plan(self.spec, sources, options)
            else:
                found, _ = run_block(self.spec, sources, options, access=self.access())
            if found != tuples:
                raise ExecutionError(f"{self.name} found {found:,} rows, expected {tuples:,}")
            runs += 1
        return (process_time() - began) / runs


@dataclass(frozen=True)
class Delay:
    """``delay(column, micros) < below``: keeps the processor busy for a batch as long as for its tuples."""

    below: int
    micros: int

    def __call__(self, column: Any) -> Any:
        until = thread_time() + len(column) * self.micros * MICRO
        while self.micros and thread_time() < until:
            pass
        return pc.less(column, self.below)


def selections(name: str, table: pa.Table, micros: int | None) -> Query:
    """Return a query of figure 5, with predicates of so many microseconds; None for the engine's own."""
    kept = {"tenk1": table.select(list(BELOW))}
    predicates: list[Predicate] = []
    for column, below in BELOW.items():
        value = Column(ColumnRef("tenk1", column))
        if micros is None:
            predicates.append(Compare("<", value, Literal(below, pa.int32()), pa.int32()))
        else:
            predicates.append(Call(PredicateSpec(f"delay_{column}", Delay(below, micros), "arrow"), (value,)))
    return Query(name, block(kept, predicates=predicates), kept, share=0.1 if micros else 1.0)


def star(name: str, tables: Mapping[str, pa.Table], *, count: bool = False, index: bool = False) -> Query:
    """Return a star join: by symmetric hash joins, figure 6, or for a tenth by index joins, figure 7."""
    (first, middle), *others = tables.items()
    if count:
        tables = {alias: table.select([KEY]) for alias, table in tables.items()}
    equalities = [f"{first}.{KEY} = {other}.{KEY}" for other, _ in others]
    spec = block(tables, *equalities, all_columns=not count)
    if not index:
        return Query(name, spec, tables)
    indexed = {alias: table.combine_chunks().to_batches()[0] for alias, table in others}

    def access() -> Access:
        clock = WallClock()
        return {alias: [Index(alias, (KEY,), partial(_find, t), clock)] for alias, t in indexed.items()}

    return Query(name, spec, {first: middle.take(np.arange(0, middle.num_rows, 10))}, access, 0.1)


def _find(table: pa.RecordBatch, bindings: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows by their keys, which are their numbers: an index that was there before."""
    return table.take(bindings.column(KEY))


def queries(rows: int, seed: int) -> list[Query]:
    """Return the paper's queries, without those between others."""
    tables = {f"t{i}": wisconsin(rows, seed + i) for i in range(5)}
    three = dict(list(tables.items())[:3])
    delays = {"no delay": None, "delay 0": 0, "delay 10": 10}
    return [
        *(selections(name, tables["t0"], micros) for name, micros in delays.items()),
        *(star(f"count {len(some)}", some, count=True) for some in (three, tables)),
        *(star(f"all {len(some)}", some) for some in (three, tables)),
        *(star(f"index {len(some)}", some, index=True) for some in (three, tables)),
    ]


@dataclass(frozen=True)
class Taken:
    """What a query took: median seconds by side and point.

    ``again`` is the static plan once more, over itself: the noise. ``every`` are medians of the eddy by X,
    over those of the static plan for as many tuples.
    """

    seconds: Mapping[str, Mapping[Point, float]]
    again: float
    every: Mapping[int, float]

    def fitted(self, side: str) -> tuple[float, ...]:
        """Return a, b and c in microseconds: the least squares of relative errors, none below zero."""
        points = self.seconds[side]
        taken = np.array(list(points.values()))
        rows = np.array([(1.0, tuples / batch, tuples) for tuples, batch in points]) / taken[:, None]
        kept, found = [0, 1, 2], np.zeros(3)
        while kept:
            found[:] = 0.0
            found[kept] = np.linalg.lstsq(rows[:, kept], np.ones(len(taken)), rcond=None)[0]
            if found.min() >= 0.0:
                break
            kept.remove(int(found.argmin()))
        return tuple(float(each) / MICRO for each in found)


def take(query: Query, settings: Settings) -> Taken:
    """Measure a query, in rounds whose sides take turns."""
    most = round(settings["tuples"] * query.share)
    sizes = [most // 100, most // 10, most]
    points = [(n, b // 10) for n in sizes for b in sizes if b // 10 <= n <= b * 10]
    usual = min(1000, most // 100)

    def static(point: Point) -> float:
        return query.seconds(point, point[1], static=True)

    def eddy(point: Point, every: int) -> float:
        if settings.ablated == SINGLE:  # every tuple alone, of fewer tuples
            few = min(point[0], FEW)
            return query.seconds((few, 1), 1, static=False) * point[0] / few
        return query.seconds(point, every, static=False)

    runs: dict[tuple[str, Any], Callable[[], float]] = {}
    for point in points:
        runs["static", point] = partial(static, point)
        runs["eddy", point] = partial(eddy, point, point[1])
    runs["again", points[-1]] = partial(static, points[-1])
    for every in EVERY:
        tuples = min(most // 100, every * FEW)
        x = usual if settings.ablated == LASTING else every
        runs["every", every] = partial(eddy, (tuples, x), x)
        runs["beside", every] = partial(static, (tuples, usual))
    found: dict[tuple[str, Any], list[float]] = {name: [] for name in runs}
    for side in (static, partial(eddy, every=1)):
        side(points[0])  # compiles kernels
    for number in range(settings["rounds"]):
        for name in list(runs)[:: -1 if number % 2 else 1]:
            found[name].append(runs[name]())
    medians = {name: statistics.median(each) for name, each in found.items()}
    seconds = {side: {point: medians[side, point] for point in points} for side in ("static", "eddy")}
    again = medians["again", points[-1]] / medians["static", points[-1]]
    return Taken(seconds, again, {x: medians["every", x] / medians["beside", x] for x in EVERY})


BATCHES = (
    "at a thousand tuples a batch, most of a run is batches, and an eddy spends up to twice as much on each"
)
TUPLES = "an eddy counts and samples the tuples by which it decides, which a static plan need not"
VECTORS = (
    "the paper's static plan takes tuples one by one, this one a thousand together: a decision, with the "
    "batch that it is for, costs as much as work on hundreds of tuples"
)
CALLED = (
    "a decision about a called predicate lasts for some milliseconds of its work, so that batches are cut to "
    "about a thousand tuples of 10 µs, and each piece costs a batch"
)


@figure(
    "overheads-fig5-7",
    "Deshpande 2004, figures 5 to 7",
    f"""
    no_delay_small ≤ 2.2 | 5: free predicates take about twice as long | about twice | single-tuples
    # A tenth of 10 µs is what an eddy takes for a tuple.
    delay_10_small ≤ 1.1 | 5: ones of 10 µs hardly longer | very small | single-tuples
        but 1.1 to 1.25: {CALLED}
    # A quarter more for what bars of the paper's size do not show.
    hash_small ≤ 1.25 | 6: symmetric hash joins hardly longer | quite minimal | single-tuples
        but 1.25 to 2.2: {BATCHES}
    hash_large ≤ 1.25 | 6: in large batches, too | | single-tuples
        but 1.25 to 2.2: {TUPLES}
    index_small ≤ 1.25 | 7: index joins hardly longer | quite minimal | single-tuples
        but 1.25 to 2.2: {BATCHES}
    index_large ≤ 1.25 | 7: in large batches, too | | single-tuples
        but 1.25 to 2.2: {TUPLES}
    # Several times as long as about twice.
    5 ≤ no_delay_every_1 | 5: to decide for every tuple is dear | high | lasting
    5 ≤ joins_every_1 | 6 and 7: with joins, too | quite high | lasting
    no_delay_amortized ≤ 10 | 5: it amortizes over 10 tuples | 10 | single-tuples
        but 100 to 1000: {VECTORS}
    joins_amortized ≤ 10 | 6, 7: and over very few with joins | very few | single-tuples
        but 100 to 1000: {VECTORS}
    # The project's own.
    no_delay_large ≤ 1.1 | target: free predicates | | single-tuples
        but 1.1 to 2.2: {TUPLES}
    delay_10_large ≤ 1.02 | target: predicates of 10 µs | | single-tuples
        but 1.02 to 1.25: {CALLED}
    joins_large ≤ 1.05 | target: joins | | single-tuples
        but 1.05 to 2.2: {TUPLES}
    """,
    parameters=(
        Parameter("tuples", 1_000_000, 10_000, 10_000_000, "tuples", "in each table, at most"),
        Parameter("rounds", 5, 1, 100, "", "measurements of each side"),
    ),
    broken={
        SINGLE: "batches: each tuple is routed alone, by a decision of its own",
        LASTING: "the renewal of decisions: they hold for a batch of the static plan, whatever X is",
    },
    small={"tuples": 10_000, "rounds": 1},
    wall=True,
)
def fig5_7(settings: Settings) -> Outcome:
    """What an eddy costs.

    Every order of these selections, symmetric hash joins and index joins costs the same. Deciding for every
    tuple is dear; amortized over tuples, an eddy costs little beyond a static plan. Small are 10,000 tuples
    in batches of 1,000; large are a million in batches of 100,000.

    Measure each query, and fit what a run, a batch and a tuple cost.
    """
    taken = {each.name: take(each, settings) for each in queries(settings["tuples"], settings.seed)}
    figures: dict[str, float] = {}
    ratios: dict[str, list[float]] = {"a batch": [], "a tuple": []}
    for name, each in taken.items():
        fits = {side: each.fitted(side) for side in ("static", "eddy")}
        for what, static, eddy in zip(("run", "batch", "tuple"), *fits.values(), strict=True):
            figures |= {key(name, what, "static_us"): static, key(name, what, "eddy_us"): eddy}
            if what != "run":
                ratios[f"a {what}"].append(eddy / static if static else math.nan)
                figures[key(name, what, "ratio")] = ratios[f"a {what}"][-1]
        figures |= {key(name, "every", str(x)): ratio for x, ratio in each.every.items()}
        figures[key(name, "amortized")] = min(
            (x for x, ratio in each.every.items() if ratio < TWICE), default=10_000
        )
        sides = {side: list(seconds.values()) for side, seconds in each.seconds.items()}
        places = {"small": 0, "large": -1}  # the fewest tuples in batches of a tenth; the most
        figures |= {key(name, s): sides["eddy"][i] / sides["static"][i] for s, i in places.items()}
        figures[key(name, "again")] = each.again
    stars = [name for name in taken if name[-1].isdigit() and "delay" not in name]
    for kind, names in {"hash": stars[:4], "index": stars[4:], "joins": stars}.items():
        for what, extreme in {"small": max, "large": max, "every_1": min, "amortized": max}.items():
            figures[key(kind, what)] = extreme(figures[key(name, what)] for name in names)
    ratio = "eddy / static plan (processor time)"
    every = {name: list(each.every.values()) for name, each in taken.items()}
    panels = [
        Panel.over("Decisions every X tuples", "X", ratio, EVERY, every, x_log=True, y_log=True),
        Panel.grouped("What each batch and each tuple cost", ratio, taken, ratios),
    ]
    return Outcome(panels, figures)
