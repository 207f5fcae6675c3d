"""Arguments of aggregates as values that tasks compute exactly as Spark does, without ever failing.

Columns, constants, ``+``, ``-``, ``*`` and widening casts of numbers. What could overflow by its types is not
among them, for only Spark knows when to raise and what for.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.aggregates import Arithmetic, Constant, Read, Value, Widened
from millrace.front.coercion import Field, decimal_digits, digits_of
from millrace.front.constants import is_constant
from millrace.front.parse import unwrap
from millrace.front.planning import Planning
from millrace.front.template import Edit, quote
from millrace.spark.types import arrow_type

Meaning = tuple[str, Field] | exp.Expr
"""What a column is: one of the block, with the name that the block gives it, or an expression of such."""

_OPERATIONS: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_BITS: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_EXACT_DIGITS = 15  # a decimal of so many digits becomes the same double everywhere
_MOST_DIGITS = 38


@dataclass(frozen=True)
class Argument:
    """An argument.

    Attributes:
        value: For the task.
        type: Spark's.
        ends: The least and greatest that a whole number can be.
    """

    value: Value
    type: t.DataType
    ends: tuple[int, int] = (0, 0)


class Arguments:
    """Translates arguments.

    Args:
        planning: The query.
        meaning: Returns what a column is, None where it is neither of the block nor an expression of such.
    """

    def __init__(self, planning: Planning, meaning: Callable[[exp.Column], Meaning | None]) -> None:
        self._planning = planning
        self._meaning = meaning
        self._asked: dict[str, t.DataType | None] = {}

    def of(self, node: exp.Expr) -> Argument | None:
        """Return an argument, None where only Spark computes it."""
        found = self._of(node)
        if found is None or isinstance(found.value, Read | Constant):
            return found
        return found if self._type_of([node], "{}") == found.type else None

    def type_of_case(self, values: list[exp.Expr]) -> t.DataType | None:
        """Return the type of a CASE with these values, None where only Spark computes them."""
        branches = " ".join("WHEN true THEN {}" for _ in values)
        return self._type_of(values, f"CASE {branches} END") if values else None

    def _of(self, node: exp.Expr) -> Argument | None:
        node = unwrap(node)
        if isinstance(node, exp.Column):
            return self._column(node)
        if is_constant(node):
            return self._constant(node)
        if isinstance(node, exp.Cast):  # TRY_CAST is the same where a cast cannot fail
            inner, to = self._of(node.this), self._target(node)
            return None if inner is None or to is None else widened(inner, to)
        op = _OPERATIONS.get(type(node))
        if op is None:
            return None
        left, right = self._of(node.this), self._of(node.expression)
        return None if left is None or right is None else _arithmetic(op, left, right)

    def _column(self, node: exp.Column) -> Argument | None:
        meaning = self._meaning(node)
        if meaning is None or isinstance(meaning, exp.Expr):
            return None if meaning is None else self._of(meaning)
        name, field = meaning
        if field.arrow is None or not field.comparable:
            return None
        return Argument(Read(name, field.arrow), field.type, _ends(field.type))

    def _constant(self, node: exp.Expr) -> Argument | None:
        constant = self._planning.constants.value(node)
        if constant is None or constant.value is None or not isinstance(constant.type, t.NumericType):
            return None
        value = constant.value
        ends = (value, value) if isinstance(value, int) else (0, 0)
        return Argument(Constant(value, arrow_type(constant.type)), constant.type, ends)

    def _target(self, node: exp.Cast) -> t.DataType | None:
        """Return the type that a cast is to, as far as tasks cast to it."""
        kind = node.to
        plain: dict[exp.DType, t.DataType] = {
            exp.DType.DOUBLE: t.DoubleType(),
            exp.DType.BIGINT: t.LongType(),
            exp.DType.INT: t.IntegerType(),
        }
        if kind.this == exp.DType.DECIMAL:
            digits = [part.this.name for part in kind.expressions if isinstance(part, exp.DataTypeParam)]
            if not digits or not all(each.isdigit() for each in digits):
                return None
            return t.DecimalType(int(digits[0]), int(digits[1]) if len(digits) > 1 else 0)
        return None if kind.expressions else plain.get(kind.this)

    # What Spark says

    def _type_of(self, nodes: list[exp.Expr], shape: str) -> t.DataType | None:
        """Return the type that Spark gives to expressions put together; nothing runs."""
        columns: dict[str, Field] = {}
        texts = [self._text(node, columns) for node in nodes]
        if None in texts:
            return None
        items = [f"CAST(NULL AS {f.type.simpleString()}) AS {quote(n)}" for n, f in columns.items()]
        text = f"SELECT {shape.format(*texts)} FROM (SELECT {', '.join(items) or '1'})"
        if text not in self._asked:
            try:
                self._asked[text] = self._planning.frames.schema(text).fields[0].dataType
            except PySparkException:
                self._asked[text] = None
        return self._asked[text]

    def _text(self, node: exp.Expr, columns: dict[str, Field]) -> str | None:
        """Return an argument's text over columns of the block, which are added to ``columns``."""
        statement = self._planning.statement
        if not statement.has_span(node):
            return None
        edits = []
        for column in node.find_all(exp.Column):
            meaning = self._meaning(column)
            start, end = column.parts[0].meta.get("start"), column.parts[-1].meta.get("end")
            if meaning is None or start is None or end is None:
                return None
            if isinstance(meaning, exp.Expr):
                inner = self._text(meaning, columns)
                if inner is None:
                    return None
                text = f"({inner})"
            else:
                columns[meaning[0]] = meaning[1]
                text = quote(meaning[0])
            edits.append(Edit(start, end + 1, (text,)))
        return self._planning.text.with_edits(statement.span(node), edits)


