"""What runs inside Spark's tasks: callables that pickle, for ``mapInArrow``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from millrace.engine.aggregates import AggregateSpec, PartialAggregation
from millrace.engine.arrivals.key_ranges import KeyRanges
from millrace.engine.eager import EagerAggregation
from millrace.engine.figures import CellFigures, ModuleFigures
from millrace.engine.peak import peak_memory
from millrace.engine.spec import JoinSpec
from millrace.engine.spill.run_of import run_of
from millrace.options import Options
from millrace.spark.coordinator import Limits
from millrace.spark.exchange import (
    FIGURES,
    BlockReader,
    BlockWriter,
    Cut,
    HashPartitioner,
    RoundRobin,
    block_rows,
    figures_block,
)
from millrace.spark.frames import task_name
from millrace.spark.lookups import Lookups
from millrace.spark.reduction import Reducer, Reduction
from millrace.spark.reports import FileWarmStart, Sink
from millrace.spark.streaming import Target
from millrace.spark.task_inputs import LEAST_ROWS, InlineTable, Scan, number_of, with_sizes
from millrace.spark.types import normalise
from millrace.spark.worker import partition_number, worker_task


@dataclass(frozen=True)
class EddyTask:
    """Runs the eddy of one cell.

    Attributes:
        stream: Alias of the relation to leave unbuilt, or None.
        scans: By alias, the relations that the task reads itself.
        frame: Alias of the relation whose tuples are the task's input, or None.
        exchanged: Aliases of relations whose blocks are its input. Without these and ``frame`` it is one row
            that holds the cell's number.
        warm_start: What tasks on this machine have learned, None where there are no users' predicates.
        last: With sorted blocks, the number of the relation whose blocks come last.
        target: Where the result goes as it comes; None gives it to Spark.
        aggregate: How its rows are aggregated before they are handed on; None hands them on as they are.
        eager: Which relation is aggregated before it is joined; None for none.
    """

    join: JoinSpec
    options: Options
    stream: str | None
    scans: dict[str, Scan | InlineTable]
    frame: str | None
    exchanged: tuple[str, ...]
    limits: Limits
    warm_start: FileWarmStart | None
    last: int | None
    sink: Sink
    lookups: Lookups | None = None
    target: Target | None = None
    aggregate: AggregateSpec | None = None
    eager: EagerAggregation | None = None

    @property
    def __name__(self) -> str:
        """What Spark's plans call it."""
        return task_name(self.sink.run)

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the cell's part of the result."""
        began = time.perf_counter()
        reader: BlockReader | None = None
        if self.exchanged:
            schemas = [relation.schema for relation in self.join.sources]
            reader = BlockReader(batches, schemas, last=self.last)
            # The partition's number will not do: inside a UNION Spark counts on from the other branch.
            cell = reader.cell
        else:
            cell = number_of(batches) if self.frame is None else partition_number()
        if cell is None:
            return  # without a block some relation has no tuple for this cell, so there is no result
        ranges = KeyRanges()
        sources = self._sources(batches, reader, cell, ranges)
        join, aggregate, eager = self.join, self.aggregate, self.eager
        if eager is not None:
            join, aggregate = eager.join, eager.aggregate
            sources[eager.alias] = eager.over(sources[eager.alias])
        schema, aggregation = join.output_schema, None
        if aggregate is not None:
            aggregation = PartialAggregation(aggregate, schema)
            schema = aggregate.schema(schema)
        with self.lookups.open(self.join) if self.lookups else nullcontext() as access:
            run = run_of(
                with_sizes(join, self.scans, cell),
                sources,
                self.options,
                stream=self.stream,
                callers=self.limits.caller,
                warm_start=self.warm_start,
                access=access,
                ranges=ranges,
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
                    self.target.send(results)
        if reader is not None:
            reader.drain()
        if not self.sink.active:
            return
        figures = figures_so_far()
        modules = [*figures.modules, *ranges.figures()]
        for lookups in (access or {}).values():
            modules += [lookup.figures() for lookup in lookups]
        if aggregation is not None:
            modules.append(aggregation.figures())
        texts = [] if reader is None else reader.figures
        figures = replace(figures, modules=tuple(modules), seconds=time.perf_counter() - began)
        yield from self.sink.finish(f"cell {cell}", [figures.to_json(), *texts], schema)

    def _sources(
        self, batches: Iterator[pa.RecordBatch], reader: BlockReader | None, cell: int, ranges: KeyRanges
    ) -> dict[str, Iterable[pa.RecordBatch]]:
        """Return what is read here, by alias."""
        sources: dict[str, Iterable[pa.RecordBatch]] = {}
        for number, relation in enumerate(self.join.sources):
            if relation.alias in self.scans:
                scan, size = self.scans[relation.alias], max(self.options.batch_size, LEAST_ROWS)
                sources[relation.alias] = scan.read(cell, size, partial(ranges.keeps, relation.alias))
            elif relation.alias == self.frame:
                sources[relation.alias] = map(partial(normalise, schema=relation.schema), batches)
            elif reader is not None and relation.alias in self.exchanged:
                sources[relation.alias] = reader.source(number)
        return sources


@dataclass(frozen=True)
class ScanTask:
    """A map task of the exchange: scans its row groups and cuts their tuples by cell.

    The input is one row that holds the task's number. ``scans`` are by alias.
    """

    scans: dict[str, tuple[Scan, Cut]]
    batch_size: int
    sink: Sink
    reduction: Reduction | None = None

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of blocks."""
        task = number_of(batches)
        if task is not None:
            ranges = KeyRanges()
            cuttings = []
            for alias, (scan, cut) in self.scans.items():
                rows = scan.read(task, self.batch_size, partial(ranges.keeps, alias))
                cuttings.append(_Cutting(alias, rows, BlockWriter(cut, RoundRobin(task))))
            yield from _cut(f"scan {task}", cuttings, ranges, self.reduction, self.sink)


@dataclass(frozen=True)
class CutTask:
    """A map task of the exchange: cuts the tuples of one partition of a DataFrame by cell."""

    alias: str
    schema: pa.Schema
    cut: Cut
    sink: Sink
    reduction: Reduction | None = None

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of blocks."""
        task = partition_number()
        rows = map(partial(normalise, schema=self.schema), batches)
        cutting = _Cutting(self.alias, rows, BlockWriter(self.cut, HashPartitioner(task)))
        yield from _cut(f"cut {self.alias} {task}", [cutting], KeyRanges(), self.reduction, self.sink)


@dataclass
class _Cutting:
    """One relation that is cut: its tuples, and how many were read in how many batches and seconds so far."""

    alias: str
    source: Iterator[pa.RecordBatch]
    writer: BlockWriter
    rows: int = 0
    calls: int = 0
    seconds: float = 0.0

    def run(self, reducer: Reducer) -> Iterator[pa.RecordBatch]:
        began, writer = time.perf_counter(), self.writer
        for batch in self.source:
            self.rows += batch.num_rows
            self.calls += 1
            reduced = reducer.reduce(writer.cut.relation, batch)
            if reduced.num_rows:
                yield from writer.add(reduced)
            self.seconds = time.perf_counter() - began
        yield from writer.finish()
        self.seconds = time.perf_counter() - began

    def figures(self) -> ModuleFigures:
        name = f"Cut({self.alias})"
        return ModuleFigures(name, "scan", self.rows, self.writer.rows, self.calls, self.seconds)


def _cut(
    task: str, cuttings: list[_Cutting], ranges: KeyRanges, reduction: Reduction | None, sink: Sink
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks, and the figures as one of their own where they have to travel with the data."""
    began = time.perf_counter()
    reducer = Reducer(reduction, ranges)

    def figures() -> CellFigures:  # also while a relation is cut, and from another thread
        writers = [cutting.writer for cutting in cuttings]
        return CellFigures(
            cell=-1,
            seconds=time.perf_counter() - began,
            modules=(*(each.figures() for each in cuttings), *reducer.figures(), *ranges.figures()),
            rows_exchanged=sum(writer.rows for writer in writers),
            blocks_exchanged=sum(writer.blocks for writer in writers),
            bytes_exchanged=sum(writer.bytes for writer in writers),
            peak_bytes=peak_memory(),
        )

    with sink.report_live(task, figures):
        for cutting in cuttings:
            yield from cutting.run(reducer)
    if sink.active:
        text = figures().to_json()
        if not sink.add(task, text):
            yield block_rows([(0, FIGURES, figures_block(text))])
