"""Aggregates above a block that begin inside its tasks: a SELECT that groups is made to group partial rows.

The invariant: partial results of any split of the rows finish, in Spark, to what Spark's own aggregate gives.

The block's tasks group by every column that the text still reads; what reads them gives the same for all
rows of such a group, whatever it is: a grouping expression, a condition, the argument of a DISTINCT call.
Only calls of aggregates are replaced, each by one of the same type over partial results. So GROUP BY in all
its forms, HAVING, ORDER BY and windows over groups stay as they are.

Calls that stay as they are have to give the same for rows that are fewer but no others: ``max``, or anything
DISTINCT. The others are put together from partial results, with the call's own type. The sum of a CASE is
linear in its branches: each has a partial result of its own, and the conditions stay as they are, over
columns that the tasks group by.

The SELECT that groups is the block's own, or the one around a derived table that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal as OneOf

import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.aggregate import AggregateSpec, How, Partial
from millrace.engine.plan.expressions import ColumnRef, Literal, Value, columns_of
from millrace.spark.types import arrow_type
from millrace.sql.blocks.join_graph import JoinGraph
from millrace.sql.context import PlanContext
from millrace.sql.expr.functions import Typed, branches_of, cast, holds
from millrace.sql.expr.translate import Meaning, Translator
from millrace.sql.expr.types import MOST_DIGITS, Field
from millrace.sql.names import is_star
from millrace.sql.syntax.edits import Edit, Part, quote
from millrace.sql.syntax.parse import Unsupported, function_of, unwrap
from millrace.sql.syntax.scopes import Relation, Scope, cte_of, tables_in

Kind = OneOf["sum", "avg", "count", "count rows", "count true", "min", "max", "same"]

_CLAUSES = ("expressions", "group", "having", "order", "sort", "cluster", "distribute", "qualify", "windows")
"""The clauses of a SELECT that see its groups."""

_KINDS: dict[type[exp.Expr], Kind] = {
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Count: "count",
    exp.CountIf: "count true",
    exp.Min: "min",
    exp.Max: "max",
    exp.LogicalAnd: "min",
    exp.LogicalOr: "max",
}
_SAME = (
    exp.AnyValue, exp.ApproxDistinct, exp.ArgMax, exp.ArgMin, exp.BitwiseAndAgg, exp.BitwiseOrAgg,
    exp.Grouping, exp.GroupingId,
)  # fmt: skip
_COUNTS = ("count", "count rows", "count true")
_NAMED: dict[str, Kind] = {"mean": "avg", "every": "min", "some": "max"}
# A function that sqlglot does not know, and ``any(…)``, which it takes for that of ``= ANY (…)``.
_UNCERTAIN = (exp.Anonymous, exp.Any)
_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)

# Spark rounds the quotient of an average once; a division in SQL is rounded first to at least 9 digits more
# than are kept. Up to so many digits, and 10^9 rows in a group, no quotient is near enough to a tie to tell.
_MOST_AVERAGED = 15


# What a SELECT calls


@dataclass(frozen=True, eq=False)
class Aggregate:
    """A call of an aggregate, with its FILTER."""

    node: exp.Expr
    kind: Kind  # how it is put together from partial results; ``"same"`` for one that may stay as it is
    argument: exp.Expr | None = None  # its only argument, None where it has several, or counts rows
    condition: exp.Expr | None = None  # of its FILTER


def groups(select: exp.Select) -> bool:
    """Tell whether a SELECT gives out groups of rows, and not the rows."""
    if any(select.args.get(key) for key in ("group", "having", "distinct")):
        return True
    called = (_bare(node) for node in _find_calls(_clauses(select)))
    return any(isinstance(node, exp.AggFunc) or node.name.lower() in _NAMED for node in called)


def aggregates(select: exp.Select) -> list[Aggregate]:
    """Return the aggregates that a SELECT calls; Unsupported where one may not begin in tasks."""
    return [_read(node) for node in _find_calls(_clauses(select))]


def is_windowed(select: exp.Select) -> bool:
    """Tell whether a SELECT calls window functions, which see each row."""
    return any(isinstance(part, exp.Window) for node in _clauses(select) for part in node.walk())


def _clauses(select: exp.Select) -> Iterator[exp.Expr]:
    return (node for node in select.iter_expressions() if node.arg_key in _CLAUSES)


def _find_calls(nodes: Iterable[exp.Expr]) -> Iterator[exp.Expr]:
    """Yield the calls of what is an aggregate, or may be one, outside of subqueries."""
    for node in nodes:
        if isinstance(node, exp.Window):
            yield from _find_calls(_bare(node.this).iter_expressions())
            yield from _find_calls(part for part in node.iter_expressions() if part is not node.this)
        elif isinstance(node, (exp.AggFunc, *_WRAPPERS, *_UNCERTAIN)) and function_of(node) is None:
            yield node
        elif not isinstance(node, exp.Query):
            yield from _find_calls(node.iter_expressions())


def _read(node: exp.Expr) -> Aggregate:
    called, condition = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
    kind: Kind | None = "same" if type(called) in _SAME else _KINDS.get(type(called))
    if isinstance(called, exp.Anonymous):
        kind = _NAMED.get(called.name.lower())
    arguments = [*(called.expressions if isinstance(called, exp.Anonymous) else called.iter_expressions())]
    argument = arguments[0] if len(arguments) == 1 else None
    if isinstance(argument, exp.Distinct) and isinstance(called, exp.AggFunc):
        return Aggregate(node, "same")  # it takes every value once
    if kind is None:
        raise Unsupported(f"{_name(called)} may need every row")
    if kind == "count" and not called.expressions and isinstance(called.this, exp.Star):
        return Aggregate(node, "count rows", condition=condition)
    if argument is None and kind in ("sum", "avg", "count", "count true"):
        raise Unsupported(f"{_name(called)} of several arguments")
    return Aggregate(node, kind, argument, condition)


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, _WRAPPERS):
        node = node.this
    return node


def _name(node: exp.Expr) -> str:
    node = _bare(node)
    return (node.name if isinstance(node, exp.Anonymous) else type(node).__name__).lower()


BARS = ("group", "having", "distinct", "order", "sort", "cluster", "distribute", "qualify", "windows", "hint")
"""Clauses beside which a SELECT is more than its items, FROM and WHERE."""

Parts = tuple[Part, ...]


GroupingSite = tuple[Scope, Relation | None]
"""The SELECT that groups, and the derived table by which it reads the block's, if that is another one."""


