"""Merge the calls of a WHERE into one: an eddy that finds the cheapest order for each row.

Spark evaluates every Python function of a filter for every row. So the calls that are conditions
of their own become one call of one function, over the arguments of all of them. It stands in the
place of the first, the others become TRUE; whatever else the WHERE says stays, and Spark applies it
before the function.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from millrace.front.calls import where_conjuncts
from millrace.front.conjuncts import volatile
from millrace.front.context import Context, Filter
from millrace.front.texts import Edit, Part
from millrace.predicates import PredicateSpec
from millrace.spark.where import Slot


@dataclass(frozen=True)
class _Term:
    """A condition that is a call."""

    node: exp.Expr
    spec: PredicateSpec
    arguments: list[exp.Expr]


def take_filter(context: Context, select: exp.Select, placed: list[exp.Expr] | None) -> None:
    """Merge the calls of a SELECT's WHERE.

    Args:
        context: The query.
        select: One of its SELECTs; those inside it are done.
        placed: The conditions that are in its WHERE by now, when taking blocks has changed it.
    """
    nodes = where_conjuncts(select) if placed is None else placed
    terms = [term for node in nodes if (term := _term(context, select, node)) is not None]
    if not terms:
        return
    arguments: list[exp.Expr] = []
    places: dict[str, int] = {}
    slots = []
    for term in terms:
        columns = []
        for argument in term.arguments:
            text = context.text_of(argument) or ""
            place = places.get(text)
            if place is None or volatile(argument):
                place = places[text] = len(arguments)
                arguments.append(argument)
            columns.append(place)
        slots.append(Slot(term.spec, tuple(columns)))
    span = context.statement.span
    labels = [context.shown(span(argument)) for argument in arguments]
    name, mask = context.functions.filter(slots, labels)
    # In parentheses, for a keyword may follow without a space.
    parts: list[Part] = [f"({name}("]
    for place, argument in enumerate(arguments):
        parts += [", ", span(argument)] if place else [span(argument)]
    first, *others = terms
    context.text.edits.append(Edit(*span(first.node), (*parts, "))")))
    context.text.edits += [Edit(*span(term.node), ("(TRUE)",)) for term in others]
    for term in terms:
        context.calls.take(term.node)
    shown = tuple(context.shown(span(term.node)) for term in terms)
    context.filters.append(Filter(f"f{len(context.filters) + 1}", shown, mask))


def _term(context: Context, select: exp.Select, node: exp.Expr) -> _Term | None:
    call = context.calls.of(node)
    if call is None:
        return None
    spec, inner = call
    texts = [node, *inner.expressions]
    if not all(context.statement.has_span(each) for each in texts):
        return None
    # Spark treats subqueries, and columns from around this SELECT, condition by condition.
    if any(isinstance(part, exp.Query) for part in inner.walk()) or _reads_around(context, select, inner):
        return None
    return _Term(node, spec, list(inner.expressions))


def _reads_around(context: Context, select: exp.Select, node: exp.Expr) -> bool:
    """Tell whether a call may read columns of a SELECT around its own."""
    scope = context.resolver.scope_of(select)
    if scope.parent is None:
        return False
    found = [context.find(column) for column in node.find_all(exp.Column)]
    return not all(each is not None and each.certain and each.scope is scope for each in found)