def _ends(kind: t.DataType) -> tuple[int, int]:
    bits = _BITS.get(type(kind), 1)
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _arithmetic(op: str, left: Argument, right: Argument) -> Argument | None:
    if isinstance(left.type, t.DoubleType) or isinstance(right.type, t.DoubleType):
        return _made(op, widened(left, t.DoubleType()), widened(right, t.DoubleType()), t.DoubleType())
    if isinstance(left.type, t.DecimalType) or isinstance(right.type, t.DecimalType):
        return _of_decimals(op, left, right)
    if type(left.type) not in _BITS or type(right.type) not in _BITS:
        return None
    kind = left.type if _BITS[type(left.type)] >= _BITS[type(right.type)] else right.type
    made = _made(op, widened(left, kind), widened(right, kind), kind)
    (a, b), (c, d) = left.ends, right.ends
    ends = {"+": (a + c, b + d), "-": (a - d, b - c)}.get(op)
    if ends is None:
        products = (a * c, a * d, b * c, b * d)
        ends = min(products), max(products)
    low, high = _ends(kind)
    if made is None or ends[0] < low or ends[1] > high:
        return None
    return Argument(made.value, kind, ends)


def _made(op: str, left: Argument | None, right: Argument | None, kind: t.DataType) -> Argument | None:
    if left is None or right is None:
        return None
    return Argument(Arithmetic(op, left.value, right.value, arrow_type(kind)), kind)  # type: ignore[arg-type]


def _of_decimals(op: str, left: Argument, right: Argument) -> Argument | None:
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


def _as_decimal(argument: Argument) -> Argument | None:
    if isinstance(argument.type, t.DecimalType):
        return argument
    if isinstance(argument.value, Constant) and isinstance(argument.value.value, int):
        number = Decimal(argument.value.value)
        digits = digits_of(number)
        kind = t.DecimalType(*digits)
        return Argument(Constant(number, pa.decimal128(*digits)), kind)
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


def widened(argument: Argument, to: t.DataType) -> Argument | None:
    """Return a number in another type, None where that may lose digits or fail."""
    kind, whole = argument.type, type(argument.type) in _BITS
    if kind == to:
        return argument
    if isinstance(to, t.DoubleType):
        fits = whole or isinstance(kind, t.FloatType)
        fits = fits or (isinstance(kind, t.DecimalType) and kind.precision <= _EXACT_DIGITS)
    elif isinstance(to, t.DecimalType):
        fits = holds(to, kind)
    else:
        fits = whole and type(to) in _BITS and _BITS[type(kind)] < _BITS[type(to)]
    return Argument(Widened(argument.value, arrow_type(to)), to, argument.ends) if fits else None
