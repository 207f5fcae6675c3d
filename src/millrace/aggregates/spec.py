"""What a block aggregates before it hands its rows on: frozen, and it pickles.

The rows of a block that agree in the *keys* become one row with *partials*: sums, counts, least and greatest
values. Whoever reads the block sums up the sums and counts, and takes the least of the least. So it does
not matter how rows are divided among partial rows: a task may give out several for one group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

How = Literal["sum", "count", "min", "max"]


@dataclass(frozen=True)
class Read:
    """A column of the block's join."""

    column: str
    type: pa.DataType


@dataclass(frozen=True)
class Constant:
    """A constant. ``value`` is what ``pa.scalar(value, type)`` takes."""

    value: Any
    type: pa.DataType


@dataclass(frozen=True)
class Widened:
    """A number in a type that has it exactly, or as a double, in the nearest one."""

    value: Value
    type: pa.DataType


@dataclass(frozen=True)
class Arithmetic:
    """``left op right`` of type ``type``, which every result fits: it cannot overflow.

    Whole numbers and doubles have that type on both sides. Decimals may have any; ``type`` then has the
    digits that the operation makes of theirs.
    """

    op: Literal["+", "-", "*"]
    left: Value
    right: Value
    type: pa.DataType


Value = Read | Constant | Widened | Arithmetic


@dataclass(frozen=True)
class Partial:
    """A column of partial results.

    Attributes:
        name: Its name, unlike any other in the block.
        how: ``"count"`` counts the rows whose value is not null.
        value: Of what; None counts rows.
        type: Of the column: for sums of whole numbers ``int64``, of doubles ``double``, of decimals one of
            the same scale and, up to 38, more digits.
    """

    name: str
    how: How
    value: Value | None
    type: pa.DataType


@dataclass(frozen=True)
class AggregateSpec:
    """How the rows of a join become partial rows.

    Attributes:
        keys: Columns of the join that the partial rows keep; rows with equal ones may become one.
        partials: The other columns.
    """

    keys: tuple[str, ...]
    partials: tuple[Partial, ...]

    def schema(self, joined: pa.Schema) -> pa.Schema:
        """Return the columns of the partial rows, from those of the join."""
        partials = [pa.field(p.name, p.type) for p in self.partials]
        return pa.schema([*(joined.field(key) for key in self.keys), *partials])


def columns_of(value: Value | None) -> Iterator[str]:
    """Yield the columns that a value reads."""
    match value:
        case Read(column, _):
            yield column
        case Widened(inner, _):
            yield from columns_of(inner)
        case Arithmetic(_, left, right, _):
            yield from columns_of(left)
            yield from columns_of(right)


def show(value: Value | None) -> str:
    """Return a value as text."""
    match value:
        case Read(column, _):
            return column
        case Constant(constant, _):
            return str(constant)
        case Widened(inner, kind):
            return f"cast({show(inner)} as {kind})"
        case Arithmetic(op, left, right, _):
            return f"({show(left)} {op} {show(right)})"
    return "*"
