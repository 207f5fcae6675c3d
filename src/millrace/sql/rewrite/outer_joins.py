"""Outer joins as the rest reads them: LEFT for RIGHT, and inner where a condition makes them so.

``a RIGHT JOIN b`` has the rows of ``b LEFT JOIN a``. A condition that is never true for nulls drops what a
LEFT join adds of nulls alone, so that the join is an inner one: Spark's optimizer has the same rule.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from millrace.sql.context import PlanContext
from millrace.sql.expr.functions import is_strict
from millrace.sql.syntax.parse import conjuncts, disjuncts, unwrap
from millrace.sql.syntax.scopes import FromItem, JoinStep, Relation, Scope

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Like, exp.ILike)


def simplify_outer_joins(context: PlanContext, *, has_lookups: bool) -> None:
    """Make LEFT joins of RIGHT ones, and inner ones of both, in all FROM clauses of a query.

    Keys of lookup tables are found in joins as they are written, so RIGHT joins stay beside these.
    """
    scopes = [scope for scope in context.names.scopes.all if scope.clause is not None]
    for scope in () if has_lookups else scopes:
        _mirror(scope)
    for scope in scopes:
        _eliminate(context, scope)


def _mirror(scope: Scope) -> None:
    """Turn ``a RIGHT JOIN b`` around, where no star shows the order of their columns."""
    clause = scope.clause
    if clause is None or len(clause.items) < 2 or any(map(_shows_order, scope.select.find_all(exp.Star))):
        return
    first, second = clause.items[:2]
    if second.kind != "right" or second.merges or _is_lateral(first):
        return
    first.kind, first.keyword, first.join, first.on = "left", "LEFT JOIN", second.join, second.on
    second.kind, second.keyword, second.join, second.on = "inner", "JOIN", None, None
    clause.items[:2] = second, first


def _shows_order(star: exp.Star) -> bool:
    return not isinstance(star.parent, exp.Column | exp.Count)


def _is_lateral(item: FromItem) -> bool:
    return isinstance(item.content, Relation) and item.content.kind == "lateral"


def _eliminate(context: PlanContext, scope: Scope) -> None:
    """Make inner joins of the LEFT joins of whose relations some condition rejects nulls."""
    clause = scope.clause
    if clause is None or not clause.whole:
        return

    def is_rejected(step: JoinStep) -> bool:
        relation = step.relation
        if not step.is_left or relation is None or relation.kind not in ("table", "cte", "query"):
            return False
        if context.is_streaming(relation.node):
            return False  # Spark runs an outer join of streams as it is written
        terms = clause.inner_terms
        return any(rejects_nulls(term, lambda name: _relation(context, name) is relation) for term in terms)

    # An inner join has conditions of its own, which may reject nulls of others.
    while (rejected := next(filter(is_rejected, clause.steps), None)) is not None:
        rejected.item.kind, rejected.item.keyword = "inner", "JOIN"
        for relation in rejected.item.relations():
            relation.is_nullable = True  # to Spark's analyser
        del clause.steps


def rejects_nulls(node: exp.Expr, reads: Callable[[exp.Column], bool]) -> bool:
    """Tell whether a condition is never true where the columns that ``reads`` names are null."""

    def is_null(operand: exp.Expr) -> bool:
        return is_strict(operand) and any(map(reads, operand.find_all(exp.Column)))

    inner = unwrap(node)
    match inner:
        case exp.And():
            return any(rejects_nulls(term, reads) for term in conjuncts(inner))
        case exp.Or():
            return all(rejects_nulls(term, reads) for term in disjuncts(inner))
        case exp.In() if inner.args.get("query") is not None:
            return is_null(inner.this)
        case exp.Not():
            denied = unwrap(inner.this)
            if isinstance(denied, exp.Is):
                return isinstance(unwrap(denied.expression), exp.Null) and is_null(denied.this)
            return _is_unknown(denied, is_null)
    return _is_unknown(inner, is_null)


def _is_unknown(condition: exp.Expr, is_null: Callable[[exp.Expr], bool]) -> bool:
    """Tell whether a condition is null where some operands are, and so is its negation."""
    match condition:
        case exp.In() if condition.args.get("query") is not None:
            return False  # of a query without rows it is false
        case exp.In() | exp.Between():
            return is_null(condition.this)  # a bound that is null may leave it false
        case exp.Column():
            return is_null(condition)
    return isinstance(condition, _COMPARISONS) and any(map(is_null, condition.iter_expressions()))


def _relation(context: PlanContext, name: exp.Column) -> Relation | None:
    attribute = context.names.attribute(name)
    return None if attribute is None else attribute.relation
