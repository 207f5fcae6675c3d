"""Outer joins as the rest reads them: LEFT for RIGHT, and inner where a condition makes them so.

``a RIGHT JOIN b`` has the rows of ``b LEFT JOIN a``. A condition that is never true for nulls drops what a
LEFT join adds of nulls alone, so that the join is an inner one. Spark's ``EliminateOuterJoin`` has the same
rule, and here it is no wider: where Spark keeps the outer join, an inner one could evaluate its condition for
rows without a match, and so raise what Spark does not.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from sqlglot import exp

from millrace.sql.context import PlanContext
from millrace.sql.expr.functions import is_strict
from millrace.sql.syntax.parse import conjuncts, disjuncts, unwrap
from millrace.sql.syntax.scopes import FromClause, FromItem

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Like, exp.ILike)


def simplify_outer_joins(context: PlanContext, *, has_lookups: bool) -> None:
    """Make LEFT joins of RIGHT ones, and inner ones of both, in all FROM clauses of a query.

    Keys of lookup tables are found in joins as they are written, so RIGHT joins stay beside these. What joins
    streams stays as it is too, for Spark's state of it lasts.
    """
    clauses = [
        (scope.select, scope.clause)
        for scope in context.names.scopes.all
        if scope.clause is not None
        and not scope.clause.is_inner
        and not any(context.is_streaming(relation.node) for relation in scope.clause.relations())
    ]
    for select, clause in () if has_lookups else clauses:
        _mirror(select, clause)
    for _, clause in clauses:
        _eliminate(context, clause)


def _mirror(select: exp.Select, clause: FromClause) -> None:
    """Turn ``a RIGHT JOIN b`` around, where nothing tells the order of their columns.

    A star does, but for one that names one relation, and so does a join by names of columns: it means the
    first on its left.
    """
    if len(clause.items) < 2 or clause.merges:
        return
    first, second = clause.items[:2]
    names = [relation.qualifier[-1:] for relation in clause.relations()]
    stars = [star for star in select.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]
    if stars and (
        len(set(names)) < len(names) or not all(isinstance(star.parent, exp.Column) for star in stars)
    ):
        return
    if second.kind != "right" or (first.relation is not None and first.relation.kind == "lateral"):
        return
    first.kind, first.keyword, first.join, first.on = "left", "LEFT JOIN", second.join, second.on
    second.kind, second.keyword, second.join, second.on = "inner", "JOIN", None, None
    clause.items[:2] = second, first


def _eliminate(context: PlanContext, clause: FromClause) -> None:
    """Make inner joins of the LEFT joins of whose relations some condition rejects nulls."""
    joined = [(item, item.relation) for item in clause.steps if item.is_left and clause.whole]
    left = [(item, right) for item, right in joined if right and right.kind in ("table", "cte", "query")]
    # An inner join has conditions of its own, which may reject nulls of others.
    while rejected := [(item, right) for item, right in left if item.is_left and _drops_nulls(context, item)]:
        for item, right in rejected:
            item.kind, item.keyword, right.is_nullable = "inner", "JOIN", True


def _drops_nulls(context: PlanContext, item: FromItem) -> bool:
    """Tell whether some condition lets no row pass that a join has added of nulls."""

    def reads(name: exp.Column) -> bool:
        attribute = context.names.attribute(name)
        return attribute is not None and attribute.relation is item.relation

    return any(rejects_nulls(term, reads) for term in item.clause.inner_terms)


def restore_outer_joins(clause: FromClause, taken: Container[int]) -> bool:
    """Make LEFT joins again of inner ones whose relations no block takes; tell whether there were any.

    Spark runs these, and takes their columns to have nulls. ``taken`` has the ids of relations.
    """
    restored = False
    for item in clause.items:
        relation = item.relation
        if relation is not None and relation.is_nullable and id(relation) not in taken:
            item.kind, item.keyword, relation.is_nullable, restored = "left", "LEFT JOIN", False, True
    return restored


def rejects_nulls(node: exp.Expr, reads: Callable[[exp.Column], bool]) -> bool:
    """Tell whether a condition is never true where the columns that ``reads`` names are null.

    Of conditions that read other columns too only comparisons count, as to Spark.
    """

    def is_null(operand: exp.Expr) -> bool:
        return is_strict(operand) and any(map(reads, operand.find_all(exp.Column)))

    inner = unwrap(node)
    if isinstance(inner, exp.And):
        return any(rejects_nulls(term, reads) for term in conjuncts(inner))
    if isinstance(inner, _COMPARISONS):
        return any(map(is_null, inner.iter_expressions()))
    if inner.find(exp.Query) is not None or not all(map(reads, inner.find_all(exp.Column))):
        return False
    if isinstance(inner, exp.Or):
        return all(rejects_nulls(term, reads) for term in disjuncts(inner))
    if not isinstance(inner, exp.Not):
        return _is_unknown(inner, is_null)
    denied = unwrap(inner.this)
    if isinstance(denied, exp.Is):
        return isinstance(unwrap(denied.expression), exp.Null) and is_null(denied.this)
    return _is_unknown(denied, is_null)


def _is_unknown(condition: exp.Expr, is_null: Callable[[exp.Expr], bool]) -> bool:
    """Tell whether a condition is null where some operands are, and so is its negation."""
    match condition:
        case exp.In() | exp.Between():
            return is_null(condition.this)  # a bound that is null may leave it false
        case exp.Column():
            return is_null(condition)
    return isinstance(condition, _COMPARISONS) and any(map(is_null, condition.iter_expressions()))
