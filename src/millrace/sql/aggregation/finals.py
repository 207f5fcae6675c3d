"""What stands for an aggregate's call once its rows come as partial results, with the call's own type.

The sum of a CASE is linear in its branches: each has a partial result of its own, and the conditions stay as
they are, over columns that the tasks group by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.aggregates import How
from millrace.engine.expressions import Literal, Value
from millrace.sql.aggregation.calls import Aggregate
from millrace.sql.expr.functions import Typed, cast, holds
from millrace.sql.expr.translate import Translator
from millrace.sql.planner.context import PlanContext
from millrace.sql.syntax.edits import Part
from millrace.sql.syntax.parse import unwrap

PartialOf = Callable[[How, Value | None, t.DataType], str]

_MOST_DIGITS = 38
# Spark rounds the quotient of an average once; a division in SQL is rounded first to at least 9 digits more
# than are kept. Up to so many digits, and 10^9 rows in a group, no quotient is near enough to a tie to tell.
_MOST_AVERAGED = 15


@dataclass(frozen=True)
class FinalAggregate:
    """What stands for a call.

    Attributes:
        parts: Its text.
        values: The expressions of the call that are computed in tasks.
    """

    parts: tuple[Part, ...]
    values: tuple[exp.Expr, ...] = ()


@dataclass(frozen=True)
class _Branch:
    """A branch of a CASE: its condition (None for ELSE), and its value (None for NULL)."""

    condition: exp.Expr | None
    value: exp.Expr | None


class FinalAggregates:
    """Rewrites calls.

    Args:
        context: The query.
        arguments: Translates their arguments.
        partial: Returns the name of a column of partial results.
    """

    def __init__(self, context: PlanContext, arguments: Translator, partial: PartialOf) -> None:
        self._statement = context.statement
        self._arguments = arguments
        self._partial = partial

    def of(self, call: Aggregate) -> FinalAggregate | None:
        """Return what stands for a call, None where only Spark computes it.

        Raises:
            Unsupported: A part of it is not known in the text.
        """
        if call.rows:
            return FinalAggregate(self._counted(call, (self._rows(),)))
        if call.argument is None:
            return None
        match call.kind:
            case "count":
                return self._tests(call, call.argument) if call.tests else self._count(call, call.argument)
            case "min" | "max":
                return self._extreme(call, call.argument)
            case "sum":
                return self._sum(call, call.argument)
            case "avg":
                return self._average(call, call.argument)
        return None

    # Counts

    def _rows(self) -> str:
        return self._partial("count", None, t.LongType())

    def _counted(self, call: Aggregate, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return ("coalesce(sum(", *parts, ")", *self._filter(call), ", 0L)")

    def _filter(self, call: Aggregate) -> tuple[Part, ...]:
        if call.condition is None:
            return ()
        return (" FILTER (WHERE ", self._statement.span(call.condition), ")")

    def _tests(self, call: Aggregate, condition: exp.Expr) -> FinalAggregate:
        return FinalAggregate(
            self._counted(call, ("CASE WHEN ", self._statement.span(condition), f" THEN {self._rows()} END"))
        )

    def _count(self, call: Aggregate, argument: exp.Expr) -> FinalAggregate | None:
        parts = self._counts(argument)
        return None if parts is None else FinalAggregate(self._counted(call, parts), self._values(argument))

    def _counts(self, argument: exp.Expr) -> tuple[Part, ...] | None:
        """Return what gives, for a partial row, how many of its rows have a value that is not null."""

        def count(node: exp.Expr) -> str | None:
            found = self._arguments.value(node)
            if found is None:
                return None
            if isinstance(found.value, Literal):
                return self._rows()
            return self._partial("count", found.value, t.LongType())

        return self._each(argument, count)

    # Extremes

    def _extreme(self, call: Aggregate, argument: exp.Expr) -> FinalAggregate | None:
        found = self._arguments.value(argument)
        if found is None or isinstance(found.type, t.CharType | t.VarcharType):
            return None
        how: How = "min" if call.kind == "min" else "max"
        name = self._partial(how, found.value, found.type)
        return FinalAggregate((f"{how}({name})", *self._filter(call)), (argument,))

    # Sums

    def _sum(self, call: Aggregate, argument: exp.Expr) -> FinalAggregate | None:
        kind = self._kind(argument)
        total = None if kind is None else total_type(kind)
        if kind is None or total is None:
            return None
        parts = self._summed(call, argument, kind, total)
        return None if parts is None else FinalAggregate(parts, self._values(argument))

    def _average(self, call: Aggregate, argument: exp.Expr) -> FinalAggregate | None:
        kind = self._kind(argument)
        if not isinstance(kind, t.NumericType):
            return None
        counts = self._counts(argument)
        if counts is None:
            return None
        total: t.DataType = t.DoubleType()
        result, count = "DOUBLE", "DOUBLE"
        if isinstance(kind, t.DecimalType):
            if kind.precision > _MOST_AVERAGED:
                return None
            total = t.DecimalType(kind.precision + 10, kind.scale)
            result, count = f"DECIMAL({kind.precision + 4}, {kind.scale + 4})", "DECIMAL(20, 0)"
        summed = self._summed(call, argument, kind, total)
        if summed is None:
            return None
        counted = ("CAST(sum(", *counts, ")", *self._filter(call), f" AS {count})")
        parts = ("CAST(try_divide(", *summed, ", ", *counted, f") AS {result})")
        return FinalAggregate(parts, self._values(argument))

    def _kind(self, argument: exp.Expr) -> t.DataType | None:
        """Return the type of a call's argument."""
        branches = _branches(argument)
        if branches is None:
            found = self._arguments.value(argument)
            return None if found is None else found.type
        return self._arguments.type_of_case([b.value for b in branches if b.value is not None])

    def _summed(
        self, call: Aggregate, argument: exp.Expr, kind: t.DataType, total: t.DataType
    ) -> tuple[Part, ...] | None:
        """Return the sum of an argument of some type, as a number of another."""
        conditional = _branches(argument) is not None
        shown = total.simpleString()

        def term(node: exp.Expr) -> str | None:
            found = self._arguments.value(node)
            if found is None or not _joins(found.type, kind):
                return None
            if isinstance(found.value, Literal) and found.value.value == 0:
                return f"CAST(0 AS {shown})"
            name = self._sum_of(found, total)
            return None if name is None else f"CAST({name} AS {shown})" if conditional else name

        parts = self._each(argument, term)
        if parts is None:
            return None
        parts = ("sum(", *parts, ")", *self._filter(call))
        plain = isinstance(total, t.LongType | t.DoubleType)
        return parts if plain else ("CAST(", *parts, f" AS {shown})")

    def _sum_of(self, found: Typed, total: t.DataType) -> str | None:
        """Return the partial sums of an argument."""
        if (
            isinstance(found.value, Literal)
            and found.value.value == 1
            and isinstance(found.type, t.IntegerType)
        ):
            return self._rows()
        wide = cast(found, t.DoubleType()) if isinstance(total, t.DoubleType) else found
        kind = None if wide is None else total_type(wide.type)
        return None if wide is None or kind is None else self._partial("sum", wide.value, kind)

    # CASE

    def _each(self, argument: exp.Expr, term: Callable[[exp.Expr], str | None]) -> tuple[Part, ...] | None:
        """Return a CASE with its values replaced, or the text for a value that is none."""
        branches = _branches(argument)
        if branches is None:
            single = term(argument)
            return None if single is None else (single,)
        node = unwrap(argument)
        subject = node.this if isinstance(node, exp.Case) else None
        parts: list[Part] = ["CASE "]
        if subject is not None:
            parts += [self._statement.span(subject), " "]
        for branch in branches:
            text = "NULL" if branch.value is None else term(branch.value)
            if text is None:
                return None
            if branch.condition is None:
                parts.append(f"ELSE {text} ")
            else:
                parts += ["WHEN ", self._statement.span(branch.condition), f" THEN {text} "]
        return (*parts, "END")

    def _values(self, argument: exp.Expr) -> tuple[exp.Expr, ...]:
        branches = _branches(argument)
        if branches is None:
            return (argument,)
        return tuple(branch.value for branch in branches if branch.value is not None)


