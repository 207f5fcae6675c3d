"""What runs inside Spark's tasks: callables that pickle, for ``mapInArrow``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from millrace.engine.access.paths import Paths
from millrace.engine.aggregate import AggregateSpec, PartialAggregation
from millrace.engine.eager import EagerAggregation
from millrace.engine.eddy.ingest import KeyRanges, ReadOrder, Transfers
from millrace.engine.eddy.operator import Operator, Step
from millrace.engine.eddy.statistics import Statistics
from millrace.engine.figures import CellFigures, ModuleFigures
from millrace.engine.peak import peak_memory
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.spill.run_of import run_of
from millrace.engine.start_up import start_seconds, work_time
from millrace.engine.stems.state import stems_of
from millrace.engine.stems.stem import singletons
from millrace.engine.tuples.batch import TupleBatch
from millrace.limits.clock import POLLED, WallClock
from millrace.options import Options
from millrace.parquet.read_ahead import ReadAhead
from millrace.spark import exchange
from millrace.spark.coordinator import Limits, Lookups
from millrace.spark.frames import task_name
from millrace.spark.reports import FileWarmStart, Sink
from millrace.spark.streaming import Target, TaskPreference
from millrace.spark.task_inputs import (
    LEAST_ROWS,
    OpenInput,
    Scan,
    TaskInput,
    number_of,
    open_inputs,
    with_sizes,
)
from millrace.spark.types import normalise
from millrace.spark.worker import partition_number, worker_task

_CLOCK = WallClock()


@dataclass(frozen=True)
class EddyTask:
    """Runs the eddy of one cell.

    Its input is the tuples of ``frame``, or the blocks of ``exchanged`` relations; without both it is one row
    that holds the cell's number.
    """

    join: JoinSpec
    options: Options
    stream: str | None  # the relation to leave unbuilt
    scans: dict[str, TaskInput]  # what the task reads itself, by alias
    frame: str | None
    exchanged: tuple[str, ...]
    limits: Limits
    warm_start: FileWarmStart | None  # None where there are no users' predicates
    last: int | None  # with sorted blocks, the number of the relation whose blocks come last
    sink: Sink
    lookups: Lookups | None = None
    target: Target | None = None  # where the result goes as it comes; None gives it to Spark
    aggregate: AggregateSpec | None = None  # of its rows, before they are handed on
    eager: EagerAggregation | None = None  # of a relation, before it is joined
    shared: tuple[exchange.SharedBlocks, ...] = ()  # of exchanged relations
    preference: TaskPreference | None = None  # what is wanted first, where the reader may say so

    @property
    def __name__(self) -> str:
        return task_name(self.sink.run)

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.perf_counter()
        reader: exchange.BlockReader | None = None
        if self.exchanged:
            schemas = [relation.schema for relation in self.join.sources]
            reader = exchange.BlockReader(batches, schemas, last=self.last, shared=self.shared)
            # The partition's number will not do: inside a UNION Spark counts on from the other branch.
            cell = reader.cell
        else:
            cell = number_of(batches) if self.frame is None else partition_number()
        if cell is None:
            return  # without a block some relation has no tuple for this cell, so there is no result
        ranges = KeyRanges()
        inputs = open_inputs(self.scans)
        join, aggregate, eager, options = self.join, self.aggregate, self.eager, self.options
        ahead = ReadAhead(len(inputs), options.memory_budget)
        if options.memory_budget is not None and any(each.is_remote for each in inputs.values()):
            options = replace(options, memory_budget=options.memory_budget - ahead.bytes)
        if eager is not None:
            join, aggregate = eager.join, eager.aggregate
        schema, aggregation = join.output_schema, None
        if aggregate is not None:
            aggregation = PartialAggregation(aggregate, schema)
            schema = aggregate.schema(schema)
        preference = self.preference and replace(self.preference)  # of this attempt
        with ahead, self.lookups.open(self.join) if self.lookups else nullcontext() as access:
            sources = self._sources(inputs, batches, reader, cell, ranges, ahead)
            run = run_of(
                with_sizes(join, inputs, cell),
                sources,
                options,
                stream=self.stream,
                callers=self.limits.caller,
                warm_start=self.warm_start,
                access=access,
                ranges=ranges,
                eddy=None if preference is None else preference.make_dataflow,
            )
            results = run.run()

            def figures_so_far() -> CellFigures:
                figures = run.figures(cell)
                if reader is None:
                    return figures
                return replace(
                    figures,
                    rows_exchanged=reader.rows,
                    blocks_exchanged=reader.blocks,
                    bytes_exchanged=reader.bytes,
                )

            if aggregation is not None:
                results = aggregation.over(results)
            with self.sink.report_live(f"cell {cell}.0", figures_so_far):
                if self.target is None:
                    for result in results:
                        yield self.sink.data(result)
                else:
                    self.target.send(results, preference)
        if reader is not None:
            reader.drain()
        if not self.sink.active:
            return
        figures = figures_so_far()
        modules = [*figures.modules, *ranges.figures()]
        for lookups in (access or {}).values():
            modules += [lookup.figures() for lookup in lookups]
        if aggregation is not None:
            modules.append(aggregation.figures({o.name: str(o.source) for o in self.join.output}))
        texts = [] if reader is None else reader.figures
        figures = replace(figures, modules=tuple(modules), seconds=time.perf_counter() - began)
        yield from self.sink.finish(f"cell {cell}", [figures.to_json(), *texts], schema)

    def _sources(
        self,
        inputs: Mapping[str, OpenInput],
        batches: Iterator[pa.RecordBatch],
        reader: exchange.BlockReader | None,
        cell: int,
        ranges: KeyRanges,
        ahead: ReadAhead,
    ) -> dict[str, Iterable[pa.RecordBatch | None]]:
        sources: dict[str, Iterable[pa.RecordBatch | None]] = {}
        spills = self.options.memory_budget is not None
        for number, relation in enumerate(self.join.sources):
            if relation.alias in inputs:
                scan, size = inputs[relation.alias], max(self.options.batch_size, LEAST_ROWS)
                keeps = partial(ranges.keeps, relation.alias)
                own = ahead if scan.is_remote else None
                # What is divided or aggregated first takes its tuples one batch after the other.
                waits = spills or (self.eager is not None and self.eager.alias == relation.alias)
                order = ranges.orders.setdefault(relation.alias, ReadOrder()) if self.preference else None
                sources[relation.alias] = scan.read(cell, size, keeps, own, waits=waits, order=order)
            elif relation.alias == self.frame:
                sources[relation.alias] = map(partial(normalise, schema=relation.schema), batches)
            elif reader is not None and relation.alias in self.exchanged:
                sources[relation.alias] = reader.source(number)
        if self.eager is not None:
            sources[self.eager.alias] = self.eager.over(sources[self.eager.alias])
        return sources


@dataclass(frozen=True)
class ScanTask:
    """A map task of the exchange: scans its row groups and cuts their tuples by cell.

    The input is one row that holds the task's number. ``scans`` are by alias; several roles may share one.
    """

    scans: dict[str, tuple[Scan, exchange.Cut | exchange.Roles]]
    batch_size: int
    sink: Sink
    reduction: Reduction | None = None

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = number_of(batches)
        if task is not None:
            ranges = KeyRanges()
            reducer = Reducer(self.reduction, ranges)
            cuttings = []
            with ReadAhead(len(self.scans)) as ahead:
                for alias, (scan, cut) in self.scans.items():
                    own = ahead if scan.is_remote else None
                    keeps = partial(ranges.keeps, alias)
                    # What a filter drops depends on batches, and has to be the same in each attempt: these
                    # must not end where a store stalls.
                    waits = self.reduction is not None
                    rows = scan.read(task, self.batch_size, keeps, own, waits=waits)
                    make = partial(exchange.BlockWriter, partitioner=exchange.RoundRobin(task))
                    if isinstance(cut, exchange.Roles):
                        writers = {roles: make(each) for roles, (each, _) in cut.cuts.items()}
                        cuttings.append(_Cutting(alias, rows, writers, cut))
                    else:
                        cuttings.append(_Cutting(alias, rows, {1: make(cut)}))
                yield from _cut(f"scan {task}", cuttings, ranges, reducer, self.sink)


@dataclass(frozen=True)
class CutTask:
    """A map task of the exchange: cuts the tuples of one partition of a DataFrame by cell."""

    alias: str
    schema: pa.Schema
    cut: exchange.Cut
    sink: Sink
    reduction: Reduction | None = None

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = partition_number()
        rows = map(partial(normalise, schema=self.schema), batches)
        writer = exchange.BlockWriter(self.cut, exchange.HashPartitioner(task))
        cutting = _Cutting(self.alias, rows, {1: writer})
        ranges = KeyRanges()
        reducer = Reducer(self.reduction, ranges)
        yield from _cut(f"cut {self.alias} {task}", [cutting], ranges, reducer, self.sink)


@dataclass
class _Cutting:
    """One scan that is cut: its tuples, and how many were read in how many batches and seconds so far.

    Its writers are those of one relation, or of each set of ``roles`` that share it.
    """

    alias: str
    source: Iterator[pa.RecordBatch | None]
    writers: Mapping[int, exchange.BlockWriter]
    roles: exchange.Roles | None = None
    rows: int = 0
    calls: int = 0
    seconds: float = 0.0

    def run(self, reducer: Reducer) -> Iterator[pa.RecordBatch | None]:
        """Yield blocks, and None where the source has nothing at present."""
        began = work_time(_CLOCK)
        for batch in self.source:
            if batch is None:
                yield None
                began = work_time(_CLOCK) - self.seconds  # others worked meanwhile
                continue
            self.rows += batch.num_rows
            self.calls += 1
            for roles, part in ((1, batch),) if self.roles is None else self.roles.divide(batch):
                writer = self.writers[roles]
                reduced = reducer.reduce(writer.cut.relation, part)
                if reduced.num_rows:
                    yield from writer.add(reduced)
            self.seconds = work_time(_CLOCK) - began
        for writer in self.writers.values():
            yield from writer.finish()
        self.seconds = work_time(_CLOCK) - began

    def figures(self) -> ModuleFigures:
        name = f"Cut({self.alias})"
        sent = sum(writer.rows for writer in self.writers.values())
        return ModuleFigures(name, "scan", self.rows, sent, self.calls, self.seconds)


def _cut(
    task: str, cuttings: list[_Cutting], ranges: KeyRanges, reducer: Reducer, sink: Sink
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks, and the figures as one of their own where they have to travel with the data."""
    began = time.perf_counter()

    def figures() -> CellFigures:  # also while a relation is cut, and from another thread
        writers = [writer for cutting in cuttings for writer in cutting.writers.values()]
        return CellFigures(
            cell=-1,
            seconds=time.perf_counter() - began,
            modules=(*(each.figures() for each in cuttings), *reducer.figures(), *ranges.figures()),
            rows_exchanged=sum(writer.rows for writer in writers),
            blocks_exchanged=sum(writer.blocks for writer in writers),
            bytes_exchanged=sum(writer.bytes for writer in writers),
            peak_bytes=peak_memory(),
            start_seconds=start_seconds(),
        )

    with sink.report_live(task, figures):
        yield from _merge(deque(cutting.run(reducer) for cutting in cuttings))
    if sink.active:
        text = figures().to_json()
        if not sink.add(task, text):
            yield exchange.block_rows([(0, exchange.FIGURES, exchange.figures_block(text))])


