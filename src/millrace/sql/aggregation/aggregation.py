"""A SELECT that groups the rows of a block, rewritten to group partial rows.

The block's tasks group by every column that the text still reads; what reads them gives the same for all
rows of such a group, whatever it is: a grouping expression, a condition, the argument of a DISTINCT call.
Only calls of aggregates are replaced, each by one of the same type over partial results. So GROUP BY in all
its forms, HAVING, ORDER BY and windows over groups stay as they are.

The SELECT that groups is the block's own, or the one around a derived table that it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.aggregates import AggregateSpec, How, Partial
from millrace.engine.expressions import ColumnRef, Value, columns_of
from millrace.spark.types import arrow_type
from millrace.sql.aggregation.calls import Aggregate, FinalAggregates, aggregates, groups, is_windowed
from millrace.sql.blocks.join_graph import JoinGraph
from millrace.sql.context import PlanContext
from millrace.sql.expr.translate import Meaning, Translator
from millrace.sql.expr.types import Field
from millrace.sql.names import is_star
from millrace.sql.syntax.edits import Edit, quote
from millrace.sql.syntax.parse import Unsupported, unwrap
from millrace.sql.syntax.scopes import Relation, Scope, cte_of, tables_in

BARS = ("group", "having", "distinct", "order", "sort", "cluster", "distribute", "qualify", "windows", "hint")
"""Clauses beside which a SELECT is more than its items, FROM and WHERE."""


@dataclass(frozen=True, eq=False)
class GroupingSite:
    """The SELECT that groups, and the derived table by which it reads the block's, if that is another one."""

    scope: Scope
    through: Relation | None = None


class Aggregation:
    """The partial aggregation of one block.

    Args:
        graph: The FROM clause that the block is in.
        site: The SELECT that groups.
        names: What the block calls each column of its relations.
        stem: Begins the names of partial results.

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
        self._site = site
        self._names = names
        self._stem = stem
        self._partials: dict[tuple[How, Value | None], Partial] = {}
        self.edits: list[Edit] = []
        self.consumed: set[int] = set()
        self.fields: list[t.StructField] = []
        self._check()
        arguments = Translator(self._context, self._meaning)
        finals = FinalAggregates(self._context.statement, arguments, self._partial)
        for call in aggregates(site.scope.select):
            self._rewrite(call, finals)
        if site.through is not None:
            self._narrow()

    @classmethod
    def of(
        cls, graph: JoinGraph, names: Mapping[ColumnRef, str], stem: str, *, alone: bool
    ) -> Aggregation | None:
        """Return how the rows of a FROM clause's only block are grouped above it, None where they are not.

        What else the clause joins to the block, it joins to each row by itself. So a partial row meets
        what the rows meet that it stands for.

        Raises:
            Unsupported: They are, and only Spark does it.
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
        """The names of the columns that partial results are computed of."""
        values = (partial.value for partial in self._partials.values())
        return {ref.column for value in values if value is not None for ref in columns_of(value)}

    def check_keys(self, keys: Mapping[ColumnRef, Field]) -> None:
        """Refuse columns by which tasks do not group.

        Raises:
            Unsupported: There is one, or nothing is left of a row at all.
        """
        if not keys and not self.fields:
            raise Unsupported("nothing is read of its rows but that there are some")
        for ref, field in keys.items():
            if field.arrow is None or pa.types.is_nested(field.arrow):
                raise Unsupported(f"tasks do not group by {ref}, of type {field.type.simpleString()}")

    def spec(self, keys: Mapping[ColumnRef, str]) -> AggregateSpec:
        """Return what tasks do, from the columns that the text still reads."""
        return AggregateSpec(tuple(keys.values()), tuple(self._partials.values()))

    def _check(self) -> None:
        select, context = self._site.scope.select, self._context
        selects = (self._graph.scope.select, select)
        if any(part.args.get("hint") for part in selects):
            raise Unsupported("a hint")
        if any(map(context.determinism.volatile, selects)):
            raise Unsupported("a function that may differ between two calls")
        if is_windowed(select) and not (select.args.get("group") or aggregates(select)):
            raise Unsupported("window functions see every row")
        for column in select.find_all(exp.Column):
            if self._is_ours(column) and _in_aggregate_below(column, select):
                raise Unsupported("a subquery aggregates columns from outside of it")

    def _is_ours(self, column: exp.Column) -> bool:
        resolved = self._context.names.find(column)
        return resolved is not None and resolved.scope is self._site.scope

    # What a name means

    def _meaning(self, column: exp.Column) -> Meaning | None:
        attribute = self._context.names.attribute(column)
        if attribute is None:
            return None
        if self._site.through is not None and attribute.relation is self._site.through:
            item: exp.Expr = self._graph.scope.select.expressions[attribute.sources[0][1]].unalias()
            return item
        owned = self._graph.column_of(attribute)
        name = None if owned is None else self._names.get(ColumnRef(owned[0], owned[1].name))
        # A relation that a block could take may stay beside this one.
        return None if owned is None or name is None else ("", replace(owned[1], name=name))

    # What becomes of aggregates

    def _partial(self, how: How, value: Value | None, kind: t.DataType) -> str:
        """Return a column of partial results, by its name in the text."""
        partial = self._partials.get((how, value))
        if partial is None:
            partial = Partial(f"{self._stem}_p{len(self._partials)}", how, value, arrow_type(kind))
            self._partials[how, value] = partial
            self.fields.append(t.StructField(partial.name, kind))
        return quote(partial.name)

    def _rewrite(self, call: Aggregate, finals: FinalAggregates) -> None:
        """Replace a call, or leave it where it may stay.

        Raises:
            Unsupported: It is neither.
        """
        if call.kind == "same" or call.distinct:
            return
        statement = self._context.statement
        final = finals.of(call) if statement.has_span(call.node) else None
        if final is not None:
            self.edits.append(Edit(*statement.span(call.node), final.parts))
            self.consumed |= {id(c) for node in final.values for c in node.find_all(exp.Column)}
        elif call.kind not in ("min", "max"):
            raise Unsupported(f"only Spark computes {self._context.shown(call.node)}")

    def _narrow(self) -> None:
        """Let the derived table give partial results instead of what only the replaced calls read."""
        context, inner = self._context, self._graph.scope.select
        outer, statement = self._site.scope.select, context.statement
        read = (context.names.match(c) for c in outer.find_all(exp.Column) if id(c) not in self.consumed)
        sources = [source for match in read if match is not None for source in match.attribute.sources]
        kept = {place for relation, place in sources if relation is self._site.through}
        names = context.names.results(self._graph.scope)
        if not all(map(statement.has_span, inner.expressions)) or len(names) != len(inner.expressions):
            raise Unsupported("a derived table in a form that Millrace does not read")
        for place, (item, result) in enumerate(zip(inner.expressions, names, strict=True)):
            # A subquery may have a block of its own, whose figures somebody asks for.
            if place in kept or result.name is None or item.find(exp.Query) is not None:
                continue
            self.consumed |= {id(column) for column in item.find_all(exp.Column)}
            self.edits.append(Edit(*statement.span(item), (f"NULL AS {quote(result.name)}",)))
        if self._partials:
            end = statement.span(inner.expressions[-1])[1]
            added = ", ".join(quote(partial.name) for partial in self._partials.values())
            self.edits.append(Edit(end, end, (f", {added}",)))


