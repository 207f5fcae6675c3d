"""Merge the calls of a WHERE into one: an eddy that finds the cheapest order for each row.

Spark evaluates every Python function of a filter for every row. So the calls that are conditions
of their own become one call of one function, over the arguments of all of them. It stands in the
place of the first, the others become TRUE; whatever else the WHERE says stays, and Spark applies it
before the function.
"""

from __future__ import annotations

from sqlglot import exp

from millrace.predicates import PredicateSpec
from millrace.spark.mask import Slot
from millrace.sql.planner.context import PlanContext
from millrace.sql.planner.plan import FilterPlan
from millrace.sql.session.functions import filter_name
from millrace.sql.syntax.edits import Edit, Part
from millrace.sql.syntax.parse import where_conjuncts
from millrace.sql.syntax.scopes import Scope


def take_filter(context: PlanContext, scope: Scope, placed: list[exp.Expr] | None) -> None:
    """Merge the calls of a SELECT's WHERE.

    Args:
        context: The query.
        scope: One of its SELECTs; those inside it are done.
        placed: The conditions that are in its WHERE by now, when taking blocks has changed it.
    """
    nodes = where_conjuncts(scope.select) if placed is None else placed
    calls = [(node, *call) for node in nodes if (call := _call(context, scope, node)) is not None]
    if not calls:
        return
    arguments: list[exp.Expr] = []
    places: dict[str, int] = {}
    slots = []
    for _, spec, inner in calls:
        columns = []
        for argument in inner.expressions:
            text = context.text.bound(context.statement.span(argument))
            place = places.get(text)
            if place is None or context.volatility.volatile(argument):
                place = places[text] = len(arguments)
                arguments.append(argument)
            columns.append(place)
        slots.append(Slot(spec, tuple(columns)))
    span = context.statement.span
    labels = tuple(context.shown(argument) for argument in arguments)
    name = filter_name()
    # In parentheses, for a keyword may follow without a space.
    parts: list[Part] = [f"({name}("]
    for place, argument in enumerate(arguments):
        parts += [", ", span(argument)] if place else [span(argument)]
    first, *others = taken = [node for node, _, _ in calls]
    context.text.edits.append(Edit(*span(first), (*parts, "))")))
    context.text.edits += [Edit(*span(node), ("(TRUE)",)) for node in others]
    for node in taken:
        context.calls.take(node)
    shown = tuple(context.shown(node) for node in taken)
    context.filters.append(FilterPlan(f"f{len(context.filters) + 1}", name, tuple(slots), labels, shown))


def _call(context: PlanContext, scope: Scope, node: exp.Expr) -> tuple[PredicateSpec, exp.Expr] | None:
    """Return the predicate and the call, when a condition is nothing but a call that may be merged."""
    call = context.calls.of(node)
    if call is None or not all(context.statement.has_span(each) for each in (node, *call[1].expressions)):
        return None
    # Spark treats subqueries, and columns from around this SELECT, condition by condition.
    barred = call[1].find(exp.Query) is not None or _reads_around(context, scope, call[1])
    return None if barred else call


def _reads_around(context: PlanContext, scope: Scope, node: exp.Expr) -> bool:
    """Tell whether a call may read columns of a SELECT around its own."""
    if context.names.scopes.place_of(scope.select) is None:
        return False
    found = [context.names.find(column) for column in node.find_all(exp.Column)]
    return not all(each is not None and not each.why and each.scope is scope for each in found)