def total_type(kind: t.DataType) -> t.DataType | None:
    """Return the type of a sum."""
    if isinstance(kind, t.DecimalType):
        return t.DecimalType(min(_MOST_DIGITS, kind.precision + 10), kind.scale)
    if isinstance(kind, t.IntegralType):
        return t.LongType()
    return t.DoubleType() if isinstance(kind, t.FractionalType) else None


def _branches(argument: exp.Expr) -> list[_Branch] | None:
    """Return the branches of a CASE or IF, None for another expression."""
    node = unwrap(argument)
    if isinstance(node, exp.Case):
        ifs, default = node.args["ifs"], node.args.get("default")
    elif isinstance(node, exp.If):
        ifs, default = [node], node.args.get("false")
    else:
        return None
    branches = [_Branch(each.this, _value(each.args.get("true"))) for each in ifs]
    return branches if default is None else [*branches, _Branch(None, _value(default))]


def _value(node: exp.Expr | None) -> exp.Expr | None:
    return None if node is None or isinstance(unwrap(node), exp.Null) else node


def _joins(kind: t.DataType, whole: t.DataType) -> bool:
    """Tell whether a branch's values are the same numbers in the type of the whole CASE."""
    if kind == whole:
        return True
    if isinstance(whole, t.DoubleType):
        return isinstance(kind, t.NumericType)
    if isinstance(whole, t.IntegralType):
        return isinstance(kind, t.IntegralType)
    return holds(whole, kind)
