"""What every name in a query means, as Spark resolves it.

Names are looked up in the innermost SELECT first, in what its FROM clause gives out
(:mod:`millrace.sql.names.outputs`); then in the SELECTs around it. Where a clause is evaluated over the
SELECT's result (ORDER BY and the like) result columns come first. What cannot be told for certain is
marked: whoever would have to rely on it leaves its SELECT to Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark.sql import types as t
from sqlglot import exp

from millrace.sql.expr.types import Field, type_within
from millrace.sql.names.outputs import Attribute, Match, Output, Unclear, both, output_of, own_output, seen_by
from millrace.sql.session.tables import Table
from millrace.sql.syntax.from_clause import FromClause, Relation
from millrace.sql.syntax.parse import Statement, Unsupported, unwrap
from millrace.sql.syntax.scopes import Place, Scope, Scopes

# Clauses in which a name means a result column before a column of FROM.
BY_RESULT = frozenset({"order", "sort", "cluster", "distribute", "having", "qualify", "hint"})
_RESULT_FIRST = BY_RESULT - {"having", "qualify"}


@dataclass(frozen=True)
class Resolved:
    """What a column's name means.

    Attributes:
        scope: The SELECT whose column it is.
        match: Which one; None where it is not certain which.
        why: What is not certain, empty where all is.
        result: Whether it is a result column of that SELECT too, the same.
    """

    scope: Scope
    match: Match | None
    why: str = ""
    result: bool = False


@dataclass(frozen=True)
class Result:
    """A result column of a SELECT: its name, None where Spark makes one up, and the column that it is."""

    name: str | None
    attribute: Attribute | None
    alias: bool


class Names:
    """Resolves the names of one query.

    Args:
        statement: The query.
        table: Returns the table that a name means.
        describe: Returns the columns that Spark says a relation has; raises Unsupported where it cannot.
        current: Returns the session's catalog and database in lower case; None for a table of the caller's,
            which is in none.

    Attributes:
        scopes: Its SELECTs.
    """

    def __init__(
        self,
        statement: Statement,
        table: Callable[[exp.Table], Table],
        describe: Callable[[Relation], tuple[Field, ...]],
        current: Callable[[exp.Table], Callable[[], tuple[str, ...]] | None],
    ) -> None:
        self._table = table
        self._describe = describe
        self.scopes = Scopes(statement)
        for _, relation in self.scopes.relations():
            if relation.kind == "table":
                relation.current = current(relation.node)  # type: ignore[arg-type]
        self._fields: dict[int, tuple[Field, ...] | Unsupported] = {}
        self._bindings: dict[int, Resolved | None] = {}
        self._outputs: dict[tuple[int, str, int], Output] = {}

    # Columns of relations

    def table(self, relation: Relation) -> Table | None:
        """Return the base table that a relation is, None for any other relation."""
        return self._table(relation.node) if relation.kind == "table" else None  # type: ignore[arg-type]

    def fields(self, relation: Relation) -> tuple[Field, ...]:
        """Return a relation's columns in order, under the names that its alias gives them.

        Raises:
            Unsupported: They cannot be known.
        """
        known = self._fields.get(id(relation))
        if known is None:
            try:
                known = self._named(relation)
            except Unsupported as leave:
                known = leave
            self._fields[id(relation)] = known
        if isinstance(known, Unsupported):
            raise known
        return known

    def _named(self, relation: Relation) -> tuple[Field, ...]:
        if relation.kind in ("lateral", "view"):
            return tuple(Field(name, t.NullType(), None, False) for name in self._result_names(relation))
        table = self.table(relation)
        if table is None:
            return self._describe(relation)
        if not relation.columns:
            return table.fields
        if len(relation.columns) != len(table.fields):
            raise Unsupported(f"{relation.alias} has another number of columns than its alias names")
        return tuple(replace(f, name=n) for f, n in zip(table.fields, relation.columns, strict=True))

    def columns(self, relation: Relation) -> tuple[str, ...]:
        """Return the names of a relation's columns in order; Spark is not asked where the text has them.

        Raises:
            Unsupported: They cannot be known.
        """
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
            names = [result.name for result in self.results(self.scopes.of(select))]
            known = tuple(name for name in names if name is not None)
            if len(known) == len(names):
                return known
        raise Unsupported("a relation whose columns have no names here")

    def output(self, scope: Scope) -> Output:
        """Return the columns of a SELECT's FROM clause.

        Raises:
            Unsupported: They cannot be known.
        """
        if scope.clause is None:
            if scope.why:
                raise Unsupported(scope.why)
            return Output()
        return self._with_views(scope.clause, len(scope.clause.items) + len(scope.clause.views))

    def _with_views(self, clause: FromClause, end: int) -> Output:
        key = (id(clause), "", end)
        if key not in self._outputs:
            output = output_of(clause, self.columns, end)
            for view in clause.views[: max(0, end - len(clause.items))]:
                output = both(output, own_output(view, self.columns))
            self._outputs[key] = output
        return self._outputs[key]

    # Names

    def find(self, column: exp.Column) -> Resolved | None:
        """Return what a column's name means, None when it is no column of any SELECT here."""
        if id(column) not in self._bindings:
            self._bindings[id(column)] = self._find(column)
        return self._bindings[id(column)]

    def match(self, column: exp.Column) -> Match | None:
        """Return which column of a FROM clause a name means, None where it is none, or not certain."""
        found = self.find(column)
        return None if found is None or found.why else found.match

    def relations_read(self, node: exp.Expr) -> list[Relation] | None:
        """Return the relations whose columns an expression reads, None where it is not certain."""
        matches = [self.match(column) for column in node.find_all(exp.Column)]
        if None in matches:
            return None
        return [relation for match in matches if match for relation, _ in match.attribute.sources]

    def _find(self, column: exp.Column) -> Resolved | None:
        parts = tuple(part.name.lower() for part in column.parts)
        place = self.scopes.place_of(column)
        why = ""
        while place is not None:
            try:
                found = self._look_up(parts, column, place)
            except Unsupported as leave:
                why = why or str(leave)
            else:
                if isinstance(found, Resolved):
                    return replace(found, why=why) if why and not found.why else found
                if found:
                    return None
            place = self.scopes.place_of(place.scope.select)
        return None

    def _look_up(self, parts: tuple[str, ...], column: exp.Column, place: Place) -> Resolved | bool:
        """Return what a name means in a place; True when it is a result column there, False when nothing.

        Raises:
            Unsupported: It cannot be known what it means there.
        """
        scope = place.scope
        match, unclear = None, ""
        try:
            match = self._seen(place).find(parts)
        except Unclear as error:
            unclear = str(error)
        if place.key in BY_RESULT:
            hits = [r for r in self.results(scope) if _answers(r, parts)]
            if hits:
                return _by_result(scope, place.key, match, hits, len(parts), column)
        if unclear:
            return Resolved(scope, None, unclear)
        if match is not None:
            return Resolved(scope, match)
        if place.key in ("expressions", "group"):
            return any(item.alias.lower() == parts[0] for item in scope.select.expressions if item.alias)
        return False

    def _seen(self, place: Place) -> Output:
        if place.key == "on" and place.clause is not None:
            key = (id(place.clause), "on", place.end)
            if key not in self._outputs:
                self._outputs[key] = seen_by(place.clause, self.columns, place.end)
            return self._outputs[key]
        if place.key == "lateral" and place.clause is not None:
            return self._with_views(place.clause, place.end)
        if place.key in ("on", "lateral", "pivot"):
            raise Unsupported(f"a name in {place.key.upper()}")
        return self.output(place.scope)

    def results(self, scope: Scope) -> list[Result]:
        """Return a SELECT's result columns in order.

        Raises:
            Unsupported: It has a star, or a form of item, that only Spark can tell the columns of.
        """
        return [result for item in scope.select.expressions for result in self.results_of(scope, item)]

    def results_of(self, scope: Scope, item: exp.Expr) -> list[Result]:
        """Return the result columns that one item of a SELECT list gives; raises as :meth:`results` does."""
        if isinstance(item, exp.Aliases):
            return [Result(name.name, None, True) for name in item.expressions]
        inner = unwrap(item.unalias())
        if is_star(inner):
            return self._star_results(scope, inner)
        attribute = None
        if isinstance(inner, exp.Column):
            binding = self.find(inner)
            if binding and binding.scope is scope and binding.match and not binding.match.nested:
                attribute = binding.match.attribute
        if isinstance(item, exp.Alias):
            return [Result(item.alias, attribute, True)]
        if isinstance(inner, exp.Column) or (isinstance(inner, exp.Dot) and _is_path(inner)):
            return [Result(inner.parts[-1].name, attribute, False)]
        return [Result(None, None, False)]

    def _star_results(self, scope: Scope, star: exp.Expr) -> list[Result]:
        if isinstance(star, exp.Column) and (found := self.find_struct(star)) is not None:
            assert found.match is not None
            return [Result(name, None, False) for name in self._struct_fields(found.match, star)]
        return [Result(a.name, a, False) for a in self.starred(scope, star)]

    def find_struct(self, star: exp.Column) -> Resolved | None:
        """Return the column whose fields ``st.*`` shows, None when it shows a relation's columns."""
        place = self.scopes.place_of(star)
        parts = tuple(part.name.lower() for part in star.parts[:-1])
        try:
            output = Output() if place is None else self._seen(place)
            match = None if output.star(parts) else output.find(parts)
        except (Unsupported, Unclear):
            return None
        return None if match is None or place is None else Resolved(place.scope, match)

    def _struct_fields(self, match: Match, star: exp.Column) -> list[str]:
        relation, place = match.attribute.sources[0]
        parts = star.parts[:-1]
        path = [part.name for part in parts[len(parts) - match.nested :]]
        kind = type_within(self.fields(relation)[place].type, path)
        if not isinstance(kind, t.StructType):
            raise Unsupported("a star over something other than a struct")
        return list(kind.names)

    def starred(self, scope: Scope, star: exp.Expr) -> list[Attribute]:
        """Return what ``*`` or ``t.*`` shows, without what its EXCEPT names.

        Raises:
            Unsupported: It is a star over something else than relations.
        """
        output = self.output(scope)
        mark = star.this if isinstance(star, exp.Column) else star
        try:
            if isinstance(star, exp.Column):
                shown = output.star(tuple(part.name.lower() for part in star.parts[:-1]))
                if not shown:
                    raise Unsupported("a star over something other than a relation")
            else:
                shown = list(output.shown)
            dropped = []
            for name in mark.args.get("except_") or ():
                parts = tuple(part.name.lower() for part in getattr(name, "parts", [name]))
                match = Output(tuple(shown)).find(parts)
                if match is None or match.nested:
                    raise Unsupported("a star with EXCEPT of a field")
                dropped.append(match.attribute)
        except Unclear as error:
            raise Unsupported(f"a star, where {error}") from None
        if any(value for name, value in mark.args.items() if name != "except_"):
            raise Unsupported("a star with REPLACE or RENAME")
        return [each for each in shown if each not in dropped]


def _answers(result: Result, parts: tuple[str, ...]) -> bool:
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


def _is_path(node: exp.Expr) -> bool:
    """Tell whether fields are taken of a column, and of nothing else."""
    while isinstance(node, exp.Dot):
        node = node.this
    return isinstance(node, exp.Column)
