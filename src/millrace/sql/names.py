"""What every name in a query means, as Spark resolves it.

A FROM clause gives out columns in order, each with the relation it is from. USING and NATURAL make one column
of two and put it in front; the other one is hidden, and only found with its relation's name before it. Names
are looked up as Spark does: first with as many qualifiers as may stand before a column, then with fewer, at
last as a column of whose struct a field is taken.

The innermost SELECT comes first, then the SELECTs around it. Where a clause is evaluated over the SELECT's
result (ORDER BY and the like) result columns come first. What is not certain is marked: whoever would have to
rely on it leaves its SELECT to Spark. Where the columns of a relation cannot be known, Unsupported says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import types as t
from sqlglot import exp

from millrace.sql.expr.types import Field, type_within
from millrace.sql.syntax.parse import Unsupported, unwrap
from millrace.sql.syntax.scopes import FromClause, FromItem, Place, Relation, Scope, Scopes

if TYPE_CHECKING:
    from millrace.sql.context import PlanContext  # which has the names of its query


@dataclass(frozen=True)
class Attribute:
    """A column that a FROM clause gives out."""

    name: str  # as Spark spells it
    sources: tuple[tuple[Relation, int], ...]  # by places; several are coalesced (FULL JOIN … USING)

    @property
    def relation(self) -> Relation | None:
        """The one relation that it is from, None for a coalesced column."""
        return self.sources[0][0] if len(self.sources) == 1 else None


@dataclass(frozen=True)
class Match:
    """A resolved name: its first parts qualify an attribute, and its last ones are fields of a struct."""

    attribute: Attribute
    qualifier: int
    nested: int


class Unclear(Exception):
    """Several columns may be meant, or only Spark knows which."""


@dataclass(frozen=True)
class Output:
    """The columns of a FROM clause: what ``*`` shows, and what is only found with a qualifier, in order.

    ``keys`` are the pairs of columns that USING or NATURAL of the last item compares.
    """

    shown: tuple[Attribute, ...] = ()
    hidden: tuple[Attribute, ...] = ()
    keys: tuple[tuple[Attribute, Attribute], ...] = ()

    @cached_property
    def _named(self) -> tuple[dict[str, list[Attribute]], dict[str, list[Attribute]]]:
        """What is shown and what is hidden, by name in lower case."""
        return _by_name(self.shown), _by_name(self.hidden)

    def find(self, parts: Sequence[str]) -> Match | None:
        """Return what a name in lower case means, None when nothing here has it; Unclear if several have."""
        most = min(3, len(parts) - 1)
        shown, hidden = self._named
        places = [(shown, length) for length in range(most, -1, -1)]
        for among, length in [*places, *((hidden, length) for length in range(most, 0, -1))]:
            named = among.get(parts[length], ())
            hits = [hit for hit in named if not length or _answers(hit, tuple(parts[:length]))]
            if len({hit.sources for hit in hits}) > 1:
                raise Unclear(f"several columns are named {hits[0].name}")
            if hits:
                return Match(hits[0], length, len(parts) - length - 1)
        return None

    def star(self, qualifier: tuple[str, ...]) -> list[Attribute]:
        """Return what ``qualifier.*`` shows, hidden columns first; nothing when it names no relation."""
        return [column for column in (*self.hidden, *self.shown) if _answers(column, qualifier)]


def _by_name(attributes: Sequence[Attribute]) -> dict[str, list[Attribute]]:
    named: dict[str, list[Attribute]] = {}
    for attribute in attributes:
        named.setdefault(attribute.name.lower(), []).append(attribute)
    return named


def _answers(attribute: Attribute, qualifier: tuple[str, ...]) -> bool:
    answer = False if attribute.relation is None else attribute.relation.answers_to(qualifier)
    if answer is None:
        raise Unclear(f"only Spark knows whether {'.'.join(qualifier)} is a table here")
    return answer


def _both(left: Output, right: Output) -> Output:
    return Output(left.shown + right.shown, left.hidden + right.hidden)


def _join(left: Output, right: Output, item: FromItem) -> Output:
    """Return what an item makes of the columns on its left."""
    names = _common(left, right) if item.natural else list(item.using)
    if not names:
        return _both(left, Output() if item.semi else right)
    a, b = [_first(left, name) for name in names], [_first(right, name) for name in names]
    pairs = tuple(zip(a, b, strict=True))
    rest, other = _without(left, a), _without(right, b)
    if item.semi:
        return Output((*a, *rest), left.hidden, pairs)
    shown, behind = a, b
    if item.kind == "right":
        shown, behind = b, a
    elif item.kind == "full":
        shown, behind = [Attribute(x.name, (*x.sources, *y.sources)) for x, y in pairs], [*a, *b]
    return Output((*shown, *rest, *other), (*behind, *left.hidden, *right.hidden), pairs)


def _common(left: Output, right: Output) -> list[str]:
    """Return the names that NATURAL joins by: those of both, letter by letter, in the left side's order."""
    there = Counter(attribute.name for attribute in right.shown)
    names = []
    for attribute in left.shown:
        if there[attribute.name] > 0:
            there[attribute.name] -= 1
            names.append(attribute.name)
    return names


