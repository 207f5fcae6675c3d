"""One FROM clause while its blocks are found: its members, and what its conditions read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from millrace.sql.blocks.conditions import Conjunct
from millrace.sql.blocks.join_inputs import JoinInput
from millrace.sql.expr.types import Field
from millrace.sql.names.outputs import Attribute, joined
from millrace.sql.planner.context import PlanContext
from millrace.sql.syntax.parse import Unsupported
from millrace.sql.syntax.scopes import FromClause, JoinStep, Relation, Scope

Keys = list[tuple[Attribute, Attribute]]


@dataclass(eq=False)
class JoinGraph:
    """One FROM clause being worked on.

    Attributes:
        context: The query.
        scope: The SELECT.
        source: Its FROM clause.
        members: The relations that a block may take, by alias.
    """

    context: PlanContext
    scope: Scope
    source: FromClause
    members: dict[str, JoinInput] = field(default_factory=dict)

    @property
    def steps(self) -> list[JoinStep]:
        """The items that can be moved by themselves."""
        return self.source.steps

    @property
    def streams(self) -> list[str]:
        """The aliases of the members that are streams."""
        return [alias for alias, m in self.members.items() if self.context.is_streaming(m.relation.node)]

    def member(self, relation: Relation) -> JoinInput | None:
        """Return the member that a relation is."""
        return next((m for m in self.members.values() if m.relation is relation), None)

    def member_column(self, attribute: Attribute) -> tuple[str, Field] | None:
        """Return the member and the column that an attribute is, None if it is no column of a member."""
        member = None if attribute.relation is None else self.member(attribute.relation)
        return None if member is None else (member.alias, member.columns[attribute.sources[0][1]])

    def lookup(self, column: exp.Column) -> tuple[str, Field] | None:
        """Return the member and the column that a name means, None if it means anything else."""
        match = self.context.names.match(column)
        return None if match is None or match.nested else self.member_column(match.attribute)

    def merged(self) -> Keys:
        """Return what USING and NATURAL compare where inner joins may move."""
        movable = {id(step.clause): step.clause for step in self.steps if step.movable}
        return [
            pair
            for clause in (self.source, *(c for c in movable.values() if c is not self.source))
            for place, pairs in enumerate(self._keys_of(clause))
            if clause.items[place].kind == "inner" and place < clause.movable
            for pair in pairs
        ]

    def keys_of(self, step: JoinStep) -> Keys:
        """Return what USING or NATURAL of one step compares."""
        return self._keys_of(step.clause)[step.place]

    def _keys_of(self, clause: FromClause) -> list[Keys]:
        if not any(item.merges for item in clause.items):
            return [[] for _ in clause.items]
        return [list(each.keys) for each in joined(clause, self.context.names.columns)]

    def reads(self, node: exp.Expr) -> tuple[frozenset[str], frozenset[int]]:
        """Return the members that a condition reads, and the numbers of other steps that it reads.

        What lies outside of this FROM clause, or is not known, has the number -1.
        """
        names = self.context.names
        attributes: list[Attribute] = []
        outside = False
        for column in node.find_all(exp.Column):
            found = names.find(column)
            if found is not None and found.scope is self.scope:
                if found.match is not None:
                    attributes.append(found.match.attribute)
                    continue
                outside = True
            place = names.scopes.place_of(column)
            outside |= place is not None and place.scope is self.scope
        reads, foreign = self.reads_attributes(attributes)
        return reads, foreign | {-1} if outside else foreign

    def reads_attributes(self, attributes: Iterable[Attribute]) -> tuple[frozenset[str], frozenset[int]]:
        """Return the members that columns are of, and the numbers of other steps."""
        reads: set[str] = set()
        foreign: set[int] = set()
        for attribute in attributes:
            for relation, _ in attribute.sources:
                member = self.member(relation)
                if member is not None:
                    reads.add(member.alias)
                else:
                    foreign.add(self.source.number(relation))
        return frozenset(reads), frozenset(foreign)

    def check_certain(self) -> None:
        """Refuse a SELECT in which it is not certain what some name means.

        Raises:
            Unsupported: There is such a name.
        """
        names = self.context.names
        parts = list(self.scope.select.walk())
        for column in parts:
            if not isinstance(column, exp.Column):
                continue
            if column.find_ancestor(exp.Star) is not None:
                continue  # EXCEPT: it names what the star shows
            found = names.find(column)
            if found is not None and found.scope is self.scope and (found.why or found.match is None):
                shown = ".".join(part.name for part in column.parts)
                raise Unsupported(f"it is not certain what {shown} means: {found.why}")
        self._check_words(parts)

    def _check_words(self, parts: Sequence[exp.Expr]) -> None:
        """Refuse a word that is the name of a member's column, and that the parser did not take for a name.

        Functions that are called without parentheses could be columns: ``current_date``.
        """
        statement = self.context.statement
        start, end = statement.span(self.scope.select) if statement.has_span(self.scope.select) else (0, 0)
        columns = self.context.names.columns
        known = {name.lower() for m in self.members.values() for name in (*m.names, *columns(m.relation))}
        seen = {each.meta.get("start") for each in parts if isinstance(each, exp.Identifier)}
        syntax = {each.name.lower() for each in parts if isinstance(each, exp.Var)}
        syntax |= {each.sql().lower() for each in parts if isinstance(each, exp.DataType)}
        for (first, last), word in statement.names:
            if start <= first < end and word in known and first not in seen and word not in syntax:
                parameter = statement.text[max(0, first - 2) : first].lstrip()[-1:] == ":"
                if not parameter and statement.text[last:].lstrip()[:1] != "(":
                    raise Unsupported(f"{word} stands in a form that Millrace does not read")

    def shown(self, conjunct: Conjunct) -> str:
        """Return a condition for explanations."""
        if conjunct.pair is not None:
            return " = ".join(each.name for each in conjunct.pair)
        assert conjunct.node is not None
        return self.context.shown(conjunct.node)
