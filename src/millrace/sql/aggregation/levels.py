"""Which SELECT groups the rows of a block: its own, or the one around a derived table that it is."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from millrace.sql.aggregation.calls import groups, is_windowed
from millrace.sql.blocks.join_graph import JoinGraph
from millrace.sql.names.names import is_star
from millrace.sql.planner.context import PlanContext
from millrace.sql.rewrite.references import BARS
from millrace.sql.syntax.ctes import cte_of, tables_in
from millrace.sql.syntax.from_clause import Relation
from millrace.sql.syntax.parse import Unsupported, unwrap
from millrace.sql.syntax.scopes import Scope


@dataclass(frozen=True, eq=False)
class GroupingSite:
    """The SELECT that groups.

    Attributes:
        scope: The SELECT.
        through: The derived table by which it reads the block's SELECT, None where it is that SELECT.
    """

    scope: Scope
    through: Relation | None = None


def level_of(context: PlanContext, scope: Scope) -> GroupingSite | None:
    """Return the SELECT that groups the rows of another one, None where none does.

    Raises:
        Unsupported: It does, and something stands in between.
    """
    if groups(scope.select):
        return GroupingSite(scope)
    reader = _reader(context, scope.select)
    if reader is None or not groups(reader.scope.select):
        return None
    _check_plain(context, scope.select)
    clause = reader.scope.clause
    if clause is None or len(clause.items) != 1 or clause.views or reader.scope.select.args.get("laterals"):
        raise Unsupported("a join stands between the block and the groups")
    if reader.through is None or reader.through.columns or not reader.through.plain:
        raise Unsupported("the derived table gives other names to its columns")
    JoinGraph(context, reader.scope, clause).check_certain()
    return reader


def _reader(context: PlanContext, select: exp.Select) -> GroupingSite | None:
    """Return the only SELECT that reads another as a derived table or common table expression."""
    holder, scopes = select.parent, context.names.scopes
    if isinstance(holder, exp.Subquery) and {k for k, v in holder.args.items() if v} <= {"this", "alias"}:
        found = scopes.find(holder)
        return GroupingSite(*found) if found is not None and found[1].kind == "query" else None
    if not isinstance(holder, exp.CTE) or context.statement.root is None:
        return None
    readers = [table for table in tables_in(context.statement.root) if cte_of(table) is holder]
    found = scopes.find(readers[0]) if len(readers) == 1 else None
    if (
        found is None
        or found[1].kind != "cte"
        or holder.args.get("alias") is None
        or holder.alias_column_names
    ):
        return None
    return GroupingSite(*found)


def _check_plain(context: PlanContext, select: exp.Select) -> None:
    """Refuse a SELECT that is more than expressions over its rows.

    Raises:
        Unsupported: It is.
    """
    if any(map(select.args.get, [*BARS, "limit", "offset"])) or is_windowed(select):
        raise Unsupported("the rows of a derived table are ordered, cut or numbered before they are grouped")
    for item in select.expressions:
        if isinstance(item, exp.Aliases) or is_star(unwrap(item.unalias())):
            raise Unsupported("a star between the block and the groups")
        if item.unalias().find(exp.UDTF, exp.Explode, exp.Inline) is not None:
            raise Unsupported("rows are made of rows before they are grouped")
    for item in select.expressions:
        for column in item.find_all(exp.Column):
            if context.names.find(column) is None:
                raise Unsupported("an item of a derived table reads another one")
