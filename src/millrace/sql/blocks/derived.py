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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.plan.expressions import Column, ColumnRef, Literal
from millrace.parquet.tables import ParquetTable
from millrace.sql.blocks.join_graph import DerivedColumn, JoinGraph, JoinInput
from millrace.sql.context import PlanContext
from millrace.sql.expr.functions import (
    ARITHMETIC,
    DATE,
    FUNCTIONS,
    NUMBER,
    OTHER,
    TEXT,
    TIME,
    TRUTH,
    Family,
    Function,
    Typed,
    branches_of,
    family_of,
)
from millrace.sql.expr.translate import Translator
from millrace.sql.expr.types import AliasedField, Field, field_of, type_within
from millrace.sql.syntax.edits import Edit, Span
from millrace.sql.syntax.parse import Unsupported, unwrap

_DAY = 86_400_000_000
_FIXED = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
"""Time zones without clock changes."""


class DerivedColumns:
    """The computed columns of one join graph, whose inputs get them.

    With ``direct`` relations that a block would scan itself may get some that only Spark computes: Spark
    reads them then.
    """

    def __init__(self, graph: JoinGraph, *, direct: bool) -> None:
        self._graph = graph
        self._context = graph.context
        self._direct = direct

    def column(self, node: exp.Expr) -> AliasedField | None:
        """Return an expression as a column: a relation's alias and a field; None where it cannot be one."""
        node = unwrap(node)
        reads, foreign = self._graph.reads(node)
        statement = self._context.statement
        if len(reads) != 1 or foreign or not statement.has_span(node):
            return None
        relation = self._graph.inputs[next(iter(reads))]
        if relation.lookup or self._context.determinism.volatile(node):
            return None
        edits = relation.renamings(self._context, node)
        if edits is None:
            return None
        # Without ANSI arithmetic never raises: what overflows begins again at the other end.
        tried = list(self._tried(node, relation))
        # What a task computes cannot overflow.
        is_certain = not tried or all(map(_leaves_unknown, node.find_all(*ARITHMETIC)))
        text = self._context.text.with_edits(statement.span(node), [*edits, *tried])
        for column in relation.computed:
            if column.text == text and (is_certain or column.value is not None):
                return relation.alias, column.field
        table = None if relation.table is None else relation.table.parquet
        typed = None if table is None else self._in_task(table, node)
        by_task = table is not None or self._context.is_streaming(relation.relation.node)
        if typed is None and is_certain and by_task:
            typed = self._later(node)
        field, value = None, None
        if typed is not None:
            field, value = field_of(t.StructField("", typed.type)), typed.value
        elif is_certain and (self._direct or table is None) and self._family(node, relation) is not None:
            field = self._described(relation, text)
        if field is None:
            return None
        name, taken = f"({self._context.shown(node)})", {f.name.lower() for f in relation.every}
        while name.lower() in taken:  # letter case does not tell columns apart
            name += "'"
        field = replace(field, name=name)
        hides_errors = bool(tried) and self._context.settings.ansi
        relation.computed.append(DerivedColumn(field, text, value, hides_errors))
        return relation.alias, field

    def _in_task(self, table: ParquetTable, node: exp.Expr) -> Typed | None:
        """Return an expression as the tasks compute it, None where only Spark does."""

        def lookup(name: exp.Column) -> AliasedField | None:
            column = self._graph.column(name)
            return None if column is None else ("", column[1])

        typed = Translator(self._context, lookup, ends=table.ends).value(node)
        # A constant, or a column alone, is nothing to compute.
        return None if typed is None or isinstance(typed.value, Column | Literal) else typed

    def _later(self, node: exp.Expr) -> Typed | None:
        """Return a time a constant time later or earlier; null, which joins nothing, if there is none."""
        time = find_shifted(self._graph, node)
        # A time of day has no part that follows the calendar, nor have days where all have 24 hours. Four
        # years would be as long as each other in these thirty years, and not around 2100.
        most = 28 * _DAY if self._context.settings.time_zone in _FIXED else _DAY
        # Between two intervals there may be no time.
        is_plain = len([*node.find_all(exp.Interval)]) == 1
        if time is None or not is_plain or time.least != time.most or abs(time.most) >= most:
            return None
        value = Column(ColumnRef("", time.field.name))
        return Typed.of("timestamp_add", time.field.type, value, options=(time.most,))

    def _described(self, join_input: JoinInput, text: str) -> Field | None:
        """Return the type of a computed column, as Spark gives it."""
        try:
            whole = self._context.whole(join_input.relation, self._context.text.bound)
            schema = self._context.schema(join_input.scan(whole, [text]))
        except (PySparkException, Unsupported):
            return None
        field = field_of(schema.fields[0])
        return field if field.comparable else None

    def _tried(self, node: exp.Expr, join_input: JoinInput) -> Iterable[Edit]:
        """Yield what makes the arithmetic in an expression give null instead of raising."""
        for part in node.walk():
            function = FUNCTIONS.get(type(part))
            if function is None or function.tried is None:
                continue
            if isinstance(unwrap(part.expression), exp.Interval):
                if self._family(part.this, join_input) is not TIME:
                    continue
            elif not self._context.settings.ansi:
                continue
            whole, left, right = map(self._span, (part, part.this, part.expression))
            if whole is not None and left is not None and right is not None:
                yield Edit(*whole, (f"{function.tried}(", left, ", ", right, ")"))

    def _span(self, node: exp.Expr) -> Span | None:
        """Return the characters of an operand, also of the ``a + b`` in ``a + b + c``."""
        statement = self._context.statement
        if statement.has_span(node):
            return statement.span(node)
        if not isinstance(node, ARITHMETIC):
            return None
        left, right = self._span(node.this), self._span(node.expression)
        return None if left is None or right is None else (left[0], right[1])

    # What cannot raise

    def _family(self, node: exp.Expr, join_input: JoinInput) -> Family | None:
        """Return the family of an expression's type, None where it may raise or is not known."""
        node = unwrap(node)

        def common(*parts: exp.Expr | None) -> Family | None:
            families = {self._family(part, join_input) for part in parts if part is not None}
            return None if len(families) > 1 or families == {OTHER} else next(iter(families), None)

        match node:
            case exp.Column():
                return self._column_family(node, join_input)
            case exp.Literal():
                return TEXT if node.is_string else NUMBER
            case exp.Cast() if node.to.this == exp.DType.TEXT and not node.to.expressions:
                return TEXT if common(node.this) else None
            case exp.Is():
                is_null = isinstance(node.expression, exp.Null)
                return TRUTH if is_null and self._family(node.this, join_input) else None
            case exp.Case() | exp.If():
                branches, default = branches_of(node)
                subject = node.this if isinstance(node, exp.Case) else None
                tests = common(subject, *(branch.this for branch in branches))
                fits = tests is TRUTH if subject is None else tests is not None
                return common(*(branch.args.get("true") for branch in branches), default) if fits else None
            case exp.Add() | exp.Sub() if isinstance(unwrap(node.expression), exp.Interval):
                family = common(node.this)
                return family if family in (DATE, TIME) else None
        function = FUNCTIONS.get(type(node))
        if function is None:
            return None
        if function.tried and not all(map(self._span, (node, node.this, node.expression))):
            return None
        family = common(*_arguments(node, function))
        return (function.gives or family) if family and function.takes in (None, family) else None

    def _column_family(self, node: exp.Column, join_input: JoinInput) -> Family | None:
        match = self._context.names.match(node)
        if match is None or match.attribute.relation is None:
            return None
        path = [part.name for part in node.parts[len(node.parts) - match.nested :]]
        return family_of(type_within(join_input.columns[match.attribute.sources[0][1]].type, path))


