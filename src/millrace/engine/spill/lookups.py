"""Lookups under a memory budget: what is scanned is joined first, and indexes are asked for what comes out.

A block is divided in two. One joins the relations that are scanned, by spilling what does not fit. Its
results are a single relation of the other, streamed and left unbuilt, whose tuples look for the rest by
indexes. The state of that one is what indexes have answered: a cache. When it outgrows its share the eddy
reads no more, ends with what is under way, and a new one goes on. That may ask for a binding once more, which
the coordinator of a job's lookups answers without a request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, cast

import pyarrow as pa

from millrace.engine.access.modules import IndexAM, is_index
from millrace.engine.access.paths import Access
from millrace.engine.arrays import sliced
from millrace.engine.eddy.context import Given
from millrace.engine.eddy.output import Output
from millrace.engine.eddy.run import Run
from millrace.engine.eddy.statistics import Lessons
from millrace.engine.figures import CellFigures
from millrace.engine.operators.beside import BesideRelation
from millrace.engine.operators.select import own_caller
from millrace.engine.plan.expressions import (
    Call,
    ColumnRef,
    columns_of,
    exists_in,
    relations_of,
    rename_columns,
)
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.engine.spill.context import Budget, tuple_bytes
from millrace.engine.spill.guard import StateMonitor
from millrace.engine.spill.spilling import SpillingEddy
from millrace.engine.tuples import BATCH_BYTES
from millrace.errors import ExecutionError, InputError, OptionError
from millrace.limits.clock import POLLED, WallClock
from millrace.options import Options
from millrace.predicates import Caller

SCANNED_SHARE = 3 / 4
"""Of the budget, for the join of what is scanned; the rest is for answers and tuples that wait for them."""

CACHED_SHARE = 1 / 4
"""Of the rest's state, for answers. Merging them takes their size again, and those under way come on top."""


@dataclass(frozen=True)
class Division:
    """A block in two: ``scanned``, whose results are relation ``stream`` of ``asking``.

    ``scanned`` is None where a single relation is scanned, which needs no state. ``numbers`` are those in the
    whole block of the predicates of ``asking``.
    """

    scanned: JoinSpec | None
    asking: JoinSpec
    stream: str
    numbers: tuple[int, ...]


def divide(spec: JoinSpec, asked: Collection[str], read: Collection[str], options: Options) -> Division:
    """Divide a block whose relations ``asked`` have indexes; those of them that are ``read`` have scans too.

    Raises:
        InputError: Some are read; what is scanned is not connected; something beside it needs answers to be
            joined; or an order of all relations is given.
    """
    if read:
        raise _refuse(spec, read, "a scan has all of its rows too, which would stay in memory")
    asked = {*asked, *(r.alias for r in spec.relations if r.same_as in asked)}
    if options.order:
        raise _refuse(spec, asked, f"the order {options.order} is given")
    own = [r for r in spec.relations if r.alias not in asked]
    beside = [r for r in spec.beside if r.alias not in asked]
    known = {r.alias for r in (*own, *beside)}
    outer = [join for join in spec.outer if join.relation not in asked]
    pinned = [isinstance(p, Call) and not p.spec.deterministic for p in spec.residuals]
    free = pinned.index(True) if True in pinned else len(pinned)
    first = [
        n < free and not isinstance(p, Call) and relations_of(p) <= known
        for n, p in enumerate(spec.residuals)
    ]
    numbers = tuple(n for n, is_first in enumerate(first) if not is_first)
    late = [each.relation for n in numbers for each in exists_in(spec.residuals[n])]
    late += [join.relation for join in outer if not relations_of(join) <= known]
    if late:
        raise _refuse(spec, asked, f"matches in {', '.join(late)} depend on what is looked up")
    aliases = [r.alias for r in own]
    equalities = (*(e for e in spec.equalities if {*e.relations} <= known), *_implied(spec, aliases))
    if len(own) > 1 and not _is_connected(aliases, equalities):
        raise _refuse(spec, asked, "no equality joins the other relations with each other but through these")
    if len(known) == 1:
        return Division(None, spec, own[0].alias, tuple(range(len(spec.residuals))))
    residuals = tuple(p for p, is_first in zip(spec.residuals, first, strict=True) if is_first)
    later = tuple(spec.residuals[n] for n in numbers)
    widening = tuple(join for join in spec.outer if join.relation in asked)
    between = [e for e in spec.equalities if not {*e.relations} <= known]
    refs = [end for e in between for end in e.ends] + [o.source for o in spec.output]
    refs += [ref for node in (*later, *widening) for ref in columns_of(node)]
    stream, names = "⋈".join(r.alias for r in own), dict[ColumnRef, str]()
    for ref in refs:
        if ref.relation in known:
            names.setdefault(ref, f"{len(names)} {ref.relation}.{ref.column}")

    def rename(ref: ColumnRef) -> ColumnRef:
        return ColumnRef(stream, names[ref]) if ref in names else ref

    scanned = JoinSpec(
        tuple(own),
        equalities,
        residuals,
        tuple(OutputColumn(name, ref) for ref, name in names.items()),
        beside=tuple(beside),
        outer=tuple(outer),
    )
    relation = RelationSpec(stream, scanned.output_schema)
    looked_up = tuple(r for r in spec.relations if r.alias in asked)
    asking = JoinSpec(
        (relation, *looked_up),
        rename_columns(tuple(between), rename),
        rename_columns(later, rename),
        rename_columns(spec.output, rename),
        spec.count_only,
        tuple(r for r in spec.beside if r.alias in asked),
        rename_columns(widening, rename),
    )
    return Division(scanned, asking, stream, numbers)


