"""Constant expressions and their values.

Literals, dates, and the sums and intervals that fill most queries are evaluated here, exactly. All
other expressions without a column go to Spark, as one ``SELECT`` of all of them, which needs no
job; what raises there is not a constant, and its conjunct stays with Spark.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Callable, Iterable
from decimal import Decimal

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.front.coercion import Constant, digits_of, plain_date
from millrace.front.texts import Frames

_INTEGER = re.compile(r"\d+")
_DECIMAL = re.compile(r"\d+\.\d*|\.\d+")
_STRING = re.compile(r"'[^'\\]*'")

# What a constant may be made of: all of it deterministic, and the same on every call.
_PARTS = (
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.HexString,
    exp.RawString,
    exp.Concat,
    exp.Cast,
    exp.TryCast,
    exp.DataType,
    exp.DataTypeParam,
    exp.Neg,
    exp.Paren,
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Div,
    exp.Mod,
    exp.IntDiv,
    exp.Interval,
    exp.IntervalSpan,
    exp.Var,
    exp.TsOrDsToDate,
    exp.TsOrDsAdd,
    exp.DateAdd,
    exp.DateSub,
    exp.AddMonths,
)
_KEPT = (
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.DoubleType,
    t.DecimalType,
    t.DateType,
    t.BinaryType,
    t.NullType,
)


def is_constant(node: exp.Expr) -> bool:
    """Tell whether an operand has no column and nothing that could differ between two calls."""
    return all(isinstance(part, _PARTS) for part in node.walk())


class Constants:
    """Values of constant operands, by their text.

    Args:
        frames: Runs the SELECT.
        text_of: Returns the template text of a node of the query.
    """

    def __init__(self, frames: Frames, text_of: Callable[[exp.Expr], str | None]) -> None:
        self._frames = frames
        self._text_of = text_of
        self._values: dict[str, Constant | None] = {}

    def value(self, node: exp.Expr) -> Constant | None:
        """Return the operand's value, None when it is not constant or cannot be had."""
        if not is_constant(node):
            return None
        text = self._text_of(node)
        if text is None:
            return None
        if text not in self._values:
            easy = _evaluate(node, self._text_of)
            if easy is None:
                self._ask([text])
            else:
                self._values[text] = easy
        return self._values[text]

    def timestamp(self, node: exp.Expr) -> Constant | None:
        """Return a string operand as Spark casts it to a timestamp, in the session's time zone."""
        text = self._text_of(node)
        if text is None or not is_constant(node):
            return None
        cast = f"CAST({text} AS TIMESTAMP)"
        if cast not in self._values:
            self._ask([cast])
        return self._values[cast]

    def prepare(self, nodes: Iterable[exp.Expr]) -> None:
        """Evaluate operands that need Spark together, so that it is asked once."""
        texts: dict[str, None] = {}
        for node in nodes:
            text = self._text_of(node) if is_constant(node) else None
            if text is not None and text not in self._values and _evaluate(node, self._text_of) is None:
                texts[text] = None
        if texts:
            self._ask(list(texts))

    def _ask(self, texts: list[str]) -> None:
        try:
            values = self._select(texts)
        except PySparkException:
            if len(texts) == 1:
                self._values[texts[0]] = None
                return
            for text in texts:
                self._ask([text])
            return
        self._values.update(zip(texts, values, strict=True))

    def _select(self, texts: list[str]) -> list[Constant | None]:
        items = [f"{text} AS c{i}" for i, text in enumerate(texts)]
        frame = self._frames.sql("SELECT " + ", ".join(items))
        types = [f.dataType for f in frame.schema.fields]
        if any(isinstance(kind, t.TimestampType) for kind in types):
            # As a number, a timestamp does not pass through Python's time zone.
            items = [
                f"unix_micros({text}) AS c{i}" if isinstance(kind, t.TimestampType) else f"{text} AS c{i}"
                for i, (text, kind) in enumerate(zip(texts, types, strict=True))
            ]
            frame = self._frames.sql("SELECT " + ", ".join(items))
        row = frame.collect()[0]
        return [_kept(kind, value) for kind, value in zip(types, row, strict=True)]