def _first(side: Output, name: str) -> Attribute:
    named = _by_name(side.shown).get(name.lower())
    if not named:
        raise Unsupported(f"USING({name}) over a column that is not there")
    return named[0]


def _without(side: Output, keys: Sequence[Attribute]) -> list[Attribute]:
    return [attribute for attribute in side.shown if not any(attribute is key for key in keys)]


# Clauses in which a name means a result column before a column of FROM.
_BY_RESULT = frozenset({"order", "sort", "cluster", "distribute", "having", "qualify", "hint"})
_RESULT_FIRST = _BY_RESULT - {"having", "qualify"}


@dataclass(frozen=True)
class Resolved:
    """What a column's name means: a column of this SELECT."""

    scope: Scope
    match: Match | None  # None where it is not certain which
    why: str = ""  # what is not certain
    result: bool = False  # the same is a result column of that SELECT too


@dataclass(frozen=True)
class Result:
    """A result column of a SELECT."""

    name: str | None  # None where Spark makes one up
    attribute: Attribute | None  # the column of FROM that it is
    alias: bool


class Names:
    """Resolves the names of one query."""

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self.scopes = Scopes(context.statement)
        for _, relation in self.scopes.relations():
            if relation.kind == "table" and not relation.node.alias:
                relation.current = context.catalog.find_current(relation.node)  # type: ignore[arg-type]
        self._fields: dict[int, tuple[Field, ...] | str] = {}  # or why they cannot be known
        self._resolved: dict[int, Resolved | None] = {}
        self._outputs: dict[tuple[int, int | None, bool], Output] = {}

    # Columns of relations

    def fields(self, relation: Relation) -> tuple[Field, ...]:
        """Return a relation's columns in order, under the names that its alias gives them."""
        if id(relation) not in self._fields:
            try:
                self._fields[id(relation)] = self._named(relation)
            except Unsupported as error:
                self._fields[id(relation)] = str(error)  # it would hold the frames that hold this
        fields = self._fields[id(relation)]
        if isinstance(fields, str):
            raise Unsupported(fields)
        return fields

    def _named(self, relation: Relation) -> tuple[Field, ...]:
        if relation.kind in ("lateral", "view"):
            return tuple(Field(name, t.NullType(), None, False) for name in self._result_names(relation))
        table = self._context.table(relation)
        if table is None:
            return self._context.describe(relation)
        fields = table.fields
        if not relation.columns:
            return fields
        if len(relation.columns) != len(fields):
            raise Unsupported(f"{relation.alias} has another number of columns than its alias names")
        return tuple(replace(f, name=n) for f, n in zip(fields, relation.columns, strict=True))

    def columns(self, relation: Relation) -> tuple[str, ...]:
        """Return the names of a relation's columns in order; Spark is not asked where the text has them."""
        if relation.kind in ("cte", "query"):
            with suppress(Unsupported):
                return self._result_names(relation)
        return tuple(field.name for field in self.fields(relation))

    def _result_names(self, relation: Relation) -> tuple[str, ...]:
        if relation.columns:
            return relation.columns
        cte, select = relation.cte, relation.node.this if relation.cte is None else relation.cte.this
        if cte is not None and cte.alias_column_names:
            return tuple(cte.alias_column_names)
        while isinstance(select, exp.Subquery | exp.SetOperation) and not select.args.get("by_name"):
            select = select.this
        if isinstance(select, exp.Select):
            results = self.results(self.scopes.of(select))
            names = tuple(result.name for result in results if result.name is not None)
            if len(names) == len(results):
                return names
        raise Unsupported("a relation whose columns have no names here")

    def output(self, scope: Scope) -> Output:
        if scope.clause is None and scope.why:
            raise Unsupported(scope.why)
        return Output() if scope.clause is None else self._output(scope.clause)

    def _output(self, clause: FromClause, end: int | None = None, *, on: bool = False) -> Output:
        """Return the columns of the first ``end`` items and LATERAL VIEWs of a clause, or of all.

        With ``on``, of the next item too: its condition sees both sides, also where one is not shown above.
        """
        key = (id(clause), end, on)
        if key not in self._outputs:
            output = Output()
            for item in clause.items[:end]:
                output = _join(output, self._own(item.content), item)
            more: list[Relation | FromClause] = [*clause.views]
            if end is not None:
                more = [clause.items[end].content] if on else more[: max(0, end - len(clause.items))]
            for content in more:
                output = _both(output, self._own(content))
            self._outputs[key] = output
        return self._outputs[key]

    def keys_of(self, item: FromItem) -> tuple[tuple[Attribute, Attribute], ...]:
        """Return the pairs of columns that USING or NATURAL of an item compares."""
        return self._output(item.clause, item.place + 1).keys if item.merges else ()

    def _own(self, content: Relation | FromClause) -> Output:
        if isinstance(content, FromClause):
            return self._output(content)
        names = enumerate(self.columns(content))
        return Output(tuple(Attribute(name, ((content, n),)) for n, name in names))

    # Names

    def find(self, column: exp.Column) -> Resolved | None:
        """Return what a column's name means, None when it is no column of any SELECT here."""
        if id(column) not in self._resolved:
            self._resolved[id(column)] = self._find(column)
        return self._resolved[id(column)]

    def match(self, column: exp.Column) -> Match | None:
        """Return which column of a FROM clause a name means, None where it is none, or not certain."""
        resolved = self.find(column)
        return None if resolved is None or resolved.why else resolved.match

    def attribute(self, node: exp.Expr) -> Attribute | None:
        """Return the column of FROM that an expression is; None for a field of a struct, or if in doubt."""
        match = self.match(node) if isinstance(node, exp.Column) else None
        return None if match is None or match.nested else match.attribute

    def relations_read(self, node: exp.Expr) -> list[Relation] | None:
        """Return the relations whose columns an expression reads, None where it is not certain."""
        matches = [self.match(column) for column in node.find_all(exp.Column)]
        if None in matches:
            return None
        return [relation for match in matches if match for relation, _ in match.attribute.sources]

    def _find(self, column: exp.Column) -> Resolved | None:
        parts = tuple(part.name.lower() for part in column.parts)
        place, why = self.scopes.find_place(column), ""
        while place is not None:
            try:
                resolved = self._look_up(parts, column, place)
            except Unsupported as error:
                why, resolved = why or str(error), False
            if isinstance(resolved, Resolved):
                return replace(resolved, why=resolved.why or why)
            if resolved:
                return None
            place = self.scopes.find_place(place.scope.select)
        return None

    def _look_up(self, parts: tuple[str, ...], column: exp.Column, place: Place) -> Resolved | bool:
        """Return what a name means in a place; True when it is a result column there, False when nothing."""
        scope = place.scope
        match, unclear = None, ""
        try:
            match = self._look_in(place).find(parts)
        except Unclear as error:
            unclear = str(error)
        if place.key in _BY_RESULT:
            hits = [r for r in self.results(scope) if _is_named(r, parts)]
            if hits:
                return _by_result(scope, place.key, match, hits, len(parts), column)
        if unclear or match is not None:
            return Resolved(scope, match, unclear)
        aliases = scope.select.expressions if place.key in ("expressions", "group") else ()
        return any(item.alias.lower() == parts[0] for item in aliases if item.alias)

    def _look_in(self, place: Place) -> Output:
        if place.key in ("on", "lateral") and place.clause is not None:
            return self._output(place.clause, place.end, on=place.key == "on")
        if place.key in ("on", "lateral", "pivot"):
            raise Unsupported(f"a name in {place.key.upper()}")
        return self.output(place.scope)

    def results(self, scope: Scope) -> list[Result]:
        """Return a SELECT's result columns in order; Unsupported where only Spark can tell some of them."""
        return [result for item in scope.select.expressions for result in self.results_of(scope, item)]

    def results_of(self, scope: Scope, item: exp.Expr) -> list[Result]:
        """Return the result columns that one item of a SELECT list gives; raises as :meth:`results` does."""
        if isinstance(item, exp.Aliases):
            return [Result(name.name, None, True) for name in item.expressions]
        inner = unwrap(item.unalias())
        if is_star(inner):
            return self._star_results(scope, inner)
        resolved = self.find(inner) if isinstance(inner, exp.Column) else None
        match = resolved.match if resolved is not None and resolved.scope is scope else None
        attribute = None if match is None or match.nested else match.attribute
        if isinstance(item, exp.Alias):
            return [Result(item.alias, attribute, True)]
        if isinstance(inner, exp.Column | exp.Dot) and is_path(inner):
            return [Result(inner.parts[-1].name, attribute, False)]
        return [Result(None, None, False)]

    def _star_results(self, scope: Scope, star: exp.Expr) -> list[Result]:
        struct = self.find_struct(star)
        if struct is None or struct.match is None:
            return [Result(a.name, a, False) for a in self._starred(scope, star)]
        relation, place = struct.match.attribute.sources[0]
        path = _qualifier(star)
        kind = type_within(self.fields(relation)[place].type, path[len(path) - struct.match.nested :])
        if not isinstance(kind, t.StructType):
            raise Unsupported("a star over something other than a struct")
        return [Result(name, None, False) for name in kind.names]

    def find_struct(self, star: exp.Expr) -> Resolved | None:
        """Return the column whose fields ``st.*`` shows, None when a star shows relations' columns."""
        place, parts = self.scopes.find_place(star), _qualifier(star)
        try:
            output = Output() if place is None or not parts else self._look_in(place)
            match = None if output.star(parts) else output.find(parts)
        except (Unsupported, Unclear):
            return None
        return None if match is None or place is None else Resolved(place.scope, match)

    def _starred(self, scope: Scope, star: exp.Expr) -> list[Attribute]:
        """Return what ``*`` or ``t.*`` shows of relations, without what its EXCEPT names."""
        output, parts = self.output(scope), _qualifier(star)
        mark = star.this if isinstance(star, exp.Column) else star
        try:
            shown = output.star(parts) if parts else list(output.shown)
            if parts and not shown:
                raise Unsupported("a star over something other than a relation")
            dropped = []
            for name in mark.args.get("except_") or ():
                named = tuple(part.name.lower() for part in getattr(name, "parts", [name]))
                match = Output(tuple(shown)).find(named)
                if match is None or match.nested:
                    raise Unsupported("a star with EXCEPT of a field")
                dropped.append(match.attribute)
        except Unclear as error:
            raise Unsupported(f"a star, where {error}") from None
        if any(value for name, value in mark.args.items() if name != "except_"):
            raise Unsupported("a star with REPLACE or RENAME")
        return [attribute for attribute in shown if attribute not in dropped]


