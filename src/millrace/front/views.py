"""One relation in its FROM clause, and what the conditions there say about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from millrace.front.constants import is_constant
from millrace.front.context import Context
from millrace.front.from_clause import Chain, Link, read_chain
from millrace.front.leave import Leave
from millrace.front.names import Scope, Source
from millrace.front.predicates import conjuncts, unwrap
from millrace.front.repeatable import unrepeatable

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
        context: The query.
        scope: The SELECT.
        chain: Its FROM clause.
        place: Number of the link that the relation is in.
        source: The relation.
    """

    context: Context
    scope: Scope
    chain: Chain
    place: int
    source: Source

    @classmethod
    def of(cls, context: Context, scope: Scope, source: Source) -> View:
        """Look at a relation.

        Raises:
            Leave: The FROM clause has a form that is not read here.
        """
        chain = read_chain(context.statement, scope, 1)
        if chain is None:
            raise Leave("a FROM clause in a form that Millrace does not read")
        for place, link in enumerate(chain.links):
            if any(each is source for each in link.sources):
                return cls(context, scope, chain, place, source)
        raise Leave("a relation in a place that Millrace does not read")

    @property
    def link(self) -> Link:
        """The link that the relation is in."""
        return self.chain.links[self.place]

    @property
    def is_inner(self) -> bool:
        """Whether a block may take the relation."""
        return movable(self.chain, self.place)

    def on(self) -> list[exp.Expr]:
        """Return the terms that rows of this relation have to meet to be joined."""
        return self.inner_terms() if self.is_inner else self.own_terms()

    def own_terms(self) -> list[exp.Expr]:
        """Return the terms of a left join's condition, none of another join's."""
        if self.link.kind != "left" or self.link.fixed:
            return []
        return [term for on in self.link.ons for term in conjuncts(on)]

    def inner_terms(self) -> list[exp.Expr]:
        """Return the terms of inner joins, and of WHERE where they may move below the joins."""
        chain = self.chain
        terms = [
            term
            for place, link in enumerate(chain.links)
            if movable(chain, place)
            for on in link.ons
            for term in conjuncts(on)
        ]
        return terms + (self.where_terms() if chain.whole else [])

    def where_terms(self) -> list[exp.Expr]:
        """Return the terms of WHERE."""
        return [] if self.chain.where is None else list(conjuncts(self.chain.where))

    def column(self, node: exp.Expr) -> str | None:
        """Return the name of this relation's column that an expression is, None if it is something else."""
        inner = unwrap(node)
        found = self.context.find(inner) if isinstance(inner, exp.Column) else None
        if found is None or found.source is not self.source or found.nested or not found.certain:
            return None
        return found.column

    def hints(self, wanted: Iterable[frozenset[str]]) -> Iterator[str]:
        """Yield what about this relation's place keeps its columns from being bound."""
        if self.link.fixed:
            yield "it stands in a parenthesised join; write that as a derived table, (SELECT … FROM …)"
        if self.link.kind in ("right", "full"):
            yield f"a {self.link.kind.upper()} JOIN keeps all of its rows"
        behind = [link.kind for link in self.chain.links[self.place + 1 :]]
        if "full" in behind:
            yield "a FULL JOIN keeps all of its rows"
        elif self.place == 0 and behind[:1] == ["left"]:
            yield "a LEFT, SEMI or ANTI JOIN keeps all rows of its left side"
        names = frozenset().union(*wanted)
        ons = [term for link in self.chain.links for on in link.ons for term in conjuncts(on)]
        for term in ons + self.where_terms():
            inner = unwrap(term)
            if not isinstance(inner, exp.EQ | exp.NullSafeEQ) or not self.context.statement.has_span(term):
                continue
            shown = self.context.shown(self.context.statement.span(term))
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
        if any(isinstance(part, _BARRED) for part in node.walk()) or unrepeatable(node):
            return False
        if not self.context.statement.has_span(node):
            return False
        found = [self.context.find(column) for column in node.find_all(exp.Column)]
        return all(f is not None and f.certain and f.source is not self.source for f in found)

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
                again = unrepeatable(query) is None and not self.context.escapes(query)
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
        if not self.link.semi:
            # A WHERE that a null does not meet drops the rows that an outer join makes up.
            found += [term for term in self.where_terms() if term not in found and self.fixed(term)]
        return found

    def _reads_only_this(self, term: exp.Expr) -> bool:
        if self.fixed(term):
            return True
        if any(isinstance(part, (*_BARRED, exp.Anonymous)) for part in term.walk()) or unrepeatable(term):
            return False
        found = [self.context.find(column) for column in term.find_all(exp.Column)]
        return bool(found) and all(f is not None and f.certain and f.source is self.source for f in found)


def movable(chain: Chain, place: int) -> bool:
    """Tell whether a block may take a link."""
    link = chain.links[place]
    return link.kind == "inner" and place < chain.movable and not link.fixed


def is_strict(node: exp.Expr) -> bool:
    """Tell whether an expression has a column and is null where one of its columns is."""
    return all(isinstance(part, _STRICT) for part in node.walk()) and node.find(exp.Column) is not None
