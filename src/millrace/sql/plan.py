"""What a query becomes: blocks and filters that eddies run, and the text that Spark runs above them.

A plan is data: it names no DataFrame, and making one changes nothing in the session.
:mod:`millrace.sql.planner.build` makes the DataFrames.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from millrace.spark.block import Block, FrameInput, Input
from millrace.spark.mask import Slot
from millrace.streams.retention import EventTimes

_SCANNED = re.compile(r"__c(\d+)\b")


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
    """Predicates that an eddy runs inside Spark's own filter, in the order as written.

    Attributes:
        name: Names it in reports.
        function: What it is called in the text.
        slots: The predicates.
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
    """A result that is nothing but columns of a block, in this order."""

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

    def inputs(self) -> Iterator[Input]:
        """Yield where the rows of all its relations come from."""
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
    return _SCANNED.sub(lambda match: names[int(match[1])], text)