class Aggregation:
    """The partial aggregation of one block; ``names`` is what it calls each column of its relations.

    Names of partial results begin with ``stem``.

    Attributes:
        consumed: Ids of the names in the block's SELECT that the rewritten text has no more.
        edits: Of the text, all but those of names that mean columns of the block.
        fields: The columns of partial results.

    Raises:
        Unsupported: It cannot be rewritten.
    """

    def __init__(
        self, graph: JoinGraph, site: GroupingSite, names: Mapping[ColumnRef, str], stem: str
    ) -> None:
        self._graph = graph
        self._context = graph.context
        self._span = graph.context.statement.span
        self._scope, self._through = site
        self._names = names
        self._stem = stem
        self._partials: dict[tuple[How, Value | None], Partial] = {}
        self._arguments = Translator(graph.context, self._meaning)
        self.edits: list[Edit] = []
        self.consumed: set[int] = set()
        self.fields: list[t.StructField] = []
        self._check()
        for call in aggregates(self._scope.select):
            if call.kind != "same":
                self._rewrite(call)
        if self._through is not None:
            self._narrow()

    @classmethod
    def of(
        cls, graph: JoinGraph, names: Mapping[ColumnRef, str], stem: str, *, alone: bool
    ) -> Aggregation | None:
        """Return how the rows of a FROM clause's only block are grouped above it, None where they are not.

        What else the clause joins to the block, it joins to each row by itself. So a partial row meets
        what the rows meet that it stands for. Raises Unsupported where only Spark groups them.
        """
        site = _grouping_site(graph.context, graph.scope)
        if site is None:
            return None
        if not alone:
            raise Unsupported("several blocks in one FROM clause")
        if not graph.source.whole:
            raise Unsupported("a RIGHT or FULL join above the block")
        return cls(graph, site, names, stem)

    @property
    def reads(self) -> set[str]:
        values = (partial.value for partial in self._partials.values())
        return {ref.column for value in values if value is not None for ref in columns_of(value)}

    @property
    def only_count(self) -> str | None:
        """The number of rows, by its name in the text, if that is all that the tasks aggregate.

        They give it out for no rows too, which would be a group, or a row to a call that stays as it is, and
        to what the block meets above it.
        """
        select = self._scope.select
        counts = not select.args.get("group") and all(call.kind in _COUNTS for call in aggregates(select))
        return self._row_count() if counts and [*self._partials] == [("count", None)] else None

    def check_keys(self, keys: Mapping[ColumnRef, Field]) -> None:
        """Raise Unsupported for columns by which tasks do not group, or where nothing is left of a row."""
        if not keys and not self.fields:
            raise Unsupported("nothing is read of its rows but that there are some")
        for ref, field in keys.items():
            if field.arrow is None or pa.types.is_nested(field.arrow):
                raise Unsupported(f"tasks do not group by {ref}, of type {field.type.simpleString()}")

    def spec(self, keys: Mapping[ColumnRef, str]) -> AggregateSpec:
        """Return what tasks do, from the columns that the text still reads."""
        return AggregateSpec(tuple(keys.values()), tuple(self._partials.values()))

    def _check(self) -> None:
        select, context = self._scope.select, self._context
        selects = (self._graph.scope.select, select)
        if any(part.args.get("hint") for part in selects):
            raise Unsupported("a hint")
        if any(map(context.determinism.volatile, selects)):
            raise Unsupported("a function that may differ between two calls")
        if is_windowed(select) and not (select.args.get("group") or aggregates(select)):
            raise Unsupported("window functions see every row")
        for column in select.find_all(exp.Column):
            resolved = context.names.find(column)
            is_ours = resolved is not None and resolved.scope is self._scope
            called = column.find_ancestor(exp.AggFunc, *_UNCERTAIN, exp.Query)
            is_below = column.find_ancestor(exp.Query) is not select
            if is_ours and is_below and not isinstance(called, exp.Query):
                raise Unsupported("a subquery aggregates columns from outside of it")

    def _meaning(self, column: exp.Column) -> Meaning | None:
        attribute = self._context.names.attribute(column)
        if attribute is None:
            return None
        if self._through is not None and attribute.relation is self._through:
            item: exp.Expr = self._graph.scope.select.expressions[attribute.sources[0][1]].unalias()
            return item
        owned = self._graph.find_column(attribute)
        name = None if owned is None else self._names.get(ColumnRef(owned[0], owned[1].name))
        # A relation that a block could take may stay beside this one.
        return None if owned is None or name is None else ("", replace(owned[1], name=name))

    def _rewrite(self, call: Aggregate) -> None:
        """Replace a call, or leave it where it may stay; raises Unsupported where it is neither."""
        parts, computed = self._final(call) if self._context.statement.has_span(call.node) else (None, ())
        if parts is not None:
            self.edits.append(Edit(*self._span(call.node), parts))
            self.consumed |= {id(c) for node in computed for c in node.find_all(exp.Column)}
        elif call.kind not in ("min", "max"):
            raise Unsupported(f"only Spark computes {self._context.shown(call.node)}")

    def _narrow(self) -> None:
        """Let the derived table give partial results instead of what only the replaced calls read."""
        context, inner = self._context, self._graph.scope.select
        outer, span = self._scope.select, self._span
        read = (context.names.match(c) for c in outer.find_all(exp.Column) if id(c) not in self.consumed)
        sources = [source for match in read if match is not None for source in match.attribute.sources]
        kept = {place for relation, place in sources if relation is self._through}
        names = context.names.results(self._graph.scope)
        is_read = all(map(context.statement.has_span, inner.expressions))
        if not is_read or len(names) != len(inner.expressions):
            raise Unsupported("a derived table in a form that Millrace does not read")
        for place, (item, result) in enumerate(zip(inner.expressions, names, strict=True)):
            # A subquery may have a block of its own, whose figures somebody asks for.
            if place in kept or result.name is None or item.find(exp.Query) is not None:
                continue
            self.consumed |= {id(column) for column in item.find_all(exp.Column)}
            self.edits.append(Edit(*span(item), (f"NULL AS {quote(result.name)}",)))
        if self._partials:
            end = span(inner.expressions[-1])[1]
            added = ", ".join(quote(partial.name) for partial in self._partials.values())
            self.edits.append(Edit(end, end, (f", {added}",)))

    # What stands for a call

    def _partial(self, how: How, value: Value | None, kind: t.DataType) -> str:
        """Return a column of partial results, by its name in the text."""
        partial = self._partials.get((how, value))
        if partial is None:
            partial = Partial(f"{self._stem}_p{len(self._partials)}", how, value, arrow_type(kind))
            self._partials[how, value] = partial
            self.fields.append(t.StructField(partial.name, kind))
        return quote(partial.name)

    def _row_count(self) -> str:
        return self._partial("count", None, t.LongType())

    def _final(self, call: Aggregate) -> tuple[Parts | None, Sequence[exp.Expr]]:
        """Return the text that stands for a call, and the expressions of the call that tasks compute.

        None where only Spark computes it; raises Unsupported where a part of it is not known in the text.
        """
        argument = call.argument
        if call.kind == "count rows":
            return self._sum_counts(call, (self._row_count(),)), ()
        if argument is None:
            return None, ()
        branches = _branches(argument)
        values = [argument] if branches is None else [value for _, value in branches if value is not None]
        match call.kind:
            case "count true":
                tested = ("CASE WHEN ", self._span(argument), f" THEN {self._row_count()} END")
                return self._sum_counts(call, tested), ()
            case "count":
                counts = self._counts(argument)
                return None if counts is None else self._sum_counts(call, counts), values
            case "sum":
                return self._sum(call, argument), values
            case "avg":
                return self._average(call, argument), values
        typed = self._arguments.value(argument)
        if typed is None or isinstance(typed.type, t.CharType | t.VarcharType):
            return None, ()
        how: How = "min" if call.kind == "min" else "max"
        extreme = f"{how}({self._partial(how, typed.value, typed.type)})"
        return (extreme, *self._filter(call)), (argument,)

    def _sum_counts(self, call: Aggregate, parts: Parts) -> Parts:
        return ("coalesce(sum(", *parts, ")", *self._filter(call), ", 0L)")

    def _filter(self, call: Aggregate) -> Parts:
        return () if call.condition is None else (" FILTER (WHERE ", self._span(call.condition), ")")

    def _counts(self, argument: exp.Expr) -> Parts | None:
        """Return what gives, for a partial row, how many of its rows have a value that is not null."""

        def count(node: exp.Expr) -> str | None:
            typed = self._arguments.value(node)
            if typed is None or isinstance(typed.value, Literal):
                return None if typed is None else self._row_count()
            return self._partial("count", typed.value, t.LongType())

        return self._case(argument, count)

    def _average(self, call: Aggregate, argument: exp.Expr) -> Parts | None:
        kind = self._kind(argument)
        counts = self._counts(argument) if isinstance(kind, t.NumericType) else None
        if kind is None or counts is None:
            return None
        total: t.DataType = t.DoubleType()
        result, count = "DOUBLE", "DOUBLE"
        if isinstance(kind, t.DecimalType):
            if kind.precision > _MOST_AVERAGED:
                return None
            total = t.DecimalType(kind.precision + 10, kind.scale)
            result, count = f"DECIMAL({kind.precision + 4}, {kind.scale + 4})", "DECIMAL(20, 0)"
        summed = self._sum(call, argument, total)
        if summed is None:
            return None
        counted = ("CAST(sum(", *counts, ")", *self._filter(call), f" AS {count})")
        return ("CAST(try_divide(", *summed, ", ", *counted, f") AS {result})")

    def _kind(self, argument: exp.Expr) -> t.DataType | None:
        """Return the type of a call's argument, None where only Spark computes it."""
        branches = _branches(argument)
        if branches is None:
            typed = self._arguments.value(argument)
            return None if typed is None else typed.type
        values = (value for _, value in branches if value is not None)
        return self._arguments.common_type([*map(self._arguments.value, values)])

    def _sum(self, call: Aggregate, argument: exp.Expr, total: t.DataType | None = None) -> Parts | None:
        """Return the sum of an argument, of a type if not of Spark's own."""
        kind, conditional = self._kind(argument), _branches(argument) is not None
        total = total or _total_type(kind)
        if kind is None or total is None:
            return None
        shown = total.simpleString()

        def term(node: exp.Expr) -> str | None:
            typed = self._arguments.value(node)
            if typed is None or not _joins(typed.type, kind):
                return None
            if isinstance(typed.value, Literal) and typed.value.value == 0:
                return f"CAST(0 AS {shown})"
            name = self._sum_of(typed, total)
            return None if name is None else f"CAST({name} AS {shown})" if conditional else name

        parts = self._case(argument, term)
        if parts is None:
            return None
        parts = ("sum(", *parts, ")", *self._filter(call))
        plain = isinstance(total, t.LongType | t.DoubleType)
        return parts if plain else ("CAST(", *parts, f" AS {shown})")

    def _sum_of(self, typed: Typed, total: t.DataType) -> str | None:
        constant = typed.value if isinstance(typed.value, Literal) else None
        if constant is not None and constant.value == 1 and isinstance(typed.type, t.IntegerType):
            return self._row_count()
        wide = cast(typed, t.DoubleType()) if isinstance(total, t.DoubleType) else typed
        kind = None if wide is None else _total_type(wide.type)
        return None if wide is None or kind is None else self._partial("sum", wide.value, kind)

    def _case(self, argument: exp.Expr, term: Callable[[exp.Expr], str | None]) -> Parts | None:
        """Return a CASE with its values replaced, or the text for a value that is none."""
        branches = _branches(argument)
        if branches is None:
            single = term(argument)
            return None if single is None else (single,)
        node = unwrap(argument)
        subject = node.this if isinstance(node, exp.Case) else None
        parts: list[Part] = ["CASE "]
        if subject is not None:
            parts += [self._span(subject), " "]
        for condition, value in branches:
            text = "NULL" if value is None else term(value)
            if text is None:
                return None
            parts += ["ELSE "] if condition is None else ["WHEN ", self._span(condition), " THEN "]
            parts.append(f"{text} ")
        return (*parts, "END")


