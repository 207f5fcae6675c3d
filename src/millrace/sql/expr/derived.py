"""Expressions over one relation as columns of it, so that a block can join and compare by them.

Tasks compute such a column where they read the files themselves and have Spark's result exactly; else Spark
does where it reads the relation for a block. So it is computed for rows for which Spark, joining in an order
of its own, may not have come to it. That must not fail: only what cannot raise is taken, and in ANSI mode
arithmetic as ``try_add`` and its kin, which give null where the sum has no value of its type. A null joins
nothing, unless something is made of it: there arithmetic is not taken.

Constant intervals have no one length: days and months differ, by calendar and clock changes.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.values import Constant, Later, Read
from millrace.parquet.tables import ParquetTable
from millrace.spark.types import arrow_type
from millrace.sql.blocks.join_graph import DerivedColumn, JoinGraph, JoinInput
from millrace.sql.expr.numbers import Typed
from millrace.sql.expr.types import Field, field_of, type_within
from millrace.sql.expr.values import Meaning, ValueTranslator
from millrace.sql.planner.context import PlanContext
from millrace.sql.syntax.edits import Edit, Span
from millrace.sql.syntax.parse import Unsupported, unwrap

_TRIED: dict[type[exp.Expr], str] = {
    exp.Add: "try_add",
    exp.Sub: "try_subtract",
    exp.Mul: "try_multiply",
    exp.Div: "try_divide",
    exp.Mod: "try_mod",
}
_TEXTS = (
    exp.Lower, exp.Upper, exp.Trim, exp.Substring, exp.Left, exp.Right, exp.Concat, exp.DPipe, exp.Replace,
    exp.Reverse, exp.Initcap,
)  # fmt: skip
_OF_DATES = (exp.Year, exp.Month, exp.Day, exp.Quarter, exp.WeekOfYear, exp.DayOfWeek, exp.DayOfYear)
_DATES = (exp.AddMonths, exp.TsOrDsAdd, exp.DateAdd, exp.DateSub, exp.DateTrunc)
_ANY_OF = (exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least)
_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ)
_NOT_STRICT = (*_ANY_OF, exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ)
"""What makes something of a null, so that one in the place of an error would join after all."""

_DAY = 86_400_000_000
_FIXED = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
"""Time zones without clock changes."""

_NUMBER, _TEXT, _DATE, _TIME, _TRUTH, _OTHER = "number", "text", "date", "time", "truth", "other"


class DerivedColumns:
    """The computed columns of one FROM clause.

    Args:
        graph: The clause; its members get the columns.
        direct: Whether relations that a block would scan itself may get some that only Spark computes: Spark
            reads them then.
    """

    def __init__(self, graph: JoinGraph, *, direct: bool) -> None:
        self._graph = graph
        self._context = graph.context
        self._direct = direct

    def column(self, node: exp.Expr) -> tuple[str, Field] | None:
        """Return an expression as a column: a relation's alias and a field; None where it cannot be one."""
        node = unwrap(node)
        reads, foreign = self._graph.reads(node)
        statement = self._context.statement
        if len(reads) != 1 or foreign or not statement.has_span(node):
            return None
        member = self._graph.inputs[next(iter(reads))]
        scan = None if member.table is None else member.table.parquet
        if member.lookup or self._context.volatility.volatile(node):
            return None
        edits = member.renamings(self._context, node)
        if edits is None:
            return None
        # Without ANSI arithmetic never raises: what overflows begins again at the other end.
        tried = list(self._tried(node, member))
        # What a task computes cannot overflow.
        certain = not tried or all(_is_strict(part) for part in node.find_all(*_TRIED))
        text = self._context.text.with_edits(statement.span(node), [*edits, *tried])
        same = (each for each in member.computed if each.text == text and (certain or each.value is not None))
        known = next((each.field for each in same), None)
        if known is None:
            found = None if scan is None else self._in_task(scan, node)
            if found is None and certain and (scan is not None or self._is_stream(member)):
                found = self._later(node)
            value = None if found is None else found.value
            if found is not None:
                known = field_of(t.StructField("", found.type))
            elif certain and self._kind(node, member) is not None and (self._direct or scan is None):
                known = self._described(member, text)
            if known is None:
                return None
            known = replace(known, name=self._unlike(member, f"({self._context.shown(node)})"))
            member.computed.append(
                DerivedColumn(known, text, value, bool(tried) and self._context.settings.ansi)
            )
        return member.alias, known

    @staticmethod
    def _unlike(member: JoinInput, shown: str) -> str:
        """Return a name that no column has; letter case does not tell columns apart."""
        taken = {f.name.lower() for f in member.every}
        while shown.lower() in taken:
            shown += "'"
        return shown

    def _in_task(self, table: ParquetTable, node: exp.Expr) -> Typed | None:
        """Return an expression as the tasks compute it, None where only Spark does."""

        def meaning(column: exp.Column) -> Meaning | None:
            found = self._graph.lookup(column)
            return None if found is None else (found[1].name, found[1])

        found = ValueTranslator(self._context, meaning, table.ends).of(node)
        # A constant, or a column alone, is nothing to compute.
        return None if found is None or isinstance(found.value, Read | Constant) else found

    def _is_stream(self, member: JoinInput) -> bool:
        return self._context.is_streaming(member.relation.node)

    def _later(self, node: exp.Expr) -> Typed | None:
        """Return a time a constant time later or earlier; null, which joins nothing, if there is none."""
        parts = shifted(node)
        if parts is None:
            return None
        time, interval, sign = parts
        found = self._graph.lookup(time) if isinstance(time, exp.Column) else None
        if found is None or not isinstance(found[1].type, t.TimestampType | t.TimestampNTZType):
            return None
        length = exact_length_of(self._context, interval)
        if length is None:
            return None
        kind = arrow_type(found[1].type)
        return Typed(Later(Read(found[1].name, kind), sign * length, kind), found[1].type)

    def _described(self, member: JoinInput, text: str) -> Field | None:
        """Return the type of a computed column, as Spark gives it."""
        try:
            whole = self._context.whole(member.relation, self._context.text.bound)
            schema = self._context.schema(member.scan(whole, [text]))
        except (PySparkException, Unsupported):
            return None
        found = field_of(schema.fields[0])
        return found if found.comparable else None

    def _tried(self, node: exp.Expr, member: JoinInput) -> Iterable[Edit]:
        """Yield what makes the arithmetic in an expression give null instead of raising."""
        for part in node.walk():
            name = _TRIED.get(type(part))
            if name is None:
                continue
            if isinstance(unwrap(part.expression), exp.Interval):
                if self._kind(part.this, member) != _TIME:
                    continue
            elif not self._context.settings.ansi:
                continue
            whole, left, right = map(self._span, (part, part.this, part.expression))
            if whole is not None and left is not None and right is not None:
                yield Edit(*whole, (f"{name}(", left, ", ", right, ")"))

    def _span(self, node: exp.Expr) -> Span | None:
        """Return the characters of an operand, also of the ``a + b`` in ``a + b + c``."""
        statement = self._context.statement
        if statement.has_span(node):
            return statement.span(node)
        if type(node) not in _TRIED:
            return None
        left, right = self._span(node.this), self._span(node.expression)
        return None if left is None or right is None else (left[0], right[1])

    # What cannot raise

    def _kind(self, node: exp.Expr, member: JoinInput) -> str | None:
        """Return what kind of value an expression has, None where it may raise or is not known."""
        node = unwrap(node)

        def kinds(parts: Iterable[exp.Expr | None]) -> set[str | None]:
            return {self._kind(part, member) for part in parts if part is not None}

        match node:
            case exp.Column():
                return self._column_kind(node, member)
            case exp.Literal():
                return _TEXT if node.is_string else _NUMBER
            case exp.Add() | exp.Sub() if isinstance(unwrap(node.expression), exp.Interval):
                kind = _one(kinds([node.this]))
                return kind if kind in (_DATE, _TIME) else None
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.Mod():
                spans = map(self._span, (node, node.this, node.expression))
                return _NUMBER if all(spans) and kinds([node.this, node.expression]) == {_NUMBER} else None
            case exp.Cast() if node.to.this == exp.DType.TEXT and not node.to.expressions:
                return _TEXT if _one(kinds([node.this])) else None
            case exp.Length():
                return _NUMBER if kinds([node.this]) == {_TEXT} else None
            case exp.If():
                shown = kinds([node.args.get("true"), node.args.get("false")])
                return _one(shown) if kinds([node.this]) == {_TRUTH} else None
            case exp.Case():
                subject, whens = node.this, node.args["ifs"]
                shown = kinds([*(each.args.get("true") for each in whens), node.args.get("default")])
                tests = kinds([subject, *(each.this for each in whens)])
                fits = tests == {_TRUTH} if subject is None else _one(tests) is not None
                return _one(shown) if fits else None
            case exp.Is():
                null = isinstance(node.expression, exp.Null)
                return _TRUTH if null and None not in kinds([node.this]) else None
            case exp.Not() | exp.And() | exp.Or():
                return _TRUTH if kinds([node.this, node.args.get("expression")]) == {_TRUTH} else None
        return self._kind_of_call(node, kinds)

    def _kind_of_call(
        self, node: exp.Expr, kinds: Callable[[Iterable[exp.Expr | None]], set[str | None]]
    ) -> str | None:
        parts = list(node.iter_expressions())
        if isinstance(node, _COMPARED):
            return _TRUTH if _one(kinds([node.this, node.expression])) else None
        if isinstance(node, _ANY_OF):
            return _one(kinds(parts))
        if isinstance(node, _TEXTS):
            texts = [part for part in parts if not (part.is_int and isinstance(part, exp.Literal))]
            return _TEXT if kinds(texts) == {_TEXT} else None
        if isinstance(node, _OF_DATES):
            return _NUMBER if kinds([_of_date(node.this)]) == {_DATE} else None
        if isinstance(node, _DATES):
            rest = [part for part in parts if part is not node.this and not isinstance(part, exp.Var)]
            fits = all(isinstance(node, exp.DateTrunc) or _is_count(part) for part in rest)
            return _DATE if fits and kinds([_of_date(node.this)]) == {_DATE} else None
        return None

    def _column_kind(self, node: exp.Column, member: JoinInput) -> str | None:
        found = self._context.names.find(node)
        if found is None or found.match is None or len(found.match.attribute.sources) != 1:
            return None
        path = [part.name for part in node.parts[len(node.parts) - found.match.nested :]]
        kind = type_within(member.columns[found.match.attribute.sources[0][1]].type, path)
        if isinstance(kind, t.NumericType):
            return _NUMBER
        if isinstance(kind, t.StringType):
            return _TEXT if kind == t.StringType() else None
        if isinstance(kind, t.TimestampType | t.TimestampNTZType):
            return _TIME
        return _DATE if isinstance(kind, t.DateType) else _OTHER


