"""What tasks read themselves: row groups that are dealt to them, a table beside streams, or one in the plan.

A file of its own, so that the tasks of streams load these and not the tasks of blocks.
"""

from __future__ import annotations

import heapq
import os
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from millrace.engine.plan.expressions import Predicate, Value, columns_of
from millrace.engine.plan.spec import JoinSpec, RelationSpec
from millrace.errors import InputError, ReadError, SetupError
from millrace.parquet.pruning import Keeps
from millrace.parquet.read_ahead import ReadAhead
from millrace.parquet.reading import read_splits
from millrace.parquet.store import State, locate
from millrace.parquet.tables import ParquetTable, Split, splits
from millrace.spark.block import FrameInput, ParquetInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.engine.eddy.ingest import ReadOrder

LEAST_ROWS = 4096
"""Scans read at least this many rows at once; the eddy cuts them down to its own batches."""

MOST_TABLE = 1 << 28
"""Bytes of a table that is a DataFrame and joined with streams."""

_MOST_NUMBERS = 1 << 26
"""Half a gigabyte: Spark sends nothing as large as that to all executors unless it is told to."""

WORD = 8
"""Bytes that a number takes, for Spark as well."""


def task_numbers(spark: SparkSession, tasks: int, of: int = 1) -> DataFrame:
    """Return one partition for each number from 0, which is its only row, filtered out of so many numbers.

    What tasks make of numbers is for Spark of the size of the numbers. Of a few it would send whatever comes
    to all executors, by way of the driver, whose memory may not hold it. Spark counts on no filter. However
    many are wanted, there are no more than are counted in a moment: estimates of joins may be astronomical.
    """
    of = min(of, max(1, _MOST_NUMBERS // tasks))
    numbers = spark.range(0, tasks * of, 1, numPartitions=tasks)
    return numbers if of == 1 else numbers.where(f"id % {of} = 0").selectExpr(f"id DIV {of} AS id")


def number_of(batches: Iterator[pa.RecordBatch]) -> int | None:
    """Return the task's number, the only row of its input; None when Spark left it without one.

    Takes in all of the input: Spark ends a Python worker that leaves some, and the next task then
    waits for a new one to start and to import everything, which takes about a second.
    """
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    return int(numbers[0]) if numbers else None


def deal(splits: Sequence[Split], loads: list[int], ranks: Sequence[int] = ()) -> list[list[Split]]:
    """Return which splits each task reads, in their order; a task has so many bytes to read already.

    The largest comes first, each goes to the task that has least so far. ``loads`` is added to. Splits with
    a low rank are dealt, and read, before others: each task has its share of them.
    """
    ranks = ranks or [0] * len(splits)
    dealt: list[list[int]] = [[] for _ in loads]
    heap = [(load, task) for task, load in enumerate(loads)]
    heapq.heapify(heap)
    for place in sorted(range(len(splits)), key=lambda n: (ranks[n], -splits[n].bytes)):
        _, task = heap[0]
        dealt[task].append(place)
        loads[task] += splits[place].bytes + 1
        heapq.heapreplace(heap, (loads[task], task))
    return [[splits[n] for n in sorted(part, key=lambda n: (ranks[n], n))] for part in dealt]


def ranks_of(source: ParquetInput, splits_of: Sequence[Split], wanted: Sequence[Predicate]) -> list[int]:
    """Return, for each split, the place of the first predicate that may hold for one of its rows."""
    ranks = dict.fromkeys(((split.path, split.group) for split in splits_of), len(wanted))
    for rank, predicate in reversed([*enumerate(wanted)]):
        for split in splits(source.table, (*source.filters, predicate), source.columns):
            ranks[split.path, split.group] = rank
    return [ranks[split.path, split.group] for split in splits_of]


@dataclass(frozen=True)
class Scan:
    """A direct scan of one relation, its row groups dealt to tasks.

    Spark sends one function to all tasks, and a table of many files has ten thousands of splits: so each part
    is packed by itself, and a task unpacks its own only. A single part is read whole by every task.
    """

    schema: pa.Schema
    filters: tuple[Predicate, ...]
    parts: tuple[bytes, ...]  # the splits of each task
    computed: tuple[tuple[str, Value], ...] = ()  # columns that are computed of those of the files
    sizes: tuple[tuple[int, float], ...] = ()  # of each part, its rows and how many are expected to pass
    is_remote: bool = False  # in a store, so each request takes its time

    @classmethod
    def of(
        cls,
        schema: pa.Schema,
        filters: tuple[Predicate, ...],
        parts: Iterable[Sequence[Split]],
        computed: tuple[tuple[str, Value], ...] = (),
    ) -> Scan:
        """Return a scan of parts, which are packed; paths are long and alike, so they are compressed."""
        splits = [tuple(part) for part in parts]
        packed = tuple(zlib.compress(pickle.dumps(part, -1), 1) for part in splits)
        sizes = tuple((sum(s.rows for s in part), sum(s.rows * s.passing for s in part)) for part in splits)
        is_remote = any(split.store.is_remote for part in splits for split in part)
        return cls(schema, filters, packed, computed, sizes, is_remote)

    def sized(self, relation: RelationSpec, task: int) -> RelationSpec:
        rows, passing = self.sizes[0] if len(self.sizes) == 1 else self.sizes[task]
        return relation.expect(passing, rows, guessed=bool(self.filters))

    def read(
        self,
        task: int,
        batch_size: int = LEAST_ROWS,
        keeps: Keeps | None = None,
        ahead: ReadAhead | None = None,
        *,
        waits: bool = False,
        order: ReadOrder | None = None,
    ) -> Iterator[pa.RecordBatch | None]:
        """Return the tuples that are the task's to read, without row groups that are not to be kept.

        With ``ahead`` they are read before they are asked for, without it in an ``order``, as
        :func:`millrace.parquet.reading.read_splits` tells.
        """
        packed = self.parts[0] if len(self.parts) == 1 else self.parts[task]
        own: tuple[Split, ...] = pickle.loads(zlib.decompress(packed))  # noqa: S301  # the plan's own bytes
        names = tuple(self.schema.names)
        computed = {name.lower(): value for name, value in self.computed}
        asked = own, names, self.filters, batch_size, computed, keeps, ahead
        batches = read_splits(*asked, waits=waits, order=order)
        return map(self._typed, batches) if names else batches

    def _typed(self, batch: pa.RecordBatch | None) -> pa.RecordBatch | None:
        return None if batch is None else pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)


@dataclass(frozen=True)
class WatchedTable:
    """A Parquet table beside streams: every task reads it whole, with the files that it has then.

    Attributes:
        table: As it was when the query was planned, without its files, which its path names.
        schema: Of what is read.
    """

    alias: str
    table: ParquetTable
    schema: pa.Schema
    filters: tuple[Predicate, ...] = ()

    @classmethod
    def beside_stream(cls, alias: str, given: ParquetInput, schema: pa.Schema) -> WatchedTable:
        """Return a table that streams are joined with; SetupError if its files could not be found anew."""
        path = given.table.path
        if not given.table.store.is_remote:  # tasks run in other folders
            path = os.path.abspath(locate(path)[1])  # noqa: PTH100  # resolve() would follow links
        made = cls(alias, replace(given.table, path=path, files=()), schema, given.filters)
        try:
            found = set(made.open().paths)
        except ReadError as error:
            raise SetupError(f"a stream is joined with a table that it cannot read anew: {error}") from error
        if found != set(given.table.paths):
            raise SetupError(
                f"table {alias!r} has files that {path} alone does not name, so a stream would not find them "
                "when they are written anew: expected the path of a file, or of a folder with all files of "
                "the table and no others"
            )
        return made

    def open(self) -> ParquetTable:
        """Return the table as it is now.

        Raises:
            ReadError: It is not there, or being written, or its columns are others.
        """
        from millrace.parquet.discovery import open_table  # here, for few tasks need it

        try:
            now = open_table(self.table.path, self.table.store.options)
            # Spark moves files there one by one, and has a folder of that name until the last one is.
            if self.table.store.is_folder(f"{self.table.path}/_temporary"):
                raise self._lost("it is being written")
        except (InputError, OSError) as error:
            raise self._lost(str(error)) from error
        if now.unsupported:
            raise self._lost(now.unsupported)
        kinds = {field.name.lower(): field.type for field in now.schema}
        read = [*self.schema.names, *(ref.column for each in self.filters for ref in columns_of(each))]
        for field in map(self.table.schema.field, sorted(self.table.stored(read))):
            if (kind := kinds.get(field.name.lower())) != field.type:
                raise self._lost(f"column {field.name!r} is {kind or 'missing'}, and was {field.type}")
        return now.with_computed(self.table.computed)

    def _lost(self, why: str) -> ReadError:
        return ReadError(
            f"table {self.alias!r}, which streams are joined with, cannot be read anew: {why}. Expected "
            f"Parquet files with the columns of before at {self.table.path}; put them there, and start the "
            "query again from its checkpoint"
        )

    def scan(self) -> Scan:
        """Return how to read the files that it has now; raises as :meth:`open`."""
        parts = (splits(self.open(), self.filters, tuple(self.schema.names)),)
        return Scan.of(self.schema, self.filters, parts, self.table.computed)

    def is_changed(self, known: tuple[tuple[str, State], ...]) -> bool:
        """Whether it was written anew since its files were as is known; what is being written is not yet."""
        try:
            return self.open().states != known
        except (ReadError, InputError, OSError):
            return False


@dataclass(frozen=True)
class InlineTable:
    """A table that travels with the plan, read whole by every task."""

    table: pa.Table
    is_remote: ClassVar = False

    @classmethod
    def of(cls, frame: DataFrame, schema: pa.Schema) -> InlineTable:
        """Return the rows of a DataFrame, with a relation's columns; runs it."""
        return cls(frame.toArrow().rename_columns(schema.names).cast(schema))

    @classmethod
    def beside_stream(cls, alias: str, frame: DataFrame, schema: pa.Schema) -> InlineTable:
        """Return a table that streams are joined with; SetupError if it is too large for that."""
        made = cls.of(frame, schema)
        if made.table.nbytes > MOST_TABLE:
            raise SetupError(
                f"table {alias!r} is a DataFrame of {made.table.nbytes:,} bytes, and travels with every task "
                f"of every micro-batch: expected at most {MOST_TABLE:,} bytes; write it to Parquet files "
                "and give these, for each cell reads files itself"
            )
        return made

    def sized(self, relation: RelationSpec, task: int) -> RelationSpec:
        return replace(relation, rows=self.table.num_rows, guessed=False)

    def read(
        self,
        task: int,
        batch_size: int = LEAST_ROWS,
        keeps: Keeps | None = None,
        ahead: ReadAhead | None = None,
        *,
        waits: bool = False,
        order: ReadOrder | None = None,
    ) -> Iterator[pa.RecordBatch | None]:
        yield from self.table.to_batches(max_chunksize=batch_size)


OpenInput = Scan | InlineTable
TaskInput = OpenInput | WatchedTable
"""What a task reads itself of one relation."""


def read_beside_stream(alias: str, source: ParquetInput | FrameInput, schema: pa.Schema) -> TaskInput:
    """Return how tasks read a table that streams are joined with; SetupError if they cannot."""
    if isinstance(source, ParquetInput):
        return WatchedTable.beside_stream(alias, source, schema)
    return InlineTable.beside_stream(alias, source.frame, schema)


def open_inputs(inputs: Mapping[str, TaskInput]) -> dict[str, OpenInput]:
    """Return what a task reads, by alias: of tables that may be written anew, the files that they have now.

    Raises:
        ReadError: One of these cannot be read.
    """
    return {alias: each.scan() if isinstance(each, WatchedTable) else each for alias, each in inputs.items()}


def with_sizes(join: JoinSpec, scans: Mapping[str, OpenInput], task: int) -> JoinSpec:
    """Return a block with the sizes of what a task itself reads of it, by alias."""
    return with_sources(
        join, [scans[r.alias].sized(r, task) if r.alias in scans else r for r in join.sources]
    )


def with_sources(join: JoinSpec, sources: Sequence[RelationSpec]) -> JoinSpec:
    """Return a block with other descriptions of its relations, those beside the join last."""
    joined = len(join.relations)
    return replace(join, relations=tuple(sources[:joined]), beside=tuple(sources[joined:]))
