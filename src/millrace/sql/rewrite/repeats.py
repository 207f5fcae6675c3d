"""A query in parentheses that stands in several places of another, word for word, is planned once.

Spark runs equal subqueries once, and equal exchanges. Two blocks are never equal to it, even if they join the
same, since each has Python code of its own. So every later place gets the text of the first one as it was
rewritten, which reads the same blocks; relations among them pass an exchange
(:mod:`millrace.sql.rewrite.sharing`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator

from sqlglot import exp

from millrace.sql.blocks.subqueries import existence_test
from millrace.sql.planner.context import PlanContext
from millrace.sql.syntax.edits import Edit
from millrace.sql.syntax.scopes import Scope, cte_of, tables_in, within


class CommonSubqueries:
    """The repeated queries of one query.

    Args:
        context: The query. SELECTs are planned from inner to outer ones.
    """

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._places: dict[int, list[exp.Query]] = {}
        self._first: dict[int, exp.Query] = {}
        self._done: set[int] = set()
        for alike in _grouped(self._bodies(), self._words):
            for same in _grouped(alike, self._meaning):
                if self._is_plain(same[0]) and not any(map(context.escapes, same)):
                    self._places[id(same[0])] = same
                    self._first |= {id(other): same[0] for other in same[1:]}

    def _bodies(self) -> Iterator[exp.Query]:
        """Yield queries in parentheses in the order in which their SELECTs are planned."""
        seen: set[int] = set()
        for scope in self._context.names.scopes.all:
            node: exp.Expr | None = scope.select
            while node is not None:
                around = node.parent
                if isinstance(node, exp.Query) and isinstance(around, exp.Subquery) and id(node) not in seen:
                    seen.add(id(node))
                    if self._context.statement.has_span(node):
                        yield node
                node = around

    def _words(self, body: exp.Query) -> Hashable:
        """Return the text as it was bound, in which equal words may stand at different distances."""
        return tuple(self._context.text.bound(self._context.statement.span(body)).split())

    def _meaning(self, body: exp.Query) -> Hashable:
        """Return the text of the syntax tree, with what the names of tables mean."""
        named = tuple(id(cte) if (cte := cte_of(table)) else None for table in tables_in(body))
        # A subquery of EXISTS or IN may be rewritten to another with the same set of rows.
        asked = type(existence_test(body)) if isinstance(body, exp.Select) else None
        return body.sql(dialect="spark"), named, asked

    def _is_plain(self, body: exp.Query) -> bool:
        context = self._context
        inner = any(isinstance(part, exp.With) for part in within(body))
        asked = any(context.catalog.lookup(table) for table in tables_in(body) if cte_of(table) is None)
        return not (inner or asked or context.volatility.volatile(body))

    def places(self, body: exp.Expr) -> list[exp.Query]:
        """Return all places of a query that is planned in this one; none of any other."""
        return self._places.get(id(body), [])

    def first(self, scope: Scope) -> exp.Query | None:
        """Return the place in which a query that a SELECT is part of was planned before, with blocks.

        None if it was nowhere. The outermost such query gets the text from there.
        """
        node: exp.Expr | None = scope.select
        found = None
        while node is not None:
            first = self._first.get(id(node))
            if first is not None and (id(node) in self._done or self._context.has_block(first)):
                found = first
                self._repeat(first, node)
            node = node.parent
        return found

    def _repeat(self, first: exp.Query, again: exp.Expr) -> None:
        context = self._context
        if id(again) in self._done:
            return
        self._done.add(id(again))
        span = context.statement.span
        context.text.edits.append(Edit(*span(again), (span(first),)))
        for one, other in zip(within(first), within(again), strict=True):
            if id(one) in context.placed:
                context.placed.add(id(other))
            if id(one) in context.calls.taken:
                context.calls.taken.add(id(other))


def _grouped(bodies: Iterable[exp.Query], key: Callable[[exp.Query], Hashable]) -> Iterator[list[exp.Query]]:
    """Yield what has an equal, with all its equals, in order."""
    groups: defaultdict[Hashable, list[exp.Query]] = defaultdict(list)
    for body in bodies:
        groups[key(body)].append(body)
    return (group for group in groups.values() if len(group) > 1)
