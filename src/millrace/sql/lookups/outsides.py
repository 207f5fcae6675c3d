"""Where the result columns of a SELECT inside another are joined, so that values can be got there."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from millrace.sql.lookups.views import View
from millrace.sql.planner.context import PlanContext
from millrace.sql.syntax.parse import Unsupported, unwrap, where_conjuncts
from millrace.sql.syntax.scopes import Relation, Scope, cte_of, tables_in


def shown_places(view: View, names: frozenset[str]) -> list[int]:
    """Return the places in a SELECT's result of a relation's columns.

    Raises:
        Unsupported: It shows none, or rows with other values in them change what it shows of the rest.
    """
    select = view.scope.select
    group, distinct = select.args.get("group"), select.args.get("distinct")
    own = [part for part in select.walk() if part.find_ancestor(exp.Select) is select]
    if any(isinstance(part, exp.Window) for part in own):
        raise Unsupported("a window function around it reads all of its rows")
    if group is None and any(isinstance(part, exp.AggFunc) for part in own):
        raise Unsupported("an aggregate around it reads all of its rows")
    if distinct is not None and distinct.args.get("on"):
        raise Unsupported("DISTINCT ON around it reads all of its rows")
    if group is not None:
        if any(group.args.get(name) for name in ("rollup", "cube", "grouping_sets", "totals", "all")):
            raise Unsupported("GROUP BY with ROLLUP, CUBE or GROUPING SETS reads all of its rows")
        if not names & {view.column(each) for each in group.expressions}:
            raise Unsupported("an aggregate around it reads all of its rows")
    found = [
        place
        for place, result in enumerate(view.context.names.results(view.scope))
        if (shown := result.attribute) and shown.relation is view.relation and shown.name.lower() in names
    ]
    if not found:
        raise Unsupported("the query around it does not show the column that it is asked by")
    return found


def uses(context: PlanContext, select: exp.Select) -> Iterator[tuple[Scope, Relation | exp.In]]:
    """Yield what reads the result of a SELECT inside another: relations, or ``… IN (SELECT …)``.

    Raises:
        Unsupported: Rows of it that are equal to no value there may change others, or the uses are not known.
    """
    scopes = context.names.scopes
    query: exp.Expr = select
    while True:
        if any(query.args.get(name) for name in ("limit", "offset", "qualify", "sample")):
            raise Unsupported("a LIMIT or QUALIFY around it counts all of its rows")
        parent = query.parent
        if not isinstance(parent, exp.SetOperation) and not _is_plain(parent):
            break
        query = parent  # type: ignore[assignment]  # never None here
    if isinstance(parent, exp.In) and parent.args.get("query") is query:
        around = parent.find_ancestor(exp.Select)
        if around is None or not any(unwrap(term) is parent for term in where_conjuncts(around)):
            raise Unsupported(
                "IN is not a condition of its own in WHERE, so that all rows of its query matter"
            )
        yield scopes.of(around), parent
    elif isinstance(parent, exp.CTE):
        yield from _of_definition(context, parent)
    elif (found := scopes.find(parent)) is not None:
        yield found
    else:
        raise Unsupported("it stands in a subquery whose whole result is read")


def _is_plain(node: exp.Expr | None) -> bool:
    """Tell whether it is parentheses around a part of a UNION, or around the query of IN."""
    around = exp.SetOperation | exp.In | exp.Subquery | exp.CTE
    return isinstance(node, exp.Subquery) and not node.alias and isinstance(node.parent, around)


def _of_definition(context: PlanContext, cte: exp.CTE) -> Iterator[tuple[Scope, Relation]]:
    with_, root = cte.find_ancestor(exp.With), context.statement.root
    if with_ is None or with_.args.get("recursive") or root is None:
        raise Unsupported("a recursive common table expression")
    found = [each for each in context.names.scopes.relations() if each[1].cte is cte]
    known = {id(relation.node) for _, relation in found}
    if any(cte_of(node) is cte and id(node) not in known for node in tables_in(root)):
        raise Unsupported(
            f"the common table expression {cte.alias} is read in a form that is not looked into"
        )
    yield from found
