"""What joins are expected to return: cumulative selectivities from samples of keys.

Deshpande & Hellerstein 2004, section 4.1: for a tuple and a join, how many tuples come of it when it has been
joined with everything reachable through that join. The paper computes join selectivities from domain sizes;
here samples of both sides' keys say what recent tuples of one find among all of the other, so that keys which
do not meet at all, and keys that change while the data stream in, are seen as well.

For cyclic queries, which have several spanning trees, the same fan-outs say which tree leaves the least work.
Another tree is taken when it is expected to leave less than half of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import JoinTree, edges_of, spanning_trees
from millrace.engine.stairs.sampling import KeySample, fanout
from millrace.engine.stems.conditions import Classes, Matching
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import TupleBatch
from millrace.limits.clock import Clock, WallClock

_KEYS = 1024
"""Keys of each relation to sample: fan-outs are known to some percent, and that is enough to compare them."""

_GROWTH = 64.0

_STEADY = 32
"""An estimate holds at least while no more than one out of so many tuples is new."""

_ESTIMATING = 1 / 16
"""Share of the run's time that making estimates anew may take: not a good part of a run of milliseconds."""

_SWITCH_GAIN = 2.0
"""Another spanning tree is taken if it is expected to leave less than half of the work."""

_REBUILD_COST = 3
"""Tuples' worth of work to put one base tuple into the state of another tree."""


