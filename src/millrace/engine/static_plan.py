"""Static plans: binary joins in a fixed order, without an eddy.

What a conventional engine does, with the same join operators and the same state: each node of the plan
is an iterator over the tuples that an arrival makes there (Deshpande & Hellerstein 2004, section 4, "SHJ").
Plans are left-deep or bushy: in an order that the user gives, or small relations first. Every predicate is
applied as soon as what it reads is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.engine.access.schedule import STALLED
from millrace.engine.eddy.context import RunContext
from millrace.engine.eddy.operator import Kind, Operator, Step, Work
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import Edge, edge_names, edges_of
from millrace.engine.policies.simple import names_in
from millrace.engine.stairs.index_join import IndexJoin, IndexJoins
from millrace.engine.stairs.stair import BinaryJoin, StairProbe
from millrace.engine.stems.join_state import StateTotals, held_by
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import TupleBatch, is_complete, is_result, ready_outer, ready_predicates
from millrace.errors import OptionError, near
from millrace.options import Order


class StaticPlan:
    """A plan that does not change, between arrivals and the output.

    ``Options.order`` gives it; the default joins small relations first. Of access modules a relation has one
    scan, or only indexes: then it is the inner input of an index join with what binds one of them.

    Raises:
        OptionError: ``Options.order`` names what is not in the block, or something twice.
        InputError: A relation has access methods that compete; or it is to be asked before anything binds
            its indexes.
    """

    def __init__(self, context: RunContext) -> None:
        spec, graph, stems = context.spec, context.graph, context.stems
        self._context, self._graph, self._stems = context, graph, stems
        self._statistics, self._filters, self._visit = context.statistics, context.filters, context.visit
        asks, names = IndexJoins.of(context), edge_names(spec, graph)
        self._plan = plan_of(spec, graph, context.options.order, asks)
        asks.end()
        self._builds = [_Build(stem, alias) for stem, alias in zip(stems, spec.aliases, strict=True)]
        self._joins = {
            node.span: _Join(asks.join(node.edge, [i.span for i in node.inputs]), names[node.edge.number])
            for node in joins_of(self._plan)
        }
        self._flying: list[Work] = []
        self._stairs = [s for join in self._joins.values() for s in join.binary.stairs.values()]
        if context.watch is not None:
            context.watch.attach(stems, lambda: held_by(stems, self._stairs), lambda: self._flying)
        self._peak = 0

    def results(self) -> Iterator[Any]:
        context = self._context
        for arrivals in context.arrivals.rounds(context.schedule, context.limit):
            if all(batch is STALLED for _, batch in arrivals):
                continue
            for relation, batch in arrivals:
                if batch is None:
                    self._stems[relation].complete = True
                elif isinstance(batch, pa.RecordBatch):
                    for tuples in self._made(self._plan, self._base(relation, batch)):
                        yield from context.emit(tuples)
            yield from context.output.rest()
            held = sum(stair.tuples for stair in self._stairs)
            self._peak = max(self._peak, held + sum(stem.store.held for stem in self._stems))
            self._expire()

    def finish(self, tuples: TupleBatch) -> Iterator[Any]:
        """Yield output of tuples that span all relations, from another run of the block."""
        for found in self._selected(tuples):
            yield from self._context.emit(found)

    def _expire(self) -> None:
        """Evict what has expired before the watermark."""
        watermark = self._context.watermark
        for relation, below in watermark.due(watermark.value()).items():
            for stair in self._stairs:
                stair.expire(relation, below)
            self._stems[relation].evict(below)

    def _base(self, relation: int, batch: pa.RecordBatch) -> TupleBatch:
        tuples = self._context.arrive(relation, batch)
        self._statistics.routed += tuples.size
        if relation == self._context.schedule.unbuilt:
            return tuples
        (built,) = self._visit(self._builds[relation], tuples).batches
        return built

    def _made(self, node: Plan, arrived: TupleBatch) -> Iterator[TupleBatch]:
        """Yield the tuples that base tuples, which have arrived below a node, make there."""
        if isinstance(node, Scan):
            yield from self._selected(arrived)
            return
        below = next(each for each in node.inputs if each.span & arrived.signature.span)
        other = next(each for each in node.inputs if each is not below)
        join = self._joins[node.span]
        for batch in self._made(below, arrived):
            self._statistics.routed += batch.size
            join.awaited = any(other.span >> stem.number & 1 and not stem.complete for stem in self._stems)
            for found in self._steps(join, batch):
                yield from self._selected(found)

    def _steps(self, operator: Operator, batch: TupleBatch) -> Iterator[TupleBatch]:
        """Yield what an operator makes of a batch, each piece before the next one is made."""
        step = self._visit(operator, batch)
        while True:
            self._flying.append((operator, batch if step.rest is None else step.rest))
            if self._context.watch is not None:
                self._context.watch.look()
            for found in step.batches:
                if not is_result(found.signature, self._graph):
                    self._statistics.intermediate += found.size
                if found.size:
                    yield found
            self._flying.pop()
            if step.rest is None:
                break
            step = self._visit(operator, step.rest)

    def _selected(self, batch: TupleBatch) -> Iterator[TupleBatch]:
        """Yield what predicates that can be applied leave of a batch."""
        waiting = [batch]
        while waiting:
            batch = waiting.pop()
            ready = ready_predicates(batch.signature, self._graph)
            if not batch.size:
                self._statistics.end(batch)
            elif ready:
                select = self._filters.selects[ready[0]]
                waiting += self._visit(select, batch).batches
            elif outer := ready_outer(batch.signature, self._graph):
                for widened in self._steps(self._filters.outer[outer[0]], batch):
                    yield from self._selected(widened)
            elif is_complete(batch.signature, self._graph) and batch.signature.raised:
                waiting += self._filters.settlement.step(batch, self._context.limit).batches
            else:
                yield batch

    def held(self) -> StateTotals:
        joins = [join.binary for join in self._joins.values()]
        stairs = [stair.figures() for stair in self._stairs]
        bases = [stem.figures() for stem in self._stems if stem.rows]
        asked = tuple(join.figures() for join in joins if isinstance(join, IndexJoin))
        return StateTotals((*bases, *stairs), self._peak, lookups=asked)


class _Build(Operator):
    """Keeps base tuples; STAIRs hold pointers to them."""

    kind = Kind.BUILD

    def __init__(self, stem: SteM, alias: str) -> None:
        super().__init__(stem.number, stem.name, alias)
        self._stem = stem

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples, which now point into the SteM."""
        built = self._stem.build(work, None)
        return Step((built,), built.size)


