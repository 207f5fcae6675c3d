"""What a query becomes: blocks and filters that eddies run, and the text that Spark runs above them.

A plan is data: it names no DataFrame, and making one changes nothing in the session.
:mod:`millrace.sql.planner.build` makes the DataFrames.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as t

from millrace.engine.aggregates import AggregateSpec
from millrace.engine.expressions import Predicate, Value
from millrace.engine.spec import JoinSpec
from millrace.lookups.index_spec import IndexSpec
from millrace.lookups.source import Source
from millrace.spark.block import ParquetInput
from millrace.spark.where import Slot
from millrace.streams.retention import EventTimes

_SCANNED = re.compile(r"__c(\d+)\b")


@dataclass(frozen=True)
class Read:
    """Rows that Spark reads.

    Attributes:
        template: A query whose columns are the relation's, in order, under whatever names.
        where: The conditions in it, for explanations.
        why: Why the tasks do not read its files themselves, for explanations.
        filters: The conditions as predicates; None where only Spark evaluates some of them.
        computed: The relation's columns that are not the query's, but computed of these where they arrive.
    """

    template: str
    where: str = ""
    why: str = ""
    filters: tuple[Predicate, ...] | None = None
    computed: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, eq=False)
class Values:
    """Constant rows."""

    rows: pa.Table


@dataclass(frozen=True)
class LookedUp:
    """A lookup table that is asked; see :class:`millrace.spark.block.LookupInput`."""

    indexes: tuple[IndexSpec, ...]
    scan: ParquetInput | Read | None
    sources: tuple[Source, ...]
    filters: tuple[Predicate, ...]


Rows = ParquetInput | Read | Values | LookedUp


@dataclass(frozen=True)
class BlockPlan:
    """A block: a join, and where the rows of its relations come from.

    Attributes:
        name: ``b0`` and so on; its placeholder in templates.
        join: The join; the relations' numbers of rows are known as far as no DataFrame has to be asked.
        rows: Per alias, where rows come from.
        result: The columns that it gives out, with Spark's own types and nullability; None when it only
            counts.
        above: Conditions of its FROM and WHERE that Spark evaluates above it, for explanations.
        aggregate: How its rows are aggregated before they are handed on, None where they are not.
        times: The event times of its streams; None for a block that ends, or has one stream only.
        stream: Its only stream, which is joined with lookup tables as it comes; None without one.
    """

    name: str
    join: JoinSpec
    rows: dict[str, Rows]
    result: t.StructType | None
    above: tuple[str, ...] = ()
    aggregate: AggregateSpec | None = None
    times: EventTimes | None = None
    stream: str | None = None


@dataclass(frozen=True)
class FilterPlan:
    """Predicates that an eddy runs inside Spark's own filter.

    Attributes:
        name: Names it in reports.
        function: What it is called in the text.
        slots: The predicates, in the order as written.
        labels: The function's arguments, for errors and reports.
        calls: The conditions it stands for, as written.
    """

    name: str
    function: str
    slots: tuple[Slot, ...]
    labels: tuple[str, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Direct:
    """A result that is nothing but columns of a block.

    Attributes:
        block: The block's name.
        columns: Which of its columns, in the result's order.
    """

    block: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A planned query.

    Attributes:
        template: What Spark runs; blocks and tables are placeholders.
        blocks: Inner ones before those that read them.
        filters: The same.
        reasons: Why something stayed with Spark, one sentence each.
        direct: How the result is a block's, when Spark does nothing above it.
        parts: Queries that stand for lookup tables, with their placeholders; they come before all else.
        shared: The common table expressions that are computed once though they are read several times.
    """

    template: str
    blocks: tuple[BlockPlan, ...]
    filters: tuple[FilterPlan, ...]
    reasons: tuple[str, ...]
    direct: Direct | None = None
    parts: tuple[tuple[str, Plan], ...] = ()
    shared: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many blocks it has, those of its parts included."""
        return len(self.blocks) + sum(part.size for _, part in self.parts)

    def whole(self) -> Iterator[Plan]:
        """Yield the plan and its parts."""
        yield self
        for _, part in self.parts:
            yield from part.whole()

    def rows(self) -> Iterator[Rows]:
        """Yield where the rows of all its relations come from."""
        yield from (rows for plan in self.whole() for block in plan.blocks for rows in block.rows.values())

    def texts(self) -> Iterator[str]:
        """Yield all that Spark reads."""
        yield from (plan.template for plan in self.whole())
        yield from (rows.template for rows in self.rows() if isinstance(rows, Read))


def scanned(place: int) -> str:
    """Return what a relation's column is called where Spark reads the relation for a block."""
    return f"__c{place}"


def show_scanned(text: str, names: tuple[str, ...]) -> str:
    """Return a condition of such a reading under the columns' own names."""
    return _SCANNED.sub(lambda match: names[int(match[1])], text)
