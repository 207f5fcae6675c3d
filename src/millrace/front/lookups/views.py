"""One relation in its FROM clause, and what the conditions there say about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from millrace.front.constants import is_constant
from millrace.front.ctes import Leave
from millrace.front.from_clause import FromClause, Relation, Step
from millrace.front.parse import unwrap
from millrace.front.planning import Planning
from millrace.front.scopes import Scope
from millrace.front.translate import conjuncts

# Expressions of these are null when a column of theirs is.
_STRICT = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam, exp.Lower,
    exp.Upper, exp.Trim, exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Substring, exp.Boolean,
)  # fmt: skip
_BARRED = (exp.Query, exp.AggFunc, exp.Window, exp.Star, exp.Exists)


@dataclass(frozen=True, eq=False)
class View:
    """A relation seen from its FROM clause.

    Attributes:
        planning: The query.
        scope: The SELECT.
        clause: Its FROM clause.
        place: Number of the step that the relation is in.
        relation: The relation.
    """

    planning: Planning
    scope: Scope
    clause: FromClause
    place: int
    relation: Relation

    @classmethod
    def of(cls, planning: Planning, scope: Scope, relation: Relation) -> View:
        """Look at a relation.

        Raises:
            Leave: The FROM clause has a form that is not read here.
        """
        clause = clause_of(scope)
        for place, step in enumerate(clause.steps()):
            if any(each is relation for each in step.item.relations()):
                return cls(planning, scope, clause, place, relation)
        raise Leave("a relation in a place that Millrace does not read")

    @property
    def steps(self) -> list[Step]:
        """The clause's steps."""
        return self.clause.steps()

    @property
    def step(self) -> Step:
        """The step that the relation is in."""
        return self.steps[self.place]

    @property
    def is_inner(self) -> bool:
        """Whether a block may take the relation."""
        return self.step.movable and self.step.relation is not None

    def on(self) -> list[exp.Expr]:
        """Return the terms that rows of this relation have to meet to be joined."""
        return self.inner_terms() if self.is_inner else self.own_terms()

    def own_terms(self) -> list[exp.Expr]:
        """Return the terms of a left join's condition, none of another join's."""
        if self.step.item.kind != "left" or self.step.relation is None:
            return []
        return [term for on in self.step.conditions for term in conjuncts(on)]

    def inner_terms(self) -> list[exp.Expr]:
        """Return the terms of inner joins, and of WHERE where they may move below the joins."""
        steps = [step for step in self.steps if step.movable]
        terms = [term for step in steps for on in step.conditions for term in conjuncts(on)]
        return terms + (self.where_terms() if self.clause.whole else [])

    def where_terms(self) -> list[exp.Expr]:
        """Return the terms of WHERE."""
        return [] if self.clause.where is None else list(conjuncts(self.clause.where))

    def column(self, node: exp.Expr) -> str | None:
        """Return the name of this relation's column that an expression is, None if it is something else."""
        found = column_of(self.planning, node)
        return found[1] if found is not None and found[0] is self.relation else None

    def hints(self, wanted: Iterable[frozenset[str]]) -> Iterator[str]:
        """Yield what about this relation's place keeps its columns from being bound."""
        if self.step.relation is None:
            yield "it stands in a parenthesised join; write that as a derived table, (SELECT … FROM …)"
        kind = self.step.item.kind
        if kind in ("right", "full"):
            yield f"a {kind.upper()} JOIN keeps all of its rows"
        behind = [step.item.kind for step in self.steps[self.place + 1 :]]
        if "full" in behind:
            yield "a FULL JOIN keeps all of its rows"
        elif self.place == 0 and behind[:1] == ["left"]:
            yield "a LEFT, SEMI or ANTI JOIN keeps all rows of its left side"
        names = frozenset().union(*wanted)
        ons = [term for step in self.steps for on in step.conditions for term in conjuncts(on)]
        for term in ons + self.where_terms():
            inner = unwrap(term)
            if not isinstance(inner, exp.EQ | exp.NullSafeEQ) or not self.planning.statement.has_span(term):
                continue
            shown = self.planning.shown(term)
            if isinstance(inner, exp.NullSafeEQ):
                if {self.column(inner.this), self.column(inner.expression)} & names:
                    yield f"{shown} also asks for null, which no source can be asked for"
                continue
            for side in (inner.this, inner.expression):
                read = {self.column(column) for column in side.find_all(exp.Column)} & names
                if read and self.column(side) is None:
                    yield f"{shown} compares an expression of the column, not the column itself"

    def partners(self, term: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
        """Yield a column of this relation with the expression that a term says it is equal to."""
        inner = unwrap(term)
        if not isinstance(inner, exp.EQ):
            return
        for own, other in ((inner.this, inner.expression), (inner.expression, inner.this)):
            name = self.column(own)
            if name is not None and self.is_usable(other):
                yield name, other

    def is_usable(self, node: exp.Expr) -> bool:
        """Tell whether an expression's values can be got without this relation, by running it again."""
        if any(isinstance(part, _BARRED) for part in node.walk()):
            return False
        if self.planning.volatility.unrepeatable(node) or not self.planning.statement.has_span(node):
            return False
        read = relations_read(self.planning, node)
        return read is not None and not any(each is self.relation for each in read)

    def fixed(self, term: exp.Expr) -> set[str]:
        """Return the columns of this relation that a term limits to values that need no other relation."""
        inner = unwrap(term)
        if isinstance(inner, exp.In):
            query = inner.args.get("query")
            left = unwrap(inner.this)
            keys = list(left.expressions) if isinstance(left, exp.Tuple) else [left]
            names = [self.column(key) for key in keys]
            if any(name is None for name in names):
                return set()
            if query is not None:
                again = self.planning.volatility.unrepeatable(query) is None and not self.planning.escapes(
                    query
                )
                return {name for name in names if name is not None} if again else set()
            constant = bool(inner.expressions) and all(is_constant(each) for each in inner.expressions)
            return {name for name in names if name is not None} if constant and len(names) == 1 else set()
        if isinstance(inner, exp.EQ):
            for own, other in ((inner.this, inner.expression), (inner.expression, inner.this)):
                name = self.column(own)
                if name is not None and is_constant(other):
                    return {name}
        return set()

    def filters(self) -> list[exp.Expr]:
        """Return terms that this relation's rows have to meet, whatever they are joined with."""
        found = [term for term in self.on() if self._reads_only_this(term)]
        if not self.step.item.semi:
            # A WHERE that a null does not meet drops the rows that an outer join makes up.
            found += [term for term in self.where_terms() if term not in found and self.fixed(term)]
        return found

    def _reads_only_this(self, term: exp.Expr) -> bool:
        if self.fixed(term):
            return True
        if any(isinstance(part, (*_BARRED, exp.Anonymous)) for part in term.walk()):
            return False
        if self.planning.volatility.unrepeatable(term):
            return False
        read = relations_read(self.planning, term)
        return bool(read) and all(each is self.relation for each in read or ())


def clause_of(scope: Scope) -> FromClause:
    """Return a SELECT's FROM clause.

    Raises:
        Leave: It has a form that is not read here.
    """
    if scope.clause is None or scope.clause.views:
        raise Leave(scope.why or "a FROM clause in a form that Millrace does not read")
    return scope.clause


def column_of(planning: Planning, node: exp.Expr) -> tuple[Relation, str] | None:
    """Return the relation and the lower-case name of the column that an expression is, None if it is none."""
    inner = unwrap(node)
    found = planning.names.find(inner) if isinstance(inner, exp.Column) else None
    if found is None or found.why or found.match is None or found.match.nested:
        return None
    relation = found.match.attribute.relation
    return None if relation is None else (relation, found.match.attribute.name.lower())


def relations_read(planning: Planning, node: exp.Expr) -> list[Relation] | None:
    """Return the relations whose columns an expression reads, None where it is not certain."""
    read: list[Relation] = []
    for column in node.find_all(exp.Column):
        found = planning.names.find(column)
        if found is None or found.why or found.match is None:
            return None
        read += [relation for relation, _ in found.match.attribute.sources]
    return read


def is_strict(node: exp.Expr) -> bool:
    """Tell whether an expression has a column and is null where one of its columns is."""
    return all(isinstance(part, _STRICT) for part in node.walk()) and node.find(exp.Column) is not None
