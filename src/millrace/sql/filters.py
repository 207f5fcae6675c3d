"""Merge the calls of a WHERE into one: an eddy that finds the cheapest order for each row.

Spark evaluates every Python function of a filter for every row. So the calls that are conditions
of their own become one call of one function, over the arguments of all of them. It stands in the
place of the first, the others become TRUE; whatever else the WHERE says stays, and Spark applies it
before the function.
"""

from __future__ import annotations

from sqlglot import exp

from millrace.predicates import PredicateSpec
from millrace.spark.where import Slot
from millrace.sql.functions import filter_name
from millrace.sql.parse import where_conjuncts
from millrace.sql.plan import FilterPlan
from millrace.sql.planning import Planning
from millrace.sql.scopes import Scope
from millrace.sql.template import Edit, Part


def take_filter(planning: Planning, scope: Scope, placed: list[exp.Expr] | None) -> None:
    """Merge the calls of a SELECT's WHERE.

    Args:
        planning: The query.
        scope: One of its SELECTs; those inside it are done.
        placed: The conditions that are in its WHERE by now, when taking blocks has changed it.
    """
    nodes = where_conjuncts(scope.select) if placed is None else placed
    calls = [(node, *call) for node in nodes if (call := _call(planning, scope, node)) is not None]
    if not calls:
        return
    arguments: list[exp.Expr] = []
    places: dict[str, int] = {}
    slots = []
    for _, spec, inner in calls:
        columns = []
        for argument in inner.expressions:
            text = planning.text.bound(planning.statement.span(argument))
            place = places.get(text)
            if place is None or planning.volatility.volatile(argument):
                place = places[text] = len(arguments)
                arguments.append(argument)
            columns.append(place)
        slots.append(Slot(spec, tuple(columns)))
    span = planning.statement.span
    labels = tuple(planning.shown(argument) for argument in arguments)
    name = filter_name()
    # In parentheses, for a keyword may follow without a space.
    parts: list[Part] = [f"({name}("]
    for place, argument in enumerate(arguments):
        parts += [", ", span(argument)] if place else [span(argument)]
    first, *others = taken = [node for node, _, _ in calls]
    planning.text.edits.append(Edit(*span(first), (*parts, "))")))
    planning.text.edits += [Edit(*span(node), ("(TRUE)",)) for node in others]
    for node in taken:
        planning.calls.take(node)
    shown = tuple(planning.shown(node) for node in taken)
    planning.filters.append(FilterPlan(f"f{len(planning.filters) + 1}", name, tuple(slots), labels, shown))


def _call(planning: Planning, scope: Scope, node: exp.Expr) -> tuple[PredicateSpec, exp.Expr] | None:
    """Return the predicate and the call, when a condition is nothing but a call that may be merged."""
    call = planning.calls.of(node)
    if call is None or not all(planning.statement.has_span(each) for each in (node, *call[1].expressions)):
        return None
    # Spark treats subqueries, and columns from around this SELECT, condition by condition.
    barred = call[1].find(exp.Query) is not None or _reads_around(planning, scope, call[1])
    return None if barred else call


def _reads_around(planning: Planning, scope: Scope, node: exp.Expr) -> bool:
    """Tell whether a call may read columns of a SELECT around its own."""
    if planning.names.scopes.place_of(scope.select) is None:
        return False
    found = [planning.names.find(column) for column in node.find_all(exp.Column)]
    return not all(each is not None and not each.why and each.scope is scope for each in found)