def _is_strict(node: exp.Expr) -> bool:
    """Tell whether a null in an expression's place leaves the condition that it is in unknown."""
    above = node.parent
    while above is not None and not isinstance(above, exp.Where | exp.Join | exp.Select):
        asked = isinstance(above, exp.Case | exp.If) and above.this is node
        if asked or isinstance(above, _NOT_STRICT):
            return False
        node, above = above, above.parent
    return True


def _one(kinds: set[str | None]) -> str | None:
    """Return the kind that all have, None where they differ or one is not known or only read."""
    (kind,) = kinds if len(kinds) == 1 else (None,)
    return None if kind == _OTHER else kind


def _of_date(node: exp.Expr) -> exp.Expr:
    return node.this if isinstance(node, exp.TsOrDsToDate) else node


def _is_count(node: exp.Expr) -> bool:
    """Tell whether an expression is a whole number as written, perhaps negated."""
    return all(isinstance(part, exp.Literal | exp.Neg | exp.Paren | exp.Mul) for part in node.walk()) and all(
        part.is_int for part in node.find_all(exp.Literal)
    )


def shifted(node: exp.Expr) -> tuple[exp.Expr, exp.Expr, int] | None:
    """Return what a sum or a difference adds an interval to, the interval, and 1 or -1; None for all else."""
    if not isinstance(node, exp.Add | exp.Sub):
        return None
    time, interval = unwrap(node.this), unwrap(node.expression)
    if isinstance(time, exp.Interval) and isinstance(node, exp.Add):
        time, interval = interval, time
    return time, interval, 1 if isinstance(node, exp.Add) else -1