def _merge(running: deque[Iterator[pa.RecordBatch | None]]) -> Iterator[pa.RecordBatch]:
    """Yield what the first has, or the next one while that stalls; wait where all do.

    So blocks of several relations may wait to be filled at once.
    """
    stalled = 0
    while running:
        for block in running[0]:
            if block is None:
                running.rotate(-1)
                stalled += 1
                break
            stalled = 0
            yield block
        else:
            running.popleft()
            stalled = 0
        if stalled and stalled == len(running):
            _CLOCK.wait(POLLED)
            stalled = 0


# What is not sent


@dataclass(frozen=True)
class Reduction:
    """Filters on the map side of an exchange: what has no match in small relations is not sent.

    Every map task reads whole the small relations that have filters, and those that filters reach through
    these. ``scans`` has them by number, in the order to read them in. So filters travel along the join graph
    (:mod:`millrace.engine.eddy.ingest`) before the exchange and not behind it. Reading a few megabytes
    again in each task costs less than sending what they would drop.
    """

    join: JoinSpec
    scans: tuple[tuple[int, Scan], ...]

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(self.join.aliases[number] for number, _ in self.scans)


class Reducer:
    """Filters the relations that one map task sends; ``ranges`` learns what need not be read of them."""

    def __init__(self, reduction: Reduction | None, ranges: KeyRanges) -> None:
        self._statistics = Statistics()
        self._near = 0
        if reduction is None:
            return
        self._aliases = reduction.join.aliases
        graph = QueryGraph.of(reduction.join)
        self._stems = stems_of(reduction.join, graph, Paths(graph.everything))
        self._transfers = Transfers(
            graph, None, self._stems, self._aliases, self._statistics, self._visit, ranges
        )
        with ReadAhead(len(reduction.scans)) as ahead:
            sources = [
                (number, scan.read(0, ahead=ahead if scan.is_remote else None, waits=True))
                for number, scan in reduction.scans
            ]
            for number, source in sources:
                stem = self._stems[number]
                for batch in source:
                    matching = self._match(number, batch, built=False)
                    if matching.size:
                        stem.build(matching, None)
                stem.complete = True
                self._transfers.learn(number)
                self._near |= sum(1 << other for other in graph.neighbours(1 << number))

    def reduce(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return those rows of a relation that may have matches in all small relations."""
        if not self._near >> number & 1:  # nor does a semi-joined relation meet any of them
            return batch
        matching = self._match(number, batch, built=True)
        return matching.stores[number].chunk(matching.rows[number])

    def figures(self) -> tuple[ModuleFigures, ...]:
        return tuple(
            ModuleFigures(each.name, each.action, a.tuples_in, a.tuples_out, a.calls, a.seconds)
            for each, a in self._statistics.items()
            if isinstance(each, Operator) and a.calls
        )

    def _match(self, number: int, batch: pa.RecordBatch, *, built: bool) -> TupleBatch:
        tuples = singletons(self._stems[number], batch, self._aliases[number], built=built)
        return self._transfers.reduce(number, tuples)

    def _visit(self, operator: Operator, work: TupleBatch) -> Step:
        began = work_time(_CLOCK)
        step = operator.step(operator.start(work), work.size)
        self._statistics.update(operator, work.size, step.tuples_out, work_time(_CLOCK) - began)
        return step
