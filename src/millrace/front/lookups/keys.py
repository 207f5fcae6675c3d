"""Queries for the values that the rest of a query can compare a relation's columns with.

Rows of a relation that are equal to none of them are in no result. So the values may be too many, and a
query for them may leave out whatever only removes rows; it never misses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from millrace.front.ctes import Leave, definitions, tables_in
from millrace.front.from_clause import FromClause, Relation, Step
from millrace.front.lookups.outsides import Outside, outsides
from millrace.front.lookups.views import View, clause_of, is_strict, relations_read
from millrace.front.parse import function_of, unwrap
from millrace.front.planning import Planning
from millrace.front.scopes import Scope
from millrace.front.template import plain_quote
from millrace.front.translate import conjuncts

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
        planning: The query.
    """

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._under_way: list[Relation] = []

    def find(self, scope: Scope, relation: Relation, wanted: Wanted) -> list[Keys]:
        """Return queries whose values together are all that matter; none where no row is ever read.

        Raises:
            Leave: There is no such query; the message says why.
        """
        if any(each is relation for each in self._under_way):
            raise Leave("it is bound by itself")
        self._under_way.append(relation)
        try:
            view = View.of(self._planning, scope, relation)
            if any(each.alias == KEYS for each in view.clause.relations()):
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
        return None if picked is None else [self._closure(view.scope, view.clause, picked, view.relation)]

    def _before(self, view: View, wanted: Wanted) -> list[Keys] | None:
        """Before a left (or inner) join: the whole left side, but for left joins that nobody needs."""
        terms = view.own_terms() if not view.is_inner else view.on()
        item = view.step.item
        if view.clause.whole and not item.semi and not view.is_inner:
            terms = terms + view.where_terms()
        usable = item.kind == "left" or view.is_inner

        def earlier(node: exp.Expr) -> bool:
            places = self._places(view, node)
            return places is not None and all(place < view.place for place in places)

        picked = self._pick(view, terms, wanted, earlier) if usable and view.place else None
        if picked is None and usable and item.using and view.place:
            picked = self._using(view, wanted)
        return None if picked is None else [self._prefix(view, picked)]

    def _behind(self, view: View, wanted: Wanted) -> list[Keys] | None:
        """Behind a RIGHT join, on the side of which every row stays."""
        clause, steps = view.clause, view.steps
        behind = next((n for n, step in enumerate(steps) if step.item.kind in ("right", "full")), len(steps))
        if view.place >= behind or clause.whole or view.step.item.semi:
            return None
        step = steps[behind]
        if step.item.kind != "right":
            return None
        terms = [term for on in step.conditions for term in conjuncts(on)]

        def of_it(node: exp.Expr) -> bool:
            places = self._places(view, node)
            return places is not None and places <= {behind}

        picked = self._pick(view, terms, wanted, of_it)
        if picked is None:
            return None
        text = self._planning.statement.text[slice(*step.item.item)]
        nodes = tuple(relation.node for relation in step.item.relations())
        return [self._checked(Keys(self._texts(picked), text, (), (*nodes, *picked)))]

    def _around(self, view: View, wanted: Wanted) -> list[Keys] | None:
        """Around a subquery: the relations of a SELECT that it refers to."""
        around: list[Scope] = []

        def outer(node: exp.Expr) -> bool:
            found = map(self._planning.names.find, node.find_all(exp.Column))
            scopes = {id(f.scope): f.scope for f in found if f}
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
        for use in outsides(self._planning, view, wanted):
            found += self._use(use)
        return found

    def _use(self, use: Outside) -> list[Keys]:
        if use.relation is not None:
            return self.find(use.scope, use.relation, use.wanted)
        if not all(self._usable(node) for node in use.values):
            raise Leave("IN compares it with something that may differ between two calls")
        return [self._from_scope(use.scope, list(use.values), use.select)]

    def _usable(self, node: exp.Expr) -> bool:
        return self._planning.volatility.unrepeatable(node) is None and node.find(exp.Query) is None

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
        """Return the steps of the same FROM clause that an expression reads, None if it reads others."""
        return _places(self._planning, view.scope, view.clause, node, inner=inner)

    def _texts(self, nodes: Iterable[exp.Expr]) -> tuple[str, ...]:
        statement = self._planning.statement
        return tuple(
            plain_quote(node.name)
            if isinstance(node, exp.Identifier)
            else statement.text[slice(*statement.span(node))]
            for node in nodes
        )

    # Making queries

    def _closure(
        self, scope: Scope, clause: FromClause, picked: Sequence[exp.Expr], without: Relation | None
    ) -> Keys:
        """Return the query over the relations that the values read and those that equalities tie to them."""
        planning, steps = self._planning, clause.steps()
        places = set().union(*(_places(planning, scope, clause, n) or set() for n in picked))
        terms = [t for step in steps if step.movable for on in step.conditions for t in conjuncts(on)]
        if clause.whole and clause.where is not None:
            terms += conjuncts(clause.where)
        kept: list[tuple[exp.Expr, set[int]]] = []
        for term in terms:
            if not self._may_stay(term):
                continue
            reads = _places(planning, scope, clause, term, inner=True)
            if reads and not any(r is without for p in reads for r in steps[p].item.relations()):
                kept.append((term, reads))
        grown = True
        while grown:
            grown = False
            for term, reads in kept:
                more = reads - places
                if len(more) < len(reads) and more and isinstance(unwrap(term), exp.EQ):
                    if any(self._is_asked(r) for p in more for r in steps[p].item.relations()):
                        continue
                    places |= more
                    grown = True
        where = [term for term, reads in kept if reads <= places]
        if len(places) > 1 and any(steps[p].item.merges for p in places):
            raise Leave("relations joined by USING or NATURAL give the values")
        nodes = [steps[p].item.relations()[0].node for p in sorted(places)]
        text = ", ".join(self._texts(nodes))
        return self._checked(Keys(self._texts(picked), text, self._texts(where), (*nodes, *where, *picked)))

    def _prefix(self, view: View, picked: Sequence[exp.Expr]) -> Keys:
        """Return the query over everything that stands before a relation in its FROM clause."""
        clause, statement = view.clause, self._planning.statement
        if view.step.clause is not clause:
            raise Leave("it stands in a parenthesised join")
        item = view.step.item
        start = clause.span[0] + len("FROM")
        end = start if item.join is None else item.span[0]
        wanted = set().union(*(self._places(view, node) or set() for node in picked))
        terms = [t for t in view.own_terms() if not view.is_inner and self._stays_before(view, t)]
        if clause.whole:
            terms += [t for t in view.where_terms() if self._stays_before(view, t)]
        for term in terms:
            wanted |= self._places(view, term) or set()
        cut, nodes = self._needless(view, wanted)
        text, at = "", start
        for first, last in sorted(cut):
            text += statement.text[at:first] + "\n"
            at = last
        text += statement.text[at:end]
        begin = view.scope.select.args["from_"]
        every = (begin, *nodes, *terms, *picked)
        return self._checked(Keys(self._texts(picked), text.strip(), self._texts(terms), every))

    def _needless(self, view: View, wanted: set[int]) -> tuple[list[tuple[int, int]], list[exp.Expr]]:
        """Return the text of left joins before a relation that the values do not need, and other joins."""
        steps = view.steps[: view.place]
        cut: list[tuple[int, int]] = []
        kept: list[exp.Expr] = []
        free = not view.clause.merges
        for place in range(len(steps) - 1, 0, -1):
            step = steps[place]
            if step.item.join is None:
                continue
            lone = step.item.kind == "left" and step.relation is not None
            needless = lone and place not in wanted and free
            if needless and (not step.item.semi or self._reads_lookup(step.item.join)):
                cut.append(step.item.span)
                continue
            kept.append(step.item.join)
            for on in step.conditions:
                for relation in relations_read(self._planning, on) or ():
                    number = _number(view.steps, relation)
                    if number is not None:
                        wanted.add(number)
        return cut, kept

    def _using(self, view: View, wanted: Wanted) -> list[exp.Expr] | None:
        """Return the columns of USING, as the left side names them."""
        join = view.step.item.join
        names = {name.name.lower(): name for name in (join.args.get("using") or () if join else ())}
        own = [next((names[n] for n in sorted(each) if n in names), None) for each in wanted]
        return None if any(each is None for each in own) else [n for n in own if n is not None]

    def _from_scope(self, scope: Scope, picked: Sequence[exp.Expr], inner: exp.Expr) -> Keys:
        """Return the query over relations of a SELECT around a subquery."""
        node = inner.parent
        while node is not None and node is not scope.select:
            if isinstance(node, exp.From | exp.Join):
                raise Leave("it depends on the FROM clause that it stands in")
            node = node.parent
        clause = clause_of(scope)
        steps = clause.steps()
        each = [_places(self._planning, scope, clause, node) for node in picked]
        if any(places is None for places in each):
            raise Leave("a subquery that depends on more than the SELECT around it")
        if all(_is_free(steps[place]) for places in each for place in places or ()):
            return self._closure(scope, clause, picked, None)
        if not all(is_strict(node) for node in picked):
            raise Leave("an expression over an outer join gives the values")
        read = [r for node in picked for r in relations_read(self._planning, node) or ()]
        nodes = [r.node for r in clause.relations() if any(r is other for other in read)]
        return self._checked(Keys(self._texts(picked), ", ".join(self._texts(nodes)), (), (*nodes, *picked)))

    def _stays_before(self, view: View, term: exp.Expr) -> bool:
        places = self._places(view, term)
        return bool(places) and all(p < view.place for p in places or ()) and self._may_stay(term)

    def _may_stay(self, term: exp.Expr) -> bool:
        """Tell whether a condition may be evaluated once more, for the values."""
        planning = self._planning
        called = any(function_of(node) is not None for node in term.find_all(exp.Anonymous))
        known = planning.statement.has_span(term)
        again = planning.volatility.unrepeatable(term) is None
        return known and not called and term.find(exp.Query) is None and again

    def _is_asked(self, relation: Relation) -> bool:
        table = self._planning.names.table(relation)
        return table is not None and table.asked

    def _reads_lookup(self, node: exp.Expr) -> bool:
        named = [tuple(part.name for part in table.parts) for table in tables_in(node)]
        return any(found.asked for found in map(self._planning.catalog.mapped, named) if found is not None)

    def _checked(self, keys: Keys) -> Keys:
        for node in keys.nodes:
            for part in (node, *definitions(node)):
                why = self._planning.volatility.unrepeatable(part)
                if why is not None:
                    raise Leave(f"what gives its values may give others when it runs again ({why})")
        return keys


def _places(
    planning: Planning, scope: Scope, clause: FromClause, node: exp.Expr, *, inner: bool = False
) -> set[int] | None:
    """Return the steps of a FROM clause that an expression reads.

    None if it reads anything else, or with ``inner`` a step that is no lone relation of an inner join.
    """
    steps = clause.steps()
    places: set[int] = set()
    for column in node.find_all(exp.Column):
        found = planning.names.find(column)
        if found is None or found.why or found.match is None or found.scope is not scope:
            return None
        for relation, _ in found.match.attribute.sources:
            place = _number(steps, relation)
            if place is None or (inner and not _is_free(steps[place])):
                return None
            places.add(place)
    return places


def _is_free(step: Step) -> bool:
    """Tell whether a step is a lone relation that an inner join brings in."""
    return step.movable and step.relation is not None


def _number(steps: Sequence[Step], relation: Relation) -> int | None:
    return next((n for n, s in enumerate(steps) if any(r is relation for r in s.item.relations())), None)
