"""A continuous join as a streaming DataFrame.

Each stream is cut into blocks for cells, which are one key each of one stateful operator, however many
streams there are; what it gives out are blocks of results. The only state is that operator's.
"""

from __future__ import annotations

import math
import uuid
import warnings
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructField, StructType

from millrace.engine.plan.expressions import show
from millrace.engine.plan.spec import JoinSpec
from millrace.errors import InputError, MillraceWarning, SetupError, require
from millrace.options import Options
from millrace.reports.micro_batch import PREFIX, SEPARATOR
from millrace.spark.block import Block, FrameInput, ParquetInput, PreparedBlock
from millrace.spark.exchange import BLOCK_SCHEMA
from millrace.spark.hypercube import Cube
from millrace.spark.placement import choose_cube
from millrace.spark.session import SessionConf, default_parallelism, shuffle_partitions
from millrace.spark.streaming import refuse_endless
from millrace.spark.task_inputs import TaskInput, read_beside_stream
from millrace.spark.types import spark_schema
from millrace.streams.dataflow import Pack, Unpack, tagged_union
from millrace.streams.processor import OUTPUT, CellProcessor
from millrace.streams.retention import EventTimes, retention
from millrace.streams.task import ContinuousJoin, Stream

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
SETTINGS = {
    _PROVIDER: _ROCKSDB,
    _CHANGELOG: "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
"""Of a session that joins streams: where state is kept, and that little of it is written."""

_MOST_CELLS = 4
"""More cells than so many times the cores take more time for their own sake than for tuples."""


@dataclass(frozen=True)
class Dealt:
    """A continuous join on the way to its cells; ``keys`` are Spark's keys, by the cell's number."""

    task: ContinuousJoin
    cube: Cube
    keys: tuple[int, ...]
    sides: tuple[DataFrame, ...]

    def run(self, processor: StatefulProcessor, schema: pa.Schema, result: StructType) -> DataFrame:
        """Return what the cells give out; ``schema`` is of its blocks, ``result`` is the same for Spark."""
        worked = (
            reduce(DataFrame.union, self.sides)
            .groupBy("cell")
            .transformWithStateInPandas(processor, OUTPUT, "Append", "EventTime")
        )
        *sums, lines = [field.split()[0] for field in OUTPUT.split(", ")][1:]
        seen = worked.observe(
            self.task.name,
            *(sf.sum(name).alias(name) for name in sums),
            sf.concat_ws(SEPARATOR, sf.collect_list(lines)).alias(lines),
        )
        return seen.mapInArrow(Unpack(schema), result)


def continuous(spark: SparkSession, block: Block, times: EventTimes, options: Options) -> PreparedBlock:
    """Return a block over streams as a streaming DataFrame; nothing runs yet.

    Takes and raises what :func:`deal` does.
    """
    dealt = deal(spark, block, times, options)
    task = dealt.task
    columns = without_watermark(block.result or spark_schema(block.schema))
    result = dealt.run(CellProcessor(task, dealt.keys), task.join.output_schema, columns)
    return PreparedBlock(task.name, result, _show(block, task, dealt.cube), refuse_endless)


def deal(spark: SparkSession, block: Block, times: EventTimes, options: Options) -> Dealt:
    """Deal the tuples of a block over streams to cells; nothing runs yet.

    The streams among its inputs are DataFrames.

    Raises:
        InputError: State would grow without end, or an input is of a kind that does not go with streams.
        SetupError: The session does not keep state in RocksDB, or a table is too large to send to tasks, or
            its files could not be found anew; or the architecture is a static plan.
    """
    _check_provider(spark)
    if options.architecture == "static":
        raise SetupError(  # with another error Spark would run the query, and keep state in its own way
            "option architecture is 'static', and a plan that does not change begins anew with every run, "
            "while a join of streams goes on: expected 'stems', 'joins', 'stairs' or 'auto'"
        )
    if options.architecture == "auto":
        options = replace(options, architecture="stems")
    keeps = retention(list(times.columns), times.bounds, times.preserved)
    aliases = block.join.aliases
    cells = _cells(spark, options)
    weights = [1.0 if alias in times.columns else 0.0 for alias in aliases]
    # Every cell has the tables whole, those of left joins too.
    joined = JoinSpec(block.join.relations, block.join.equalities)
    fixed = [weight == 0 or times.preserved is not None for weight in weights]
    cube = choose_cube(joined, weights, cells, fixed)
    if times.preserved is not None:  # a tuple is in one cell, and so are all of its matches; with nulls too
        cube = Cube(tuple(replace(axis, nulls=True) for axis in cube.axes))
    keys = _keys(spark, cells)[: cube.cells]
    streams = tuple(
        Stream(
            alias,
            number,
            times.columns[alias],
            keeps[alias],
            _counted(cube, number),
            _frame(block, alias).computed,
        )
        for number, alias in enumerate(aliases)
        if alias in times.columns
    )
    task = ContinuousJoin(
        f"{PREFIX}{uuid.uuid4().hex}",
        block.join,
        streams,
        {r.alias: _read(block, r.alias) for r in block.join.sources if r.alias not in times.columns},
        options,
        cells,
        cube.axes,
        times.preserved,
    )
    frames = {s.number: _frame(block, s.alias).frame for s in streams}
    together, layouts = tagged_union(frames, {s.number: task.schema_of(s) for s in streams})
    tasks = max(cells, default_parallelism(spark))
    packed = together.coalesce(tasks).mapInArrow(
        Pack(layouts, cube, options.block_bytes, keys), spark_schema(BLOCK_SCHEMA)
    )
    return Dealt(task, cube, keys, (packed,))


def _check_provider(spark: SparkSession) -> None:
    """Raise SetupError unless state is kept in RocksDB, by an operator that can be had."""
    require("streams", "a join of streams, whose state Spark sends to Python,", "google.protobuf")
    provider = SessionConf(spark).get(_PROVIDER, "")
    if provider != _ROCKSDB:
        raise SetupError(
            f"a continuous join keeps its state in RocksDB, and the session's state store is {provider!r}: "
            f'run spark.conf.set("{_PROVIDER}", "{_ROCKSDB}") before, and, to write less, '
            f'spark.conf.set("{_CHANGELOG}", "true")'
        )


def _cells(spark: SparkSession, options: Options) -> int:
    """Return the number of cells: one for each partition of Spark's state."""
    partitions = shuffle_partitions(spark)
    cores = default_parallelism(spark)
    if partitions > _MOST_CELLS * cores:
        warnings.warn(
            f"Spark will keep the state of this join in {partitions} partitions, and each takes time in "
            f'every micro-batch: run spark.conf.set("spark.sql.shuffle.partitions", "{cores}") before the '
            "first start (a checkpoint keeps the number that it was begun with)",
            MillraceWarning,
            stacklevel=2,
        )
    return min(partitions, options.cells or partitions)


def _keys(spark: SparkSession, cells: int) -> tuple[int, ...]:
    """Return for each cell the least number that Spark's hash sends to the partition of that number."""
    place = sf.expr(f"pmod(hash(CAST(id AS INT)), {cells})").alias("place")
    by_place: dict[int, int] = {}
    wanted = max(64, math.ceil(cells * (math.log(cells) + 10)))
    while len(by_place) < cells:
        keys = spark.range(wanted).select("id", place).groupBy("place").agg(sf.min("id").alias("key"))
        by_place = {int(row["place"]): int(row["key"]) for row in keys.collect()}
        wanted *= 2  # some partition may have none of so many
    return tuple(by_place[cell] for cell in range(cells))


def _counted(cube: Cube, number: int) -> frozenset[int]:
    """Return the cells with coordinate 0 wherever a relation has none: one of those each tuple goes to."""
    others = [
        (stride, axis.share)
        for axis, stride in zip(cube.axes, cube.strides(), strict=True)
        if axis.column(number) is None
    ]
    return frozenset(c for c in range(cube.cells) if not any(c // stride % share for stride, share in others))


def _frame(block: Block, alias: str) -> FrameInput:
    frame = block.inputs[alias]
    assert isinstance(frame, FrameInput), "streams are DataFrames"
    return frame


def _read(block: Block, alias: str) -> TaskInput:
    """Return how a table is read, which every cell does when it begins."""
    source = block.inputs[alias]
    assert isinstance(source, ParquetInput | FrameInput), "what is looked up is so above the join"
    try:
        return read_beside_stream(alias, source, block.join.relation(alias).schema)
    except SetupError as error:
        if all(join.relation != alias for join in block.join.outer):
            raise
        raise InputError(str(error)) from None  # of a LEFT join, which Spark has rows for


def without_watermark(schema: StructType) -> StructType:
    """Return columns without watermarks: a result may be older than those of its streams."""
    fields = []
    for field in schema.fields:
        notes = {
            name: note for name, note in (field.metadata or {}).items() if name != "spark.watermarkDelayMs"
        }
        fields.append(StructField(field.name, field.dataType, field.nullable, notes))
    return StructType(fields)


def _show(block: Block, task: ContinuousJoin, cube: Cube) -> str:
    lines = [f"block {block.name}: continuous, {cube.show(task.join.aliases)}"]
    for number, relation in enumerate(task.join.sources):
        stream = task.by_number.get(number)
        copies = cube.copies(number)
        if stream is None:
            lines.append(
                f"  {relation.alias}: a table, read whole by every cell, and anew when it is written anew"
            )
        else:
            kept = f"kept for {stream.keeps / 1e6:,.6g} s" if stream.keeps >= 0 else "not kept"
            more = f", {copies} copies" if copies > 1 else ""
            lines.append(f"  {relation.alias}: a stream by {stream.time}, {kept} behind the watermark{more}")
    lines.append(f"  join state: {task.options.architecture}, made anew from the log of base tuples")
    lines += [f"  on {equality}" for equality in task.join.equalities]
    if task.preserved is not None:
        lines.append(f"  rows of {task.preserved} without a match come out with nulls when they expire")
    lines += [f"  {show(join)}" for join in task.join.outer]
    lines += [f"  where {predicate}" for predicate in task.join.residuals]
    return "\n".join(lines)
