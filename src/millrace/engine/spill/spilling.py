"""An eddy for joins larger than memory."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import chain
from operator import add
from typing import Any, Unpack

import pyarrow as pa

from millrace.engine.access.schedule import Schedule, cut
from millrace.engine.arrays import gathered, sliced
from millrace.engine.eddy.context import Given
from millrace.engine.eddy.output import Output
from millrace.engine.eddy.run import Run
from millrace.engine.eddy.statistics import Lessons
from millrace.engine.figures import CellFigures
from millrace.engine.operators.beside import BesideRelation, Marks
from millrace.engine.operators.exists import MatchedRelation
from millrace.engine.operators.select import own_caller
from millrace.engine.plan.expressions import Call, Exists
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.spill.algorithms import Inputs, Sources, grace, hybrid, joined, sort_merge, symmetric
from millrace.engine.spill.beside import KEPT_SHARE, BesideSource, Part, Passes, asked_in, in_memory
from millrace.engine.spill.context import Budget, ChunkStats, Partition, SpillContext, tuple_bytes
from millrace.engine.spill.folder import SpillFolder, Tally
from millrace.engine.spill.guard import BudgetMonitor, OverBudget, Remainder
from millrace.engine.spill.partitions import store
from millrace.engine.stairs.choice import settle_architecture
from millrace.engine.start_up import work_time
from millrace.engine.stems.join_state import bytes_in_flight
from millrace.engine.tuples import BATCH_BYTES
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import OptionError
from millrace.limits.clock import WallClock
from millrace.options import Options
from millrace.predicates import Caller

_ALGORITHMS = {"shj": symmetric, "hybrid": hybrid, "grace": grace, "sort_merge": sort_merge}


class SpillingEddy:
    """Runs a block whose state may be larger than ``Options.memory_budget``, by ``Options.algorithm``.

    Each piece of work that fits is joined by an eddy of its own, with the architecture and the policy of the
    options. Batches are made smaller than ``Options.batch_size`` where results of that many tuples would take
    too much of the budget.

    The budget covers base tuples, intermediate tuples and their indexes, batches in flight and what waits to
    be written. It does not cover what sources need to decode what they yield, nor results once they have
    been yielded. How much a join needs is measured as it runs: when it is too much, intermediate tuples are
    given up, and made again when they are needed, if the architecture can do without; else, or if that is
    not enough, what is left of the join is written to files and divided (:mod:`millrace.engine.spill.guard`).

    Relations beside the join are read first. What does not fit into half of the budget is joined at the end,
    by partition (:mod:`millrace.engine.spill.beside`).

    Args:
        spec: The block, over two relations or more, those beside the join among them.
        sources: Record batches by alias; each is read once.
        options: With ``memory_budget``.
        given: Of :class:`millrace.engine.eddy.context.Given` there may be ``clock``, ``output``, ``ranges``;
            ``callers``, asked once for each predicate; ``stream``, left unbuilt while nothing is spilled, for
            what is read back from files streams its own largest; and ``warm_start``. Each eddy begins with
            what those before it learned.

    Raises:
        OptionError: No memory budget.
        InputError: A relation with set semantics is to be left unbuilt, or not all of it is joined on; or a
            predicate asks relations beside the join behind one that is not deterministic.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Mapping[str, Iterable[pa.RecordBatch]],
        options: Options | None = None,
        **given: Unpack[Given],
    ) -> None:
        options = settle_architecture(spec, options or Options())
        ranges, stream = given.get("ranges"), given.get("stream")
        if options.memory_budget is None:
            raise OptionError("option memory_budget is None: spilling needs a number of bytes to stay below")
        learns = ranges is not None and options.transfer and not options.online
        self._ended = partial(ranges.learn, QueryGraph.of(spec)) if ranges and learns else None
        shared = {i: spec.aliases.index(r.same_as) for i, r in enumerate(spec.relations) if r.same_as}
        spec = replace(spec, relations=tuple(replace(r, same_as=None) for r in spec.relations))
        self._spec, self._options = spec, options
        self._sources = {i: iter(sources[alias]) for i, alias in enumerate(spec.aliases) if i not in shared}
        self._shared = shared
        self._clock = given.get("clock") or WallClock()
        # One count of all eddies' results, or what takes them.
        self._output = given.get("output") or (Output(spec, 1) if spec.count_only else None)
        self._callers: dict[int, Caller] = {}
        self._make_caller = given.get("callers") or own_caller
        self._warm_start = given.get("warm_start") or Lessons()
        self._seconds = 0.0
        self.tally = Tally(spec.aliases)
        schedule = Schedule.of(spec, online=False, stream=stream)
        self._budget = budget = Budget(options.memory_budget)
        self._beside = [
            BesideSource(spec, asks, iter(sources[asks.relation]), options, budget, self._clock)
            for asks in asked_in(spec)
        ]
        self._kept: dict[str, BesideRelation] = {}
        self._late: list[BesideSource] = []
        self._passes = Passes(spec, [])
        self._context = SpillContext(
            spec,
            options,
            SpillFolder(options.spill_folder, self.tally),
            schedule.unbuilt,
            schedule.order,
            options.online and not shared,
            budget,
        )
        stores = options.architecture in ("joins", "stairs") and options.intermediate
        self._can_do_without = stores and spec.is_repeatable
        # An eddy that nothing is sent to checks the block as any eddy does, before a source is read.
        settings = self._settings(1, online=False, intermediate=True)
        empty = Run(spec, self._nothing(), settings, stream=stream, callers=self._caller)
        self._unread = empty.context.filters.beside

    def run(self) -> Iterator[Any]:
        """Yield the block's result, in batches of ``spec.output_schema`` and in no certain order.

        Spill files are gone when this ends, fails or is closed.

        Raises:
            ExecutionError: A user's predicate raised for a tuple that nothing else rejects, or spilling
                failed, for example because the disk is full.
            OptionError: The spill folder cannot be used, or the budget is too small for a single batch.
            PredicateError: A user's predicate returned what is no truth value.
        """
        began = self._clock.now()
        context = self._context
        try:
            with ExitStack() as stack:
                stack.enter_context(context.folder)
                self._read_beside(stack)
                sources = Sources(context, self._sources, self._shared, self._clock, self._ended)
                # A single relation is streamed: there is nothing to divide.
                algorithm = self._options.algorithm if len(self._spec.relations) > 1 else "hybrid"
                results = _ALGORITHMS[algorithm](context, sources, self.join)
                for number, late in enumerate(self._late, 1):
                    results = self._passed(number, late, results)
                yield from results
            if self._output is not None:
                yield from self._output.finish()
        finally:
            for caller in self._callers.values():
                caller.close()
            self._callers.clear()
            self._seconds = self._clock.now() - began

    def figures(self, cell: int = 0) -> CellFigures:
        """Return what this run has done so far: all eddies' figures, and what was spilled.

        Beside the eddies' modules there are ``Scan(…)``, ``Spill(…)`` with the actions ``"write"`` and
        ``"read"`` (tuples, batches, bytes), and joins: ``tuples_in`` base tuples into so many (``calls``)
        joins of ``Partitions in memory`` and ``Partitions from disk``, those that were given up among them.
        """
        tallies = [self.tally, *(each.tally for each in self._beside)]
        figures = reduce(add, [each.figures(cell, 0.0) for each in tallies])
        kept = [each.figures() for each in self._kept.values()]
        last = self._late[-1].tally if self._late else self.tally  # whose results are the block's
        return replace(
            figures,
            seconds=self._seconds,
            output_tuples=last.results,
            state=(*figures.state, *kept),
            peak_state=figures.peak_state + sum(each.tuples for each in kept),
            budget_peak_ratio=self._budget.peak / self._budget.total,
        )

    def _read_beside(self, stack: ExitStack) -> None:
        """Read the relations beside the join: they are kept, or get passes of their own."""
        budget, kept = self._budget, 0
        for source in self._beside:
            relation = self._unread[source.alias]
            if not source.read(relation, KEPT_SHARE * budget.total - kept, stack):
                self._late.append(source)
                continue
            self._kept[source.alias] = relation
            size = relation.nbytes
            budget.wait(size)
            kept += size - relation.least
        budget.reserve(kept)
        if self._late:  # results wait to be written, and are copied
            budget.reserve(2 * budget.buffer)
        self._passes = Passes(self._spec, [each.alias for each in self._late])

    def _passed(self, number: int, late: BesideSource, results: Iterator[Any]) -> Iterator[Any]:
        """Yield what a pass makes of the results of the one before it."""
        passes = self._passes
        carried = passes.describe(number - 1)
        batch = self._batch_of(tuple_bytes(carried) + tuple_bytes(self._spec.relation(late.alias).schema))
        match = self._marked if passes.is_marking(number) else partial(self._matched, batch=batch)
        for rows, parts in late.pair_up(carried, results):
            tuples = (passes.restore(piece, number) for piece in _evened(rows, batch))
            if len(parts) == 1:
                yield from match(number, late, parts[0], tuples)
                continue
            for held in in_memory(tuples, self._budget):
                marks = Marks(min(held[0].stores))
                for part in parts:
                    marks.is_last = part is parts[-1]
                    yield from match(number, late, part, held, marks)

    def _matched(
        self,
        number: int,
        late: BesideSource,
        part: Part,
        tuples: Iterable[TupleBatch],
        marks: Marks | None = None,
        *,
        batch: int,
    ) -> Iterator[Any]:
        """Yield what an eddy makes of tuples with the matches in a part of a relation."""
        beside = dict(self._kept)
        monitor = BudgetMonitor(self._context, frozenset(), is_limited=False, may_end=False, beside=beside)
        run = self._made(number, {**self._nothing(), late.alias: part()}, batch, monitor, marks=marks)
        run.fill()
        run.context.filters.share(self._kept)
        beside[late.alias] = relation = run.context.filters.beside[late.alias]
        late.tell(relation, marks)
        size = relation.nbytes
        self._budget.wait(size)
        yield from self._booked(run, map(run.dataflow.finish, tuples), late.tally, from_disk=True)
        del run, relation, beside[late.alias]
        self._budget.wait(-size)
        self._budget.let_go(size)

    def _marked(
        self,
        number: int,
        late: BesideSource,
        part: Part,
        tuples: Iterable[TupleBatch],
        marks: Marks | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield tuples, marked by what their matches in a part of a relation say."""
        assert isinstance(late.asks, Exists)
        began, found = work_time(self._clock), 0
        relation = MatchedRelation(late.asks, self._spec.relation(late.alias).schema, self._spec.visible)
        for rows in part():
            relation.take(rows)
        late.tell(relation, marks)
        size = relation.nbytes
        self._budget.wait(size)
        for each in tuples:
            # Those that meet several parts are counted as they wait for these.
            self._budget.join(bytes_in_flight((each,), () if marks is None else each.stores.values()))
            truth = relation.truth(each)
            if marks is None or marks.is_last:
                found += each.size
                yield self._passes.mark(each, number, truth)
        figures = CellFigures(0, work_time(self._clock) - began, output_tuples=found)
        late.tally.joined(replace(figures, state=(relation.figures(),)), from_disk=True)
        del relation
        self._budget.wait(-size)
        self._budget.let_go(size)

    def _made(
        self,
        number: int,
        sources: Mapping[str, Iterable[pa.RecordBatch]],
        batch: int,
        monitor: BudgetMonitor,
        *,
        online: bool = False,
        intermediate: bool = False,
        spec: JoinSpec | None = None,
        schedule: Schedule | None = None,
        marks: Marks | None = None,
    ) -> Run:
        """Return an eddy of a pass."""
        is_last = number == len(self._late)
        carried = self._spec if is_last else self._passes.carry(number)
        own = Output(carried, batch, min(BATCH_BYTES, self._budget.buffer))
        return Run(
            spec or self._spec,
            sources,
            self._settings(batch, online=online, intermediate=intermediate),
            schedule=schedule,
            clock=self._clock,
            output=(self._output if is_last else None) or own,
            callers=self._caller,
            warm_start=self._warm_start,
            watch=monitor,
            later=self._passes.later(number, marks),
        )

    def _batch_of(self, width: float) -> int:
        """Return how many tuples a batch may have, of results of so many bytes."""
        spec = self._spec
        steps = len(spec.relations) + len(spec.residuals) + len(spec.outer)
        return self._budget.batch(self._options.batch_size, width, steps)

    def _nothing(self) -> dict[str, tuple[()]]:
        """Return sources without a tuple."""
        return {relation.alias: () for relation in self._spec.sources}

    def join(
        self,
        inputs: Inputs,
        stats: Mapping[int, ChunkStats],
        streamed: int | None,
        *,
        online: bool = False,
        partition: Partition | None = None,
    ) -> Generator[Any, None, Remainder | None]:
        """Yield the results of a join, in smaller pieces where its state turns out to be too large.

        ``stats`` are of those relations for which they are known; ``streamed`` is left unbuilt; ``partition``
        is what the tuples are, if they come from files. With ``online``, which reads and builds all relations
        in turn, this returns what is left when the state is too large.
        """
        of = partition or Partition({}, level=1)
        while rest := (yield from self._run(inputs, stats, streamed, of, online=online)):
            if online:
                return rest
            if not (of.intermediate and self._can_do_without):
                yield from joined(self._context, [store(self._context, rest, of)], self.join)
                return None
            of = replace(of, intermediate=False)
            inputs = {relation: rest.all(relation) for relation in self._context.order}
        return None

    def _run(
        self,
        inputs: Inputs,
        stats: Mapping[int, ChunkStats],
        streamed: int | None,
        partition: Partition,
        *,
        online: bool,
    ) -> Generator[Any, None, Remainder | None]:
        """Yield what one eddy makes of its inputs; return what it has left when it outgrows the budget."""
        context, spec, from_disk = self._context, self._spec, bool(partition.inputs)
        relations = [
            replace(relation, rows=stats[number].rows, guessed=False) if number in stats else relation
            for number, relation in enumerate(spec.relations)
        ]
        width = sum(
            stats[n].bytes / stats[n].rows if n in stats and stats[n].rows else tuple_bytes(r.schema)
            for n, r in enumerate(relations)
        )
        widened = [join.relation for join in spec.outer if join.relation in self._kept]
        width += sum(tuple_bytes(spec.relation(alias).schema) for alias in widened)
        batch = self._batch_of(width)
        in_batches: Any = cut if online else _evened  # online no tuple waits for another
        unread: dict[int, Any] = {number: in_batches(source, batch) for number, source in inputs.items()}
        spec = replace(spec, relations=tuple(relations))
        schedule = self._scheduled(spec, streamed, online=online)
        monitor = BudgetMonitor(
            context,
            frozenset(schedule.order if online else schedule.order[-1:]),
            is_limited=not from_disk or context.fits(partition),
            may_end=online or streamed is not None,
            beside=self._kept,
        )
        eddy = self._made(
            0,
            {alias: monitor.reading(number, unread[number]) for number, alias in enumerate(spec.aliases)},
            batch,
            monitor,
            online=online,
            intermediate=partition.intermediate,
            spec=spec,
            schedule=schedule,
        )
        eddy.context.filters.share(self._kept)
        yield from self._booked(eddy, [eddy.dataflow.results()], self.tally, from_disk=from_disk)
        rest = monitor.remainder(unread)
        del eddy, inputs, monitor
        self._budget.let_go()
        return rest

    def _booked(
        self, run: Run, results: Iterable[Iterator[Any]], tally: Tally, *, from_disk: bool
    ) -> Iterator[Any]:
        """Yield the results of an eddy, which may have to be given up, and book it."""
        output = run.context.output
        began, counted = work_time(self._clock), output.counted
        with suppress(OverBudget):
            yield from chain.from_iterable(results)
        if output is not self._output:
            yield from output.finish()
        seconds, found = work_time(self._clock) - began, output.counted - counted
        tally.joined(replace(run.figures(), seconds=seconds, output_tuples=found), from_disk=from_disk)

    def _scheduled(self, spec: JoinSpec, streamed: int | None, *, online: bool) -> Schedule:
        """Return the schedule of one eddy: one batch at a time, so that it may end after any."""
        stream = None if streamed is None else spec.aliases[streamed]
        schedule = Schedule.of(spec, online=online, stream=stream)
        if online:
            return replace(schedule, weights=(1.0,) * len(spec.relations))
        return replace(schedule, interleaved=False)

    def _settings(self, batch: int, *, online: bool, intermediate: bool) -> Options:
        intermediate = intermediate and self._options.intermediate
        return replace(
            self._options, memory_budget=None, online=online, batch_size=batch, intermediate=intermediate
        )

    def _caller(self, number: int, call: Call) -> Caller:
        """Return what calls a user's predicate, one for all eddies: limits and answers are common to them."""
        if number not in self._callers:
            self._callers[number] = self._make_caller(number, call)
        return self._callers[number]


def _evened(source: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of so many rows at most, half as many mostly: partitions are cut up into small pieces."""
    half = max(1, most // 2)
    return gathered((piece for batch in source for piece in sliced(batch, half)), half)