def _refuse(spec: JoinSpec, asked: Collection[str], why: str) -> InputError:
    names = ", ".join(alias for alias in (r.alias for r in spec.sources) if alias in asked)
    return InputError(
        f"option memory_budget is set for a join that looks up {names}, and {why}, so that the rest cannot "
        "be joined first; expected one of the two: leave memory_budget out, or load the looked-up rows into "
        "a table"
    )


def _implied(spec: JoinSpec, aliases: Sequence[str]) -> Iterator[Equality]:
    """Yield equalities between these relations that others imply."""
    for each in QueryGraph.of(spec).classes:
        refs = [ColumnRef(spec.aliases[number], column) for number, column in each.members]
        refs = [ref for ref in refs if ref.relation in aliases]
        yield from (Equality(refs[0], r, each.type) for r in refs if r.relation != refs[0].relation)


def _is_connected(aliases: Sequence[str], equalities: Iterable[Equality]) -> bool:
    reached, left = {aliases[0]}, [set(each.relations) for each in equalities]
    while near := [pair for pair in left if pair & reached and not pair <= reached]:
        reached.update(*near)
    return len(reached) == len(aliases)


class LookupEddies:
    """Runs a block with lookups within ``Options.memory_budget``.

    Raises:
        InputError: The block cannot be divided, or a looked-up relation has a scan too.
    """

    def __init__(
        self, spec: JoinSpec, sources: Mapping[str, Any], options: Options, access: Access, given: Given
    ) -> None:
        assert options.memory_budget is not None
        read = [alias for alias, own in access.items() if alias in sources or not all(map(is_index, own))]
        self._division = division = divide(spec, access, read, options)
        self._access = access
        self._clock = clock = given.get("clock") or WallClock()
        self._total = options.memory_budget
        self._scanned: SpillingEddy | None = None
        share = self._total
        if division.scanned is not None:
            share = self._total - int(SCANNED_SHARE * self._total)
            own = replace(options, memory_budget=self._total - share)
            stream = given.get("stream")
            ranges = given.get("ranges")
            rows = {r.alias: sources[r.alias] for r in division.scanned.sources if r.same_as is None}
            self._scanned = SpillingEddy(
                division.scanned, rows, own, stream=stream, ranges=ranges, clock=clock
            )
        self._budget = Budget(share)
        asking = division.asking
        width = sum(tuple_bytes(relation.schema) for relation in asking.sources)
        steps = len(asking.sources) + len(asking.residuals)
        batch = self._budget.batch(options.batch_size, width, steps)
        streamed = sources[division.stream] if self._scanned is None else self._join_scanned()
        # An eddy may end behind any of these, so none leads to more answers than its batches do.
        self._source = _cut(streamed, batch)
        self._options = replace(options, memory_budget=None, batch_size=batch, online=False)
        self._output = Output(asking, batch, min(BATCH_BYTES, self._budget.buffer))
        self._callers: dict[int, Caller] = {}
        self._make_caller: Callable[[int, Call], Caller] = given.get("callers") or own_caller
        self._warm_start = given.get("warm_start") or Lessons()
        # What eddies did that have ended, and the one that runs: one value, for other threads ask.
        self._eddies: tuple[CellFigures, Run | None] = CellFigures(0, 0.0), None
        self._seconds = 0.0
        # What does not go together is found before a source is read.
        self._make_run(iter(()), None)

    def run(self) -> Iterator[pa.RecordBatch]:
        """Yield the block's result, in batches of ``spec.output_schema`` and in no certain order."""
        began = self._clock.now()
        indexes = [cast(IndexAM, each) for own in self._access.values() for each in own]
        try:
            first = next(self._source, None)
            while first is not None:
                monitor = CacheMonitor(self._budget, first, self._source)
                run = self._make_run(monitor.reading(), monitor)
                self._eddies = self._eddies[0], run
                monitor.beside = run.context.filters.beside.values
                yield from run.dataflow.results()
                self._eddies = self._eddies[0] + run.figures(), None
                self._drain(indexes)
                first = monitor.left
                del run, monitor
                self._budget.let_go()
            yield from self._output.finish()
        finally:
            for caller in self._callers.values():
                caller.close()
            for each in indexes:
                each.close()
            self._source.close()
            self._seconds = self._clock.now() - began

    def _join_scanned(self) -> Iterator[pa.RecordBatch]:
        """Yield the join of what is scanned; an error says that not all of the budget is for it."""
        assert self._scanned is not None
        try:
            yield from self._scanned.run()
        except OptionError as error:
            raise OptionError(f"{error}; and a third more, for what is looked up takes a quarter") from error

    def _drain(self, indexes: Sequence[IndexAM]) -> None:
        """Wait for what indexes were asked and nobody needs: the next eddy is not to get it.

        Raises:
            ExecutionError: Nothing will come any more.
        """
        while pending := [each for each in indexes if each.pending]:
            answers = [each.poll() for each in pending]
            if any(answers):
                continue
            now = self._clock.now()
            due = min(now + POLLED if (d := each.due()) is None else d for each in pending)
            if due == math.inf:
                names = ", ".join(each.name for each in pending)
                raise ExecutionError(
                    f"nothing will come any more, although {names} has not answered everything; give its "
                    "relation another source"
                )
            self._clock.wait(max(0.0, due - now))

    def figures(self, cell: int = 0) -> CellFigures:
        """Return what this run has done so far, of both parts."""
        ended, eddy = self._eddies
        parts = [] if self._scanned is None else [self._scanned.figures(cell)]
        parts += [ended] if eddy is None else [ended, eddy.figures(cell)]
        before = 0.0 if self._scanned is None else parts[0].budget_peak_ratio * SCANNED_SHARE
        return replace(
            reduce(add, parts),
            cell=cell,
            seconds=self._seconds,
            output_tuples=self._output.counted,
            budget_peak_ratio=before + self._budget.peak / self._total,
        )

    def _make_run(self, rows: Iterator[pa.RecordBatch], monitor: CacheMonitor | None) -> Run:
        return Run(
            self._division.asking,
            {self._division.stream: rows},
            self._options,
            stream=self._division.stream,
            clock=self._clock,
            output=self._output,
            callers=self._caller,
            access=self._access,
            warm_start=self._warm_start,
            watch=monitor,
            most_waiting=self._budget.state // 4,
        )

    def _caller(self, number: int, call: Call) -> Caller:
        """Return what calls a user's predicate, one for all eddies."""
        if number not in self._callers:
            self._callers[number] = self._make_caller(self._division.numbers[number], call)
        return self._callers[number]