class Forecast:
    """Fan-outs between the relations of a block.

    Args:
        spec: The block.
        graph: Its query graph.
        stems: Base tuples by relation.
        window: Tuples of a relation that count as recent.
        clock: What making estimates is measured by.
    """

    def __init__(
        self,
        spec: JoinSpec,
        graph: QueryGraph,
        stems: Sequence[SteM],
        window: int,
        clock: Clock | None = None,
    ) -> None:
        self._spec = spec
        self._stems = stems
        self._matching = Matching(graph)
        self._samples: dict[tuple[int, Classes], KeySample] = {}
        for edge in edges_of(graph):
            for end in edge.ends if edge.classes else ():
                self._samples.setdefault((end, edge.classes), KeySample(_KEYS, window))
        self._of = {r: [k for k in self._samples if k[0] == r] for r in range(graph.relations)}
        self._classes = {edge.ends: edge.classes for edge in edges_of(graph)}
        self._known: dict[tuple[int, int], tuple[int, float]] = {}
        # So that half of each relation's recent tuples are new when it is looked at again.
        self._refresh = window * graph.relations // 2
        self.arrived = [0] * graph.relations
        self._missed = [0] * graph.relations
        self._clock = clock or WallClock()
        self._began, self._estimating = self._clock.now(), 0.0

    def apart(self) -> Forecast:
        """Return the same forecast, of the same samples, that keeps estimates of its own.

        An estimate holds for a while; who asks for other purposes should not change what routing is told.
        """
        other = copy(self)
        other.forget()
        return other

    def forget(self) -> None:
        """Make every estimate anew when it is next asked for."""
        self._known = {}

    def add(self, batch: TupleBatch) -> None:
        """Take note of base tuples of one relation that have arrived."""
        (relation,) = batch.rows
        self.arrived[relation] += batch.size
        for key in self._of[relation]:
            self._samples[key].add(self._matching.codes((batch.stores, batch.rows), key[1]))

    def miss(self, relation: int) -> None:
        """Take note of a batch of a relation that its scan's filters have emptied."""
        self._missed[relation] += 1

    def fan(self, near: int, far: int) -> float:
        """Return the matches that a tuple like the recent ones of a relation finds in another so far.

        While nothing of the other has come, that is a guess: one match, and the less the more batches have
        come of which nothing was left. An estimate holds until as much has arrived as may change it.
        """
        arrived = sum(self.arrived)
        until, known = self._known.get((near, far), (0, 0.0))
        if arrived >= until and (not until or self._may_estimate()):
            began = self._clock.now()
            classes = self._classes[min(near, far), max(near, far)]
            if classes:
                known = fanout(self._samples[near, classes], self._samples[far, classes])
                if not self.arrived[far]:
                    known /= 1 + self._missed[far]
            else:
                known = float(self.arrived[far])
            until = arrived + max(min(self._refresh, arrived), arrived // _STEADY)
            self._known[near, far] = until, known
            self._estimating += self._clock.now() - began
        return known

    def _may_estimate(self) -> bool:
        return self._estimating <= _ESTIMATING * (self._clock.now() - self._began)

    def cumulative(self, tree: JoinTree, edge: int, span: int) -> float:
        """Return the tuples expected of one tuple joined with all that lies beyond an edge, now or later."""
        near, far = tree.near(edge, span), tree.far(edge, span)
        result = self.fan(near, far) * self._growth(far)
        beyond = tree.beyond(edge, span)
        reached = span & ~beyond | 1 << far
        for onward in tree.border(1 << far):
            if onward != edge and result:
                result *= self.cumulative(tree, onward, reached)
        return result

    def _growth(self, relation: int) -> float:
        """Return how many times as large a relation will be; early that is anybody's guess."""
        arrived = self.arrived[relation]
        return min(_GROWTH, 1 + self.remaining(relation) / arrived) if arrived else 1.0

    def remaining(self, relation: int) -> float:
        """Return how many tuples of a relation are still to come: by estimate, else as many again."""
        if self._stems[relation].complete:
            return 0.0
        arrived, expected = self.arrived[relation], self._spec.relations[relation].rows
        if expected is None or expected <= arrived:
            return float(arrived)
        return float(expected - arrived)

    def work(self, tree: JoinTree) -> float:
        """Return about how many tuples the joins of a tree will make of tuples still to come.

        Each relation's tuples are followed along the tree, always to the join with the fewest matches.
        Conjuncts that the tree leaves out thin the matches as if keys were independent.
        """
        total = 0.0
        for relation in range(tree.relations):
            span, tuples = 1 << relation, self.remaining(relation)
            while tuples and (border := tree.border(span)):
                factors = [(self._step(tree, edge, span), edge) for edge in border]
                factor, edge = min(factors)
                total += tuples * self.fan(tree.near(edge, span), tree.far(edge, span))
                tuples *= factor
                span |= 1 << tree.far(edge, span)
        return total

    def _step(self, tree: JoinTree, edge: int, span: int) -> float:
        """Return what is left per tuple after a join and the conjuncts that it lets us check."""
        near, far = tree.near(edge, span), tree.far(edge, span)
        result = self.fan(near, far)
        for other in range(tree.relations):
            if span >> other & 1 and other != near and self._classes[min(other, far), max(other, far)]:
                result *= min(1.0, self.fan(other, far) / max(1, self.arrived[far]))
        return result


class TreeChoice:
    """Looks from time to time whether another spanning tree would leave much less work.

    Args:
        graph: The block's query graph.
        forecast: Of the work that a tree leaves.
        patience: Base tuples that arrive between two looks; twice as many after each change.
    """

    def __init__(self, graph: QueryGraph, forecast: Forecast, patience: int) -> None:
        self._graph = graph
        self._forecast = forecast
        self._patience = patience
        self._looked = 0

    @cached_property
    def _trees(self) -> tuple[JoinTree, ...]:
        return tuple(spanning_trees(self._graph))

    def better(self, present: JoinTree) -> JoinTree | None:
        """Return the tree to go on with, None for the present one."""
        arrived = sum(self._forecast.arrived)
        if arrived - self._looked < self._patience:
            return None
        self._looked = arrived
        if len(self._trees) < 2:
            return None
        work = self._forecast.work(present)
        best = min(self._trees, key=self._forecast.work)
        least = self._forecast.work(best)
        if work <= _SWITCH_GAIN * least or work - least <= _REBUILD_COST * arrived:
            return None
        self._patience *= 2
        return best
