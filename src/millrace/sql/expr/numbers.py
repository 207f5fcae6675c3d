"""Types of numbers that tasks compute: what Spark gives, and what cannot overflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
from pyspark.sql import types as t

from millrace.engine.values import Arithmetic, Constant, Remainder, Value, Widened
from millrace.spark.types import arrow_type, spark_type
from millrace.sql.expr.types import decimal_digits, digits_of, widest_decimal

Ends = tuple[int, int]

BITS: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
"""Spark's types of whole numbers, and their widths."""
_EXACT_DIGITS = 15  # a decimal of so many digits becomes the same double everywhere
_MOST_DIGITS = 38


@dataclass(frozen=True)
class Typed:
    """A value with its type.

    Attributes:
        value: For the task.
        type: Spark's.
        ends: The least and greatest that a whole number can be.
    """

    value: Value
    type: t.DataType
    ends: Ends = (0, 0)


def ends_of(kind: t.DataType) -> Ends:
    """Return the least and greatest whole number of a type."""
    bits = BITS.get(type(kind), 1)
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def arithmetic(op: str, left: Typed, right: Typed) -> Typed | None:
    """Return ``left op right``, None where it may overflow or be rounded."""
    if isinstance(left.type, t.DoubleType) or isinstance(right.type, t.DoubleType):
        return _made(op, widened(left, t.DoubleType()), widened(right, t.DoubleType()), t.DoubleType())
    if isinstance(left.type, t.DecimalType) or isinstance(right.type, t.DecimalType):
        return _of_decimals(op, left, right)
    if type(left.type) not in BITS or type(right.type) not in BITS:
        return None
    kind = max(left.type, right.type, key=lambda each: BITS[type(each)])
    made = _made(op, widened(left, kind), widened(right, kind), kind)
    (a, b), (c, d) = left.ends, right.ends
    ends = {"+": (a + c, b + d), "-": (a - d, b - c)}.get(op)
    if ends is None:
        products = (a * c, a * d, b * c, b * d)
        ends = min(products), max(products)
    low, high = ends_of(kind)
    if made is None or ends[0] < low or ends[1] > high:
        return None
    return Typed(made.value, kind, ends)


def common_type(kinds: Sequence[t.DataType]) -> t.DataType | None:
    """Return the type in which Spark puts values of some types together, None where only Spark knows."""
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    if all(type(kind) in BITS for kind in kinds):
        return max(kinds, key=lambda kind: BITS[type(kind)])
    digits = [each for each in map(decimal_digits, kinds) if each is not None]
    widest = widest_decimal(*digits) if len(digits) == len(kinds) else None
    return None if widest is None else spark_type(widest)


def remainder(left: Typed | None, right: Typed | None) -> Typed | None:
    """Return ``left % right``, None where that is not for tasks."""
    if left is None or right is None or not isinstance(right.value, Constant):
        return None
    by = right.value.value
    if type(left.type) not in BITS or type(right.type) not in BITS or by < 1:
        return None
    kind = max(left.type, right.type, key=lambda each: BITS[type(each)])
    made = widened(left, kind)
    return (
        None if made is None else Typed(Remainder(made.value, by, arrow_type(kind)), kind, (1 - by, by - 1))
    )


def _made(op: str, left: Typed | None, right: Typed | None, kind: t.DataType) -> Typed | None:
    if left is None or right is None:
        return None
    return Typed(Arithmetic(op, left.value, right.value, arrow_type(kind)), kind)  # type: ignore[arg-type]


def _of_decimals(op: str, left: Typed, right: Typed) -> Typed | None:
    a, b = _as_decimal(left), _as_decimal(right)
    if a is None or b is None:
        return None
    (p, s), (q, r) = _digits(a.type), _digits(b.type)
    if op == "*":
        precision, scale = p + q + 1, s + r
    else:
        scale = max(s, r)
        precision = max(p - s, q - r) + scale + 1
    # With more digits Spark rounds.
    return None if precision > _MOST_DIGITS else _made(op, a, b, t.DecimalType(precision, scale))


def _as_decimal(argument: Typed) -> Typed | None:
    if isinstance(argument.type, t.DecimalType):
        return argument
    if isinstance(argument.value, Constant) and isinstance(argument.value.value, int):
        number = Decimal(argument.value.value)
        digits = digits_of(number)
        kind = t.DecimalType(*digits)
        return Typed(Constant(number, pa.decimal128(*digits)), kind)
    digits = decimal_digits(argument.type) or (0, 0)
    return widened(argument, t.DecimalType(*digits)) if digits[0] else None


def _digits(kind: t.DataType) -> tuple[int, int]:
    assert isinstance(kind, t.DecimalType)
    return kind.precision, kind.scale


def holds(whole: t.DataType, kind: t.DataType) -> bool:
    """Tell whether a decimal type has every number of another type."""
    digits = decimal_digits(kind)
    if digits is None or not isinstance(whole, t.DecimalType):
        return False
    return digits[1] <= whole.scale and digits[0] - digits[1] <= whole.precision - whole.scale


def widened(argument: Typed, to: t.DataType) -> Typed | None:
    """Return a number in another type, None where that may lose digits or fail."""
    kind, whole = argument.type, type(argument.type) in BITS
    if kind == to:
        return argument
    if isinstance(to, t.DoubleType):
        fits = whole or isinstance(kind, t.FloatType)
        fits = fits or (isinstance(kind, t.DecimalType) and kind.precision <= _EXACT_DIGITS)
    elif isinstance(to, t.DecimalType):
        fits = holds(to, kind)
    else:
        fits = whole and type(to) in BITS and BITS[type(kind)] < BITS[type(to)]
    return Typed(Widened(argument.value, arrow_type(to)), to, argument.ends) if fits else None