class _Join(Operator):
    """The join of a node of the plan.

    ``awaited``: more may come from the other input, so that tuples have to be kept for it.
    """

    kind = Kind.JOIN

    def __init__(self, binary: BinaryJoin, name: str) -> None:
        name = binary.name if isinstance(binary, IndexJoin) else name
        super().__init__(binary.edge.number, name, name)
        self.binary = binary
        self.awaited = True

    def start(self, batch: TupleBatch) -> StairProbe:
        """Insert on one side, if that is of use, and begin to probe the other."""
        return self.binary.route(batch, kept=self.awaited)

    def step(self, work: StairProbe, limit: int) -> Step:
        found = self.binary.matches(work, limit).walked(self.label)
        return Step((found,), found.size, None if work.is_done else work)


@dataclass(frozen=True)
class Scan:
    """A leaf of a plan: base tuples of a relation."""

    relation: int

    @property
    def span(self) -> int:
        return 1 << self.relation


@dataclass(frozen=True)
class JoinNode:
    """An inner node of a plan: the join of what its two inputs make."""

    inputs: tuple[Plan, Plan]
    edge: Edge

    @property
    def span(self) -> int:
        return self.inputs[0].span | self.inputs[1].span


Plan = Scan | JoinNode


def plan_of(spec: JoinSpec, graph: QueryGraph, order: Order, asks: IndexJoins) -> Plan:
    """Return the plan of an order: left-deep for a flat one, bushy where pairs are nested.

    Without an order the smallest relations are joined first, along equalities. Relations in ``asks`` are
    asked by index, each when what binds the index is there.

    Raises:
        OptionError: The order does not name every relation once.
        InputError: A relation that is asked by index is joined with what does not bind it.
    """
    if not order:
        return _default(spec, graph, asks)
    named = list(names_in(order))
    if sorted(n.lower() for n in named) != sorted(a.lower() for a in spec.aliases):
        strange = [n for n in named if n.lower() not in {a.lower() for a in spec.aliases}]
        hint = near(strange[0], spec.aliases) if strange else f"expected each of {list(spec.aliases)} once"
        raise OptionError(f"option order is {order!r}, which is no plan of this join: {hint}")
    numbers = {alias.lower(): i for i, alias in enumerate(spec.aliases)}
    plan = _nested(graph, order, numbers)
    for node in joins_of(plan):
        asks.check_plan([each.span for each in node.inputs])
    return plan


def _nested(graph: QueryGraph, order: Order, numbers: Mapping[str, int]) -> Plan:
    inputs = [
        Scan(numbers[part.lower()]) if isinstance(part, str) else _nested(graph, part, numbers)
        for part in order
    ]
    plan: Plan = inputs[0]
    for right in inputs[1:]:
        plan = _joined(graph, plan, right)
    return plan


def _joined(graph: QueryGraph, left: Plan, right: Plan) -> JoinNode:
    """Join two plans on the pair of relations that most attributes tie together."""
    crossing = [e for e in edges_of(graph) if _crosses(e, left.span, right.span)]
    return JoinNode((left, right), max(crossing, key=lambda e: (len(e.classes), -e.number)))


def _crosses(edge: Edge, left: int, right: int) -> bool:
    a, b = edge.ends
    return bool((left >> a & 1 and right >> b & 1) or (left >> b & 1 and right >> a & 1))


def _default(spec: JoinSpec, graph: QueryGraph, asks: IndexJoins) -> Plan:
    """Return a left-deep plan: small relations first, and nothing asked before its index is bound."""
    sizes = [r.rows or 0 for r in spec.relations]
    rest = set(range(graph.relations))
    first = min((r for r in rest if not asks.inner >> r & 1), key=lambda r: (sizes[r], r))
    plan: Plan = Scan(first)
    rest.remove(first)
    while rest:
        ready = [r for r in rest if not asks.inner >> r & 1 or asks.lookup(plan.span, r)]
        tied = [r for r in ready if graph.bound(plan.span, r)]
        relation = min(tied or ready, key=lambda r: (sizes[r], r))
        plan = _joined(graph, plan, Scan(relation))
        rest.remove(relation)
    return plan


def joins_of(plan: Plan) -> Iterator[JoinNode]:
    """Yield the inner nodes of a plan, from the root down."""
    if isinstance(plan, JoinNode):
        yield plan
        for each in plan.inputs:
            yield from joins_of(each)
