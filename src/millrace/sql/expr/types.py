"""Types: which columns a block may carry and compare, and in which type two sides compare.

The rules follow Spark's coercion of binary comparisons, reduced to the cases in which the wider type
holds every value of both sides exactly. In all others (strings with numbers, dates with timestamps,
64-bit integers with doubles, decimals beyond 38 digits) the comparison stays with Spark.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from millrace.errors import MillraceError
from millrace.spark.types import arrow_type, spark_schema

_CHAR = "__CHAR_VARCHAR_TYPE_STRING"
DIGITS: dict[type[t.DataType], int] = {t.ByteType: 3, t.ShortType: 5, t.IntegerType: 10, t.LongType: 20}
"""Spark's types of whole numbers, and how many digits they have where they meet a decimal."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_EXACT_DOUBLE = 1 << 53
_EXACT_FLOAT = 1 << 24
DOUBLE_DIGITS = 15
"""A decimal of so many digits is the same double everywhere: divisions by a power of ten round alike."""
MOST_DIGITS = 38
"""The most digits of a decimal."""


@dataclass(frozen=True)
class Field:
    """A column of a relation, as planning knows it; ``metadata`` are Spark's notes, a comment for example."""

    name: str  # as in the table's schema
    type: t.DataType  # Spark's type
    arrow: pa.DataType | None  # the same for a block, or None when a block cannot carry the column
    comparable: bool  # whether Millrace may compare it: an atomic type whose order is that of its bytes
    nullable: bool = True  # whether Spark takes it to have nulls
    metadata: dict[str, Any] = field(default_factory=dict, compare=False)


AliasedField = tuple[str, Field]
"""An alias, and a column of the relation of that alias."""

FindColumn = Callable[[exp.Column], AliasedField | None]
"""Returns the column that a name means, None if it means anything else."""


def is_plain(field: Field) -> bool:
    """Whether the name and the type say all of a column: Spark has no notes of it, and nulls may come."""
    return field.nullable and not field.metadata


def field_of(column: t.StructField) -> Field:
    """Describe a column of a DataFrame."""
    notes = dict(column.metadata or {})
    unfit = Field(column.name, column.dataType, None, False, column.nullable, notes)
    if str(notes.get(_CHAR, "")).lower().startswith("char"):
        return unfit  # Spark pads what it compares with it, by the metadata that a block would lose
    try:
        arrow = arrow_type(column.dataType)
        back = spark_schema(pa.schema([pa.field(column.name, arrow)])).fields[0].dataType
    except (MillraceError, TypeError, ValueError, KeyError):
        return unfit
    same = (
        back.simpleString() == column.dataType.simpleString()
        and _loosely(back) == _loosely(column.dataType)
        and not _repeats_names(arrow)
    )
    atomic = isinstance(column.dataType, t.AtomicType) and not pa.types.is_nested(arrow)
    carried = arrow if same else None
    return Field(column.name, column.dataType, carried, same and atomic, column.nullable, notes)


def _repeats_names(kind: pa.DataType) -> bool:
    """Tell whether a struct at any depth has two fields of one name, which Spark does not send."""
    fields = [kind.field(place) for place in range(kind.num_fields)]
    twice = pa.types.is_struct(kind) and len({f.name for f in fields}) < len(fields)
    return twice or any(_repeats_names(f.type) for f in fields)


def _loosely(kind: t.DataType) -> str:
    """Return the type without nullability, which Arrow types do not have."""
    return re.sub(r'"(containsNull|valueContainsNull|nullable)":(true|false)', "", kind.json())


def type_within(kind: t.DataType, path: Sequence[str]) -> t.DataType | None:
    """Return the type of a field that a path leads to within structs, None where it leads nowhere."""
    for name in path:
        fields = kind.fields if isinstance(kind, t.StructType) else []
        field_type = next((f.dataType for f in fields if f.name.lower() == name.lower()), None)
        if field_type is None:
            return None
        kind = field_type
    return kind


def decimal_digits(kind: t.DataType) -> tuple[int, int] | None:
    """Return (precision, scale) of a decimal or integer type, as Spark widens it; None for others."""
    if isinstance(kind, t.DecimalType):
        return kind.precision, kind.scale
    return (DIGITS[type(kind)], 0) if type(kind) in DIGITS else None


