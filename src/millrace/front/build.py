"""Make the DataFrames of a plan: here the session is touched, and nothing is decided any more."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t

from millrace.block import Block, FrameInput, Input, LookupInput, ParquetInput
from millrace.front.coercion import field_of
from millrace.front.frames import Frames
from millrace.front.functions import Functions
from millrace.front.plan import BlockPlan, Direct, FilterPlan, LookedUp, Plan, Read, Rows, Values
from millrace.options import Options
from millrace.spark.execute import execute
from millrace.spark.plans import explained
from millrace.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.spark.execute import BlockRun
    from millrace.spark.where import Mask

_SIZE = re.compile(r"sizeInBytes=([\d.E+]+) (\w+)(?:, rowCount=([\d.E+]+))?")
_UNITS = {unit: 1024**i for i, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}
# Where Spark knows nothing it takes 8 EiB, or what is left of these after a projection or a filter.
_UNKNOWN_BYTES = 1 << 50


@dataclass(frozen=True)
class Taken:
    """A block that eddies run.

    Attributes:
        plan: What was planned.
        block: The join and its inputs.
        run: Its DataFrame, its plan and, after a run, its figures.
    """

    plan: BlockPlan
    block: Block
    run: BlockRun


@dataclass(frozen=True)
class Filter:
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
class Built:
    """What a plan has become.

    Attributes:
        frame: The result.
        taken: The blocks, inner ones first.
        filters: The filters, inner ones first.
    """

    frame: DataFrame
    taken: tuple[Taken, ...]
    filters: tuple[Filter, ...]


@dataclass(frozen=True)
class Prepared:
    """A query that is ready to run.

    Attributes:
        df: Its result: the rows, names and types that ``spark.sql`` gives.
        taken: The blocks that eddies run, inner ones first, with their plans.
        reasons: Why something stayed with Spark, one sentence each.
        rewritten: The text that Spark runs above the blocks; the query itself when nothing is taken.
        filters: The predicates that eddies run inside Spark's filters, inner ones first.
        options: Settings of the run.
        direct: How the result is a block's, when Spark does nothing above it.
    """

    df: DataFrame
    taken: tuple[Taken, ...]
    reasons: list[str]
    rewritten: str
    filters: tuple[Filter, ...] = ()
    options: Options = field(default_factory=Options)
    direct: Direct | None = None


def build(plan: Plan, frames: Frames, functions: Functions, options: Options) -> Built:
    """Make a plan's DataFrames.

    Raises:
        MillraceError: A block cannot be run with these options.
        pyspark.errors.PySparkException: Spark refuses what was planned.
    """
    taken: list[Taken] = []
    filters: list[Filter] = []
    for name, part in plan.parts:
        made = build(part, frames, functions, options)
        frames.put(name, made.frame)
        taken += made.taken
        filters += made.filters
    filters += [_filter(each, functions) for each in plan.filters]
    for each in plan.blocks:
        block = _block(each, frames)
        run = execute(frames.spark, block, options)
        frames.put(each.name, run.frame)
        taken.append(Taken(each, block, run))
    return Built(frames.sql(plan.template), tuple(taken), tuple(filters))


def _filter(plan: FilterPlan, functions: Functions) -> Filter:
    return Filter(plan.name, plan.calls, functions.filter(plan.function, plan.slots, plan.labels))


def _block(plan: BlockPlan, frames: Frames) -> Block:
    inputs: dict[str, Input] = {}
    sources = []
    for relation in plan.join.sources:
        inputs[relation.alias], rows = _input(plan.rows[relation.alias], relation.schema, frames)
        sources.append(relation if rows is None else replace(relation, rows=rows))
    joined = len(plan.join.relations)
    join = replace(plan.join, relations=tuple(sources[:joined]), beside=tuple(sources[joined:]))
    return Block(plan.name, join, inputs, plan.result)


def _input(rows: Rows, schema: pa.Schema, frames: Frames) -> tuple[Input, int | None]:
    """Return where a relation's rows come from, and how many these are if Spark has been asked."""
    match rows:
        case ParquetInput():
            return rows, None
        case Values(table):
            frame = frames.spark.createDataFrame(table, spark_schema(table.schema))
            return FrameInput(frame, max(1, table.nbytes)), None
        case Read(template):
            frame = frames.sql(template)
            count, size = estimate(frame)
            return FrameInput(frame, size), count
        case LookedUp(indexes, scan, sources, filters):
            given, count = (None, None) if scan is None else _input(scan, schema, frames)
            assert not isinstance(given, LookupInput)
            return LookupInput(indexes, given, sources, filters), count


def estimate(frame: DataFrame) -> tuple[int | None, int | None]:
    """Return Spark's own estimate of a DataFrame's rows and bytes, None where it has none."""
    try:
        plan = explained(frame, "COST")
    except PySparkException:
        return None, None
    match = _SIZE.search(plan)
    if match is None:
        return None, None
    size = int(float(match[1]) * _UNITS.get(match[2], 1))
    if size > _UNKNOWN_BYTES:
        return None, None
    if match[3] is not None:
        return int(float(match[3])), size
    return max(1, size // (8 + sum(_default_widths(frame.schema)))), size


def _default_widths(schema: t.StructType) -> Iterable[int]:
    """Yield what Spark takes a value of each column to need, in bytes."""
    for column in map(field_of, schema.fields):
        if column.arrow is None or pa.types.is_nested(column.arrow):
            yield 100
            continue
        try:
            yield max(1, int(column.arrow.bit_width) // 8)
        except ValueError:
            yield 20
