"""Where the result columns of a SELECT inside another are joined, so that values can be got there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from millrace.front.context import Context
from millrace.front.leave import Leave
from millrace.front.names import Scope, Source
from millrace.front.predicates import conjuncts, unwrap
from millrace.front.views import View


@dataclass(frozen=True)
class Outside:
    """One use of a SELECT's result.

    Attributes:
        scope: The SELECT that uses it.
        source: The relation that it is there; None for ``… IN (SELECT …)``.
        wanted: That relation's columns, for each value that is wanted.
        values: For IN, what it compares.
        select: For IN, the SELECT inside.
    """

    scope: Scope
    source: Source | None
    wanted: tuple[frozenset[str], ...] = ()
    values: tuple[exp.Expr, ...] = ()
    select: exp.Expr = exp.Null()  # noqa: RUF009  # never changed


def outsides(
    context: Context, scopes: Mapping[int, Scope], view: View, wanted: Sequence[frozenset[str]]
) -> Iterator[Outside]:
    """Yield every use of the result of the SELECT that a relation stands in.

    Raises:
        Leave: Rows that are equal to no value there may change others, or the uses are not known.
    """
    select = view.scope.select
    if select is context.statement.root or select.find_ancestor(exp.Select, exp.With) is None:
        raise Leave("")
    places = [_places(context, view, names) for names in wanted]
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
        yield _of_in(scopes, parent, places, select)
        return
    names = _names(context, scopes, owner)
    if isinstance(owner, exp.Subquery) or isinstance(parent, exp.Subquery):
        node = owner if isinstance(owner, exp.Subquery) else parent
        yield _of_source(_source_of(scopes, node), places, names)
        return
    if isinstance(parent, exp.CTE):
        yield from _of_definition(context, scopes, parent, places, names)
        return
    raise Leave("the query around it reads all of its rows")


def _is_plain(node: exp.Subquery) -> bool:
    return isinstance(node.parent, exp.SetOperation | exp.In | exp.Subquery | exp.CTE)


def _check_whole(query: exp.Expr) -> None:
    if any(query.args.get(name) for name in ("limit", "offset", "qualify", "sample")):
        raise Leave("a LIMIT or QUALIFY around it counts all of its rows")


def _places(context: Context, view: View, names: frozenset[str]) -> list[int]:
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
        for place, (source, column) in enumerate(_items(context, view.scope))
        if source is view.source and column in names
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


def _items(context: Context, scope: Scope) -> list[tuple[Source | None, str]]:
    """Return a SELECT's result columns: the relation and column that each is, or None and its name."""
    items: list[tuple[Source | None, str]] = []
    for item in scope.select.expressions:
        node = unwrap(item.unalias())
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            items += _star(context, scope, node)
            continue
        found = context.find(node) if isinstance(node, exp.Column) else None
        if found is None or found.nested or not found.certain or found.scope is not scope:
            items.append((None, ""))
        else:
            items.append((found.source, found.column))
    return items


def _star(context: Context, scope: Scope, node: exp.Expr) -> list[tuple[Source | None, str]]:
    star = node if isinstance(node, exp.Star) else node.this
    if any(star.args.values()):
        raise Leave("a star with EXCEPT or REPLACE")
    if any(
        j.args.get("using") or j.method or j.kind in ("SEMI", "ANTI")
        for j in scope.select.args.get("joins") or ()
    ):
        raise Leave("a star over USING, NATURAL, SEMI or ANTI joins")
    sources = scope.sources
    if isinstance(node, exp.Column):
        qualifier = tuple(part.name.lower() for part in node.parts[:-1])
        sources = [s for s in sources if s.answers_to(qualifier)]
    items: list[tuple[Source | None, str]] = []
    for source in sources:
        columns = context.resolver.columns(source)
        if columns is None:
            raise Leave("a star over a relation whose columns are not known")
        items += [(source, name) for name in columns]
    return items


def _names(context: Context, scopes: Mapping[int, Scope], query: exp.Expr) -> list[str]:
    """Return the names of a query's result columns, in lower case."""
    while not isinstance(query, exp.Select):
        query = query.this
    names: list[str] = []
    for item in query.expressions:
        node = unwrap(item.unalias())
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            names += [name for _, name in _star(context, scopes[id(query)], node)]
        else:
            names.append((item.alias or (node.name if isinstance(node, exp.Column) else "")).lower())
    return names


def _renamed(node: exp.Expr, names: list[str]) -> list[str]:
    alias = node.args.get("alias")
    columns = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    return [column.name.lower() for column in columns] if columns else names


def _source_of(scopes: Mapping[int, Scope], node: exp.Expr | None) -> tuple[Scope, Source]:
    for scope in scopes.values():
        for source in scope.sources:
            if source.node is node:
                return scope, source
    raise Leave("it stands in a subquery whose whole result is read")


def _of_source(found: tuple[Scope, Source], places: list[list[int]], names: list[str]) -> Outside:
    scope, source = found
    shown = _renamed(source.node, names)
    return Outside(scope, source, tuple(frozenset(shown[p] for p in each if shown[p]) for each in places))


def _of_definition(
    context: Context,
    scopes: Mapping[int, Scope],
    cte: exp.CTE,
    places: list[list[int]],
    names: list[str],
) -> Iterator[Outside]:
    with_ = cte.find_ancestor(exp.With)
    if with_ is None or with_.args.get("recursive"):
        raise Leave("a recursive common table expression")
    uses = [(scope, s) for scope in scopes.values() for s in scope.sources if s.cte is cte]
    known = {id(source.node) for _, source in uses}
    root = context.statement.root
    assert root is not None
    name = cte.alias.lower()
    own = {id(each) for each in cte.find_all(exp.Table)}
    for node in root.find_all(exp.Table):
        # A mention in another form, such as TABLE q, reads all of it.
        if len(node.parts) == 1 and node.name.lower() == name and id(node) not in known | own:
            raise Leave(f"the common table expression {cte.alias} is read in a form that is not looked into")
    shown = _renamed(cte, names)
    for use in uses:
        yield _of_source(use, places, shown)


def _of_in(
    scopes: Mapping[int, Scope],
    node: exp.In,
    places: list[list[int]],
    select: exp.Expr,
) -> Outside:
    around = node.find_ancestor(exp.Select)
    where = None if around is None else around.args.get("where")
    terms = [] if where is None else list(conjuncts(where.this))
    if around is None or not any(unwrap(term) is node for term in terms):
        raise Leave("IN is not a condition of its own in WHERE, so that all rows of its query matter")
    left = unwrap(node.this)
    values = list(left.expressions) if isinstance(left, exp.Tuple) else [left]
    return Outside(scopes[id(around)], None, (), tuple(values[each[0]] for each in places), select)
