"""The production engine on a virtual clock: selections, indexes and costs of declared time, a run.

Nothing here routes or joins. A run is a :class:`~millrace.engine.eddy.run.Run` on a clock that only declared
work moves, so that its times are exact, repeatable, and the same on every machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from lab.access import Index
from lab.figures.figure import Curve, Parameter
from lab.joins import block, rows_of
from millrace.engine.access.modules import Answer
from millrace.engine.access.schedule import Source
from millrace.engine.eddy.dataflow import EddyDataflow
from millrace.engine.eddy.preference import PreferringDataflow, Wanted, prefer
from millrace.engine.eddy.run import Run
from millrace.engine.figures import CellFigures
from millrace.engine.plan.expressions import Call, Column, ColumnRef
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import edges_of
from millrace.errors import ExecutionError
from millrace.limits.clock import Clock, VirtualClock
from millrace.options import Options
from millrace.predicates import PredicateSpec

MICRO = 1e-6
Array = np.ndarray[Any, Any]

Place = tuple[str, int]
"""What an operator does, and its target (:attr:`millrace.engine.eddy.operator.Operator.place`)."""

Cost = float | Callable[[], float]
"""Seconds per tuple, the same all the time or asked for whenever there is work."""


# What is run


def selection(alias: str, column: str, cost: Cost, clock: VirtualClock) -> Call:
    """Return a predicate that keeps the tuples whose column, of booleans, says so, at a cost for each tuple.

    Avnur & Hellerstein 2000, section 3.3: a spin loop, then a randomized decision. The decisions stand in a
    column, so that every run of a comparison meets the same ones; the spin loop is the clock's.
    """

    def decide(kept: pa.Array) -> pa.Array:
        clock.advance(len(kept) * (cost() if callable(cost) else cost))
        return kept

    return Call(PredicateSpec(column, decide, "arrow"), (Column(ColumnRef(alias, column)),))


def batches(table: pa.Table, size: int) -> list[pa.RecordBatch]:
    """Cut a table into batches of so many rows."""
    return [batch for batch in table.combine_chunks().to_batches(max_chunksize=size) if batch.num_rows]


def all_batches(tables: Mapping[str, pa.Table], size: int) -> dict[str, Source]:
    """Cut tables into batches, by alias."""
    return {alias: batches(table, size) for alias, table in tables.items()}


CHAIN = ("R.a = S.a", "S.b = T.b")
SCALE = Parameter("scale", 1.0, 0.02, 10.0, "", "of all tables: R and T 10,000 tuples, S 80,000")
TABLE_1 = 1.8
"""What a tuple of S meets in R by the paper's table 1: R.a is from 500 to 5500, S.a from 0 to 5000."""


@lru_cache(maxsize=8)
def chain(
    scale: float, seed: int, r_matches: float, t_matches: float
) -> tuple[Mapping[str, pa.Table], JoinSpec, int]:
    """Return R ⋈ S ⋈ T of the eddies paper: tables, block, and rows of the result.

    A tuple of S meets so many tuples of R, and so many of T, at most 1.
    """
    draw = np.random.default_rng(seed)
    r, s, t = (max(1, round(scale * rows)) for rows in (10_000, 80_000, 10_000))
    low, high = 0, max(1, round(r / r_matches))
    if r_matches == TABLE_1:
        low, high = round(scale * 500), round(scale * 5500)
    data = {
        "R": pa.table({"a": draw.integers(low, high, r)}),
        "S": pa.table({"a": draw.integers(0, high - low, s), "b": draw.integers(0, round(t / t_matches), s)}),
        "T": pa.table({"b": draw.permutation(t)}),
    }
    return data, block(data, *CHAIN), rows_of(data, *CHAIN)


# What time it takes


class Costs:
    """Costs by place; work without a declared cost takes no time. A virtual clock takes them.

    Avnur & Hellerstein 2000, section 3.3, give them in *delay units*, as spin loops; here one unit is one
    second of the virtual clock, or whatever the figure says.

    Args:
        tuples: Seconds of a module for each tuple in,
        matches: and besides for each match that it returns.
    """

    def __init__(self, tuples: Mapping[Place, Cost], matches: Mapping[Place, float] | None = None) -> None:
        self._tuples, self._matches = tuples, matches or {}

    def __call__(self, work: Any, tuples_in: int, tuples_out: int) -> float:
        cost = self._tuples.get(work, 0.0)
        return tuples_in * (cost() if callable(cost) else cost) + tuples_out * self._matches.get(work, 0.0)


def join_of(spec: JoinSpec, one: str, other: str) -> Place:
    """Return the place of the binary join of two relations, by their aliases."""
    ends = {spec.aliases.index(one), spec.aliases.index(other)}
    (number,) = (edge.number for edge in edges_of(QueryGraph.of(spec)) if set(edge.ends) == ends)
    return "join", number