def _qualifier(star: exp.Expr) -> tuple[str, ...]:
    """Return what stands before a star, in lower case."""
    return tuple(part.name.lower() for part in star.parts[:-1]) if isinstance(star, exp.Column) else ()


def _is_named(result: Result, parts: tuple[str, ...]) -> bool:
    name = (result.name or "").lower()
    if name == parts[0]:
        return True
    relation = None if result.attribute is None or result.alias else result.attribute.relation
    qualified = range(1, min(3, len(parts) - 1) + 1)
    return relation is not None and any(
        parts[n] == name and relation.answers_to(parts[:n]) is not False for n in qualified
    )


def _by_result(
    scope: Scope, key: str, match: Match | None, hits: list[Result], parts: int, column: exp.Column
) -> Resolved | bool:
    if match is not None and not match.nested and all(hit.attribute == match.attribute for hit in hits):
        return Resolved(scope, match, result=True)
    if match is None and parts == 1:
        return True
    inside = column.find_ancestor(exp.AggFunc, exp.Window, exp.Select)
    same = len({hit.attribute or id(hit) for hit in hits}) == 1
    if key in _RESULT_FIRST and parts == 1 and same and not isinstance(inside, exp.AggFunc):
        return True
    return Resolved(scope, None, f"{column.name} may be a result column or a column of FROM")


def is_star(node: exp.Expr) -> bool:
    """Tell whether an expression is ``*`` or ``t.*``."""
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))


def is_path(node: exp.Expr) -> bool:
    """Tell whether an expression is a column, or a field of one at any depth."""
    while isinstance(node, exp.Dot):
        node = node.this
    return isinstance(node, exp.Column)
