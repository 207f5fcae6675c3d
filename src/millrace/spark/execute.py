"""Running a block on Spark: one job stage in place, or one shuffle for the whole join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as sf

from millrace.engine.aggregate import CHUNK
from millrace.engine.arrays import Array, row_bytes
from millrace.engine.eager import EagerAggregation
from millrace.engine.plan.expressions import (
    Call,
    CaseWhen,
    Literal,
    Or,
    Predicate,
    Value,
    and_all,
    columns_of,
    relations_of,
    rename_columns,
    show,
)
from millrace.engine.plan.spec import JoinSpec, RelationSpec
from millrace.engine.stairs.choice import architecture_of
from millrace.engine.tuples.keys import codes
from millrace.errors import InputError, ReadError
from millrace.options import Options
from millrace.parquet.tables import Split, splits
from millrace.predicates import PredicateSpec
from millrace.spark.block import Block, FrameInput, LookupInput, ParquetInput, PreparedBlock, scan_of
from millrace.spark.coordinator import Limits, Lookups, Registered
from millrace.spark.exchange import BLOCK_SCHEMA, NOTHING, Cut, Roles, SharedBlocks
from millrace.spark.hypercube import Axis, Cube, find_frequent
from millrace.spark.placement import Mode, Size, place, small_relations
from millrace.spark.reports import FileWarmStart, Reports
from millrace.spark.session import default_parallelism, facts_of, shuffle_partitions
from millrace.spark.streaming import ReaderPreference, Target, TaskPreference, refuse_endless, stream_of
from millrace.spark.task_inputs import (
    LEAST_ROWS,
    InlineTable,
    Scan,
    TaskInput,
    deal,
    ranks_of,
    read_beside_stream,
    task_numbers,
    with_sources,
)
from millrace.spark.tasks import CutTask, EddyTask, Reduction, ScanTask
from millrace.spark.types import spark_schema

# A DataFrame of unknown size is taken to be as large as the largest relation, and at least this large.
_UNKNOWN_BYTES = 256 * 1024 * 1024
# From this size on, a cell's blocks are sorted, so that the streamed relation need not wait in memory.
_SORTED_BYTES = 256 * 1024 * 1024
# Less than a megabyte is small enough for every executor. To count a number takes a nanosecond or two.
_FEW_WORDS = 1 << 17
_MOST_COLUMNS = 7
# So many rows for each number, on average, are worth grouping before they are joined.
_REPEATED = 4
# Row groups that are read of a column to find keys that many rows have.
_SAMPLED = 2
_MOST_SAMPLED = 1 << 16
# Columns that tell which roles of a self-join a row has begin so.
_TEST = "__role_"


def execute(spark: SparkSession, block: Block, options: Options) -> PreparedBlock:
    """Return the block's result as a DataFrame; nothing runs yet.

    InputError if a relation has no input, or a Parquet table has to be read by Spark.
    """
    for relation in block.join.sources:
        if relation.alias not in block.inputs:
            raise InputError(f"block {block.name}: relation {relation.alias!r} has no input")
        scan = scan_of(block.inputs[relation.alias])
        if isinstance(scan, ParquetInput) and scan.table.unsupported:
            raise InputError(
                f"block {block.name}: {scan.table.path} cannot be scanned directly "
                f"({scan.table.unsupported}); give the relation as a DataFrame that Spark reads"
            )
    return _Assembly(spark, block, options).run()


@dataclass(frozen=True)
class _Source:
    """A relation as it arrives. ``scan`` is what is read of it, None where it is only looked up."""

    number: int
    relation: RelationSpec
    scan: ParquetInput | FrameInput | None
    splits: tuple[Split, ...] | None
    size: Size
    mode: Mode = Mode.SHUFFLED

    @property
    def alias(self) -> str:
        return self.relation.alias

    @property
    def is_filtered(self) -> bool:
        """Whether tasks filter it while they read it."""
        return isinstance(self.scan, ParquetInput) and bool(self.scan.filters)

    @property
    def passing(self) -> float:
        """How many of its rows are expected to pass its filters."""
        if self.splits is None:
            return float(self.size.rows)
        return sum(split.rows * split.passing for split in self.splits)

    def deal(self, loads: list[int], wanted: Sequence[Predicate] = ()) -> Scan:
        """Return a scan whose splits are dealt to tasks by size; a single one reads them all.

        Those that may have wanted rows come first, by what files tell of their row groups.
        """
        assert isinstance(self.scan, ParquetInput)
        own = [each for each in wanted if relations_of(each) == {self.alias}]
        parts = deal(self.splits or (), loads, ranks_of(self.scan, self.splits or (), own) if own else ())
        return Scan.of(self.relation.schema, self.scan.filters, parts, self.scan.table.computed)

    def is_same(self, other: _Source) -> bool:
        """Whether it reads the same row groups of the same files, whatever its columns and filters."""
        mine, its = self.scan, other.scan
        if not isinstance(mine, ParquetInput) or not isinstance(its, ParquetInput):
            return False
        return (mine.table, mine.table.computed) == (its.table, its.table.computed) and [
            (s.path, s.group, s.rows, s.state) for s in self.splits or ()
        ] == [(s.path, s.group, s.rows, s.state) for s in other.splits or ()]

    @property
    def filters(self) -> tuple[Predicate, ...]:
        """Its filters, of whatever alias."""
        assert isinstance(self.scan, ParquetInput)
        return rename_columns(self.scan.filters, lambda ref: replace(ref, relation=""))

    def sample(self, axis: Axis) -> Array:
        """Return codes of keys in two of its row groups; none of a DataFrame, or of what cannot be read."""
        column, splits = axis.column(self.number), self.splits or ()
        if not isinstance(self.scan, ParquetInput) or column is None or axis.type is None:
            return np.empty(0, np.int64)
        few = splits if len(splits) <= _SAMPLED else splits[len(splits) // 3 :: len(splits) // 3][:_SAMPLED]
        scan, field = self.scan, self.relation.schema.field(column)
        try:
            return _keys_of(few, field, axis.type, scan.filters, scan.table.computed)
        except ReadError:  # the tasks will say so
            return np.empty(0, np.int64)


@lru_cache(maxsize=64)
def _keys_of(
    splits: tuple[Split, ...],
    field: pa.Field,
    kind: pa.DataType,
    filters: tuple[Predicate, ...],
    computed: tuple[tuple[str, Value], ...],
) -> Array:
    """Return codes of keys in row groups, half a megabyte at most, without nulls; the next plan has them."""
    part = Scan.of(pa.schema([field]), filters, [splits], computed)
    found = [np.empty(0, np.int64)]
    for batch in filter(None, part.read(0, CHUNK)):  # None stands for nothing yet
        own, valid = codes(batch.column(0), kind)
        found.append(own if valid is None else own[valid])
    whole = np.concatenate(found)
    return whole[:: 1 + len(whole) // _MOST_SAMPLED].copy()


@dataclass(frozen=True)
class _SharedScan:
    """Roles of a self-join, cut alike, for which one scan reads and sends each row once.

    They have two different filters at most, so a map task fills blocks of three sets of rows at once.
    """

    sources: tuple[_Source, ...]

    @property
    def first(self) -> _Source:
        return self.sources[0]

    @cached_property
    def _filters(self) -> tuple[tuple[Predicate, ...], ...]:
        """The different filters of the relations."""
        found: list[tuple[Predicate, ...]] = []
        for source in self.sources:
            if source.filters not in found:
                found.append(source.filters)
        return tuple(found)

    @property
    def is_possible(self) -> bool:
        """Whether all read the same row groups, and one scan for two different filters costs no more.

        Tests are computed columns, which read stored ones alone. A scan leaves the rest of a row group unread
        where no row passes. So what rows of one filter alone need may take no more than what both need.
        """
        if not all(source.is_same(self.first) for source in self.sources[1:]):
            return False
        if len(self._filters) == 1:
            return True
        assert isinstance(self.first.scan, ParquetInput)
        table = self.first.scan.table
        read = {ref.column.lower() for own in self._filters for each in own for ref in columns_of(each)}
        is_free = not any(name.lower().startswith(_TEST) for name in table.schema.names)
        if len(self._filters) > 2 or not is_free or not read.isdisjoint(n.lower() for n, _ in table.computed):
            return False
        columns = [{name.lower() for name in self.blocks[bit].schema.names} - read for bit in (1, 2)]
        common = columns[0] & columns[1]
        filtered = [each for each, own in zip(columns, self._filters, strict=True) if own]
        alone = set.union(*filtered) - common
        return table.decoded_bytes_of(alone) <= table.decoded_bytes_of(common)

    @property
    def tests(self) -> tuple[str | None, ...]:
        """For each of the filters, the column that tells which rows pass it."""
        if len(self._filters) == 1:
            return (None,)
        return tuple(f"{_TEST}{place}" if own else None for place, own in enumerate(self._filters))

    @cached_property
    def blocks(self) -> dict[int, SharedBlocks]:
        """The relations that have rows, with their columns, by the bit set of the filters that these pass."""
        made = {}
        for roles in range(1, 1 << len(self._filters)):
            own = [s for s in self.sources if roles >> self._filters.index(s.filters) & 1]
            fields = {field.name: field for s in own for field in s.relation.schema}
            made[roles] = SharedBlocks(tuple(s.number for s in own), pa.schema(fields.values()))
        return made

    @cached_property
    def source(self) -> _Source:
        """What is read: all columns of the relations and tests; what a file lacks its splits know."""
        scan = self.first.scan
        assert isinstance(scan, ParquetInput)
        fields = list(self.blocks[max(self.blocks)].schema)
        table, filters = scan.table, scan.filters
        passing = [each for each in map(and_all, self._filters) if each is not None]
        tests = list(zip(filter(None, self.tests), passing, strict=False))  # none for one relation's alone
        if tests:
            yes, no = (Literal(truth, pa.bool_()) for truth in (True, False))
            fields += [pa.field(test, pa.bool_()) for test, _ in tests]
            table = table.with_computed(
                tuple((test, CaseWhen(((condition, yes),), no, pa.bool_())) for test, condition in tests)
            )
            filters = (Or(tuple(passing)),) if len(passing) == len(self._filters) else ()
        schema = pa.schema(fields)
        return replace(
            self.first,
            relation=replace(self.first.relation, schema=schema),
            scan=ParquetInput(table, tuple(schema.names), filters),
            splits=splits(table, filters, tuple(schema.names)),
        )


class _Assembly:
    """Puts one block's DataFrame together."""

    def __init__(self, spark: SparkSession, block: Block, options: Options) -> None:
        self._spark = spark
        self._block = block
        self._options = options
        inputs = {relation.alias: block.inputs[relation.alias] for relation in block.join.sources}
        looked_up = {alias: source for alias, source in inputs.items() if isinstance(source, LookupInput)}
        if options.memory_budget is not None:  # what cannot keep to it is refused before a task begins
            from millrace.engine.spill.beside import asked_in  # what plans without a budget do not need
            from millrace.engine.spill.lookups import divide

            read = [alias for alias, each in looked_up.items() if each.scan or each.sources]
            if looked_up:
                divide(block.join, looked_up, read, options)
            asked_in(block.join)
        # Everything that arrives, by number: semi-joined relations come behind those of the join.
        self._sources = _sources(block)
        self._join = with_sources(block.join, [source.relation for source in self._sources])
        stream = None if block.stream is None else block.join.aliases.index(block.stream)
        self._parallelism = options.cells or default_parallelism(spark)
        sizes = [source.size for source in self._sources]
        bound = {
            number: [spec.columns for spec in looked_up[alias].indexes]
            for number, alias in enumerate(inputs)
            if alias in looked_up
        }
        # Asking is a request on Spark Connect, and files need no answer.
        partitions = shuffle_partitions(spark) if any(size.splits is None for size in sizes) else 0
        self._placement = place(self._join, sizes, options, self._parallelism, bound, partitions, stream)
        placed = zip(self._sources, self._placement.modes, strict=True)
        self._sources = [replace(source, mode=mode) for source, mode in placed]
        if self._placement.stream is None and not looked_up:
            self._placement = replace(self._placement, cube=self._spread_frequent_keys(self._placement.cube))
        self._reports = Reports(spark, options, wanted=options.report and stream is None)
        self._lookups: Lookups | None = None
        if looked_up:
            self._lookups = Lookups.of(
                spark, self._reports.sink.run, self._join, looked_up, options, stream=stream is not None
            )

    def _spread_frequent_keys(self, cube: Cube) -> Cube:
        """Return the cube without a coordinate that is overfull with a key of its largest relation of files.

        Unless what others have of these keys, and send to all coordinates, is more than what is spread.
        """
        by_row = {number for axis in cube.axes if axis.type is None for number, _ in axis.columns}
        best, most = cube, 0.0
        for number, axis in enumerate(cube.axes):
            if axis.type is None:
                continue
            sources = [source for source in self._sources if axis.column(source.number) is not None]
            able = [s for s in sources if s.splits and not s.size.is_fixed and s.number not in by_row]
            if not able:
                continue
            largest = max(able, key=lambda source: source.size.bytes)
            frequent = find_frequent(largest.sample(axis), axis.share)
            if not frequent:
                continue
            samples = {source.number: source.sample(axis) for source in sources}
            parts = {n: np.isin(own, frequent).mean() if len(own) else 1.0 for n, own in samples.items()}
            weights = {source.number: source.size.bytes * parts[source.number] for source in sources}
            copied = (sum(weights.values()) - weights[largest.number]) * (axis.share - 1)
            if max(copied, most) <= weights[largest.number]:
                axes, most = list(cube.axes), weights[largest.number]
                axes[number] = replace(axis, frequent=frequent, spread=largest.number)
                best = Cube(tuple(axes))
        return best

    def run(self) -> PreparedBlock:
        return PreparedBlock(
            self._reports.sink.run,
            self._frame(),
            self._plan(),
            self._stream if self._block.stream is None else refuse_endless,
            self._reports,
            self._registered,
            self._tasks(),
        )

    def _stream(self, preference: ReaderPreference | None = None) -> Iterator[pa.RecordBatch]:
        def frame_of(target: Target) -> DataFrame:
            return self._frame(target, preference)

        return stream_of(self._spark, self._options, self._block.schema, frame_of, preference)

    def _frame(self, target: Target | None = None, preference: ReaderPreference | None = None) -> DataFrame:
        """Return the block's result; with a target, which gets it instead, a DataFrame without rows.

        What the reader prefers comes first; None where that will not be said.
        """
        options = self._options
        wanted: tuple[Predicate, ...] = ()
        missing: tuple[str, ...] = ()
        if preference is not None:
            wanted, missing = preference.wanted, preference.missing
            options = replace(options, policy=options.policy or "interactive")
        if missing:  # what arrives by and by is missing for a while, and no tuple is sent on trial
            is_read = any(scan_of(self._block.inputs[alias]) is not None for alias in missing)
            online = options.online or is_read
            options = replace(options, architecture="stems", by_content=False, online=online)
        placement = self._placement
        sink = self._reports.sink
        stream = None if placement.stream is None else self._join.aliases[placement.stream]
        join = with_sources(self._join, list(map(self._describe, self._sources)))
        task = EddyTask(
            join=join,
            options=options,
            stream=stream if self._last is None else self._last.alias,
            scans={
                source.alias: self._read(source, wanted)
                for source in self._sources
                if source.mode in (Mode.PARTITIONED, Mode.BROADCAST)
            },
            frame=stream if Mode.STREAMED in placement.modes else None,
            exchanged=tuple(source.alias for source in self._exchanged),
            limits=self._limits,
            warm_start=FileWarmStart(sink.run) if self._called else None,
            last=None if self._last is None else self._last.number,
            sink=sink,
            lookups=self._lookups,
            target=target,
            aggregate=self._block.aggregate,
            eager=self._eager(join),
            shared=self._shared_blocks,
            preference=None if preference is None else TaskPreference(wanted, missing),
        )
        if Mode.STREAMED in placement.modes:
            assert placement.stream is not None
            streamed = self._sources[placement.stream].scan
            assert isinstance(streamed, FrameInput)
            source = streamed.frame
        elif self._exchanged:
            source = self._exchange(wanted)
        else:
            source = _numbers(self._spark, placement.cells or 1, self._expected_words)
        result = self._block.result or spark_schema(self._block.schema)
        return self._reports.attach(source.mapInArrow(task, sink.schema(result)))

    def _eager(self, join: JoinSpec) -> EagerAggregation | None:
        """Return which relation is aggregated before it is joined.

        None with lookups, whose answers are no source, and under a budget, which would not count what waits.
        """
        if self._block.aggregate is None or self._lookups or self._options.memory_budget is not None:
            return None
        return EagerAggregation.of(join, self._block.aggregate, self._repeats)

    def _repeats(self, alias: str, key: str) -> bool:
        """Tell whether files have few whole numbers of a column in many rows, in each chunk too."""
        source = self._sources[self._join.aliases.index(alias)]
        if not isinstance(source.scan, ParquetInput) or key in dict(source.scan.table.computed):
            return False
        ends = source.scan.table.ends(key)
        rows = source.passing / (self._placement.cells or self._parallelism)
        return ends is not None and _REPEATED * (ends[1] - ends[0] + 1) <= min(rows, CHUNK)

    def _describe(self, source: _Source) -> RelationSpec:
        """Return a relation with the rows that a cell gets of it; of those that it reads it knows itself."""
        placement, relation, mode = self._placement, source.relation, source.mode
        if mode not in (Mode.SHUFFLED, Mode.STREAMED):
            return relation
        guessed = relation.guessed if source.splits is None else source.is_filtered
        # A DataFrame that is streamed has as many cells as partitions, which are about as many as tasks.
        cells = placement.cells or self._parallelism
        share = 1 / cells if mode is Mode.STREAMED else placement.cube.copies(source.number) / cells
        guessed |= share < 1 or mode is Mode.STREAMED or self._reduction is not None
        return relation.expect(source.passing * share, source.size.rows * share, guessed=guessed)

    @cached_property
    def _expected_words(self) -> int:
        """About how many words the block gives: a row for each of its largest relation, with its columns.

        Of an aggregate's relations those with keys count. A row itself takes a word too.
        """
        aggregate, join = self._block.aggregate, self._join
        owners = set(join.aliases)
        if aggregate is not None:
            source = {column.name: column.source.relation for column in join.output}
            owners = {source[key] for key in aggregate.keys}
        passing = (source.passing for source in self._sources if source.alias in owners)
        rows = int(max(passing, default=0))
        return rows * (1 + min(len(self._block.schema), _MOST_COLUMNS))

    @cached_property
    def _called(self) -> dict[int, PredicateSpec]:
        """The users' predicates, by their numbers among the conditions."""
        return {n: call.spec for n, call in enumerate(self._join.residuals) if isinstance(call, Call)}

    @cached_property
    def _limits(self) -> Limits:
        limits = Limits.of(self._spark, self._reports.sink.run, self._called, self._options)
        if self._block.stream is not None:
            limits.keep()
        return limits

    def _read(self, source: _Source, wanted: Sequence[Predicate]) -> TaskInput:
        scan, schema = source.scan, source.relation.schema
        if scan is not None and self._block.stream is not None:
            return read_beside_stream(source.alias, scan, schema)
        if isinstance(scan, FrameInput):
            return InlineTable.of(scan.frame, schema)
        parts = self._placement.cells or 1 if source.mode is Mode.PARTITIONED else 1
        return source.deal([0] * parts, wanted)

    @cached_property
    def _reduction(self) -> Reduction | None:
        """What the map tasks of the exchange read to filter what they send, None for nothing."""
        if self._lookups or not self._options.transfer:
            return None
        sizes = [source.size for source in self._sources]
        filtered = [source.is_filtered for source in self._sources]
        small = small_relations(self._join, sizes, filtered, self._parallelism)
        return Reduction(self._join, tuple((n, self._sources[n].deal([0])) for n in small)) if small else None

    @cached_property
    def _exchanged(self) -> list[_Source]:
        return [source for source in self._sources if source.mode is Mode.SHUFFLED]

    @cached_property
    def _shared(self) -> tuple[_SharedScan, ...]:
        """Return the relations that read the same row groups, cut alike, which are read and sent once.

        Without it, no row group less would be read, and no value of a row less be sent. Blocks wait in memory
        until the last of their relations reads them. So there are none under a budget, and the relation that
        is sorted last shares none. Nor where map tasks filter what they send: a row may have matches in one
        role and none in another.
        """
        if self._options.memory_budget is not None or self._lookups or self._reduction is not None:
            return ()
        scans: list[_SharedScan] = []
        for source in self._exchanged:
            if source is self._last or not len(source.relation.schema):
                continue
            alike = partial(self._placement.cube.cuts_alike, source.number)
            for n, scan in enumerate(scans):
                wider = _SharedScan((*scan.sources, source))
                if alike(scan.first.number) and wider.is_possible:
                    scans[n] = wider
                    break
            else:
                scans.append(_SharedScan((source,)))
        return tuple(scan for scan in scans if len(scan.sources) > 1)

    @cached_property
    def _shared_blocks(self) -> tuple[SharedBlocks, ...]:
        return tuple(blocks for scan in self._shared for blocks in scan.blocks.values() if blocks.is_shared)

    @cached_property
    def _sent(self) -> list[_Source]:
        """Return what is read to be exchanged; one scan reads for all relations that share it."""
        scans = {scan.first.number: scan for scan in self._shared}
        others = {source.number for scan in self._shared for source in scan.sources[1:]}
        return [
            scans[source.number].source if source.number in scans else source
            for source in self._exchanged
            if source.number not in others
        ]

    def _cut(self, relation: int) -> Cut | Roles:
        """Return how what a scan reads, for a relation or for all that share its scan, is cut."""
        cut = Cut(relation, self._placement.cube, self._options.block_bytes)
        scan = next((scan for scan in self._shared if scan.first.number == relation), None)
        if scan is None:
            return cut
        first = len(self._sources)
        numbers = {blocks: first + place for place, blocks in enumerate(self._shared_blocks)}
        return Roles(
            scan.tests,
            {
                roles: (replace(cut, relation=each.relations[0], number=numbers.get(each)), each.schema.names)
                for roles, each in scan.blocks.items()
            },
        )

    @cached_property
    def _last(self) -> _Source | None:
        """Return the relation whose blocks are sorted last, or None to leave blocks unsorted."""
        cells = self._placement.cells
        free = [source for source in self._exchanged if not source.size.is_fixed]
        if self._options.online or self._placement.stream is not None or not free or cells is None:
            return None
        largest = max(free, key=lambda source: source.size.bytes)
        received = largest.size.bytes * self._placement.cube.copies(largest.number) / cells
        return largest if received > _SORTED_BYTES else None

    def _exchange(self, wanted: Sequence[Predicate]) -> DataFrame:
        """Return the blocks of the exchanged relations, each cell's in the partition of its number."""
        sink, cells = self._reports.sink, self._placement.cells
        assert cells is not None
        rows = spark_schema(BLOCK_SCHEMA)
        # Relations to be built first come first, as far as Spark keeps the order.
        ordered = sorted(self._sent, key=lambda source: source.size.rows)
        sides = []
        scanned = [source for source in ordered if isinstance(source.scan, ParquetInput)]
        if scanned:
            loads = [0] * self._scanning(scanned)
            # The largest first, the smaller ones fill the gaps.
            scans = {source.alias: source.deal(loads, wanted) for source in reversed(scanned)}
            scan_task = ScanTask(
                {source.alias: (scans[source.alias], self._cut(source.number)) for source in scanned},
                max(self._options.batch_size, LEAST_ROWS),
                sink,
                self._reduction,
            )
            numbers = _numbers(self._spark, len(loads), self._expected_words)
            sides.append(numbers.mapInArrow(scan_task, rows))
        for source in ordered:
            if isinstance(source.scan, FrameInput):
                alias, schema = source.alias, source.relation.schema
                cut = Cut(source.number, self._placement.cube, self._options.block_bytes)
                task = CutTask(alias, schema, cut, sink, self._reduction)
                sides.append(source.scan.frame.mapInArrow(task, rows))
        if Mode.PARTITIONED in self._placement.modes:
            # Where nothing is exchanged Spark makes no tasks; but these have rows of their own to read.
            nothing = zip(("id", NOTHING, "''"), rows, strict=True)
            columns = [f"CAST({x} AS {f.dataType.simpleString()}) AS {f.name}" for x, f in nothing]
            sides.append(self._spark.range(0, cells, 1, 1).selectExpr(columns))
        blocks = reduce(DataFrame.union, sides).repartitionById(cells, "cell")
        if self._last is not None:
            blocks = blocks.sortWithinPartitions((sf.col("relation") == self._last.number).cast("int"))
        return blocks

    def _scanning(self, scanned: Sequence[_Source]) -> int:
        """Return how many map tasks read the files of exchanged relations."""
        return max(1, min(self._parallelism, sum(len(source.splits or ()) for source in scanned)))

    def _tasks(self) -> int | None:
        """Return how many tasks tell figures; None with DataFrames, of whose partitions Spark alone knows."""
        cells = self._placement.cells
        if cells is None or any(isinstance(source.scan, FrameInput) for source in self._sent):
            return None
        return cells + (self._scanning(self._sent) if self._sent else 0)

    def _plan(self) -> str:
        placement, join = self._placement, self._join
        in_place = placement.stream is not None
        cells = "one cell a partition" if placement.cells is None else f"{placement.cells} cells"
        lines = [f"block {self._block.name}: {'in place' if in_place else 'HyperCube'}, {cells}"]
        if in_place or self._options.placement != "hypercube":
            lines.append(f"  because {placement.reason}")
        if not in_place:
            lines.append(f"  {placement.cube.show([source.alias for source in self._sources])}")
        firsts = {each.number: scan.first.alias for scan in self._shared for each in scan.sources[1:]}
        for source in self._sources:
            relation, size, scan = source.relation, source.size, source.scan
            text = f"  {relation.alias}: about {size.rows:,} rows, {size.bytes / 1e6:,.1f} MB"
            if size.is_lookup:
                text = f"  {relation.alias}:"
            elif isinstance(scan, ParquetInput):
                text += f" from {size.splits} row groups of {scan.table.path}"
                if scan.filters:
                    text += f" where {' AND '.join(map(show, scan.filters))}"
            else:
                why = scan.why if isinstance(scan, FrameInput) else ""
                text += f" from a DataFrame ({why})" if why else " from a DataFrame"
            comma = "" if size.is_lookup else ","
            text += f"{comma} columns {', '.join(relation.schema.names) or 'none'}"
            text += ", each tuple once" if relation.distinct else ""
            if source.number >= len(join.relations):
                widens = relation.alias in (each.relation for each in join.outer)
                text += ", left-joined" if widens else ", looked through for matches"
            text += f"; {source.mode.value}"
            copies = placement.cube.copies(source.number)
            text += f", {copies} copies" if source.mode is Mode.SHUFFLED and copies > 1 else ""
            text += f", read and sent once with {firsts[source.number]}" if source.number in firsts else ""
            lines.append(text + (", sorted last" if source is self._last else ""))
        if not in_place and self._reduction is not None:
            lines.append(f"  what has no match in {', '.join(self._reduction.aliases)} is not sent")
        if len(join.relations) > 1:
            state = architecture_of(join, self._options, looked_up=self._lookups is not None)
            lines.append(f"  join state: {state.name}, because {state.because}")
        lines += [f"  on {equality}" for equality in join.equalities]
        lines += [f"  {show(each)}" for each in join.outer]
        lines += [f"  where {show(predicate)}" for predicate in join.residuals]
        lines += [f"  weaker: {text}" for limits in self._registered for text in limits.weakened_guarantees]
        return "\n".join(lines)

    @property
    def _registered(self) -> tuple[Registered, ...]:
        return (self._limits,) if self._lookups is None else (self._limits, self._lookups)


