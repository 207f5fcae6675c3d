"""Plans of binary joins, left-deep or bushy: from an order that the user gives, or small relations first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import Edge, edges_of, spanning_tree
from millrace.engine.stairs.index_join import IndexJoins
from millrace.errors import OptionError, near
from millrace.options import Order


@dataclass(frozen=True)
class Scan:
    """A leaf of a plan: base tuples of a relation."""

    relation: int

    @property
    def span(self) -> int:
        """The relation alone."""
        return 1 << self.relation


@dataclass(frozen=True)
class Join:
    """An inner node of a plan: the join of what its two inputs make."""

    inputs: tuple[Plan, Plan]
    edge: Edge

    @property
    def span(self) -> int:
        """The relations below it."""
        return self.inputs[0].span | self.inputs[1].span


Plan = Scan | Join


def plan_of(spec: JoinSpec, graph: QueryGraph, order: Order, asks: IndexJoins | None = None) -> Plan:
    """Return the plan of an order: left-deep for a flat one, bushy where pairs are nested.

    Without an order the smallest relations are joined first, along the pre-optimizer's spanning tree.

    Args:
        spec: The block.
        graph: Its query graph.
        order: The order; maybe empty.
        asks: Relations that are asked by index, each when what binds the index is there.

    Raises:
        OptionError: The order does not name every relation once.
        InputError: A relation that is asked by index is joined with what does not bind it.
    """
    if not order:
        return _asking(spec, graph, asks) if asks is not None and asks.inner else _default(spec, graph)
    named = list(_names(order))
    if sorted(n.lower() for n in named) != sorted(a.lower() for a in spec.aliases):
        strange = [n for n in named if n.lower() not in {a.lower() for a in spec.aliases}]
        hint = near(strange[0], spec.aliases) if strange else f"expected each of {list(spec.aliases)} once"
        raise OptionError(f"option order is {order!r}, which is no plan of this join: {hint}")
    numbers = {alias.lower(): i for i, alias in enumerate(spec.aliases)}
    plan = _nested(graph, order, numbers)
    if asks is not None:
        for node in joins_of(plan):
            asks.check_plan([each.span for each in node.inputs])
    return plan


def _names(order: Order) -> Iterator[str]:
    for part in order:
        if isinstance(part, str):
            yield part
        else:
            yield from _names(part)


def _nested(graph: QueryGraph, order: Order, numbers: Mapping[str, int]) -> Plan:
    inputs = [
        Scan(numbers[part.lower()]) if isinstance(part, str) else _nested(graph, part, numbers)
        for part in order
    ]
    plan: Plan = inputs[0]
    for right in inputs[1:]:
        plan = _joined(graph, plan, right)
    return plan


def _joined(graph: QueryGraph, left: Plan, right: Plan) -> Join:
    """Join two plans on the pair of relations that most attributes tie together."""
    crossing = [e for e in edges_of(graph) if _crosses(e, left.span, right.span)]
    return Join((left, right), max(crossing, key=lambda e: (len(e.classes), -e.number)))


def _crosses(edge: Edge, left: int, right: int) -> bool:
    a, b = edge.ends
    return bool((left >> a & 1 and right >> b & 1) or (left >> b & 1 and right >> a & 1))


def _default(spec: JoinSpec, graph: QueryGraph) -> Plan:
    sizes = [r.rows or 0 for r in spec.relations]
    tree = spanning_tree(graph, sizes)
    first = min(range(graph.relations), key=lambda r: (sizes[r], r))
    plan: Plan = Scan(first)
    while border := tree.border(plan.span):
        span = plan.span
        edge = min(border, key=lambda e: (sizes[tree.far(e, span)], e))
        plan = Join((plan, Scan(tree.far(edge, span))), tree.by_number[edge])
    return plan


def _asking(spec: JoinSpec, graph: QueryGraph, asks: IndexJoins) -> Plan:
    """Return a left-deep plan: small relations first, and nothing asked before its index is bound."""
    sizes = [r.rows or 0 for r in spec.relations]
    rest = set(range(graph.relations))
    first = min((r for r in rest if not asks.inner >> r & 1), key=lambda r: (sizes[r], r))
    plan: Plan = Scan(first)
    rest.remove(first)
    while rest:
        ready = [r for r in rest if not asks.inner >> r & 1 or asks.path_from(plan.span, r)]
        tied = [r for r in ready if graph.bound(plan.span, r)]
        relation = min(tied or ready, key=lambda r: (sizes[r], r))
        plan = _joined(graph, plan, Scan(relation))
        rest.remove(relation)
    return plan


def joins_of(plan: Plan) -> Iterator[Join]:
    """Yield the inner nodes of a plan, from the root down."""
    if isinstance(plan, Join):
        yield plan
        for each in plan.inputs:
            yield from joins_of(each)
