"""A SELECT that groups the rows of a block, rewritten to group partial rows.

The block's tasks group by every column that the text still reads; what reads them gives the same for all
rows of such a group, whatever it is: a grouping expression, a condition, the argument of a DISTINCT call.
Only calls of aggregates are replaced, each by one of the same type over partial results. So GROUP BY in all
its forms, HAVING, ORDER BY and windows over groups stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from millrace.engine.aggregates import AggregateSpec, How, Partial
from millrace.engine.expressions import ColumnRef, Value, columns_of
from millrace.spark.types import arrow_type
from millrace.sql.aggregation.calls import Aggregate, aggregates, is_windowed
from millrace.sql.aggregation.finals import FinalAggregates
from millrace.sql.aggregation.levels import GroupingSite, level_of
from millrace.sql.blocks.join_graph import JoinGraph
from millrace.sql.expr.translate import Meaning, Translator
from millrace.sql.expr.types import Field
from millrace.sql.syntax.edits import Edit, quote
from millrace.sql.syntax.parse import Unsupported


class Aggregation:
    """The partial aggregation of one block.

    Args:
        graph: The FROM clause that the block is in.
        level: The SELECT that groups.
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
        self, graph: JoinGraph, level: GroupingSite, names: Mapping[ColumnRef, str], stem: str
    ) -> None:
        self._graph = graph
        self._context = graph.context
        self._level = level
        self._names = names
        self._stem = stem
        self._partials: dict[tuple[How, Value | None], Partial] = {}
        self.edits: list[Edit] = []
        self.consumed: set[int] = set()
        self.fields: list[t.StructField] = []
        self._check()
        finals = FinalAggregates(self._context, Translator(self._context, self._meaning), self._partial)
        for each in aggregates(level.scope.select):
            self._rewrite(each, finals)
        if level.through is not None:
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
        level = level_of(graph.context, graph.scope)
        if level is None:
            return None
        if not alone:
            raise Unsupported("several blocks in one FROM clause")
        if not graph.source.whole:
            raise Unsupported("a RIGHT or FULL join above the block")
        return cls(graph, level, names, stem)

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
        for ref, each in keys.items():
            if each.arrow is None or pa.types.is_nested(each.arrow):
                raise Unsupported(f"tasks do not group by {ref}, of type {each.type.simpleString()}")

    def spec(self, keys: Mapping[ColumnRef, str]) -> AggregateSpec:
        """Return what tasks do, from the columns that the text still reads."""
        return AggregateSpec(tuple(keys.values()), tuple(self._partials.values()))

    def _check(self) -> None:
        select, context = self._level.scope.select, self._context
        selects = (self._graph.scope.select, select)
        if any(each.args.get("hint") for each in selects):
            raise Unsupported("a hint")
        if any(map(context.volatility.volatile, selects)):
            raise Unsupported("a function that may differ between two calls")
        if is_windowed(select) and not (select.args.get("group") or aggregates(select)):
            raise Unsupported("window functions see every row")
        for column in select.find_all(exp.Column):
            if self._is_ours(column) and _in_aggregate_below(column, select):
                raise Unsupported("a subquery aggregates columns from outside of it")

    def _is_ours(self, column: exp.Column) -> bool:
        found = self._context.names.find(column)
        return found is not None and found.scope is self._level.scope

    # What a name means

    def _meaning(self, column: exp.Column) -> Meaning | None:
        found = self._context.names.find(column)
        if found is None or found.match is None or found.match.nested:
            return None
        if found.scope is self._graph.scope:
            member = self._graph.column_of(found.match.attribute)
            name = None if member is None else self._names.get(ColumnRef(member[0], member[1].name))
            # A relation that a block could take may stay beside this one.
            return None if member is None or name is None else ("", replace(member[1], name=name))
        place = self._place(column)
        return None if place is None else self._graph.scope.select.expressions[place].unalias()

    def _place(self, column: exp.Column) -> int | None:
        """Return which item of the derived table a name means."""
        found = self._context.names.find(column)
        if found is None or found.match is None or found.scope is not self._level.scope:
            return None
        sources = found.match.attribute.sources
        return sources[0][1] if len(sources) == 1 and sources[0][0] is self._level.through else None

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
        outer = self._level.scope.select
        kept = {
            self._place(column) for column in outer.find_all(exp.Column) if id(column) not in self.consumed
        }
        statement = context.statement
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
