"""Queries for the values that the rest of a query can compare a relation's columns with.

Rows of a relation that are equal to none of them are in no result. So the values may be too many, and a
query for them may leave out whatever only removes rows; it never misses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from millrace.sql.lookups.outsides import shown_places, uses
from millrace.sql.lookups.views import View, clause_of, is_repeatable, is_strict
from millrace.sql.planner.context import PlanContext
from millrace.sql.syntax.edits import plain_quote
from millrace.sql.syntax.parse import Statement, Unsupported, compared, function_of, unwrap
from millrace.sql.syntax.scopes import FromClause, FromItem, JoinStep, Relation, Scope, definitions, tables_in

KEYS = "__k"
"""Names the values where they are joined with the relation."""

Wanted = Sequence[frozenset[str]]
"""For each value that is wanted, the relation's columns (in lower case) any of which gives it."""


@dataclass(frozen=True)
class Keys:
    """A query for values.

    Attributes:
        values: What gives each value that is wanted: an expression, or a name of USING.
        relations: What it reads: relations, and joins as the query has them; nothing for constants.
        where: Its conditions.
    """

    values: tuple[exp.Expr, ...]
    relations: tuple[exp.Expr, ...]
    where: tuple[exp.Expr, ...] = ()

    @property
    def nodes(self) -> tuple[exp.Expr, ...]:
        """The syntax trees that its text is of."""
        return (*self.relations, *self.where, *self.values)

    def text(self, statement: Statement) -> str:
        """Return it as SQL, with the columns ``__k0``, ``__k1`` and so on."""
        values = [
            plain_quote(v.name) if isinstance(v, exp.Identifier) else statement.cut(v) for v in self.values
        ]
        text = "SELECT DISTINCT " + ", ".join(f"{value} AS __k{place}" for place, value in enumerate(values))
        for place, node in enumerate(self.relations):
            begin = ", " if place else "\nFROM "
            text += ("\n" if isinstance(node, exp.Join) else begin) + statement.cut(node)
        terms = [f"({statement.cut(each)}\n)" for each in self.where]  # a comment may end a term
        return text + "\n" + (f"\nWHERE {' AND '.join(terms)}" if terms else "")


