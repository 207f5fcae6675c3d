"""Constant expressions and their values.

Literals are read here. All other expressions without a column go to Spark, as one ``SELECT`` of all of them,
which needs no job; what raises there is not a constant, and its conjunct stays with Spark.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp
from sqlglot.optimizer.simplify import simplify

from millrace.sql.expr.functions import is_constant
from millrace.sql.expr.types import MOST_DIGITS, Constant, digits_of, plain_date
from millrace.sql.syntax.edits import unescape
from millrace.sql.syntax.parse import unwrap

if TYPE_CHECKING:
    from millrace.sql.context import PlanContext  # which has the constants of its query

_INTEGER = re.compile(r"\d+")
_DECIMAL = re.compile(r"\d+\.\d*|\.\d+")
_WRITTEN = re.compile(r"-?\s*\d+[LSY]?", re.IGNORECASE)
_STRING = re.compile(r"'[^'\\]*'")
# As a date or a time this needs no clock, unlike 'today', 'now' or '12:30'.
_FULL_DATE = re.compile(r"\s*[+-]?\d{4,}(-.*)?", re.DOTALL)

_EPOCH = dt.date(1970, 1, 1).toordinal()
_LAST = dt.date.max.toordinal() - _EPOCH

_HELD = (
    t.BooleanType, t.IntegralType, t.DoubleType, t.DecimalType, t.DateType, t.TimestampType, t.BinaryType,
    t.NullType,
)  # fmt: skip


def _needs_clock(node: exp.Expr) -> bool:
    """Tell whether a string in a constant may become another date or time tomorrow."""
    if node.find(exp.Placeholder) is not None:
        return True
    strings = (part for part in node.walk() if isinstance(part, exp.RawString) or part.is_string)
    return any(
        not _FULL_DATE.fullmatch(part.name) for part in strings if not isinstance(part.parent, exp.Interval)
    )


class Constants:
    """Values of the constant operands of one query, by their text; ``is_lasting`` if they never change."""

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._values: dict[str, Constant | None] = {}
        self.is_lasting = True

    def _text_of(self, node: exp.Expr) -> str | None:
        statement = self._context.statement
        return self._context.text.bound(statement.span(node)) if statement.has_span(node) else None

    def value(self, node: exp.Expr) -> Constant | None:
        """Return the operand's value, None when it is not constant or cannot be had."""
        text = self._text_of(node) if is_constant(node) else None
        if text is not None and text not in self._values:
            self.prepare([node])
        return None if text is None else self._values[text]

    def is_written(self, node: exp.Expr) -> bool:
        """Tell whether a whole number is a literal or a parameter: it has as many digits as are written."""
        node = unwrap(node)
        number = node.this if isinstance(node, exp.Neg) else node
        return isinstance(number, exp.Placeholder) or bool(_WRITTEN.fullmatch(self._text_of(node) or ""))

    def timestamp(self, node: exp.Expr) -> Constant | None:
        """Return a string operand as Spark casts it to a timestamp, in the session's time zone."""
        text = self._text_of(node)
        if text is None or not is_constant(node):
            return None
        self.is_lasting = self.is_lasting and not _needs_clock(node)
        cast = f"CAST({text} AS TIMESTAMP)"
        if cast not in self._values:
            self._ask([cast])
        return self._values[cast]

    def prepare(self, nodes: Iterable[exp.Expr]) -> None:
        """Evaluate operands that need Spark together, so that it is asked once."""
        texts: dict[str, None] = {}
        for node in nodes:
            text = self._text_of(node) if is_constant(node) else None
            if text is not None and text not in self._values:
                easy = _evaluate(node, self._text_of)
                if easy is None:
                    is_single = isinstance(unwrap(node), exp.Literal | exp.RawString | exp.Placeholder)
                    self.is_lasting = self.is_lasting and (is_single or not _needs_clock(node))
                    texts[text] = None
                else:
                    self._values[text] = easy
        if texts:
            self._ask(list(texts))

    def _ask(self, texts: list[str]) -> None:
        try:
            self._values.update(zip(texts, self._select(texts), strict=True))
        except PySparkException:
            if len(texts) == 1:
                self._values[texts[0]] = None
            else:
                for text in texts:
                    self._ask([text])

    def _select(self, texts: list[str]) -> list[Constant | None]:
        frames = self._context.frames
        types = [f.dataType for f in frames.analyse(f"SELECT {', '.join(texts)}").schema.fields]
        # As numbers, dates and timestamps pass through no calendar and no time zone of Python's.
        row = frames.rows(f"SELECT {', '.join(map(_plain, texts, types))}")[0]
        return list(map(_constant, types, row))


