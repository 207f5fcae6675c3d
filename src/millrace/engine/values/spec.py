"""The language of values: what a row's columns give without ever failing; frozen, and it pickles.

A null among what a value is made of makes it null, except where :class:`Choice` says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from millrace.engine.expressions import Predicate, columns_of as columns_read, show as show_predicate

Part = Literal["year", "quarter", "month", "week", "day", "dayofyear", "dayofweek", "weekday"]


@dataclass(frozen=True)
class Read:
    """A column."""

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


@dataclass(frozen=True)
class Remainder:
    """What is left of a whole number after division by one above 0, with the sign of the first."""

    value: Value
    by: int
    type: pa.DataType


@dataclass(frozen=True)
class DatePart:
    """A part of a ``date32``, an ``int32``.

    Weeks are those of ISO 8601. Days of a week begin with Sunday, 1 (``dayofweek``), or Monday, 0
    (``weekday``).
    """

    part: Part
    date: Value


@dataclass(frozen=True)
class Moved:
    """A ``date32`` some days later, or earlier; beyond the last one it begins again with the first."""

    date: Value
    days: int


@dataclass(frozen=True)
class Later:
    """A timestamp some microseconds later, or earlier; null where there is no such time."""

    time: Value
    microseconds: int
    type: pa.DataType


@dataclass(frozen=True)
class DaysBetween:
    """How many days one ``date32`` lies behind another, an ``int32`` that overflows silently."""

    end: Value
    start: Value


@dataclass(frozen=True)
class Slice:
    """Some characters (code points) of a text.

    Attributes:
        text: The text.
        start: The number of the first, from 1.
        length: How many, at most; None for all others.
    """

    text: Value
    start: int
    length: int | None


@dataclass(frozen=True)
class Length:
    """The number of characters (code points) of a text, an ``int32``."""

    text: Value


@dataclass(frozen=True)
class AsText:
    """A whole number in decimal digits."""

    value: Value


@dataclass(frozen=True)
class Choice:
    """The value behind the first condition that is true, ``otherwise`` where none is.

    Attributes:
        whens: Conditions, which name columns as :class:`Read` does, each with a value; None for null.
        otherwise: The value of all other rows; None for null.
        type: Of all values.
    """

    whens: tuple[tuple[Predicate, Value | None], ...]
    otherwise: Value | None
    type: pa.DataType


Value = (
    Read
    | Constant
    | Widened
    | Arithmetic
    | Remainder
    | DatePart
    | Moved
    | Later
    | DaysBetween
    | Slice
    | Length
    | AsText
    | Choice
)


def type_of(value: Value) -> pa.DataType:
    """Return a value's type."""
    match value:
        case DatePart() | DaysBetween() | Length():
            return pa.int32()
        case Moved():
            return pa.date32()
        case Slice() | AsText():
            return pa.string()
    return value.type


def columns_of(value: Value | None) -> Iterator[str]:
    """Yield the columns that a value reads, possibly more than once."""
    match value:
        case Read(column, _):
            yield column
        case Choice(whens, otherwise, _):
            for condition, shown in whens:
                yield from (ref.column for ref in columns_read(condition))
                yield from columns_of(shown)
            yield from columns_of(otherwise)
        case None | Constant():
            return
        case _:
            for part in _parts(value):
                yield from columns_of(part)


def _parts(value: Value) -> tuple[Value, ...]:
    match value:
        case Arithmetic(_, left, right, _):
            return left, right
        case DaysBetween(end, start):
            return end, start
        case Widened(inner, _) | Remainder(inner, _, _) | DatePart(_, inner) | Moved(inner, _):
            return (inner,)
        case Later(inner, _, _):
            return (inner,)
        case Slice(inner, _, _) | Length(inner) | AsText(inner):
            return (inner,)
    return ()


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
        case Remainder(inner, by, _):
            return f"({show(inner)} % {by})"
        case DatePart(part, date):
            return f"{part}({show(date)})"
        case Moved(date, days):
            return f"date_add({show(date)}, {days})"
        case Later(time, microseconds, _):
            return f"({show(time)} {'-' if microseconds < 0 else '+'} {abs(microseconds) / 1e6:g} s)"
        case DaysBetween(end, start):
            return f"datediff({show(end)}, {show(start)})"
        case Slice(text, start, length):
            return f"substring({show(text)}, {start}{'' if length is None else f', {length}'})"
        case Length(text):
            return f"length({show(text)})"
        case AsText(inner):
            return f"cast({show(inner)} as string)"
        case Choice(whens, otherwise, _):
            shown = " ".join(f"WHEN {show_predicate(test)} THEN {_or_null(then)}" for test, then in whens)
            return f"CASE {shown} ELSE {_or_null(otherwise)} END"
    return "*"


def _or_null(value: Value | None) -> str:
    return "NULL" if value is None else show(value)
