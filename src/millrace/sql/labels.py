"""Result columns that Spark names after their expression keep these names when the expression is edited.

``a.id + 1`` is called ``(id + 1)``, and somebody may read the column by that name, or see it in a star. Where
something inside has been replaced, the name that the query as written gives is written out as an alias.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.sql.ctes import with_prefix
from millrace.sql.functions import restored
from millrace.sql.names import is_star
from millrace.sql.parse import Leave, unwrap
from millrace.sql.planning import Planning
from millrace.sql.scopes import Scope
from millrace.sql.template import Edit, Span, quote


def keep_names(planning: Planning, names: Sequence[str]) -> None:
    """Add the aliases that an edited query needs.

    Args:
        planning: The query, with all edits made.
        names: Of the result columns of the query as written.

    Raises:
        Leave: It is not known what the query as written calls a column.
    """
    edits = {(e.start, e.end) for e in planning.text.edits}
    bound = {(e.start, e.end) for e in planning.text.bindings}
    for scope in planning.names.scopes.all:
        changed = [
            (place, span) for place, span in _unnamed(planning, scope) if _is_changed(span, edits, bound)
        ]
        if not changed or not _matter(scope.select):
            continue
        known = names if _is_first(planning, scope.select) else _names_of(planning, scope)
        if known is None:
            raise Leave(f"a column without a name in {planning.where(scope)}")
        places = _places(planning, scope, len(known))
        for place, (_, end) in changed:
            planning.text.edits.append(Edit(end, end, (f" AS {quote(restored(known[places[place]]))}",)))


def _unnamed(planning: Planning, scope: Scope) -> Iterator[tuple[int, Span]]:
    """Yield the items that Spark names after their expression, with their characters."""
    for place, item in enumerate(scope.select.expressions):
        inner = unwrap(item)
        if isinstance(item, exp.Alias | exp.Aliases) or is_star(inner):
            continue
        while isinstance(inner, exp.Dot):
            inner = inner.this
        if isinstance(inner, exp.Column):
            continue
        if planning.statement.has_span(item):
            yield place, planning.statement.span(item)


def _is_changed(span: Span, edits: set[Span], bound: set[Span]) -> bool:
    """Tell whether an item has another text; one that is bound as a whole is so in the query as written."""
    return any(span[0] <= start and end <= span[1] for start, end in edits | (bound - {span}))


def _matter(select: exp.Select) -> bool:
    """Tell whether the names of a SELECT's result columns are seen by anybody."""
    child: exp.Expr = select
    while (parent := child.parent) is not None:
        if isinstance(parent, exp.SetOperation):
            if child.arg_key == "expression" and not parent.args.get("by_name"):
                return False
        elif isinstance(parent, exp.From | exp.CTE | exp.Lateral):
            return True
        elif isinstance(parent, exp.Join):
            return child.arg_key == "this"
        elif not isinstance(parent, exp.Subquery):
            return False
        child = parent
    return True


def _is_first(planning: Planning, select: exp.Select) -> bool:
    """Tell whether a SELECT names the columns of the whole query."""
    first: exp.Expr | None = planning.statement.root
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    return first is select


def _names_of(planning: Planning, scope: Scope) -> list[str] | None:
    """Return what Spark calls the result columns of a SELECT inside the query, None if it cannot be asked."""
    statement, select = planning.statement, scope.select
    if not statement.has_span(select) or planning.escapes(select):
        return None
    try:
        prefix = with_prefix(statement, select, planning.text.bound)
        text = f"{prefix}SELECT * FROM ({planning.text.bound(statement.span(select))})"
        schema: t.StructType = planning.schema(text)
    except (Leave, PySparkException):
        return None
    return list(schema.names)


def _places(planning: Planning, scope: Scope, count: int) -> list[int]:
    """Return the number of the result column that each item begins with."""
    widths = [len(planning.names.results_of(scope, item)) for item in scope.select.expressions]
    if sum(widths) != count:
        raise Leave("an expression that gives several columns without names")
    return list(accumulate(widths, initial=0))