class CacheMonitor(StateMonitor):
    """Lets an eddy read as long as what indexes have answered takes at most its share of the budget.

    Attributes:
        left: The next tuples, which another eddy begins with; None if there are none.
        beside: Returns the relations that left joins ask.
    """

    def __init__(self, budget: Budget, first: pa.RecordBatch, source: Iterator[pa.RecordBatch]) -> None:
        self.left: pa.RecordBatch | None = first
        super().__init__(budget)
        self.beside: Callable[[], Iterable[BesideRelation]] = tuple
        self._source = source

    def look(self, *, at_stasis: bool = False) -> None:
        self._held()

    def _held(self) -> int:
        """Return the bytes of answers, beside what small indexes take anyhow."""
        beside = [*self.beside()]
        size = sum(each.nbytes for each in beside)
        held = self._measure(beside, size)
        return held.nbytes + size - held.least - sum(each.least for each in beside)

    def reading(self) -> Iterator[pa.RecordBatch]:
        """Yield tuples, at least one batch."""
        while self.left is not None:
            yield self.left
            self.left = next(self._source, None)
            if self._held() > CACHED_SHARE * self._budget.state:
                return


def _cut(source: Iterable[pa.RecordBatch], size: int) -> Generator[pa.RecordBatch]:
    """Yield a source's rows in batches of so many; whoever closes this closes the source."""
    try:
        for rows in source:
            yield from sliced(rows, size)
    finally:
        if isinstance(source, Generator):
            source.close()
