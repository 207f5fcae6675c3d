"""Scopes: which relations each SELECT sees, and what a column's name means there.

Names resolve as Spark resolves them: in the innermost SELECT first, there by qualifier
(``db.t.c``, ``t.c``) before by a column whose field is taken (``c.field``), then in the SELECTs
around it. Spark has analysed the query before, so an unqualified name that one relation of a
SELECT has belongs to that relation: were there two, Spark would have refused the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from sqlglot import exp

from millrace.front.coercion import Field
from millrace.front.tables import Table

Columns = dict[str, Field]


@dataclass(eq=False)
class Source:
    """A relation in a FROM clause.

    Attributes:
        node: Its syntax tree.
        alias: Its name in lower case; None for a derived table without one.
        kind: ``"table"``, ``"cte"``, ``"derived"`` or ``"opaque"`` (columns cannot be known here).
        qualifiers: For a table without an alias, the parts of its written name in lower case.
        table: For a base table, the table; looked up when first needed.
        cte: For a reference to a common table expression, its definition.
    """

    node: exp.Expr
    alias: str | None
    kind: str
    qualifiers: tuple[str, ...] = ()
    lookup: Callable[[], Table] | None = None
    cte: exp.CTE | None = None
    hidden: set[str] = field(default_factory=set)

    @cached_property
    def table(self) -> Table | None:
        """The base table, or None for another kind of relation."""
        return self.lookup() if self.lookup is not None else None

    def columns(self) -> Columns | None:
        """Return a base table's columns by lower-case name, None where they are not known."""
        return self.table.columns if self.table is not None else None

    def answers_to(self, qualifier: tuple[str, ...]) -> bool:
        """Tell whether the lower-case qualifier (without the column) names this relation."""
        if self.alias is None:
            return False
        if not self.qualifiers:
            return qualifier == (self.alias,)
        if qualifier[-1] != self.alias:
            return False
        common = min(len(qualifier), len(self.qualifiers))
        # ``default.t.c`` reaches ``FROM t``: what is not written is the current database.
        return qualifier[-common:] == self.qualifiers[-common:]


@dataclass(eq=False)
class Scope:
    """One SELECT with the relations it sees and the SELECT around it."""

    select: exp.Select
    parent: Scope | None = None
    sources: list[Source] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """What a name means: a column of a source, after ``qualifier`` leading parts.

    ``nested`` parts after the column take fields of a struct. ``certain`` is false when a relation
    whose columns are not known might have been meant.
    """

    scope: Scope
    source: Source
    column: str
    qualifier: int
    nested: int
    certain: bool = True


class Resolver:
    """Resolves column names; ``known`` adds the columns of derived tables analysed so far."""

    def __init__(self, scopes: dict[int, Scope]) -> None:
        self._scopes = scopes
        self.known: dict[int, Columns] = {}

    def scope_at(self, node: exp.Expr) -> Scope | None:
        """Return the scope in which an expression's names are looked up."""
        ancestor = node.find_ancestor(exp.Select, exp.SetOperation)
        return self._scopes.get(id(ancestor)) if isinstance(ancestor, exp.Select) else None

    def scope_of(self, select: exp.Select) -> Scope:
        """Return the scope of a SELECT."""
        return self._scopes[id(select)]

    def columns(self, source: Source) -> Columns | None:
        """Return a relation's columns by lower-case name, None where they are not known."""
        return self.known.get(id(source)) or source.columns()

    def find(self, column: exp.Column) -> Found | None:
        """Return what a column reference means, None when nothing in reach has that name."""
        parts = tuple(part.name.lower() for part in column.parts)
        scope = self.scope_at(column)
        certain = True
        while scope is not None:
            found = self._find_here(parts, scope)
            if found is not None:
                return found if certain else _uncertain(found)
            certain = certain and all(self.columns(s) is not None for s in scope.sources)
            scope = scope.parent
        return None

    def _find_here(self, parts: tuple[str, ...], scope: Scope) -> Found | None:
        for taken in range(min(3, len(parts) - 1), 0, -1):
            for source in scope.sources:
                if not source.answers_to(parts[:taken]):
                    continue
                columns = self.columns(source)
                if columns is None or parts[taken] in columns:
                    return Found(scope, source, parts[taken], taken, len(parts) - taken - 1)
        for source in scope.sources:
            columns = self.columns(source)
            if columns is not None and parts[0] in columns and parts[0] not in source.hidden:
                return Found(scope, source, parts[0], 0, len(parts) - 1)
        return None


def _uncertain(found: Found) -> Found:
    return Found(found.scope, found.source, found.column, found.qualifier, found.nested, False)