def _arguments(node: exp.Expr, function: Function) -> Iterator[exp.Expr]:
    """Yield the arguments that are of the family which a function takes; not counts and units beside them."""
    for part in node.iter_expressions():
        if function.takes is DATE and part is not node.this:
            if isinstance(node, exp.DateTrunc) or isinstance(part, exp.Var) or _is_count(part):
                continue
        elif function.takes is TEXT and part.is_int and isinstance(part, exp.Literal):
            continue
        yield part.this if isinstance(part, exp.TsOrDsToDate) else part


def _leaves_unknown(node: exp.Expr) -> bool:
    """Tell whether a null in an expression's place leaves the condition that it is in unknown."""
    above = node.parent
    while above is not None and not isinstance(above, exp.Where | exp.Join | exp.Select):
        function = FUNCTIONS.get(type(above))
        is_tested = isinstance(above, exp.Case | exp.If) and above.this is node
        if is_tested or (function is not None and not function.is_strict):
            return False
        node, above = above, above.parent
    return True


def _is_count(node: exp.Expr) -> bool:
    """Tell whether an expression is a whole number as written, perhaps negated."""
    return all(isinstance(part, exp.Literal | exp.Neg | exp.Paren | exp.Mul) for part in node.walk()) and all(
        part.is_int for part in node.find_all(exp.Literal)
    )


@dataclass(frozen=True)
class Shifted:
    """A column of times, and what is added to it: at least, and at most, microseconds."""

    alias: str
    field: Field
    least: int = 0
    most: int = 0


def find_shifted(graph: JoinGraph, node: exp.Expr) -> Shifted | None:
    """Return a column to or from which constant intervals are added or taken; None for anything else."""
    node = unwrap(node)
    if isinstance(node, exp.Column):
        column = graph.column(node)
        is_time = column is not None and isinstance(column[1].type, t.TimestampType | t.TimestampNTZType)
        return Shifted(*column) if column is not None and is_time else None
    if not isinstance(node, exp.Add | exp.Sub):
        return None
    time, interval = unwrap(node.this), unwrap(node.expression)
    if isinstance(time, exp.Interval) and isinstance(node, exp.Add):
        time, interval = interval, time
    base = find_shifted(graph, time)
    length = length_of(graph.context, interval) if base is not None else None
    if base is None or length is None:
        return None
    least, most = length if isinstance(node, exp.Add) else (-length[1], -length[0])
    return replace(base, least=base.least + least, most=base.most + most)


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
    bounds = "array_min(lengths), array_max(lengths), exists(lengths, each -> each IS NULL)"
    row = context.frames.rows(f"SELECT {bounds} FROM (SELECT {lengths} AS lengths)")[0]
    return None if row[2] else (int(row[0]), int(row[1]))
