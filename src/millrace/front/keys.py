"""Queries for the values that the rest of a query can compare a relation's columns with.

Rows of a relation that are equal to none of them are in no result. So the values may be too many, and a
query for them may leave out whatever only removes rows; it never misses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from millrace.front.context import Context
from millrace.front.from_clause import Chain, read_chain
from millrace.front.leave import Leave
from millrace.front.names import Scope, Source
from millrace.front.outputs import Outside, outsides
from millrace.front.predicates import unwrap
from millrace.front.repeatable import unrepeatable
from millrace.front.texts import plain_quote
from millrace.front.views import View, is_strict, movable

KEYS = "__k"
"""Names the values where they are joined with the relation."""

Wanted = Sequence[frozenset[str]]
"""For each value that is wanted, the relation's columns (in lower case) any of which gives it."""


@dataclass(frozen=True)
class Keys:
    """A query for values.

    Attributes:
        values: An SQL expression for each value that is wanted.
        relations: What it reads, as a FROM clause without the keyword; empty for constants.
        where: Its conditions.
        nodes: The syntax trees that its text is of.
    """

    values: tuple[str, ...]
    relations: str
    where: tuple[str, ...]
    nodes: tuple[exp.Expr, ...]

    def text(self) -> str:
        """Return it as SQL, with the columns ``__k0``, ``__k1`` and so on."""
        values = ", ".join(f"{value} AS __k{place}" for place, value in enumerate(self.values))
        text = f"SELECT DISTINCT {values}"
        text += f"\nFROM {self.relations}\n" if self.relations else ""
        terms = [f"({each}\n)" for each in self.where]  # a comment may end a term
        return text + (f"\nWHERE {' AND '.join(terms)}" if terms else "")


