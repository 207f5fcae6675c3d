"""A continuous join as a streaming DataFrame.

Each stream is cut into blocks for cells, which are one key each of one stateful operator, however many
streams there are; what it gives out are blocks of results. The only state is that operator's.

The streams are joined first, in the cells, with the tables that they are tied to by themselves. What comes
out in a micro-batch is joined with lookup tables, judged by predicates, and joined with tables that only
lookups lead to, by one eddy a task that keeps nothing. So keys are asked for that occur in results alone, no
answer is join state, and a micro-batch that runs again finds the answers where the first attempt left them.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Collection, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from millrace.engine.plan.expressions import (
    Call,
    ColumnRef,
    Predicate,
    columns_of,
    relations_of,
    rename_columns,
    show,
)
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.errors import InputError, MillraceWarning, SetupError, require
from millrace.options import Options
from millrace.reports.micro_batch import PREFIX, SEPARATOR
from millrace.spark.block import Block, FrameInput, LookupInput, ParquetInput, PreparedBlock
from millrace.spark.exchange import BLOCK_SCHEMA
from millrace.spark.execute import execute
from millrace.spark.hypercube import Cube
from millrace.spark.placement import choose_cube
from millrace.spark.session import SessionConf, default_parallelism, shuffle_partitions
from millrace.spark.streaming import refuse_endless
from millrace.spark.task_inputs import TaskInput, read_beside_stream
from millrace.spark.types import spark_schema
from millrace.streams.dataflow import Packer, Unpacker, unite_streams
from millrace.streams.processor import OUTPUT, CellProcessor
from millrace.streams.retention import WATERMARK, EventTimes, retention
from millrace.streams.task import ContinuousJoin, Stream

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

_MOST_CELLS = 4
"""More cells than so many times the cores take more time for their own sake than for tuples."""

JOINED = "joined"
"""Alias of the join of streams among the relations of the eddy above it."""


@dataclass(frozen=True)
class Dealt:
    """A continuous join on the way to its cells; ``keys`` are Spark's keys, by the cell's number."""

    task: ContinuousJoin
    cube: Cube
    keys: tuple[int, ...]
    blocks: DataFrame

    def run(self, processor: StatefulProcessor, *sides: DataFrame) -> DataFrame:
        """Return what the cells give out: rows of ``OUTPUT``; ``sides`` are further sources of theirs."""
        worked = (
            reduce(DataFrame.union, sides, self.blocks)
            .groupBy("cell")
            .transformWithStateInPandas(processor, OUTPUT, "Append", "EventTime")
        )
        lines = sf.concat_ws(SEPARATOR, sf.collect_list("cells")).alias("cells")
        return worked.observe(self.task.name, lines)


def plan_continuous(spark: SparkSession, block: Block, times: EventTimes, options: Options) -> PreparedBlock:
    """Return a block over streams as a streaming DataFrame; nothing runs yet.

    Takes and raises what :func:`deal` and, with lookup tables, :func:`millrace.spark.execute.execute` do.
    """
    lookups = {alias for alias, given in block.inputs.items() if isinstance(given, LookupInput)}
    below, above = divide(block.join, times.columns, lookups) if lookups else (block.join, None)
    lower = block if above is None else replace(block, join=below, result=None)
    dealt = deal(spark, lower, times, options)
    task = dealt.task
    columns = drop_watermark(lower.result or spark_schema(lower.schema))
    frame = dealt.run(CellProcessor(task, dealt.keys)).mapInArrow(Unpacker(task.join.output_schema), columns)
    plan = _show(lower, task, dealt.cube)
    if above is None:
        return PreparedBlock(task.name, frame, plan, refuse_endless)
    inputs = {r.alias: block.inputs[r.alias] for r in above.relations if r.alias != JOINED}
    inputs[JOINED] = FrameInput(frame)
    result = None if block.result is None else drop_watermark(block.result)
    upper = execute(spark, replace(block, join=above, inputs=inputs, result=result, stream=JOINED), options)
    return replace(upper, name=task.name, plan=f"{plan}\n{upper.plan}", reports=None)


def divide(join: JoinSpec, streams: Iterable[str], lookups: Collection[str]) -> tuple[JoinSpec, JoinSpec]:
    """Return the part of a join that needs no lookup, and the part above it.

    The first joins the streams and the tables that they are tied to. The second joins the rest with its
    result, whose relation is called :data:`JOINED` and has the columns that are read above.
    """
    inside = set(streams)
    ties = [set(e.relations) for e in join.equalities]
    ties += [set(relations_of(p)) for p in join.residuals if not isinstance(p, Call)]
    ties = [tie for tie in ties if not tie & set(lookups)]
    while found := [tie for tie in ties if tie & inside and not tie <= inside]:
        inside.update(*found)

    def is_inside(condition: Equality | Predicate) -> bool:
        if isinstance(condition, Equality):
            return inside.issuperset(condition.relations)
        return not isinstance(condition, Call) and inside.issuperset(relations_of(condition))

    equalities = tuple(e for e in join.equalities if not is_inside(e))
    residuals = tuple(p for p in join.residuals if not is_inside(p))
    read = [o.source for o in join.output]
    read += [ref for e in equalities for ref in e.ends]
    read += [ref for p in residuals for ref in columns_of(p)]
    own = [ref for ref in dict.fromkeys(read) if ref.relation in inside]
    names = {ref: ColumnRef(JOINED, f"c{place}_{ref.column}") for place, ref in enumerate(own)}
    below = JoinSpec(
        tuple(r for r in join.relations if r.alias in inside),
        tuple(filter(is_inside, join.equalities)),
        tuple(filter(is_inside, join.residuals)),
        tuple(OutputColumn(names[ref].column, ref) for ref in own),
    )
    relation = RelationSpec(JOINED, pa.schema(list(below.output_schema)))
    above = JoinSpec(
        (relation, *(r for r in join.relations if r.alias not in inside)),
        *rename_columns((equalities, residuals, join.output), lambda ref: names.get(ref, ref)),
    )
    return below, above


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
    cells = _count_cells(spark, options)
    weights = [1.0 if alias in times.columns else 0.0 for alias in aliases]
    # Every cell has the tables whole, those of left joins too.
    joined = JoinSpec(block.join.relations, block.join.equalities)
    fixed = [weight == 0 or times.preserved is not None for weight in weights]
    cube = choose_cube(joined, weights, cells, fixed)
    if times.preserved is not None:  # a tuple is in one cell, and so are all of its matches; with nulls too
        cube = Cube(tuple(replace(axis, nulls=True) for axis in cube.axes))
    keys = _choose_keys(spark, cells)[: cube.cells]
    streams, frames = [], {}
    for number, alias in enumerate(aliases):
        if (time := times.columns.get(alias)) is not None:
            given = block.inputs[alias]
            assert isinstance(given, FrameInput), "streams are DataFrames"
            counted = _find_counting_cells(cube, number)
            streams.append(Stream(alias, number, time, keeps[alias], counted, given.computed))
            frames[number] = given.frame
    task = ContinuousJoin(
        f"{PREFIX}{uuid.uuid4().hex}",
        block.join,
        tuple(streams),
        {r.alias: _read(block, r.alias) for r in block.join.sources if r.alias not in times.columns},
        options,
        cells,
        cube.axes,
        times.preserved,
    )
    together, layouts = unite_streams(frames, {s.number: task.schema_of(s) for s in streams})
    tasks = max(cells, default_parallelism(spark))
    packer = Packer(layouts, cube, options.block_bytes, keys)
    packed = together.coalesce(tasks).mapInArrow(packer, spark_schema(BLOCK_SCHEMA))
    return Dealt(task, cube, keys, packed)


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


def _count_cells(spark: SparkSession, options: Options) -> int:
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


def _choose_keys(spark: SparkSession, cells: int) -> tuple[int, ...]:
    """Return for each cell the least number that Spark's hash sends to the partition of that number."""
    place = sf.expr(f"pmod(hash(CAST(id AS INT)), {cells})").alias("place")
    # Of so many none is missed: with a chance of exp(-64) for each cell.
    keys = spark.range(64 * cells).select(place, "id").groupBy("place").agg(sf.min("id").alias("key"))
    return tuple(int(row["key"]) for row in sorted(keys.collect()))


def _find_counting_cells(cube: Cube, number: int) -> frozenset[int]:
    """Return the cells with coordinate 0 wherever a relation has none: one of those each tuple goes to."""
    others = [
        (stride, axis.share)
        for axis, stride in zip(cube.axes, cube.strides(), strict=True)
        if axis.column(number) is None
    ]
    return frozenset(c for c in range(cube.cells) if not any(c // stride % share for stride, share in others))


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


def drop_watermark(schema: StructType) -> StructType:
    """Return columns without watermarks: a result may be older than those of its streams."""
    copied = deepcopy(schema)
    for field in copied.fields:
        field.metadata.pop(WATERMARK, None)
    return copied


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
    lines += [f"  where {show(predicate)}" for predicate in task.join.residuals]
    return "\n".join(lines)