def widest_decimal(*digits: tuple[int, int]) -> t.DecimalType | None:
    """Return the decimal type that holds all numbers of some (precision, scale), None if there is none."""
    scale = max(scale for _, scale in digits)
    whole = max(precision - scale for precision, scale in digits)
    return t.DecimalType(whole + scale, scale) if whole + scale <= MOST_DIGITS else None


def common_type(kinds: Sequence[t.DataType], *, ansi: bool) -> t.DataType | None:
    """Return the type in which Spark puts values of some types together.

    None where only Spark knows it, or where it does not hold them all: beyond 38 digits.
    """
    if not kinds or all(kind == kinds[0] for kind in kinds):
        return kinds[0] if kinds else None
    if all(type(kind) in DIGITS for kind in kinds):
        return max(kinds, key=lambda kind: DIGITS[type(kind)])
    digits = [pair for pair in map(decimal_digits, kinds) if pair is not None]
    if len(digits) == len(kinds):
        return widest_decimal(*digits)
    if not all(isinstance(kind, t.NumericType) for kind in kinds):
        return None
    is_double = ansi or any(isinstance(kind, t.DoubleType | t.DecimalType) for kind in kinds)
    return t.DoubleType() if is_double else t.FloatType()


def comparison_type(left: t.DataType, right: t.DataType, *, ansi: bool) -> pa.DataType | None:
    """Return the type in which Spark compares two columns, or None when Spark has to do it."""
    kind = common_type([left, right], ansi=ansi)
    if not isinstance(kind, t.AtomicType):
        return None
    # As FLOAT, or as a double of more digits than it has, numbers lose some.
    exact = isinstance(kind, t.DoubleType) and _is_exact_in_double(left) and _is_exact_in_double(right)
    return arrow_type(kind) if left == right or exact or decimal_digits(kind) is not None else None


def _is_exact_in_double(kind: t.DataType) -> bool:
    if isinstance(kind, t.DecimalType):
        return kind.precision <= DOUBLE_DIGITS
    return isinstance(kind, t.ByteType | t.ShortType | t.IntegerType | t.FloatType | t.DoubleType)


@dataclass(frozen=True)
class Constant:
    """A value known before the query runs: Spark's type and the Python value (None is NULL).

    Timestamps are whole microseconds since the epoch; dates, decimals, strings are Python's own.
    """

    type: t.DataType
    value: Any


def with_constant(column: t.DataType, constant: Constant, *, ansi: bool) -> tuple[t.DataType, Any] | None:
    """Return the type of ``column <op> constant`` and the constant in that type, or None."""
    value = constant.value
    if value is None:
        return None
    if column == constant.type:
        return (column, value) if isinstance(column, t.AtomicType) else None
    if isinstance(column, t.DateType) and isinstance(constant.type, t.StringType):
        date = plain_date(value)
        return None if date is None else (column, date)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(column, t.FloatType | t.DoubleType):
        single = isinstance(column, t.FloatType) and not ansi
        exact = not isinstance(value, int) or abs(value) <= (_EXACT_FLOAT if single else _EXACT_DOUBLE)
        return (
            (t.DoubleType(), float(value)) if exact and not isinstance(constant.type, t.FloatType) else None
        )
    digits = decimal_digits(column)
    if digits is None:
        return None
    if isinstance(value, float):
        exact = isinstance(constant.type, t.DoubleType) and _is_exact_in_double(column)
        return (t.DoubleType(), value) if exact else None
    if type(column) in DIGITS and type(constant.type) in DIGITS:
        kind = common_type([column, constant.type], ansi=ansi)
        return None if kind is None else (kind, value)
    number = Decimal(value)
    decimal = widest_decimal(digits, digits_of(number))
    return None if decimal is None else (decimal, number)


def digits_of(number: Decimal) -> tuple[int, int]:
    """Return the smallest (precision, scale) that holds the number exactly."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if exponent >= 0:
        return max(1, len(digits) + exponent), 0
    return max(len(digits), -exponent), -exponent


def plain_date(text: str) -> dt.date | None:
    """Return the date of ``yyyy-mm-dd``; None for everything else, which Spark has to judge."""
    if not _DATE.fullmatch(text):
        return None
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None
