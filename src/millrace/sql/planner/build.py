"""Make the DataFrames of a plan: here the session is touched, and nothing is decided any more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.options import Options
from millrace.spark.block import Block, FrameInput, Input, LookupInput, ParquetInput
from millrace.spark.execute import execute
from millrace.spark.types import spark_schema
from millrace.sql.planner.plan import BlockPlan, Direct, LookedUp, Plan, Read, Rows, Values
from millrace.sql.session.frames import Frames
from millrace.sql.session.functions import Functions
from millrace.sql.syntax.edits import unescape
from millrace.streams.lookups import continuous_with_lookups
from millrace.streams.plan import continuous

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.spark.block import PreparedBlock
    from millrace.spark.mask import Mask


@dataclass(frozen=True)
class PlannedBlock:
    """A block that eddies run.

    Attributes:
        plan: What was planned.
        block: The join and its inputs.
        run: Its DataFrame, its plan and, after a run, its figures.
    """

    plan: BlockPlan
    block: Block
    run: PreparedBlock


@dataclass(frozen=True)
class PlannedFilter:
    """Predicates that an eddy runs inside Spark's own filter.

    Attributes:
        name: Names it in reports.
        calls: The conditions it stands for, as written; none for a function that Spark calls anywhere.
        mask: Its function, its plan and, after a run, its figures.
    """

    name: str
    calls: tuple[str, ...]
    mask: Mask


@dataclass(frozen=True)
class PlannedQuery:
    """A query that is ready to run.

    Attributes:
        df: Its result: the rows, names and types that ``spark.sql`` gives.
        taken: The blocks that eddies run, inner ones first, with their plans.
        reasons: Why something stayed with Spark, one sentence each.
        rewritten: The text that Spark runs above the blocks; the query itself when nothing is taken.
        filters: The predicates that eddies run inside Spark's filters, inner ones first.
        options: Settings of the run.
        direct: How the result is a block's, when Spark does nothing above it.
        shared: The common table expressions that are computed once though they are read several times.
        stored: Who reads the tables in object stores where Spark needs their rows, one sentence each.
    """

    df: DataFrame
    taken: tuple[PlannedBlock, ...]
    reasons: list[str]
    rewritten: str
    filters: tuple[PlannedFilter, ...] = ()
    options: Options = field(default_factory=Options)
    direct: Direct | None = None
    shared: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()


def build(plan: Plan, frames: Frames, functions: Functions, options: Options) -> PlannedQuery:
    """Make a plan's DataFrames.

    Raises:
        MillraceError: A block cannot be run with these options.
        pyspark.errors.PySparkException: Spark refuses what was planned.
    """
    taken: list[PlannedBlock] = []
    filters: list[PlannedFilter] = []
    for name, part in plan.parts:
        made = build(part, frames, functions, options)
        frames.put(name, made.df)
        taken += made.taken
        filters += made.filters
    for one in plan.filters:
        filters.append(
            PlannedFilter(one.name, one.calls, functions.filter(one.function, one.slots, one.labels))
        )
    for each in plan.blocks:
        block = block_of(each, frames)
        if each.times is None:
            run = execute(frames.spark, block, options)
        elif any(isinstance(given, LookupInput) for given in block.inputs.values()):
            run = continuous_with_lookups(frames.spark, block, each.times, options)
        else:
            run = continuous(frames.spark, block, each.times, options)
        frames.put(each.name, run.frame, unshared=True)
        taken.append(PlannedBlock(each, block, run))
    return PlannedQuery(
        frames.sql(plan.template),
        tuple(taken),
        list(plan.reasons),
        unescape(plan.template),
        tuple(filters),
        options,
        plan.direct,
        plan.shared,
    )


def block_of(plan: BlockPlan, frames: Frames) -> Block:
    """Return a planned block with its inputs."""
    inputs: dict[str, Input] = {}
    sources = []
    known: dict[object, tuple[Input, int | None]] = {}
    for relation in plan.join.sources:
        given = plan.rows[relation.alias]
        same: object = relation.alias
        if plan.times is not None and isinstance(given, Read):
            same = (given.template, given.computed)
        found = known.get(same) or _input(given, relation.schema, frames)
        known[same] = found  # a stream that is read twice in the same way is one input
        inputs[relation.alias], rows = found
        sources.append(relation if rows is None else replace(relation, rows=rows, guessed=True))
    joined = len(plan.join.relations)
    join = replace(plan.join, relations=tuple(sources[:joined]), beside=tuple(sources[joined:]))
    return Block(plan.name, join, inputs, plan.result, plan.aggregate, plan.stream)


def _input(rows: Rows, schema: pa.Schema, frames: Frames) -> tuple[Input, int | None]:
    """Return where a relation's rows come from, and how many these are if Spark has been asked."""
    match rows:
        case ParquetInput():
            return rows, None
        case Values(table):
            frame = frames.spark.createDataFrame(table, spark_schema(table.schema))
            return FrameInput(frame, max(1, table.nbytes)), None
        case Read(template, why=why, computed=computed):
            frame = frames.analyse(template)
            count, size = frames.estimate(template)
            return FrameInput(frame, size, why, computed), count
        case LookedUp(indexes, scan, sources, filters):
            given, count = (None, None) if scan is None else _input(scan, schema, frames)
            assert not isinstance(given, LookupInput)
            return LookupInput(indexes, given, sources, filters), count
