"""Expressions as values that tasks compute exactly as Spark does, without ever failing.

Columns, constants, ``+``, ``-``, ``*``, remainders, widening casts of numbers, parts of dates and texts, and
choices between such by conditions that Millrace evaluates. What could overflow by its types, or by what is
known of the columns, is not among them, for only Spark knows when to raise and what for.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.expressions import Column, ColumnRef, IsNull, Not
from millrace.engine.values import (
    AsText,
    Choice,
    Constant,
    DatePart,
    DaysBetween,
    Length,
    Moved,
    Part,
    Read,
    Slice,
    Value,
)
from millrace.spark.types import arrow_type
from millrace.sql.expr.constants import is_constant, is_literal
from millrace.sql.expr.numbers import BITS, Ends, Typed, arithmetic, common_type, ends_of, remainder, widened
from millrace.sql.expr.translate import Translator, constant_operands
from millrace.sql.expr.types import Field
from millrace.sql.planner.context import PlanContext
from millrace.sql.syntax.edits import Edit, quote
from millrace.sql.syntax.parse import name_span, unwrap

Meaning = tuple[str, Field] | exp.Expr
"""What a column is: one that tasks have, by the name it has there, or an expression of such."""

_OPERATIONS: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_PARTS: dict[type[exp.Expr], Part] = {
    exp.Year: "year",
    exp.Quarter: "quarter",
    exp.Month: "month",
    exp.WeekOfYear: "week",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.DayOfYear: "dayofyear",
    exp.DayOfWeek: "dayofweek",
}
_EXTRACTED: dict[str, Part] = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "WEEK": "week", "DAY": "day", "DOY": "dayofyear",
    "DAYOFWEEK": "dayofweek",
}  # fmt: skip
_PART_ENDS = (-6_000_000, 6_000_000)  # no year of a date lies beyond


class ValueTranslator:
    """Translates expressions.

    Args:
        context: The query.
        meaning: Returns what a column is, None where tasks cannot have it.
        ends: Returns the least and greatest value of a column of whole numbers, None where nothing tells.
    """

    def __init__(
        self,
        context: PlanContext,
        meaning: Callable[[exp.Column], Meaning | None],
        ends: Callable[[str], Ends | None] = lambda _: None,
    ) -> None:
        self._context = context
        self._meaning = meaning
        self._ends = ends
        self._conditions = Translator(self._compared, context.constants, context.settings.ansi)

    def of(self, node: exp.Expr) -> Typed | None:
        """Return a value, None where only Spark computes it."""
        found = self._of(node)
        if found is None or isinstance(found.value, Read | Constant) or self._is_by_rule(node):
            return found
        return found if self._type_of([node], "{}") == found.type else None

    def type_of_case(self, values: list[exp.Expr]) -> t.DataType | None:
        """Return the type of a CASE with these values, None where only Spark computes them."""
        found = [self.of(value) for value in values]
        kinds = [each.type for each in found if each is not None]
        if not kinds or len(kinds) < len(values):
            return None
        branches = " ".join("WHEN true THEN {}" for _ in values)
        return common_type(kinds) or self._type_of(values, f"CASE {branches} END")

    def _is_by_rule(self, node: exp.Expr) -> bool:
        """Tell whether a value's type follows from those of what it is made of.

        Beside a decimal Spark takes a whole number as written for as long as it is, and one that is computed,
        or written in another way, for as long as its type can be. Which it is, only Spark's parser knows.
        """
        node = unwrap(node)
        if isinstance(node, exp.Column):
            meaning = self._meaning(node)
            if not isinstance(meaning, exp.Expr):
                return True
            return not is_constant(meaning) and self._is_by_rule(meaning)
        if isinstance(node, exp.Cast):
            return self._is_by_rule(node.this)
        if not isinstance(node, exp.Add | exp.Sub | exp.Mul):
            return True
        sides = (node.this, node.expression)
        return all(is_literal(side) if is_constant(side) else self._is_by_rule(side) for side in sides)

    def _of(self, node: exp.Expr) -> Typed | None:
        node = unwrap(node)
        if isinstance(node, exp.Column):
            return self._column(node)
        if is_constant(node):
            return self._constant(node)
        match node:
            case exp.Cast():  # TRY_CAST is the same where a cast cannot fail
                return self._cast(node)
            case exp.Add() | exp.Sub() | exp.Mul():
                left, right = self._of(node.this), self._of(node.expression)
                return arithmetic(_OPERATIONS[type(node)], left, right) if left and right else None
            case exp.Mod():
                return remainder(self._of(node.this), self._of(node.expression))
            case exp.Case() | exp.If():
                return self._choice(node)
            case exp.Coalesce():
                return self._first_of(node)
        return self._of_date(node) or self._of_text(node)

    def _column(self, node: exp.Column) -> Typed | None:
        meaning = self._meaning(node)
        if meaning is None or isinstance(meaning, exp.Expr):
            return None if meaning is None else self._of(meaning)
        name, field = meaning
        if field.arrow is None or not field.comparable:
            return None
        known = self._ends(name) if type(field.type) in BITS else None
        return Typed(Read(name, field.arrow), field.type, known or ends_of(field.type))

    def _constant(self, node: exp.Expr) -> Typed | None:
        constant = self._context.constants.value(node)
        kinds = (t.NumericType, t.StringType, t.DateType)
        if constant is None or constant.value is None or not isinstance(constant.type, kinds):
            return None
        value = constant.value
        ends = (value, value) if isinstance(value, int) else (0, 0)
        return Typed(Constant(value, arrow_type(constant.type)), constant.type, ends)

    def _cast(self, node: exp.Cast) -> Typed | None:
        inner = self._of(node.this)
        if inner is not None and node.to.this == exp.DType.TEXT and not node.to.expressions:
            return Typed(AsText(inner.value), t.StringType()) if type(inner.type) in BITS else None
        to = self._target(node)
        return None if inner is None or to is None else widened(inner, to)

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

    # Dates and texts

    def _of_date(self, node: exp.Expr) -> Typed | None:
        part = _PARTS.get(type(node))
        if isinstance(node, exp.Extract):
            part = _EXTRACTED.get(node.name.upper())
        if isinstance(node, exp.Anonymous) and node.name.lower() == "weekday" and len(node.expressions) == 1:
            return self._part("weekday", node.expressions[0])
        if part is not None:
            return self._part(part, node.expression if isinstance(node, exp.Extract) else node.this)
        if isinstance(node, exp.DateDiff) and node.args.get("unit") is None:
            end, start = self._date(node.this), self._date(node.expression)
            made = DaysBetween(end, start) if end and start else None
            return None if made is None else Typed(made, t.IntegerType(), ends_of(t.IntegerType()))
        if isinstance(node, exp.TsOrDsAdd) and node.text("unit").upper() == "DAY":
            date, days = self._date(node.this), self._days(node.expression)
            return Typed(Moved(date, days), t.DateType()) if date and days is not None else None
        return None

    def _days(self, node: exp.Expr) -> int | None:
        """Return by how many days a date moves; sqlglot reads DATE_SUB as the addition of ``days * -1``."""
        if isinstance(node, exp.Mul) and isinstance(node.expression, exp.Neg):
            days = node.this  # no piece of the text
            known = isinstance(days, exp.Literal) and days.name.isdigit() and int(days.name) < 1 << 31
            return -int(days.name) if known else None
        return self._constant_of(node)

    def _part(self, part: Part, node: exp.Expr) -> Typed | None:
        date = self._date(node)
        return None if date is None else Typed(DatePart(part, date), t.IntegerType(), _PART_ENDS)

    def _date(self, node: exp.Expr) -> Value | None:
        found = self._of(node.this if isinstance(node, exp.TsOrDsToDate) else node)
        return found.value if found is not None and isinstance(found.type, t.DateType) else None

    def _of_text(self, node: exp.Expr) -> Typed | None:
        if not isinstance(node, exp.Substring | exp.Left | exp.Length):
            return None
        text = self._of(node.this)
        if text is None or text.type != t.StringType():
            return None
        if isinstance(node, exp.Length):
            return Typed(Length(text.value), t.IntegerType(), ends_of(t.IntegerType()))
        start: int | None = 1
        asked = node.expression
        if isinstance(node, exp.Substring):
            start, asked = self._constant_of(node.args.get("start")), node.args.get("length")
        length = self._constant_of(asked)
        if start is None or start < 1 or (asked is not None and (length is None or length < 0)):
            return None
        return Typed(Slice(text.value, start, length), t.StringType())

    def _constant_of(self, node: exp.Expr | None) -> int | None:
        """Return a whole number of 32 bits as written, None for anything else."""
        if node is None or not is_constant(node):
            return None
        constant = self._context.constants.value(node)
        fits = constant is not None and isinstance(constant.type, t.IntegerType)
        return constant.value if constant is not None and fits else None

    # Choices

    def _choice(self, node: exp.Case | exp.If) -> Typed | None:
        branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
        last = node.args.get("default" if isinstance(node, exp.Case) else "false")
        tests = [each.this for each in branches]
        if isinstance(node, exp.Case) and node.this is not None:
            return None
        self._context.constants.prepare([c for test in tests for c in constant_operands(test)])
        conditions = [self._conditions.predicate(test) for test in tests]
        values = [each.args.get("true") for each in branches]
        kind = self._type_of_any([*values, last])
        shown = [self._as(value, kind) for value in values]
        otherwise = (None,) if last is None else self._as(last, kind)
        if kind is None or otherwise is None or None in shown or None in conditions:
            return None
        whens = [(test, then[0]) for test, then in zip(conditions, shown, strict=True) if test and then]
        return Typed(Choice(tuple(whens), otherwise[0], arrow_type(kind)), kind, ends_of(kind))

    def _first_of(self, node: exp.Coalesce) -> Typed | None:
        *first, last = [node.this, *node.expressions]
        kind = self._type_of_any([*first, last])
        shown = [self._as(each, kind) for each in (*first, last)]
        columns = [
            self._column(each) if isinstance(each, exp.Column) else None for each in map(unwrap, first)
        ]
        if kind is None or None in shown or None in columns:
            return None
        reads = [each.value.column for each in columns if each is not None and isinstance(each.value, Read)]
        tests = [Not(IsNull(Column(ColumnRef("", name)))) for name in reads]
        if len(tests) < len(first):
            return None
        *values, otherwise = [each[0] for each in shown if each is not None]
        whens = tuple(zip(tests, values, strict=True))
        return Typed(Choice(whens, otherwise, arrow_type(kind)), kind, ends_of(kind))

    def _type_of_any(self, values: Iterable[exp.Expr | None]) -> t.DataType | None:
        """Return the type of a choice between values, some of which may be NULL."""
        return self.type_of_case([each for each in values if each and not isinstance(unwrap(each), exp.Null)])

    def _as(self, node: exp.Expr | None, kind: t.DataType | None) -> tuple[Value | None] | None:
        """Return the value of a branch in the type of all, alone in a tuple; None where only Spark has it."""
        if node is None or isinstance(unwrap(node), exp.Null):
            return (None,)
        found = self._of(node)
        made = None if found is None or kind is None else widened(found, kind)
        return None if made is None else (made.value,)

    def _compared(self, column: exp.Column) -> tuple[str, Field] | None:
        """Return a column as conditions read it."""
        meaning = self._meaning(column)
        if meaning is None or isinstance(meaning, exp.Expr):
            return None
        name, field = meaning
        return "", replace(field, name=name)

    # What Spark says

    def _type_of(self, nodes: list[exp.Expr], shape: str) -> t.DataType | None:
        """Return the type that Spark gives to expressions put together; nothing runs."""
        columns: dict[str, Field] = {}
        texts = [self._text(node, columns) for node in nodes]
        if None in texts:
            return None
        items = [f"CAST(NULL AS {f.type.simpleString()}) AS {quote(n)}" for n, f in columns.items()]
        text = f"SELECT {shape.format(*texts)} FROM (SELECT {', '.join(items) or '1'})"
        try:
            return self._context.frames.analyse(text).schema.fields[0].dataType
        except PySparkException:
            return None

    def _text(self, node: exp.Expr, columns: dict[str, Field]) -> str | None:
        """Return an expression's text over columns that tasks have, which are added to ``columns``."""
        statement = self._context.statement
        if not statement.has_span(node):
            return None
        edits = []
        for column in node.find_all(exp.Column):
            meaning = self._meaning(column)
            if meaning is None:
                return None
            if isinstance(meaning, exp.Expr):
                inner = self._text(meaning, columns)
                if inner is None:
                    return None
                text = f"({inner})"
            else:
                columns[meaning[0]] = meaning[1]
                text = quote(meaning[0])
            edits.append(Edit(*name_span(column), (text,)))
        return self._context.text.with_edits(statement.span(node), edits)
