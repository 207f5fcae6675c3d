"""Where the result columns of a SELECT inside another are joined, so that values can be got there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from millrace.front.ctes import Leave, tables_in
from millrace.front.from_clause import Relation
from millrace.front.lookups.views import View
from millrace.front.parse import unwrap
from millrace.front.planning import Planning
from millrace.front.scopes import Scope
from millrace.front.translate import where_conjuncts


@dataclass(frozen=True)
class Outside:
    """One use of a SELECT's result.

    Attributes:
        scope: The SELECT that uses it.
        relation: The relation that it is there; None for ``… IN (SELECT …)``.
        wanted: That relation's columns, for each value that is wanted.
        values: For IN, what it compares.
        select: For IN, the SELECT inside.
    """

    scope: Scope
    relation: Relation | None
    wanted: tuple[frozenset[str], ...] = ()
    values: tuple[exp.Expr, ...] = ()
    select: exp.Expr = exp.Null()  # noqa: RUF009  # never changed


def outsides(planning: Planning, view: View, wanted: Sequence[frozenset[str]]) -> Iterator[Outside]:
    """Yield every use of the result of the SELECT that a relation stands in.

    Raises:
        Leave: Rows that are equal to no value there may change others, or the uses are not known.
    """
    select = view.scope.select
    if select is planning.statement.root or select.find_ancestor(exp.Select, exp.With) is None:
        raise Leave("")
    places = [_places(planning, view, names) for names in wanted]
    owner: exp.Expr = select
    while True:
        _check_whole(owner)
        parent = owner.parent
        # Parentheses around a part of a UNION, or around the query of IN.
        if isinstance(parent, exp.SetOperation) or (
            isinstance(parent, exp.Subquery) and not parent.alias and _is_plain(parent)
        ):
            owner = parent
            continue
        break
    if isinstance(parent, exp.In) and parent.args.get("query") is owner:
        yield _of_in(planning, parent, places, select)
        return
    names = _names(planning, owner)
    if isinstance(owner, exp.Subquery) or isinstance(parent, exp.Subquery):
        node = owner if isinstance(owner, exp.Subquery) else parent
        yield _of_relation(_relation_of(planning, node), places, names)
        return
    if isinstance(parent, exp.CTE):
        yield from _of_definition(planning, parent, places, names)
        return
    raise Leave("the query around it reads all of its rows")


def _is_plain(node: exp.Subquery) -> bool:
    return isinstance(node.parent, exp.SetOperation | exp.In | exp.Subquery | exp.CTE)


def _check_whole(query: exp.Expr) -> None:
    if any(query.args.get(name) for name in ("limit", "offset", "qualify", "sample")):
        raise Leave("a LIMIT or QUALIFY around it counts all of its rows")


def _places(planning: Planning, view: View, names: frozenset[str]) -> list[int]:
    """Return the places among a SELECT's items of columns whose other rows do not change what is shown."""
    select = view.scope.select
    group = select.args.get("group")
    aggregates = any(
        isinstance(part, exp.AggFunc) and part.find_ancestor(exp.Select) is select for part in select.walk()
    )
    if any(part.find_ancestor(exp.Select) is select for part in select.find_all(exp.Window)):
        raise Leave("a window function around it reads all of its rows")
    if group is None and aggregates:
        raise Leave("an aggregate around it reads all of its rows")
    distinct = select.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        raise Leave("DISTINCT ON around it reads all of its rows")
    found = [
        place
        for place, (relation, column) in enumerate(_items(planning, view.scope))
        if relation is view.relation and column in names
    ]
    if group is not None:
        if any(group.args.get(name) for name in ("rollup", "cube", "grouping_sets", "totals", "all")):
            raise Leave("GROUP BY with ROLLUP, CUBE or GROUPING SETS reads all of its rows")
        grouped = {view.column(each) for each in group.expressions}
        if not grouped & names:
            raise Leave("an aggregate around it reads all of its rows")
    if not found:
        raise Leave("the query around it does not show the column that it is asked by")
    return found


def _items(planning: Planning, scope: Scope) -> list[tuple[Relation | None, str]]:
    """Return a SELECT's result columns: the relation and column that each is, or None."""
    items: list[tuple[Relation | None, str]] = []
    for result in planning.names.results(scope):
        attribute = result.attribute
        if attribute is None or attribute.relation is None:
            items.append((None, ""))
        else:
            items.append((attribute.relation, attribute.name.lower()))
    return items


def _names(planning: Planning, query: exp.Expr) -> list[str]:
    """Return the names of a query's result columns, in lower case; empty for one that Spark makes up."""
    while not isinstance(query, exp.Select):
        query = query.this
    scope = planning.names.scopes.of(query)
    return [(result.name or "").lower() for result in planning.names.results(scope)]


def _renamed(node: exp.Expr, names: list[str]) -> list[str]:
    alias = node.args.get("alias")
    columns = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    return [column.name.lower() for column in columns] if columns else names


def _relation_of(planning: Planning, node: exp.Expr | None) -> tuple[Scope, Relation]:
    found = planning.names.scopes.find(node)
    if found is None:
        raise Leave("it stands in a subquery whose whole result is read")
    return found


def _of_relation(found: tuple[Scope, Relation], places: list[list[int]], names: list[str]) -> Outside:
    scope, relation = found
    shown = _renamed(relation.node, names)
    return Outside(scope, relation, tuple(frozenset(shown[p] for p in each if shown[p]) for each in places))


def _of_definition(
    planning: Planning, cte: exp.CTE, places: list[list[int]], names: list[str]
) -> Iterator[Outside]:
    with_ = cte.find_ancestor(exp.With)
    if with_ is None or with_.args.get("recursive"):
        raise Leave("a recursive common table expression")
    uses = [each for each in planning.names.scopes.relations() if each[1].cte is cte]
    known = {id(relation.node) for _, relation in uses}
    root = planning.statement.root
    assert root is not None
    name = cte.alias.lower()
    own = {id(each) for each in cte.find_all(exp.Table)}
    for node in tables_in(root):
        # A mention in another form, such as TABLE q, reads all of it.
        if len(node.parts) == 1 and node.name.lower() == name and id(node) not in known | own:
            raise Leave(f"the common table expression {cte.alias} is read in a form that is not looked into")
    shown = _renamed(cte, names)
    for use in uses:
        yield _of_relation(use, places, shown)


def _of_in(planning: Planning, node: exp.In, places: list[list[int]], select: exp.Expr) -> Outside:
    around = node.find_ancestor(exp.Select)
    if around is None or not any(unwrap(term) is node for term in where_conjuncts(around)):
        raise Leave("IN is not a condition of its own in WHERE, so that all rows of its query matter")
    left = unwrap(node.this)
    values = list(left.expressions) if isinstance(left, exp.Tuple) else [left]
    scope = planning.names.scopes.of(around)
    return Outside(scope, None, (), tuple(values[each[0]] for each in places), select)