class RemoteIndex(Index):
    """An index that answers one lookup at a time, which leaves the processor free, and notes what it does.

    A lookup in the table takes ``delay`` seconds, or what that returns for the time when it begins.

    Attributes:
        lookups: When each lookup began, and how long it took, in seconds.
        answered: When each answer came, and the first bind column's value.
    """

    def __init__(
        self,
        columns: Sequence[str],
        table: pa.Table,
        clock: Clock,
        delay: float | Callable[[float], float],
        budget: int | None = None,
    ) -> None:
        super().__init__(",".join(columns), columns, table, clock, in_flight=1, budget=budget)
        self.lookups: list[tuple[float, float]] = []
        self.answered: list[tuple[float, int]] = []
        self._at = delay if callable(delay) else lambda _: delay

    def submit(self, bindings: pa.RecordBatch) -> None:
        """Begin lookups as soon as earlier ones have ended."""
        for row in range(bindings.num_rows):
            began = max(self._free, self._clock.now())
            self._delay = self._at(began)
            self.lookups.append((began, self._delay))
            super().submit(bindings.slice(row, 1))

    def poll(self) -> list[Answer]:
        answers = super().poll()
        keys = [key for answer in answers for key in answer.bindings.column(0).to_pylist()]
        self.answered += [(self._clock.now(), key) for key in keys]
        return answers


# A run


@dataclass(frozen=True)
class Ran:
    """A run that has ended.

    Attributes:
        seconds: Of the virtual clock.
        rows: Of the result.
        figures: What the engine counted.
        times: When each result came, ascending; empty where the block only counts.
        table: The results in their order; None where the block only counts.
        answered: When remote indexes answered, and which key.
        sampled: Tuples that were looked at to divide others by their content.
    """

    seconds: float
    rows: int
    figures: CellFigures
    times: Array
    table: pa.Table | None = None
    answered: Sequence[tuple[float, int]] = ()
    sampled: int = 0

    @property
    def answer(self) -> Counter[tuple[Any, ...]]:
        """The results in no order."""
        columns = [] if self.table is None else self.table.columns
        return Counter(zip(*(column.to_pylist() for column in columns), strict=True))

    def count(self, moments: Array) -> Array:
        return np.searchsorted(self.times, moments, side="right")

    def share_at(self, share: float) -> float:
        """Return when this share of all results had come."""
        return float(self.times[max(0, int(np.ceil(share * len(self.times))) - 1)])

    def curve(self, name: str) -> Curve:
        ascending = range(1, len(self.times) + 1)
        return Curve(name, (0.0, *self.times, self.seconds), (0, *ascending, len(self.times)))


Noting = Callable[[Run, str, int], None]
"""Takes the run, a source's alias, and how many of its tuples have been read."""


def run(
    spec: JoinSpec,
    sources: Mapping[str, Source],
    options: Options,
    *,
    clock: VirtualClock,
    rows: int | None = None,
    reading: Noting | None = None,
    on_batch: Callable[[Run], None] | None = None,
    wanted: Wanted = None,
    **more: Any,
) -> Ran:
    """Run a block with the production engine, on a virtual clock, to its end.

    Args:
        spec: The block.
        sources: Batches by alias; none for relations with access modules alone.
        options: Of the run; a static plan where the architecture is ``static``, else an eddy.
        clock: Of the run and its access modules, with the costs of the work.
        rows: Of the result, if known.
        reading: Called before each batch of a source is read, and at its end.
        on_batch: Called after each batch of results, an empty one when all sources have stalled.
        wanted: What the user wants first, if anything.
        more: As :class:`Run` takes it.

    Raises:
        ExecutionError: The result has another number of rows.
    """
    began, times, found = clock.now(), list[float](), []

    def noted(alias: str, source: Source, note: Noting) -> Iterator[Any]:
        read = 0
        for batch in source:
            note(started, alias, read)
            yield batch
            read += batch.num_rows if isinstance(batch, pa.RecordBatch) else 0
        note(started, alias, read)

    if reading is not None:
        sources = {alias: noted(alias, source, reading) for alias, source in sources.items()}
    if wanted is not None:
        more["eddy"] = PreferringDataflow
    started = Run(spec, sources, options, clock=clock, **more)
    if wanted is not None:
        prefer(started, wanted)
    for batch in started.run():
        found.append(batch)
        if not spec.count_only:
            times += [clock.now()] * batch.num_rows
        if on_batch is not None:
            on_batch(started)
    table, number = None, len(times)
    if spec.count_only:
        number = sum(row for batch in found for row in batch.column(0).to_pylist())
    else:
        table = pa.Table.from_batches(found, spec.output_schema)
    if rows is not None and number != rows:
        raise ExecutionError(f"the run found {number:,} rows, expected {rows:,}")
    indexes = [each for ways in (more.get("access") or {}).values() for each in ways]
    answered = [one for each in indexes if isinstance(each, RemoteIndex) for one in each.answered]
    sampled = started.dataflow.sampled if isinstance(started.dataflow, EddyDataflow) else 0
    figures, seconds = started.figures(), clock.now() - began
    return Ran(seconds, number, figures, np.array(times), table, answered, sampled)


def share_of(figures: CellFigures, alias: str, first: str) -> float:
    """Return the share of a relation's tuples so far that went to one module before all others."""
    routed = [(order.split(" → "), count) for order, count in figures.orders]
    began = [(steps[1], count) for steps, count in routed if steps[0] == alias and len(steps) > 1]
    return sum(count for module, count in began if module == first) / max(1, sum(c for _, c in began))


def key(*words: str) -> str:
    """Return a name made of the letters and digits of some words, such as ``r_s_20_lottery``."""
    return re.sub(r"[^a-z0-9]+", "_", " ".join(words).lower()).strip("_")