def _in_aggregate_below(column: exp.Column, select: exp.Select) -> bool:
    """Tell whether a name stands in an aggregate within a subquery."""
    node, called = column.parent, False
    while node is not None and node is not select:
        if isinstance(node, exp.Query):
            return called
        called |= isinstance(node, exp.AggFunc | exp.Anonymous | exp.Any)
        node = node.parent
    return False


def _grouping_site(context: PlanContext, scope: Scope) -> GroupingSite | None:
    """Return the SELECT that groups the rows of another one, None where none does.

    Raises:
        Unsupported: It does, and something stands in between.
    """
    if groups(scope.select):
        return GroupingSite(scope)
    reader = _reader(context, scope.select)
    if reader is None or not groups(reader.scope.select):
        return None
    _check_plain(context, scope.select)
    clause = reader.scope.clause
    if clause is None or len(clause.items) != 1 or clause.views or reader.scope.select.args.get("laterals"):
        raise Unsupported("a join stands between the block and the groups")
    if reader.through is None or reader.through.columns or not reader.through.plain:
        raise Unsupported("the derived table gives other names to its columns")
    JoinGraph(context, reader.scope, clause).check_certain()
    return reader


def _reader(context: PlanContext, select: exp.Select) -> GroupingSite | None:
    """Return the only SELECT that reads another as a derived table or common table expression."""
    holder, scopes, kind = select.parent, context.names.scopes, "query"
    read: exp.Expr | None = None
    if isinstance(holder, exp.Subquery) and {k for k, v in holder.args.items() if v} <= {"this", "alias"}:
        read = holder
    elif isinstance(holder, exp.CTE) and holder.args.get("alias") and not holder.alias_column_names:
        assert context.statement.root is not None
        readers = [table for table in tables_in(context.statement.root) if cte_of(table) is holder]
        read, kind = readers[0] if len(readers) == 1 else None, "cte"
    found = None if read is None else scopes.find(read)
    return GroupingSite(*found) if found is not None and found[1].kind == kind else None


def _check_plain(context: PlanContext, select: exp.Select) -> None:
    """Refuse a SELECT that is more than expressions over its rows.

    Raises:
        Unsupported: It is.
    """
    if any(map(select.args.get, [*BARS, "limit", "offset"])) or is_windowed(select):
        raise Unsupported("the rows of a derived table are ordered, cut or numbered before they are grouped")
    for item in select.expressions:
        if isinstance(item, exp.Aliases) or is_star(unwrap(item.unalias())):
            raise Unsupported("a star between the block and the groups")
        if item.unalias().find(exp.UDTF, exp.Explode, exp.Inline) is not None:
            raise Unsupported("rows are made of rows before they are grouped")
    for item in select.expressions:
        for column in item.find_all(exp.Column):
            if context.names.find(column) is None:
                raise Unsupported("an item of a derived table reads another one")