def _grouping_site(context: PlanContext, scope: Scope) -> GroupingSite | None:
    """Return the SELECT that groups the rows of another; Unsupported where something stands in between."""
    if groups(scope.select):
        return scope, None
    site = _reader(context, scope.select)
    if site is None or not groups(site[0].select):
        return None
    _check_plain(context, scope.select)
    reader, through = site
    clause = reader.clause
    if clause is None or len(clause.items) != 1 or clause.views:
        raise Unsupported("a join stands between the block and the groups")
    if through.columns or not through.plain:
        raise Unsupported("the derived table gives other names to its columns")
    JoinGraph(context, reader, clause).check_certain()
    return site


def _reader(context: PlanContext, select: exp.Select) -> tuple[Scope, Relation] | None:
    """Return the only SELECT that reads another as a derived table or common table expression."""
    holder, readers = select.parent, list[exp.Expr]()
    if isinstance(holder, exp.Subquery) and {k for k, v in holder.args.items() if v} <= {"this", "alias"}:
        readers = [holder]
    elif isinstance(holder, exp.CTE) and holder.args.get("alias") and not holder.alias_column_names:
        assert context.statement.root is not None
        readers = [table for table in tables_in(context.statement.root) if cte_of(table) is holder]
    site = context.names.scopes.find(readers[0]) if len(readers) == 1 else None
    return site if site is not None and site[1].kind in ("query", "cte") else None