def _numbers(spark: SparkSession, tasks: int, words: int) -> DataFrame:
    """Return the numbers of tasks that together make about so many words; made once a session."""
    of = 1 if words < _FEW_WORDS else 1 << (words // tasks).bit_length()
    numbers = facts_of(spark).numbers
    if (tasks, of) not in numbers:
        numbers[tasks, of] = task_numbers(spark, tasks, of)
    return numbers[tasks, of]


def _sources(block: Block) -> list[_Source]:
    """Return the relations, with what is known of their sizes; nothing is read of those only looked up."""
    scans = [scan_of(block.inputs[relation.alias]) for relation in block.join.sources]
    pruned = [splits(s.table, s.filters, s.columns) if isinstance(s, ParquetInput) else None for s in scans]
    totals: list[int | None] = []
    for scan, own in zip(scans, pruned, strict=True):
        if isinstance(scan, ParquetInput):
            width = scan.table.decoded_bytes_of(scan.columns) / max(1, scan.table.rows)
            totals.append(round(sum(split.rows for split in own or ()) * width))
        else:
            totals.append(0 if scan is None else scan.bytes)
    unknown = max([_UNKNOWN_BYTES, *(total for total in totals if total is not None)])
    sources = []
    for n, relation in enumerate(block.join.sources):
        scan, own, total = scans[n], pruned[n], totals[n]
        width = 8 + row_bytes(relation.schema, 20)  # about Spark's estimate
        is_fixed = relation.distinct or n >= len(block.join.relations)
        if scan is None:
            sources.append(_Source(n, relation, None, None, Size(0, 0, None, is_fixed, is_lookup=True)))
            continue
        if total is None:
            total = unknown if relation.rows is None else relation.rows * width
        if own is not None:
            size = Size(sum(split.rows for split in own), total, len(own), is_fixed)
        else:
            # DataFrames joined with a stream travel with the plan, for no exchange takes both.
            travels = block.stream not in (None, relation.alias)
            rows = total // width if relation.rows is None else relation.rows
            size = Size(rows, total, 1 if travels else None, is_fixed)
        guessed = relation.guessed or relation.rows is None
        sources.append(_Source(n, replace(relation, rows=size.rows, guessed=guessed), scan, own, size))
    return sources
