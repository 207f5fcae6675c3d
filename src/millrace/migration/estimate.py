"""What moving stored tuples would cost, and what it would spare.

Tuples of one section differ: those that arrived while the data were different may be of no use to anybody
any more, and best left where they are. So misplaced tuples are appraised in slices, by age, with samples:
tuples like those that will come probe the section, to see how often its tuples are met; some of its tuples
probe the join that they would be moved to, to see what they would become. How many will come is followed
along present routing: to a STAIR come the base tuples of the relation at its edge's other end, and what
tuples of relations behind that one have become by then, which may be many more.

Everything is counted in operations: a tuple inserted, a tuple that probes, a match made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.kernels import Multimap
from millrace.migration.forecast import Forecast
from millrace.migration.placement import Misplaced
from millrace.state.matching import Array, Matching
from millrace.state.stairs import Route, Stairs
from millrace.state.stem import SteM
from millrace.tuples import Signature, TupleBatch

SLICES = 8
_RECENT = 1024
"""Tuples that stand for those to come."""

_SAMPLE = 64
"""Tuples that stand for those of a slice."""

_MATCHES = 65_536
"""Matches to look at, at most."""

_LEAST = 256
"""A section of fewer tuples is one slice."""

MOVED, FOUND, REPLACED = 2, 2, 1
"""Operations to promote a tuple: for itself (it is inserted, and probes; to take a section out is a sweep),
for each match (it is made and inserted), and for each longer tuple that it replaces where it is inserted."""

_SPARED = 3
"""Operations that an intermediate tuple takes: it is made, inserted, and probes."""


@dataclass(frozen=True)
class Appraisal:
    """What is expected of moving a slice of a section.

    Attributes:
        misplaced: The section, and where its tuples belong.
        positions: Of the slice's tuples.
        cost: Operations that moving takes.
        saving: Operations spared until the sources end.
    """

    misplaced: Misplaced
    positions: Array
    cost: float
    saving: float


def gain(slices: Iterable[Appraisal]) -> float:
    """Return what moving those slices of a section that are worth it spares, less what it costs."""
    return sum(max(0.0, each.saving - each.cost) for each in slices)


class Appraiser:
    """Appraises misplaced tuples.

    Args:
        stairs: The state.
        stems: Base tuples by relation.
        matching: Codes of the block's keys.
        forecast: What is still to come.
        route: Where tuples of each span go at present.
    """

    def __init__(
        self,
        stairs: Stairs,
        stems: Sequence[SteM],
        matching: Matching,
        forecast: Forecast,
        route: Route,
    ) -> None:
        self._route = route
        self._stairs = stairs
        self._stems = stems
        self._matching = matching
        self._forecast = forecast

    def appraise(self, wrong: Misplaced) -> list[Appraisal]:
        """Return the slices of a section that belongs to another join, oldest first."""
        stairs = self._stairs
        stair = stairs.joins[wrong.edge].stairs[wrong.owner]
        section = stair.sections[wrong.signature]
        positions = section.positions()
        slices = np.array_split(positions, 1 if len(positions) < _LEAST else SLICES)
        # How often tuples to come on the other side would meet each slice.
        other = stairs.tree.far(wrong.edge, wrong.signature.span)
        met = np.zeros(len(slices))
        coming = self._recent(other)
        if coming.size:
            places = self._met(wrong, coming)
            lows = [each[0] for each in slices]
            met = (
                np.bincount(np.searchsorted(lows, places, side="right") - 1, minlength=len(slices))
                / coming.size
            )
        met *= self._visits(wrong.edge, other)
        # What its tuples would find, and who would meet them, at the other join.
        taken = [each[np.linspace(0, len(each) - 1, min(len(each), _SAMPLE)).astype(int)] for each in slices]
        sample = section.batch({s.number: s.store for s in self._stems}, np.concatenate(taken))
        slice_of = np.repeat(np.arange(len(slices)), [len(each) for each in taken])
        weights = np.array([len(each) / len(part) for each, part in zip(slices, taken, strict=True)])
        found = self._found(wrong.place, sample, slice_of, len(slices)) * weights
        near, far = (f(wrong.place, wrong.signature.span) for f in (stairs.tree.near, stairs.tree.far))
        replaced = self._replaced(wrong.place, near, sample, slice_of, len(slices)) * weights
        instead = self._instead(near, far, wrong.place, sample, slice_of, len(slices)) * weights
        instead *= self._visits(wrong.place, far)
        moved = np.array([len(each) for each in slices])
        costs = MOVED * moved + FOUND * found + REPLACED * replaced
        savings = _SPARED * (met - instead)
        return [
            Appraisal(wrong, each, float(cost), float(saving))
            for each, cost, saving in zip(slices, costs, savings, strict=True)
        ]

    def _visits(self, edge: int, relation: int) -> float:
        """Return how many tuples are still to come to an edge from the side of one of its two relations."""
        tree, forecast = self._stairs.tree, self._forecast
        (near,) = (end for end in tree.by_number[edge].ends if end != relation)
        beyond = tree.beyond(edge, 1 << near)
        total = 0.0
        for arriving in range(tree.relations):
            if not beyond >> arriving & 1:
                continue
            span, tuples = 1 << arriving, forecast.remaining(arriving)
            while tuples and (via := self._route(span)) != edge:
                tuples *= forecast.fan(tree.near(via, span), tree.far(via, span))
                span |= 1 << tree.far(via, span)
            total += tuples
        return total

    def _recent(self, relation: int) -> TupleBatch:
        """Return some of the latest base tuples of a relation."""
        store = self._stems[relation].store
        last = np.arange(max(store.first, store.rows - 16 * _RECENT), store.rows, dtype=np.int32)
        rows = last[:: max(1, len(last) // _RECENT)]
        return TupleBatch(Signature(1 << relation), {relation: rows}, {relation: store})

    def _met(self, wrong: Misplaced, coming: TupleBatch) -> Array:
        """Return positions in the section of the tuples that recent tuples of the other side meet."""
        section = self._stairs.joins[wrong.edge].stairs[wrong.owner].sections[wrong.signature]
        classes = self._stairs.tree.by_number[wrong.edge].classes
        if section.index is None:  # everybody meets everybody
            return np.tile(section.positions(), coming.size)
        codes = self._matching.codes((coming.stores, coming.rows), classes)
        _, right = section.index.matches(section.index.probe(codes), _MATCHES)
        present = section.present(right)
        return right if present is None else right[present]

    def _found(self, place: int, sample: TupleBatch, slice_of: Array, slices: int) -> Array:
        """Return how many matches the sampled tuples of each slice have at a join."""
        join = self._stairs.joins[place]
        near = join.near(sample)
        dual = join.dual(near)
        counts = np.zeros(slices)
        probe = dual.start(sample, near.codes(sample))
        for section, walk in probe.open:
            if section.index is None:
                counts += np.bincount(slice_of, minlength=slices) * section.live
            else:
                left, _ = section.index.matches(walk, _MATCHES)  # type: ignore[arg-type]
                counts += np.bincount(slice_of[left], minlength=slices)
        return counts

    def _replaced(self, place: int, near: int, sample: TupleBatch, slice_of: Array, slices: int) -> Array:
        """Return how many tuples at a join the sampled tuples of each slice are parts of (Invariant B)."""
        counts = np.zeros(slices)
        span = sample.signature.span
        for signature, section in self._stairs.joins[place].stairs[near].sections.items():
            if section.live and signature.span & span == span:
                mine, _ = section.agreeing(sample)
                counts += np.bincount(slice_of[mine], minlength=slices)
        return counts

    def _instead(
        self, near: int, far: int, place: int, sample: TupleBatch, slice_of: Array, slices: int
    ) -> Array:
        """Return how many of the sampled tuples of each slice a tuple to come would meet at a join."""
        classes = self._stairs.tree.by_number[place].classes
        coming = self._recent(far)
        if not coming.size:
            return np.zeros(slices)
        if not classes:
            return np.bincount(slice_of, minlength=slices).astype(float)
        index = Multimap()
        index.insert(self._matching.codes((coming.stores, coming.rows), classes))
        codes = self._matching.codes((sample.stores, {near: sample.rows[near]}), classes)
        left, _ = index.matches(index.probe(codes), _MATCHES)
        return np.bincount(slice_of[left], minlength=slices) / coming.size
