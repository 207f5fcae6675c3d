"""What stands above the blocks of a SELECT: names and stars that mean columns of its FROM clause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from millrace.sql.blocks.conditions import SplitConjuncts
from millrace.sql.blocks.join_graph import JoinGraph, JoinInput
from millrace.sql.blocks.subqueries import existence_test
from millrace.sql.names.names import Resolved, is_star
from millrace.sql.names.outputs import Attribute
from millrace.sql.syntax.parse import Unsupported, name_span

BARS = ("group", "having", "distinct", "order", "sort", "cluster", "distribute", "qualify", "windows", "hint")
"""Clauses beside which a SELECT is more than its items, FROM and WHERE."""


@dataclass(frozen=True, eq=False)
class Reference:
    """A name above the blocks that means a column of this FROM clause."""

    column: exp.Column
    binding: Resolved
    attribute: Attribute


class OuterReferences:
    """The names and stars above the blocks of one SELECT.

    Args:
        graph: The SELECT's FROM clause.
        found: Its conditions: what blocks evaluate is not above them.
        members: The relations that blocks take.

    Attributes:
        consumed: Ids of names that the rewritten text has no more.
        test: The EXISTS or IN that the SELECT is the subquery of, to which equal rows are one.
        items: What it shows; nothing to an EXISTS.
    """

    def __init__(self, graph: JoinGraph, found: SplitConjuncts, members: list[JoinInput]) -> None:
        self._graph = graph
        self._found = found
        self._context = graph.context
        self._select = graph.scope.select
        self._taken = {id(member.relation) for member in members}
        self.consumed: set[int] = set()
        self.test = existence_test(self._select)
        # What EXISTS selects is nobody's business.
        self.items = [] if isinstance(self.test, exp.Exists) else self._select.expressions
        self._unread = {
            id(part) for item in self._select.expressions if not self.items for part in item.walk()
        }

    def touches(self, attribute: Attribute) -> bool:
        """Tell whether a column is of a relation that a block takes."""
        return any(id(relation) in self._taken for relation, _ in attribute.sources)

    def read(self) -> Iterator[Attribute]:
        """Yield the columns of this FROM clause that something above the blocks reads."""
        for use in self.uses():
            yield use.attribute
        for _, shown in self.stars:
            yield from shown
        for conjunct in self._found.above:
            yield from conjunct.pair or ()
        for number, step in enumerate(self._graph.steps):
            if not step.movable and number not in self._found.steps:
                for pair in self._graph.keys_of(step):
                    yield from pair

    def uses(self) -> Iterator[Reference]:
        """Yield the names above the blocks that mean columns of this FROM clause."""
        used = {id(part) for c in self._found.used if c.node is not None for part in c.node.walk()}
        used |= self.consumed | self._unread
        seen = set()
        for use in self._names:
            if id(use.column) in used:
                continue
            start, _ = name_span(use.column, 0)
            if start not in seen:  # the parser may use one name in two places
                seen.add(start)
                yield use

    @cached_property
    def _names(self) -> list[Reference]:
        """The names anywhere in the SELECT that mean columns of this FROM clause."""
        found = []
        for column in self._select.find_all(exp.Column):
            binding = None if column.find_ancestor(exp.Star) else self.bound(column)
            if binding is not None and binding.match is not None:
                found.append(Reference(column, binding, binding.match.attribute))
        return found

    def bound(self, column: exp.Column) -> Resolved | None:
        """Return what a name means, None for what is no column of this FROM clause."""
        names = self._context.names
        found = names.find_struct(column) if isinstance(column.this, exp.Star) else names.find(column)
        return found if found is not None and found.scope is self._graph.scope else None

    @cached_property
    def stars(self) -> list[tuple[exp.Expr, list[Attribute]]]:
        """The stars that have to be written out, with what they show."""
        found: list[tuple[exp.Expr, list[Attribute]]] = []
        names, graph = self._context.names, self._graph
        for item in self.items:
            if not is_star(item) or (isinstance(item, exp.Column) and names.find_struct(item)):
                continue
            shown = names.starred(graph.scope, item)
            taken = any(map(self.touches, shown))
            if isinstance(item, exp.Star) or taken or graph.source.merges:
                found.append((item, shown))
        known = {id(item) for item, _ in found}
        for star in self._select.find_all(exp.Star):
            owner: exp.Expr = star.parent if isinstance(star.parent, exp.Column) else star
            if id(owner) in known or owner.parent is self._select or isinstance(star.parent, exp.Count):
                continue
            if star.find_ancestor(exp.Select) is self._select:
                raise Unsupported("a star inside an expression")
        return found

    def is_whole(self, members: list[JoinInput]) -> bool:
        """Tell whether a block of these relations is all of the FROM clause."""
        left = len(self._graph.steps) - len(self._found.steps)
        return len(members) == left and not self._graph.source.views

    def only_counts(self, members: list[JoinInput]) -> bool:
        """Tell whether the SELECT is nothing but a ``count(*)`` of one block."""
        items = self._select.expressions
        if (
            not self.is_whole(members)
            or any(self._select.args.get(name) for name in BARS)
            or self._found.above
        ):
            return False
        count = items[0].unalias() if len(items) == 1 else None
        if not isinstance(count, exp.Count) or count.expressions:
            return False
        return isinstance(count.this, exp.Star) or (
            isinstance(count.this, exp.Literal) and count.this.name.isdigit()
        )