class KeyFinder:
    """Finds the values for relations of one query.

    Args:
        context: The query, with the columns of its derived tables known.
        scopes: Its SELECTs.
    """

    def __init__(self, context: Context, scopes: Mapping[int, Scope]) -> None:
        self._context = context
        self._scopes = scopes
        self._under_way: list[Source] = []

    def find(self, scope: Scope, source: Source, wanted: Wanted) -> list[Keys]:
        """Return queries whose values together are all that matter; none where no row is ever read.

        Raises:
            Leave: There is no such query; the message says why.
        """
        if any(each is source for each in self._under_way):
            raise Leave("it is bound by itself")
        self._under_way.append(source)
        try:
            view = View.of(self._context, scope, source)
            if any(each.alias == KEYS for each in scope.sources):
                raise Leave("")  # it has been tried: the values do not compare with the column
            reasons = list(view.hints(wanted))
            for way in (self._among, self._before, self._behind, self._around, self._outside):
                try:
                    found = way(view, wanted)
                except Leave as leave:
                    reasons.append(str(leave))
                    continue
                if found is not None:
                    return found
            raise Leave("; ".join(dict.fromkeys(each for each in reasons if each)))
        finally:
            self._under_way.pop()

    # Ways to values

    def _among(self, view: View, wanted: Wanted) -> list[Keys] | None:
        """Among relations that inner joins join: those that the values read, and what they join."""
        if not view.is_inner:
            return None
        picked = self._pick(
            view, view.on(), wanted, lambda node: self._places(view, node, inner=True) is not None
        )
        return None if picked is None else [self._closure(view.scope, view.chain, picked, view.source)]

    def _before(self, view: View, wanted: Wanted) -> list[Keys] | None:
        """Before a left (or inner) join: the whole left side, but for left joins that nobody needs."""
        terms = view.own_terms() if not view.is_inner else view.on()
        if view.chain.whole and not view.link.semi and not view.is_inner:
            terms = terms + view.where_terms()
        usable = view.link.kind == "left" or view.is_inner

        def earlier(node: exp.Expr) -> bool:
            places = self._places(view, node)
            return places is not None and all(place < view.place for place in places)

        picked = self._pick(view, terms, wanted, earlier) if usable and view.place else None
        if picked is None and usable and view.link.using and view.place:
            picked = self._using(view, wanted)
        return None if picked is None else [self._prefix(view, picked)]

    def _behind(self, view: View, wanted: Wanted) -> list[Keys] | None:
        """Behind a RIGHT join, on the side of which every row stays."""
        chain = view.chain
        if view.place >= chain.movable or chain.whole or view.link.semi:
            return None
        link = chain.links[chain.movable]
        if link.kind != "right":
            return None
        terms = [term for on in link.ons for term in _terms(on)]

        def of_it(node: exp.Expr) -> bool:
            places = self._places(view, node)
            return places is not None and places <= {chain.movable}

        picked = self._pick(view, terms, wanted, of_it)
        if picked is None:
            return None
        text = self._context.statement.text[slice(*link.item)]
        nodes = tuple(source.node for source in link.sources)
        return [self._checked(Keys(self._texts(picked), text, (), (*nodes, *picked)))]

    def _around(self, view: View, wanted: Wanted) -> list[Keys] | None:
        """Around a subquery: the relations of a SELECT that it refers to."""
        around: list[Scope] = []

        def outer(node: exp.Expr) -> bool:
            scopes = {id(f.scope): f.scope for f in map(self._context.find, node.find_all(exp.Column)) if f}
            if len(scopes) != 1 or id(view.scope) in scopes:
                return False
            (scope,) = scopes.values()
            if around and around[0] is not scope:
                return False
            around.append(scope)
            return True

        picked = self._pick(view, view.on(), wanted, outer, constants=False)
        if picked is None:
            return None
        return [self._from_scope(around[0], picked, view.scope.select)]

    def _outside(self, view: View, wanted: Wanted) -> list[Keys] | None:
        """Outside of a derived table, common table expression or IN: where its result is joined."""
        found = []
        for use in outsides(self._context, self._scopes, view, wanted):
            found += self._use(use)
        return found

    def _use(self, use: Outside) -> list[Keys]:
        if use.source is not None:
            return self.find(use.scope, use.source, use.wanted)
        if not all(self._usable(node) for node in use.values):
            raise Leave("IN compares it with something that may differ between two calls")
        return [self._from_scope(use.scope, list(use.values), use.select)]

    def _usable(self, node: exp.Expr) -> bool:
        return unrepeatable(node) is None and node.find(exp.Query) is None

    # Picking expressions

    def _pick(
        self,
        view: View,
        terms: Iterable[exp.Expr],
        wanted: Wanted,
        fits: Callable[[exp.Expr], bool],
        *,
        constants: bool = True,
    ) -> list[exp.Expr] | None:
        """Return an expression for each value, of those that fit; None where a value has none."""
        pairs = [pair for term in terms for pair in view.partners(term)]
        picked: list[exp.Expr] = []
        for names in wanted:
            own = [node for name, node in pairs if name in names]
            best = next((n for n in own if n.find(exp.Column) is None), None) if constants else None
            if best is None:
                best = next((n for n in own if n.find(exp.Column) is not None and fits(n)), None)
            if best is None:
                return None
            picked.append(best)
        return picked

    def _places(self, view: View, node: exp.Expr, *, inner: bool = False) -> set[int] | None:
        """Return the links of the same FROM clause that an expression reads, None if it reads others."""
        return _places(self._context, view.scope, view.chain, node, inner=inner)

    def _texts(self, nodes: Iterable[exp.Expr]) -> tuple[str, ...]:
        statement = self._context.statement
        return tuple(
            plain_quote(node.name)
            if isinstance(node, exp.Identifier)
            else statement.text[slice(*statement.span(node))]
            for node in nodes
        )

    # Making queries

    def _closure(
        self, scope: Scope, chain: Chain, picked: Sequence[exp.Expr], without: Source | None
    ) -> Keys:
        """Return the query over the relations that the values read and those that equalities tie to them."""
        places = set().union(*(_places(self._context, scope, chain, n) or set() for n in picked))
        terms = []
        for place, link in enumerate(chain.links):
            if movable(chain, place):
                terms += [term for on in link.ons for term in _terms(on)]
        if chain.whole and chain.where is not None:
            terms += _terms(chain.where)
        kept: list[tuple[exp.Expr, set[int]]] = []
        for term in terms:
            if not self._may_stay(term):
                continue
            reads = _places(self._context, scope, chain, term, inner=True)
            if reads and not any(s is without for p in reads for s in chain.links[p].sources):
                kept.append((term, reads))
        grown = True
        while grown:
            grown = False
            for term, reads in kept:
                more = reads - places
                if len(more) < len(reads) and more and isinstance(unwrap(term), exp.EQ):
                    if any(self._is_asked(s) for p in more for s in chain.links[p].sources):
                        continue
                    places |= more
                    grown = True
        where = [term for term, reads in kept if reads <= places]
        if len(places) > 1 and any(chain.links[p].using or chain.links[p].natural for p in places):
            raise Leave("relations joined by USING or NATURAL give the values")
        nodes = [chain.links[p].sources[0].node for p in sorted(places)]
        text = ", ".join(self._texts(nodes))
        return self._checked(Keys(self._texts(picked), text, self._texts(where), (*nodes, *where, *picked)))

    def _prefix(self, view: View, picked: Sequence[exp.Expr]) -> Keys:
        """Return the query over everything that stands before a relation in its FROM clause."""
        context, chain, statement = self._context, view.chain, self._context.statement
        if _in_group(view.source.node):
            raise Leave("it stands in a parenthesised join")
        start = chain.span[0] + len("FROM")
        end = statement.span(view.link.join)[0] if view.link.join is not None else start
        wanted = set().union(*(self._places(view, node) or set() for node in picked))
        terms = [t for t in view.own_terms() if not view.is_inner and self._stays_before(view, t)]
        if chain.whole:
            terms += [t for t in view.where_terms() if self._stays_before(view, t)]
        for term in terms:
            wanted |= self._places(view, term) or set()
        cut, nodes = self._needless(view, wanted)
        text, at = "", start
        for first, last in sorted(cut):
            text += statement.text[at:first] + "\n"
            at = last
        text += statement.text[at:end]
        begin = context.resolver.scope_of(view.scope.select).select.args["from_"]
        every = (begin, *nodes, *terms, *picked)
        return self._checked(Keys(self._texts(picked), text.strip(), self._texts(terms), every))

    def _needless(self, view: View, wanted: set[int]) -> tuple[list[tuple[int, int]], list[exp.Expr]]:
        """Return the text of left joins before a relation that the values do not need, and other joins."""
        links = view.chain.links[: view.place]
        cut: list[tuple[int, int]] = []
        kept: list[exp.Expr] = []
        free = not any(link.using or link.natural for link in links)
        for place in range(len(links) - 1, 0, -1):
            link = links[place]
            if link.join is None:
                continue
            needless = link.kind == "left" and not link.fixed and place not in wanted and free
            if needless and (not link.semi or self._reads_lookup(link.join)):
                cut.append(link.span)
                continue
            kept.append(link.join)
            for on in link.ons:
                for column in on.find_all(exp.Column):
                    found = self._context.find(column)
                    if found is not None and found.scope is view.scope:
                        wanted.add(_number(view.chain, found.source))
        return cut, kept

    def _using(self, view: View, wanted: Wanted) -> list[exp.Expr] | None:
        """Return the columns of USING, as the left side names them."""
        names = {name.name.lower(): name for name in (view.link.join.args.get("using") or ())}  # type: ignore[union-attr]
        own = [next((names[n] for n in sorted(each) if n in names), None) for each in wanted]
        return None if any(each is None for each in own) else [n for n in own if n is not None]

    def _from_scope(self, scope: Scope, picked: Sequence[exp.Expr], inner: exp.Expr) -> Keys:
        """Return the query over relations of a SELECT around a subquery."""
        chain = read_chain(self._context.statement, scope, 1)
        node = inner.parent
        while node is not None and node is not scope.select:
            if isinstance(node, exp.From | exp.Join):
                raise Leave("it depends on the FROM clause that it stands in")
            node = node.parent
        if chain is None:
            raise Leave("a FROM clause in a form that Millrace does not read")
        each = [_places(self._context, scope, chain, node) for node in picked]
        if any(places is None for places in each):
            raise Leave("a subquery that depends on more than the SELECT around it")
        if all(movable(chain, place) for places in each for place in places or ()):
            return self._closure(scope, chain, picked, None)
        if not all(is_strict(node) for node in picked):
            raise Leave("an expression over an outer join gives the values")
        sources = [
            s
            for s in scope.sources
            if any(
                f is not None and f.source is s for n in picked for f in map(self._context.find, _columns(n))
            )
        ]
        nodes = [source.node for source in sources]
        return self._checked(Keys(self._texts(picked), ", ".join(self._texts(nodes)), (), (*nodes, *picked)))

    def _stays_before(self, view: View, term: exp.Expr) -> bool:
        places = self._places(view, term)
        return bool(places) and all(p < view.place for p in places or ()) and self._may_stay(term)

    def _may_stay(self, term: exp.Expr) -> bool:
        """Tell whether a condition may be evaluated once more, for the values."""
        named = self._context.calls.predicates
        called = any(node.name.lower() in named for node in term.find_all(exp.Anonymous))
        known = self._context.statement.has_span(term)
        return known and not called and term.find(exp.Query) is None and unrepeatable(term) is None

    def _is_asked(self, source: Source) -> bool:
        return source.kind == "table" and source.table is not None and source.table.asked

    def _reads_lookup(self, node: exp.Expr) -> bool:
        named = [tuple(part.name for part in table.parts) for table in node.find_all(exp.Table)]
        return any(found.asked for found in map(self._context.catalog.mapped, named) if found is not None)

    def _checked(self, keys: Keys) -> Keys:
        for node in keys.nodes:
            for part in (node, *self._context.definitions(node)):
                why = unrepeatable(part)
                if why is not None:
                    raise Leave(f"what gives its values may give others when it runs again ({why})")
        return keys