class KeyFinder:
    """Finds the values for relations of one query.

    Args:
        context: The query.
    """

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._names = context.names
        self._under_way: list[Relation] = []

    def find(self, scope: Scope, relation: Relation, wanted: Wanted) -> list[Keys]:
        """Return queries whose values together are all that matter; none where no row is ever read.

        Raises:
            Unsupported: There is no such query; the message says why.
        """
        if relation in self._under_way:
            raise Unsupported("it is bound by itself")
        self._under_way.append(relation)
        try:
            view = View.of(self._context, scope, relation)
            if any(each.alias == KEYS for each in view.clause.relations()):
                raise Unsupported("")  # it has been tried: the values do not compare with the column
            reasons = list(view.hints(wanted))
            for way in (self._among, self._before, self._behind, self._around, self._outside):
                try:
                    return self._checked(way(view, wanted))
                except Unsupported as leave:
                    reasons.append(str(leave))
            raise Unsupported("; ".join(dict.fromkeys(each for each in reasons if each)))
        finally:
            self._under_way.pop()

    # Ways to values; each raises Unsupported where it leads to none

    def _among(self, view: View, wanted: Wanted) -> list[Keys]:
        """Among relations that inner joins join: those that the values read, and what they join."""
        if not view.step.free:
            raise Unsupported("")
        free = _free(view.clause)
        picked = self._of_steps(view, view.on(), wanted, free)
        return [self._closure(view.clause, picked, free - {view.place})]

    def _before(self, view: View, wanted: Wanted) -> list[Keys]:
        """Before a left (or inner) join: the whole left side, but for left joins that nobody needs."""
        item, place = view.step.item, view.place
        if not place or not (item.kind == "left" or view.step.free):
            raise Unsupported("")
        try:
            terms = view.on() + ([] if item.semi else view.clause.filters)
            picked = self._of_steps(view, terms, wanted, set(range(place)))
        except Unsupported:
            using: dict[str, exp.Expr] = {name.lower(): exp.to_identifier(name) for name in item.using}
            picked = [using[min(names & set(using))] for names in wanted if names & set(using)]
            if len(picked) < len(wanted):
                raise
        return [self._prefix(view, picked)]

    def _behind(self, view: View, wanted: Wanted) -> list[Keys]:
        """Behind a RIGHT join, on the side of which every row stays."""
        steps = view.clause.steps
        behind = next((n for n, step in enumerate(steps) if step.item.kind in ("right", "full")), 0)
        join = steps[behind].item.join
        if join is None or view.place >= behind or join.side.upper() != "RIGHT" or view.step.item.semi:
            raise Unsupported("")
        picked = self._of_steps(view, steps[behind].terms, wanted, {behind})
        return [Keys(tuple(picked), (join.this,))]

    def _around(self, view: View, wanted: Wanted) -> list[Keys]:
        """Around a subquery: the relations of a SELECT that it refers to."""
        around: set[Scope] = set()

        def outer(node: exp.Expr) -> bool:
            scopes = {f.scope for f in map(self._names.find, node.find_all(exp.Column)) if f}
            if len(scopes) != 1 or view.scope in scopes or not around <= scopes:
                return False
            around.update(scopes)
            return True

        picked = _pick(view, view.on(), wanted, outer)
        return [self._from_scope(around.pop(), picked, view.scope.select)]

    def _outside(self, view: View, wanted: Wanted) -> list[Keys]:
        """Outside of a derived table, common table expression or IN: where its result is joined."""
        select = view.scope.select
        if select.find_ancestor(exp.Select, exp.With) is None:
            raise Unsupported("")
        places = [shown_places(view, names) for names in wanted]
        found: list[Keys] = []
        for scope, use in uses(self._context, select):
            if isinstance(use, Relation):
                names = [name.lower() for name in self._names.columns(use)]
                found += self.find(scope, use, [frozenset(names[p] for p in each) for each in places])
                continue
            values = [compared(use)[each[0]] for each in places]
            if not all(is_repeatable(self._context, node) for node in values):
                raise Unsupported("IN compares it with something that may differ between two calls")
            found.append(self._from_scope(scope, values, select))
        return found

    # Making queries

    def _of_steps(
        self, view: View, terms: Iterable[exp.Expr], wanted: Wanted, steps: set[int]
    ) -> list[exp.Expr]:
        """Return an expression for each value, constant or over some steps of the FROM clause."""
        return _pick(view, terms, wanted, lambda node: self._places(view.clause, node) <= steps)

    def _places(self, clause: FromClause, node: exp.Expr) -> set[int]:
        """Return the steps of a FROM clause that an expression reads, and -1 if it may read anything else."""
        read = self._names.relations_read(node)
        return {-1} if read is None else {clause.number(relation) for relation in read}

    def _closure(self, clause: FromClause, picked: Sequence[exp.Expr], free: set[int]) -> Keys:
        """Return the query over the relations that the values read and those that equalities tie to them.

        ``free`` are the steps whose relations may be tied.
        """
        steps = clause.steps
        places = {place for node in picked for place in self._places(clause, node)}
        terms = [(term, self._places(clause, term)) for term in clause.inner_terms]
        kept = [(term, reads) for term, reads in terms if reads and reads <= free and self._may_stay(term)]
        barred = {place for place in free - places if self._is_asked(steps[place])}
        ties = [reads for term, reads in kept if isinstance(unwrap(term), exp.EQ) and not reads & barred]
        while more := {place for reads in ties if reads & places for place in reads - places}:
            places |= more
        if len(places) > 1 and any(steps[p].item.merges for p in places):
            raise Unsupported("relations joined by USING or NATURAL give the values")
        nodes = [steps[p].item.relations()[0].node for p in sorted(places)]
        return Keys(tuple(picked), tuple(nodes), tuple(term for term, reads in kept if reads <= places))

    def _prefix(self, view: View, picked: Sequence[exp.Expr]) -> Keys:
        """Return the query over what stands before a relation in its FROM clause, as far as it is needed."""
        clause = view.clause
        if view.step.clause is not clause:
            raise Unsupported("it stands in a parenthesised join")
        where = [] if view.step.free else view.on()
        before = set(range(view.place))
        where = [
            term
            for term in where + clause.filters
            if (reads := self._places(clause, term)) and reads <= before and self._may_stay(term)
        ]
        needed = {r for node in (*picked, *where) for r in self._names.relations_read(node) or ()}
        kept: list[exp.Expr] = []
        for item in reversed(clause.items[: view.step.place]):
            if item.content not in needed and not clause.merges and self._is_needless(item):
                continue
            kept.insert(0, item.join or view.scope.select.args["from_"].this)
            needed |= set() if item.on is None else set(self._names.relations_read(item.on) or ())
        return Keys(tuple(picked), tuple(kept), tuple(where))

    def _from_scope(self, scope: Scope, picked: Sequence[exp.Expr], inner: exp.Expr) -> Keys:
        """Return the query over relations of a SELECT around a subquery."""
        node = inner.parent
        while node is not None and node is not scope.select:
            if isinstance(node, exp.From | exp.Join):
                raise Unsupported("it depends on the FROM clause that it stands in")
            node = node.parent
        clause = clause_of(scope)
        places = {place for node in picked for place in self._places(clause, node)}
        if -1 in places:
            raise Unsupported("a subquery that depends on more than the SELECT around it")
        if places <= _free(clause):
            return self._closure(clause, picked, _free(clause))
        if not all(is_strict(node) for node in picked):
            raise Unsupported("an expression over an outer join gives the values")
        read = {r for node in picked for r in self._names.relations_read(node) or ()}
        return Keys(tuple(picked), tuple(r.node for r in clause.relations() if r in read))

    def _may_stay(self, term: exp.Expr) -> bool:
        """Tell whether a condition may be evaluated once more, for the values."""
        called = any(function_of(part) is not None for part in term.walk())
        return not called and is_repeatable(self._context, term)

    def _is_asked(self, step: JoinStep) -> bool:
        found = None if step.relation is None else self._context.lookup(step.relation)
        return found is not None and found.asked

    def _is_needless(self, item: FromItem) -> bool:
        """Tell whether a join whose columns nobody reads may be left out; a semi join only to ask less."""
        if item.join is None or item.kind != "left" or not isinstance(item.content, Relation):
            return False
        lookups = map(self._context.catalog.lookup, tables_in(item.join))
        return not item.semi or any(found.asked for found in lookups if found is not None)

    def _checked(self, found: list[Keys]) -> list[Keys]:
        for node in {id(node): node for keys in found for node in keys.nodes}.values():
            for part in (node, *definitions(node)):
                why = self._context.volatility.unrepeatable(part)
                if why is not None:
                    raise Unsupported(f"what gives its values may give others when it runs again ({why})")
        return found


def _free(clause: FromClause) -> set[int]:
    """Return the steps that are lone relations joined by inner joins."""
    return {place for place, step in enumerate(clause.steps) if step.free}


def _pick(
    view: View, terms: Iterable[exp.Expr], wanted: Wanted, fits: Callable[[exp.Expr], bool]
) -> list[exp.Expr]:
    """Return an expression for each value, of those that terms say it is equal to; constants before others.

    Raises:
        Unsupported: For one there is none that fits.
    """
    pairs = [pair for term in terms for pair in view.partners(term)]
    pairs.sort(key=lambda pair: pair[1].find(exp.Column) is not None)
    picked = []
    for names in wanted:
        best = next((node for name, node in pairs if name in names and fits(node)), None)
        if best is None:
            raise Unsupported("")
        picked.append(best)
    return picked
