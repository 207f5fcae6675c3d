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

from millrace.sql.names.names import is_star
from millrace.sql.planner.context import PlanContext
from millrace.sql.session.functions import restored
from millrace.sql.syntax.ctes import with_prefix
from millrace.sql.syntax.edits import Edit, Span, quote
from millrace.sql.syntax.parse import Unsupported, unwrap
from millrace.sql.syntax.scopes import Scope


def keep_names(context: PlanContext, names: Sequence[str]) -> None:
    """Add the aliases that an edited query needs.

    Args:
        context: The query, with all edits made.
        names: Of the result columns of the query as written.

    Raises:
        Unsupported: It is not known what the query as written calls a column.
    """
    edits = {(e.start, e.end) for e in context.text.edits}
    bound = {(e.start, e.end) for e in context.text.bindings}
    for scope in context.names.scopes.all:
        changed = [
            (place, span) for place, span in _unnamed(context, scope) if _is_changed(span, edits, bound)
        ]
        if not changed or not _matter(scope.select):
            continue
        known = names if _is_first(context, scope.select) else _names_of(context, scope)
        if known is None:
            raise Unsupported(f"a column without a name in {context.where(scope)}")
        places = _places(context, scope, len(known))
        for place, (_, end) in changed:
            context.text.edits.append(Edit(end, end, (f" AS {quote(restored(known[places[place]]))}",)))


def _unnamed(context: PlanContext, scope: Scope) -> Iterator[tuple[int, Span]]:
    """Yield the items that Spark names after their expression, with their characters."""
    for place, item in enumerate(scope.select.expressions):
        inner = unwrap(item)
        if isinstance(item, exp.Alias | exp.Aliases) or is_star(inner):
            continue
        while isinstance(inner, exp.Dot):
            inner = inner.this
        if isinstance(inner, exp.Column):
            continue
        if context.statement.has_span(item):
            yield place, context.statement.span(item)


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


def _is_first(context: PlanContext, select: exp.Select) -> bool:
    """Tell whether a SELECT names the columns of the whole query."""
    first: exp.Expr | None = context.statement.root
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    return first is select


def _names_of(context: PlanContext, scope: Scope) -> list[str] | None:
    """Return what Spark calls the result columns of a SELECT inside the query, None if it cannot be asked."""
    statement, select = context.statement, scope.select
    if not statement.has_span(select) or context.escapes(select):
        return None
    try:
        prefix = with_prefix(statement, select, context.text.bound)
        text = f"{prefix}SELECT * FROM ({context.text.bound(statement.span(select))})"
        schema: t.StructType = context.schema(text)
    except (Unsupported, PySparkException):
        return None
    return list(schema.names)


def _places(context: PlanContext, scope: Scope, count: int) -> list[int]:
    """Return the number of the result column that each item begins with."""
    widths = [len(context.names.results_of(scope, item)) for item in scope.select.expressions]
    if sum(widths) != count:
        raise Unsupported("an expression that gives several columns without names")
    return list(accumulate(widths, initial=0))