def length_of(context: PlanContext, node: exp.Expr) -> tuple[int, int] | None:
    """Return the shortest and the longest time that an interval can be, microseconds.

    None if it is not one, or so long that there are no times after it.

    Spark is asked for each day of thirty years, in the session's time zone, and once for each interval.
    """
    if not isinstance(node, exp.Interval) or not context.statement.has_span(node):
        return None
    text = context.text.bound(context.statement.span(node))
    days = "sequence(TIMESTAMP'2000-01-01 00:00:00', TIMESTAMP'2030-01-01 00:00:00', INTERVAL 1 DAY)"
    lengths = f"transform({days}, d -> unix_micros(try_add(d, {text})) - unix_micros(d))"
    found = "array_min(lengths), array_max(lengths), exists(lengths, each -> each IS NULL)"
    row = context.frames.rows(f"SELECT {found} FROM (SELECT {lengths} AS lengths)")[0]
    return None if row[2] else (int(row[0]), int(row[1]))


def exact_length_of(context: PlanContext, node: exp.Expr) -> int | None:
    """Return how long an interval is after any time, microseconds; None if that is not always the same."""
    length = length_of(context, node)
    if length is None or length[0] != length[1]:
        return None
    # A time of day has no part that follows the calendar, nor have days where all have 24 hours. Four years
    # would be as long as each other in these thirty years, and not around 2100.
    most = 28 * _DAY if context.settings.time_zone in _FIXED else _DAY
    return length[0] if abs(length[0]) < most else None
