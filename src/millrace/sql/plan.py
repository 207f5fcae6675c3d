"""What a query becomes: blocks and filters that eddies run, and the text that Spark runs above them.

A plan is data: it names no DataFrame, and making one changes nothing in the session. :func:`build` makes its
DataFrames: there the session is touched, and nothing is decided any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.options import Options
from millrace.spark.block import Block, FrameInput, Input, LookupInput, PreparedBlock
from millrace.spark.execute import execute
from millrace.spark.mask import Mask, Slot
from millrace.spark.plan_reader import TEXT
from millrace.spark.task_inputs import with_sources
from millrace.spark.types import spark_schema
from millrace.sql.session.asking import Frames
from millrace.sql.session.functions import Functions
from millrace.sql.syntax.edits import unescape
from millrace.streams.retention import EventTimes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_SCANNED = re.compile(rf"{TEXT}|\b__c(\d+)\b")


@dataclass(frozen=True)
class BlockPlan(Block):
    """A block whose inputs are not made yet; its name is its placeholder in templates.

    Attributes:
        above: Conditions of its FROM and WHERE that Spark evaluates above it, for explanations.
        times: The event times of its streams; None for a block that ends, or has one stream only.
    """

    above: tuple[str, ...] = ()
    times: EventTimes | None = None


@dataclass(frozen=True)
class FilterPlan:
    """Predicates that an eddy runs inside Spark's own filter, in the order as written."""

    name: str  # in reports
    function: str  # what the text calls
    slots: tuple[Slot, ...]
    labels: tuple[str, ...]  # of the function's arguments, for errors and reports
    calls: tuple[str, ...]  # the conditions that it stands for, as written


@dataclass(frozen=True)
class Direct:
    """A result that is nothing but columns of a block, in this order."""

    block: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A planned query.

    Attributes:
        parts: Queries that stand for lookup tables, with their placeholders; they come before all else.
        shared: The common table expressions that are computed once though they are read several times.
    """

    template: str  # what Spark runs; blocks and tables are placeholders
    blocks: tuple[BlockPlan, ...]  # inner ones before those that read them
    filters: tuple[FilterPlan, ...]  # the same
    reasons: tuple[str, ...]  # why something stayed with Spark, one sentence each
    direct: Direct | None = None  # how the result is a block's, when Spark does nothing above it
    parts: tuple[tuple[str, Plan], ...] = ()
    shared: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many blocks it has, those of its parts included."""
        return len(self.blocks) + sum(part.size for _, part in self.parts)

    def whole(self) -> Iterator[Plan]:
        yield self
        for _, part in self.parts:
            yield from part.whole()

    def inputs(self) -> Iterator[Input]:
        yield from (rows for plan in self.whole() for block in plan.blocks for rows in block.inputs.values())

    def texts(self) -> Iterator[str]:
        """Yield all that Spark reads."""
        yield from (plan.template for plan in self.whole())
        sources = (rows.source for rows in self.inputs() if isinstance(rows, FrameInput))
        yield from (source for source in sources if isinstance(source, str))


def scanned(place: int) -> str:
    """Return what a relation's column is called where Spark reads the relation for a block."""
    return f"__c{place}"


def show_scanned(text: str, names: tuple[str, ...]) -> str:
    """Return a condition of such a reading under the columns' own names."""
    return _SCANNED.sub(lambda match: names[int(match[1])] if match[1] else match[0], text)


@dataclass(frozen=True)
class PlannedBlock:
    """A block that eddies run, its inputs made: its DataFrame, its plan and, after a run, its figures."""

    block: BlockPlan
    run: PreparedBlock


@dataclass(frozen=True)
class PlannedFilter:
    """Predicates that an eddy runs inside Spark's own filter: its function, plan and, after a run, figures.

    ``calls`` are the conditions it stands for, as written; none for a function that Spark calls anywhere.
    """

    name: str
    calls: tuple[str, ...]
    mask: Mask


@dataclass(frozen=True)
class PlannedQuery:
    """A query that is ready to run.

    Attributes:
        filters: The predicates that eddies run inside Spark's filters, inner ones first.
        stored: How tables are read where that is not plain, one sentence each.
    """

    df: DataFrame  # its result: the rows, names and types that ``spark.sql`` gives
    taken: tuple[PlannedBlock, ...]  # the blocks that eddies run, inner ones first, with their plans
    reasons: list[str]  # those of the plan, as are ``direct`` and ``shared``
    rewritten: str  # the text that Spark runs above the blocks; the query itself when nothing is taken
    filters: tuple[PlannedFilter, ...] = ()
    options: Options = field(default_factory=Options)  # settings of the run
    direct: Direct | None = None
    shared: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    text: str = ""  # as the caller wrote it


def build(plan: Plan, frames: Frames, functions: Functions, options: Options) -> PlannedQuery:
    """Make a plan's DataFrames.

    Raises:
        MillraceError: A block cannot be run with these options.
        pyspark.errors.PySparkException: Spark refuses what was planned.
    """
    taken: list[PlannedBlock] = []
    filters: list[PlannedFilter] = []
    for name, part in plan.parts:
        query = build(part, frames, functions, options)
        frames.put(name, query.df)
        taken += query.taken
        filters += query.filters
    for each in plan.filters:
        mask = functions.filter(each.function, each.slots, each.labels)
        filters.append(PlannedFilter(each.name, each.calls, mask))
    for planned in plan.blocks:
        block = with_inputs(planned, frames)
        if block.times is None:
            run = execute(frames.spark, block, options)
        else:
            from millrace.streams.plan import plan_continuous  # here, for few queries have streams

            run = plan_continuous(frames.spark, block, block.times, options)
        frames.put(block.name, run.frame, unshared=True)
        taken.append(PlannedBlock(block, run))
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


def with_inputs(plan: BlockPlan, frames: Frames) -> BlockPlan:
    """Return a block with the DataFrames of its inputs."""
    inputs: dict[str, Input] = {}
    relations = []
    for relation in plan.join.sources:
        inputs[relation.alias], count = _make_input(plan.inputs[relation.alias], frames)
        relations.append(relation if count is None else replace(relation, rows=count, guessed=True))
    return replace(plan, join=with_sources(plan.join, relations), inputs=inputs)


def _make_input(rows: Input, frames: Frames) -> tuple[Input, int | None]:
    """Return an input with its DataFrame, and how many rows that has if Spark has been asked."""
    match rows:
        case LookupInput(scan=FrameInput() as scan):
            built, count = _make_input(scan, frames)
            assert isinstance(built, FrameInput)
            return replace(rows, scan=built), count
        case FrameInput(source=pa.Table() as table):
            frame = frames.spark.createDataFrame(table, spark_schema(table.schema))
            return replace(rows, source=frame, bytes=max(1, table.nbytes)), None
        case FrameInput(source=str(template)):
            frame = frames.analyse(template)
            count, size = frames.estimate(template)
            return replace(rows, source=frame, bytes=size), count
    return rows, None
