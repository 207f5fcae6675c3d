"""Static plans: binary joins in a fixed order, without an eddy.

What a conventional engine does, with the same join operators and the same state: each node of the plan
is an iterator over the tuples that an arrival makes there (Deshpande & Hellerstein 2004, section 4, "SHJ").
Plans may be left-deep or bushy. Every predicate is applied as soon as what it reads is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from millrace.clock import Clock, WallClock
from millrace.eddy.access import Access, AccessModules
from millrace.eddy.admission import singletons
from millrace.eddy.books import Books
from millrace.eddy.buffer import Work
from millrace.eddy.index_joins import IndexJoins, refuse_shared
from millrace.eddy.memory import Held, Watch, held_by
from millrace.eddy.output import Output, Sink
from millrace.eddy.ready import is_complete, is_result, ready_predicates
from millrace.eddy.schedule import STALLED, Arrival, Schedule, Source
from millrace.eddy.selecting import Selecting, selections_of
from millrace.eddy.sharing import unshared
from millrace.eddy.watermark import Watermark
from millrace.errors import InputError, OptionError, near
from millrace.expressions import Call
from millrace.figures import CellFigures
from millrace.graph import QueryGraph
from millrace.modules import Destination, SteM
from millrace.modules.index_join import IndexJoin
from millrace.modules.joins import BinaryJoin
from millrace.modules.matching import Matching
from millrace.options import Options, Order
from millrace.predicates import Caller
from millrace.relations import RelationStore
from millrace.spec import JoinSpec
from millrace.trees import Edge, edge_names, edges_of, spanning_tree
from millrace.tuples import TupleBatch


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


class StaticPlan:
    """Runs one block over the tuples of one task by a plan that does not change.

    Takes the same arguments as :class:`millrace.eddy.Eddy` as far as they make sense here.

    Args:
        spec: The block.
        sources: Record batches by alias, each with exactly the schema of its relation.
        options: ``order`` gives the plan; the default joins small relations first.
        stream: The relation to read last; the largest by estimate when it is None.
        schedule: Overrides what ``options.online`` and ``stream`` would choose.
        clock: What module times are measured by.
        output: What becomes of result tuples.
        callers: Returns what calls a user's predicate, by its number among the residual predicates.
        access: More access modules by alias: one scan, or only indexes, for a relation. One with indexes is
            the inner input of an index join with what binds one of them.
        watch: Told whenever there may be more in memory than before.

    Raises:
        OptionError: ``options.order`` names what is not in the block, or something twice.
        InputError: A relation has access methods that compete; or it is to be asked before anything binds
            its indexes.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Mapping[str, Source],
        options: Options | None = None,
        *,
        stream: str | None = None,
        schedule: Schedule | None = None,
        clock: Clock | None = None,
        output: Sink | None = None,
        callers: Callable[[int, Call], Caller] | None = None,
        access: Access | None = None,
        watch: Watch | None = None,
    ) -> None:
        options = options or Options()
        refuse_shared(spec, access, "static")
        spec, sources = unshared(spec, sources)
        self._spec, self._sources = spec, sources
        self._limit = options.batch_size
        self._graph = QueryGraph.of(spec)
        self._clock = clock or WallClock()
        self._access = AccessModules(spec, self._graph, sources, access or {}, self._clock)
        online = options.online or self._access.is_asynchronous
        built = self._access.paths.built(self._graph)
        schedule = schedule or Schedule.of(spec, online=online, stream=stream, built=built)
        self._schedule = schedule.for_joins()
        self._schedule.check(spec, built)
        self._asks = IndexJoins.of(spec, self._graph, self._access, self._clock, "static")
        self.plan = plan_of(spec, self._graph, options.order, self._asks)
        self._stems = [SteM(i, r, self._graph) for i, r in enumerate(spec.relations)]
        self._access.attach(self._stems)
        self._access.check_windows()
        self._asks.end(self._stems)
        self._watermark = Watermark(spec, self._graph, self._stems)
        stores = {stem.number: stem.store for stem in self._stems}
        matching = Matching(self._graph)
        self._joins = {node.span: self._join(node, matching, stores) for node in _joins(self.plan)}
        selections = selections_of(spec, self._clock, options, callers)
        names = list(edge_names(spec, self._graph))
        for join in self._joins.values():
            if isinstance(join, IndexJoin):
                names[join.edge.number] = join.name
        aliases = [r.alias for r in spec.sources]
        self._books = Books(aliases, names, selections, options.reoptimize_every, traced=False)
        self._selecting = Selecting(self._graph, selections, self._books.statistics)
        self._output: Sink = output or Output(spec, options.batch_size)
        self._flying: list[Work] = []
        self._watch = watch or Watch()
        self._watch.attach(self._stems, self._held, lambda: self._flying)
        self._peak = 0
        self._seconds = 0.0

    def run(self) -> Iterator[Any]:
        """Yield the block's result, in batches of ``spec.output_schema`` and in no certain order.

        Raises:
            ExecutionError: A user's predicate raised for a tuple that nothing else rejects.
        """
        began = self._clock.now()
        try:
            self._selecting.fill(self._spec, self._sources, self._clock)
            for arrivals in self._arrivals():
                for relation, batch in arrivals:
                    if batch is STALLED:
                        continue
                    if batch is None:
                        self._stems[relation].complete = True
                        continue
                    self._watermark.arrive(relation, batch)
                    for tuples in self._made(self.plan, self._base(relation, batch)):
                        yield from self._emit(tuples)
                yield from self._output.rest()
                held = sum(s.tuples for join in self._joins.values() for s in join.stairs.values())
                self._peak = max(self._peak, held + sum(stem.store.held for stem in self._stems))
                self._expire()
            yield from self._output.finish()
        finally:
            self._selecting.close()
            self._access.close()
        self._seconds = self._clock.now() - began

    def partial(self, missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Raise InputError: a plan that does not change makes no partial results."""
        raise InputError(
            f"partial results without {list(missing)} of a static plan: its joins wait for each other in a "
            "fixed order; architecture='stairs', 'stems' or 'joins' can make them"
        )

    def _arrivals(self) -> Iterator[list[Arrival]]:
        """Yield rounds of arrivals; time passes while every source has stalled."""
        for arrivals in self._access.rounds(self._schedule, self._limit):
            if any(batch is not STALLED for _, batch in arrivals):
                yield arrivals

    def _join(self, node: Join, matching: Matching, stores: Mapping[int, RelationStore]) -> BinaryJoin:
        """Return the join of a node: an index join where one input is asked by its index alone."""
        for each in node.inputs:
            if isinstance(each, Scan) and self._asks.inner >> each.relation & 1:
                path = self._asks.path_from(node.span & ~each.span, each.relation)
                assert path is not None, "plans are checked when they are made"
                stem = self._stems[each.relation]
                return IndexJoin(node.edge, self._spec, matching, stores, stem, path, self._clock)
        return BinaryJoin(node.edge, self._spec, matching, stores)

    def _expire(self) -> None:
        """Evict what has expired before the watermark."""
        for relation, below in self._watermark.due(self._watermark.value()).items():
            for join in self._joins.values():
                for stair in join.stairs.values():
                    stair.expire(relation, below)
            self._stems[relation].evict(below)

    def _base(self, relation: int, batch: pa.RecordBatch) -> TupleBatch:
        began = self._clock.now()
        unbuilt = relation == self._schedule.unbuilt
        tuples = singletons(self._stems[relation], batch, self._spec.aliases[relation], built=unbuilt)
        self._output.arrive(tuples.size)
        self._books.route(tuples)
        if not unbuilt:
            tuples = self._stems[relation].build(tuples, None)
        self._book(tuples, Destination("build", relation), tuples.size, tuples.size, began)
        return tuples

    def _made(self, node: Plan, arrived: TupleBatch) -> Iterator[TupleBatch]:
        """Yield the tuples that base tuples, which have arrived below a node, make there."""
        if isinstance(node, Scan):
            yield from self._selected(arrived)
            return
        below = next(each for each in node.inputs if each.span & arrived.signature.span)
        other = next(each for each in node.inputs if each is not below)
        join = self._joins[node.span]
        destination = Destination("join", node.edge.number)
        name = self._books.label(destination)
        for batch in self._made(below, arrived):
            self._books.route(batch)
            began = self._clock.now()
            awaited = any(other.span >> stem.number & 1 and not stem.complete for stem in self._stems)
            probe = join.route(batch, kept=awaited)
            tuples_in = batch.size
            self._flying.append((destination, probe))
            while True:
                found = join.matches(probe, self._limit).walked(name)
                self._book(batch, destination, tuples_in, found.size, began)
                if not is_result(found.signature, self._graph):
                    self._books.intermediate += found.size
                self._watch.look()
                if found.size:
                    yield from self._selected(found)
                if probe.is_done:
                    break
                began, tuples_in = self._clock.now(), 0
            self._flying.pop()

    def _selected(self, batch: TupleBatch) -> Iterator[TupleBatch]:
        """Yield what predicates that can be applied leave of a batch."""
        waiting = [batch]
        while waiting:
            batch = waiting.pop()
            ready = ready_predicates(batch.signature, self._graph)
            if not batch.size:
                self._books.end(batch)
            elif ready:
                began = self._clock.now()
                destination = Destination("select", ready[0])
                pieces = self._selecting.meet(batch, ready[:1], self._books.label(destination))
                kept = sum(piece.size for piece in pieces)
                self._book(batch, destination, batch.size, kept, began)
                waiting += pieces
            elif is_complete(batch.signature, self._graph) and batch.signature.raised:
                raised = batch.signature.raised
                waiting.append(self._selecting.settle(batch, (raised & -raised).bit_length() - 1))
            else:
                yield batch

    def _emit(self, batch: TupleBatch) -> Iterator[pa.RecordBatch]:
        began = self._clock.now()
        self._books.end(batch)
        yield from self._output.add(batch)
        self._books.statistics.update("output", batch.size, batch.size, self._clock.now() - began)

    def _book(
        self, batch: TupleBatch, destination: Destination, tuples_in: int, tuples_out: int, began: float
    ) -> None:
        self._clock.spend(destination, tuples_in, tuples_out)
        seconds = self._clock.now() - began
        self._books.visit(batch.signature, destination, tuples_in, tuples_out, seconds)

    def _held(self) -> Held:
        return held_by(self._stems, (s for join in self._joins.values() for s in join.stairs.values()))

    def figures(self, cell: int = 0) -> CellFigures:
        """Return what this plan has done so far."""
        figures = self._books.figures(cell, self._seconds, type(self._output).__name__, self._output.counted)
        stairs = [stair.figures() for join in self._joins.values() for stair in join.stairs.values()]
        bases = [stem.figures() for stem in self._stems if stem.rows]
        asked = [join.figures() for join in self._joins.values() if isinstance(join, IndexJoin)]
        modules = (*figures.modules, *asked)
        beside = self._selecting.figures()
        peak = self._peak + sum(each.tuples for each in beside)
        return replace(figures, modules=modules, state=(*bases, *stairs, *beside), peak_state=peak)


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
        for node in _joins(plan):
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


def _joins(plan: Plan) -> Iterator[Join]:
    if isinstance(plan, Join):
        yield plan
        for each in plan.inputs:
            yield from _joins(each)