def _kept(kind: t.DataType, value: object) -> Constant | None:
    if isinstance(value, bytearray):
        value = bytes(value)
    plain_string = isinstance(kind, t.StringType) and kind == t.StringType()
    if plain_string or isinstance(kind, (*_KEPT, t.TimestampType)):
        return Constant(kind, value)
    return None


def _evaluate(node: exp.Expr, text_of: Callable[[exp.Expr], str | None]) -> Constant | None:
    """Return the value of the simplest forms; None sends the expression to Spark."""
    match node:
        case exp.Paren():
            return _evaluate(node.this, text_of)
        case exp.Boolean():
            return Constant(t.BooleanType(), bool(node.this))
        case exp.Literal():
            return _literal(text_of(node) or "")
        case exp.Neg():
            inner = _evaluate(node.this, text_of)
            if inner is None or not isinstance(inner.value, int | Decimal):
                return None
            return _number(-inner.value)
        case exp.Cast() if node.to.this == exp.DType.DATE and not node.to.expressions:
            # TRY_CAST and other functions that end in a date differ only for texts that are no date.
            if isinstance(node.this, exp.Literal) and node.this.is_string:
                date = plain_date(node.this.name)
                return None if date is None else Constant(t.DateType(), date)
            return None
        case exp.Add() | exp.Sub():
            sign = 1 if isinstance(node, exp.Add) else -1
            left = _evaluate(node.this, text_of)
            if left is None:
                return None
            if isinstance(node.expression, exp.Interval):
                return _shift(left, node.expression, sign)
            right = _evaluate(node.expression, text_of)
            if right is None:
                return None
            return _add(left, right, sign)
    return None


def _literal(text: str) -> Constant | None:
    """Type a literal by its text; escapes, suffixes and exponents are left to Spark."""
    if _INTEGER.fullmatch(text):
        return _number(int(text))
    if _DECIMAL.fullmatch(text):
        return _number(Decimal(text))
    if _STRING.fullmatch(text):
        # In a template, the braces of the text are doubled.
        return Constant(t.StringType(), text[1:-1].replace("{{", "{").replace("}}", "}"))
    return None


def _number(value: int | Decimal) -> Constant | None:
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            return Constant(t.IntegerType(), value)
        return Constant(t.LongType(), value) if -(1 << 63) <= value < 1 << 63 else None
    precision, scale = digits_of(value)
    return Constant(t.DecimalType(precision, scale), value) if precision <= 38 else None


def _add(left: Constant, right: Constant, sign: int) -> Constant | None:
    a, b = left.value, right.value
    if isinstance(a, bool) or isinstance(b, bool):
        return None
    if isinstance(a, int) and isinstance(b, int):
        total = a + sign * b
        return _number(total) if abs(total) < 1 << 31 else None
    if isinstance(a, int | Decimal) and isinstance(b, int | Decimal):
        if sum(digits_of(Decimal(a))) + sum(digits_of(Decimal(b))) > 24:
            return None
        return _number(Decimal(a) + sign * Decimal(b))
    return None


def _shift(left: Constant, interval: exp.Interval, sign: int) -> Constant | None:
    """Return ``date ± interval`` for whole days, months and years."""
    amount, unit = interval.this, interval.args.get("unit")
    if not (isinstance(left.value, dt.date) and isinstance(amount, exp.Literal)):
        return None
    if not (isinstance(unit, exp.Var) and _INTEGER.fullmatch(amount.name)) or len(amount.name) > 5:
        return None
    count = sign * int(amount.name)
    date: dt.date = left.value
    match unit.name.upper():
        case "DAY" | "DAYS":
            try:
                return Constant(left.type, date + dt.timedelta(days=count))
            except OverflowError:
                return None
        case "MONTH" | "MONTHS":
            months = count
        case "YEAR" | "YEARS":
            months = 12 * count
        case _:
            return None
    year, month = divmod(date.year * 12 + date.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        return None
    day = min(date.day, calendar.monthrange(year, month + 1)[1])
    return Constant(left.type, dt.date(year, month + 1, day))