def _plain(text: str, kind: t.DataType) -> str:
    """Return an expression whose value Python can hold."""
    if isinstance(kind, t.DateType):
        return f"unix_date({text})"
    if isinstance(kind, t.TimestampType):
        return f"unix_micros({text})"
    return text if _is_held(kind) else "NULL"


def _is_held(kind: t.DataType) -> bool:
    return kind == t.StringType() or isinstance(kind, _HELD)


def _constant(kind: t.DataType, value: Any) -> Constant | None:
    if not _is_held(kind):
        return None
    if isinstance(kind, t.DateType) and value is not None:
        if not -_EPOCH < value <= _LAST:
            return None  # a year that Python has not
        value = dt.date.fromordinal(_EPOCH + value)
    return Constant(kind, bytes(value) if isinstance(value, bytearray) else value)


def _evaluate(node: exp.Expr, text_of: Callable[[exp.Expr], str | None]) -> Constant | None:
    """Return the value of a literal; None sends the expression to Spark."""
    match node:
        case exp.Paren():
            return _evaluate(node.this, text_of)
        case exp.Boolean():
            return Constant(t.BooleanType(), bool(node.this))
        case exp.Literal():
            return _literal(text_of(node) or "")
        case exp.Neg():
            inner = _evaluate(node.this, text_of)
            value = None if inner is None else inner.value
            if isinstance(value, Decimal):
                return _number(value.copy_negate())  # minus would round it to 28 digits
            return _number(-value) if isinstance(value, int) else None
        case exp.Cast(this=exp.Literal(is_string=True) as text) if node.to.this == exp.DType.DATE:
            # TRY_CAST and other functions that end in a date differ only for texts that are no date.
            date = None if node.to.expressions else plain_date(text.name)
            return None if date is None else Constant(t.DateType(), date)
        case exp.Add() | exp.Sub() if _moves_date(node):
            try:
                moved = simplify(node.copy(), dialect="spark")
            except (ValueError, OverflowError):  # a year that Python has not
                return None
            return _evaluate(moved, text_of) if isinstance(moved, exp.Cast) else None
    return None


def _moves_date(node: exp.Expr) -> bool:
    """Tell whether whole years, months or days are added to a date, or taken from it."""
    date, by = node.this, node.expression
    if isinstance(date, exp.Interval) and isinstance(node, exp.Add):
        date, by = by, date
    amount = by.this if isinstance(by, exp.Interval) else None
    return (
        isinstance(date, exp.Cast)
        and isinstance(amount, exp.Literal)
        and amount.name.isdigit()
        and by.args.get("unit") is not None
        and by.args["unit"].name.upper() in ("YEAR", "MONTH", "DAY")
    )


def _literal(text: str) -> Constant | None:
    """Type a literal by its text; escapes, suffixes and exponents are left to Spark."""
    if _INTEGER.fullmatch(text):
        return _number(int(text))
    if _DECIMAL.fullmatch(text):
        return _number(Decimal(text))
    if _STRING.fullmatch(text):
        # In a template, the braces of the text are doubled.
        return Constant(t.StringType(), unescape(text[1:-1]))
    return None


def _number(value: int | Decimal) -> Constant | None:
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            return Constant(t.IntegerType(), value)
        return Constant(t.LongType(), value) if -(1 << 63) <= value < 1 << 63 else None
    precision, scale = digits_of(value)
    return Constant(t.DecimalType(precision, scale), value) if precision <= MOST_DIGITS else None