def relation_nodes(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the relations of a FROM clause in order, those in parenthesised joins included."""
    start = select.args.get("from_")
    if start is None:
        return
    yield from _within(start.this)
    for join in select.args.get("joins") or ():
        yield from _within(join.this)
    yield from select.args.get("laterals") or ()


def is_join_group(node: exp.Expr) -> bool:
    """Tell whether a relation is ``(a JOIN b …)``, in any number of parentheses, without a name."""
    if not isinstance(node, exp.Subquery) or node.alias:
        return False
    return not isinstance(node.this, exp.Query) or is_join_group(node.this)


def _within(node: exp.Expr) -> Iterator[exp.Expr]:
    if is_join_group(node):
        yield from _within(node.this)
    else:
        yield node
    for join in node.args.get("joins") or ():
        yield from _within(join.this)


def visible_ctes(node: exp.Expr) -> list[exp.CTE]:
    """Return the common table expressions that a table name at this node may mean, nearest first."""
    found: list[exp.CTE] = []
    child: exp.Expr = node
    inside: exp.CTE | None = None
    while (parent := child.parent) is not None:
        if isinstance(child, exp.CTE):
            inside = child
        if isinstance(parent, exp.With):
            recursive = bool(parent.args.get("recursive"))
            place = next(i for i, cte in enumerate(parent.expressions) if cte is inside)
            found.extend(reversed(parent.expressions[: place + recursive]))
        elif isinstance(parent, exp.Query) and not isinstance(child, exp.With):
            with_ = parent.args.get("with_")
            if with_ is not None:
                found.extend(reversed(with_.expressions))
        child = parent
    return found


def build_scopes(
    root: exp.Query, bind: Callable[[exp.Table], Callable[[], Table]]
) -> tuple[list[exp.Select], dict[int, Scope]]:
    """Return the SELECTs, inner before outer and in order of their text, and their scopes.

    Args:
        root: The query.
        bind: Returns, for the name of a base table, how to look the table up.
    """
    tables = {id(node): bind(node) for node in root.find_all(exp.Table) if _is_base(node)}
    selects = list(_postorder(root))
    scopes = {id(select): Scope(select) for select in selects}
    for select in selects:
        scope = scopes[id(select)]
        scope.parent = _enclosing(select, scopes)
        scope.sources = [_source(node, tables.get(id(node))) for node in relation_nodes(select)]
    return selects, scopes


def _postorder(node: exp.Expr) -> Iterator[exp.Select]:
    """Yield SELECTs after everything inside them; definitions come before their uses."""
    first = node.args.get("with_")
    if first is not None:
        yield from _postorder(first)
    for child in node.iter_expressions():
        if child is not first:
            yield from _postorder(child)
    if isinstance(node, exp.Select):
        yield node


def _enclosing(select: exp.Select, scopes: dict[int, Scope]) -> Scope | None:
    """Return the scope whose columns a subquery may read beside its own."""
    child: exp.Expr = select
    derived = False
    while (parent := child.parent) is not None:
        if isinstance(parent, exp.From):
            derived = True
        elif isinstance(parent, exp.Join):
            derived = child is parent.this
        elif isinstance(parent, exp.Lateral):
            derived = False
            if isinstance(parent.parent, exp.From | exp.Join):
                child, parent = parent, parent.parent  # a lateral table reads its siblings
        elif isinstance(parent, exp.With):
            derived = True
        elif isinstance(parent, exp.SetOperation) and isinstance(child, exp.With):
            derived = False
        elif isinstance(parent, exp.Select):
            if not derived:
                return scopes.get(id(parent))
            return _enclosing(parent, scopes)
        child = parent
    return None


def _cte_of(node: exp.Table) -> exp.CTE | None:
    """Return the common table expression that a table name means, None for a base table."""
    if len(node.parts) != 1:
        return None
    return next((cte for cte in visible_ctes(node) if cte.alias.lower() == node.name.lower()), None)


def _is_base(node: exp.Table) -> bool:
    return isinstance(node.this, exp.Identifier) and _cte_of(node) is None


def _source(node: exp.Expr, lookup: Callable[[], Table] | None) -> Source:
    alias = node.alias.lower() or None
    pivots = node.args.get("pivots")
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and not pivots:
        parts = tuple(part.name.lower() for part in node.parts)
        if lookup is None:
            return Source(node, alias or parts[0], "cte", cte=_cte_of(node))
        written = node.args.get("alias")
        if written is not None and written.args.get("columns"):
            # The columns have other names than the table's: Spark tells them, as for a derived table.
            return Source(node, alias or parts[-1], "derived")
        return Source(node, alias or parts[-1], "table", () if alias else parts, lookup)
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query) and not pivots:
        return Source(node, alias, "derived")
    return Source(node, alias, "opaque")