def _check_plain(context: PlanContext, select: exp.Select) -> None:
    """Raise Unsupported for a SELECT that is more than expressions over its rows."""
    if any(map(select.args.get, [*BARS, "limit", "offset"])) or is_windowed(select):
        raise Unsupported("the rows of a derived table are ordered, cut or numbered before they are grouped")
    for item in select.expressions:
        if isinstance(item, exp.Aliases) or is_star(unwrap(item.unalias())):
            raise Unsupported("a star between the block and the groups")
        if item.unalias().find(exp.UDTF, exp.Explode, exp.Inline) is not None:
            raise Unsupported("rows are made of rows before they are grouped")
        if any(context.names.find(column) is None for column in item.find_all(exp.Column)):
            raise Unsupported("an item of a derived table reads another one")


def _total_type(kind: t.DataType | None) -> t.DataType | None:
    if isinstance(kind, t.DecimalType):
        return t.DecimalType(min(MOST_DIGITS, kind.precision + 10), kind.scale)
    if isinstance(kind, t.IntegralType):
        return t.LongType()
    return t.DoubleType() if isinstance(kind, t.FractionalType) else None


def _branches(argument: exp.Expr) -> list[tuple[exp.Expr | None, exp.Expr | None]] | None:
    """Return the conditions (None for ELSE) and values (None for NULL) of a CASE or IF, None for all else."""
    node = unwrap(argument)
    if not isinstance(node, exp.Case | exp.If):
        return None
    ifs, default = branches_of(node)
    branches = [(branch.this, branch.args["true"]) for branch in ifs]
    branches += [] if default is None else [(None, default)]
    return [(test, None if isinstance(unwrap(value), exp.Null) else value) for test, value in branches]


def _joins(kind: t.DataType, whole: t.DataType) -> bool:
    """Tell whether a branch's values are the same numbers in the type of the whole CASE."""
    if kind == whole:
        return True
    if isinstance(whole, t.DoubleType):
        return isinstance(kind, t.NumericType)
    if isinstance(whole, t.IntegralType):
        return isinstance(kind, t.IntegralType)
    return holds(whole, kind)
