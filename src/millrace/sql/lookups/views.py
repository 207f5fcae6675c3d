"""One relation in its FROM clause, and what the conditions there say about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from millrace.sql.expr.constants import is_constant
from millrace.sql.planner.context import PlanContext
from millrace.sql.syntax.parse import Unsupported, compared, unwrap
from millrace.sql.syntax.scopes import FromClause, JoinStep, Relation, Scope

# Expressions of these are null when a column of theirs is.
_STRICT = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam, exp.Lower,
    exp.Upper, exp.Trim, exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Substring, exp.Boolean,
)  # fmt: skip
_BARRED = (exp.Query, exp.AggFunc, exp.Window, exp.Star)


@dataclass(frozen=True, eq=False)
class View:
    """A relation seen from its FROM clause.

    Attributes:
        context: The query.
        scope: The SELECT.
        clause: Its FROM clause.
        relation: The relation.
        place: Number of the step that the relation is in.
        step: That step.
    """

    context: PlanContext
    scope: Scope
    clause: FromClause
    relation: Relation
    place: int
    step: JoinStep

    @classmethod
    def of(cls, context: PlanContext, scope: Scope, relation: Relation) -> View:
        """Look at a relation.

        Raises:
            Unsupported: The FROM clause has a form that is not read here.
        """
        clause = clause_of(scope)
        place = clause.number(relation)
        return cls(context, scope, clause, relation, place, clause.steps[place])

    def on(self) -> list[exp.Expr]:
        """Return the terms that rows of this relation have to meet to be joined, by an inner or left join."""
        if self.step.free:
            return self.clause.inner_terms
        return self.step.terms if self.step.item.kind == "left" and self.step.relation is not None else []

    def column(self, node: exp.Expr) -> str | None:
        """Return the lower-case name of this relation's column that an expression is, None if it is none."""
        inner = unwrap(node)
        match = self.context.names.match(inner) if isinstance(inner, exp.Column) else None
        if match is None or match.nested or match.attribute.relation is not self.relation:
            return None
        return match.attribute.name.lower()

    def hints(self, wanted: Iterable[frozenset[str]]) -> Iterator[str]:
        """Yield what about this relation's place keeps its columns from being bound."""
        steps, kind = self.clause.steps, self.step.item.kind
        if self.step.relation is None:
            yield "it stands in a parenthesised join; write that as a derived table, (SELECT … FROM …)"
        if kind in ("right", "full"):
            yield f"a {kind.upper()} JOIN keeps all of its rows"
        behind = [step.item.kind for step in steps[self.place + 1 :]]
        if "full" in behind:
            yield "a FULL JOIN keeps all of its rows"
        elif self.place == 0 and behind[:1] == ["left"]:
            yield "a LEFT, SEMI or ANTI JOIN keeps all rows of its left side"
        names = frozenset().union(*wanted)
        for term in [*(term for step in steps for term in step.terms), *self.clause.where]:
            inner = unwrap(term)
            if not isinstance(inner, exp.EQ | exp.NullSafeEQ) or not self.context.statement.has_span(term):
                continue
            shown, sides = self.context.shown(term), (inner.this, inner.expression)
            if isinstance(inner, exp.NullSafeEQ):
                if names & set(map(self.column, sides)):
                    yield f"{shown} also asks for null, which no source can be asked for"
                continue
            for side in sides:
                if self.column(side) is None and names & set(map(self.column, side.find_all(exp.Column))):
                    yield f"{shown} compares an expression of the column, not the column itself"

    def partners(self, term: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
        """Yield a column of this relation with the expression that a term says it is equal to.

        Only expressions are meant whose values can be got without this relation, by running them again.
        """
        for name, other in self._sides(term):
            read = self.context.names.relations_read(other)
            if read is not None and self.relation not in read and is_repeatable(self.context, other):
                yield name, other

    def _sides(self, term: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
        inner = unwrap(term)
        if isinstance(inner, exp.EQ):
            for own, other in ((inner.this, inner.expression), (inner.expression, inner.this)):
                if (name := self.column(own)) is not None:
                    yield name, other

    def fixed(self, term: exp.Expr) -> set[str]:
        """Return the columns of this relation that a term limits to values that need no other relation."""
        inner = unwrap(term)
        if not isinstance(inner, exp.In):
            return {name for name, other in self._sides(term) if is_constant(other)}
        query, keys = inner.args.get("query"), [self.column(key) for key in compared(inner)]
        if query is None:
            known = len(keys) == 1 and bool(inner.expressions) and all(map(is_constant, inner.expressions))
        else:
            known = not self.context.volatility.unrepeatable(query) and not self.context.escapes(query)
        return {key for key in keys if key is not None} if known and None not in keys else set()

    def filters(self) -> list[exp.Expr]:
        """Return terms that this relation's rows have to meet, whatever they are joined with."""
        found = [term for term in self.on() if self._reads_only_this(term)]
        if not self.step.item.semi:
            # A WHERE that a null does not meet drops the rows that an outer join makes up.
            found += [term for term in self.clause.where if term not in found and self.fixed(term)]
        return found

    def _reads_only_this(self, term: exp.Expr) -> bool:
        if self.fixed(term):
            return True
        read = self.context.names.relations_read(term)
        alone = set(read or ()) == {self.relation} and term.find(exp.Anonymous) is None
        return alone and is_repeatable(self.context, term)


def clause_of(scope: Scope) -> FromClause:
    """Return a SELECT's FROM clause.

    Raises:
        Unsupported: It has a form that is not read here.
    """
    if scope.clause is None or scope.clause.views:
        raise Unsupported(scope.why or "a FROM clause in a form that Millrace does not read")
    return scope.clause


def is_repeatable(context: PlanContext, node: exp.Expr) -> bool:
    """Tell whether an expression can be evaluated once more, apart from the query, with the same value."""
    barred = any(isinstance(part, _BARRED) for part in node.walk())
    return not barred and context.statement.has_span(node) and not context.volatility.unrepeatable(node)


def is_strict(node: exp.Expr) -> bool:
    """Tell whether an expression has a column and is null where one of its columns is."""
    return all(isinstance(part, _STRICT) for part in node.walk()) and node.find(exp.Column) is not None