def _places(
    context: Context, scope: Scope, chain: Chain, node: exp.Expr, *, inner: bool = False
) -> set[int] | None:
    """Return the links of a FROM clause that an expression reads.

    None if it reads anything else, or with ``inner`` a link that is no lone relation of an inner join.
    """
    places: set[int] = set()
    for column in _columns(node):
        found = context.find(column)
        if found is None or not found.certain or found.scope is not scope:
            return None
        place = _number(chain, found.source)
        if inner and (not movable(chain, place) or len(chain.links[place].sources) != 1):
            return None
        places.add(place)
    return places


def _number(chain: Chain, source: Source) -> int:
    return next(n for n, link in enumerate(chain.links) if any(s is source for s in link.sources))


def _columns(node: exp.Expr) -> list[exp.Column]:
    return list(node.find_all(exp.Column))


def _terms(node: exp.Expr) -> list[exp.Expr]:
    inner = unwrap(node)
    if isinstance(inner, exp.And):
        return _terms(inner.this) + _terms(inner.expression)
    return [node]


def _in_group(node: exp.Expr) -> bool:
    """Tell whether a relation stands in a parenthesised join."""
    parent = node.parent
    while parent is not None and not isinstance(parent, exp.Select):
        if isinstance(parent, exp.Subquery):
            return True
        parent = parent.parent
    return False
