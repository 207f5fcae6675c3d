"""What moving stored tuples would cost, and what it would spare.

Tuples of one segment differ: those that arrived while the data were different may be of no use to anybody
any more, and best left where they are. So misplaced tuples are estimated in slices, by age, with samples:
tuples like those that will come probe the segment, to see how often its tuples are met; some of its tuples
probe the join that they would be moved to, to see what they would become. How many will come is followed
along present routing: to a STAIR come the base tuples of the relation at its edge's other end, and what
tuples of relations behind that one have become by then, which may be many more.

Everything is counted in operations: a tuple inserted, a tuple that probes, a match made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.stairs.counts import counts, sampled
from millrace.engine.stairs.fanout import Forecast
from millrace.engine.stairs.invariants import Route, Stairs
from millrace.engine.stairs.migration import Misplaced
from millrace.engine.stairs.stair import STAIR, Segment
from millrace.engine.stems.conditions import Matching, combined
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import Signature, TupleBatch

SLICES = 8
_RECENT = 1024
"""Tuples that stand for those to come."""

_SAMPLE = 64
"""Tuples that stand for those of a slice."""

_LEAST = 256
"""A segment of fewer tuples is one slice."""

MOVED, FOUND, REPLACED = 2, 2, 1
"""Operations to promote a tuple: for itself (it is inserted, and probes; to take a segment out is a sweep),
for each match (it is made and inserted), and for each longer tuple that it replaces where it is inserted."""

_SPARED = 3
"""Operations that an intermediate tuple takes: it is made, inserted, and probes."""


@dataclass(frozen=True)
class MigrationEstimate:
    """What is expected of moving a slice of a segment.

    Attributes:
        misplaced: The segment, and where its tuples belong.
        positions: Of the slice's tuples.
        cost: Operations that moving takes.
        saving: Operations spared until the sources end.
    """

    misplaced: Misplaced
    positions: Array
    cost: float
    saving: float


def gain(slices: Iterable[MigrationEstimate]) -> float:
    """Return what moving those slices of a segment that are worth it spares, less what it costs."""
    return sum(max(0.0, each.saving - each.cost) for each in slices)


class MigrationEstimator:
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

    def estimate(self, wrong: Misplaced) -> list[MigrationEstimate]:
        """Return the slices of a segment that belongs to another join, oldest first."""
        stairs = self._stairs
        stair = stairs.joins[wrong.edge].stairs[wrong.owner]
        segment = stair.segments[wrong.signature]
        positions = segment.positions()
        slices = np.array_split(positions, 1 if len(positions) < _LEAST else SLICES)
        # How often tuples to come on the other side would meet each slice.
        other = stairs.tree.far(wrong.edge, wrong.signature.span)
        coming = self._recent(other)
        met = self._met(stair, segment, coming, slices) if coming.size else np.zeros(len(slices))
        met *= self._visits(wrong.edge, other)
        # What its tuples would find, and who would meet them, at the other join.
        taken = [sampled(each, _SAMPLE) for each in slices]
        sample = segment.batch(stairs.stores, np.concatenate(taken))
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
            MigrationEstimate(wrong, each, float(cost), float(saving))
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
        rows = sampled(last, _RECENT)
        return TupleBatch(Signature(1 << relation), {relation: rows}, {relation: store})

    def _met(self, stair: STAIR, segment: Segment, coming: TupleBatch, slices: Sequence[Array]) -> Array:
        """Return how many tuples of each slice of a segment a recent tuple of the other side meets."""
        if segment.index is None:  # everybody meets everybody
            return np.array([float(len(each)) for each in slices])
        codes = self._matching.codes((coming.stores, coming.rows), stair.classes)
        found = counts(segment.index, segment, codes, partial(self._codes_at, stair, segment), slices)
        each: Array = found.sum(axis=0) / coming.size
        return each

    def _codes_at(self, stair: STAIR, segment: Segment, positions: Array) -> Array:
        codes = stair.codes(segment.batch(self._stairs.stores, positions))
        assert codes is not None, "the segment is indexed"
        return codes

    def _found(self, place: int, sample: TupleBatch, slice_of: Array, slices: int) -> Array:
        """Return how many matches the sampled tuples of each slice have at a join."""
        join = self._stairs.joins[place]
        near = join.near(sample)
        dual = join.dual(near)
        codes = near.codes(sample)
        found = np.zeros(sample.size)
        for segment in dual.segments.values():
            if segment.index is None or codes is None:
                found += segment.live
            else:
                found += counts(segment.index, segment, codes, partial(self._codes_at, dual, segment))[:, 0]
        return np.bincount(slice_of, found, minlength=slices)

    def _replaced(self, place: int, near: int, sample: TupleBatch, slice_of: Array, slices: int) -> Array:
        """Return how many tuples at a join the sampled tuples of each slice are parts of (Invariant B)."""
        found = np.zeros(sample.size)
        span = sample.signature.span
        for signature, segment in self._stairs.joins[place].stairs[near].segments.items():
            if segment.live and signature.span & span == span:
                relations, index = segment.by_shared(sample)
                rows = segment.rows()
                codes = _codes_of(sample.rows, relations, slice(None))
                found += counts(index, segment, codes, partial(_codes_of, rows, relations))[:, 0]
        return np.bincount(slice_of, found, minlength=slices)

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
        known = np.sort(self._matching.codes((coming.stores, coming.rows), classes))
        codes = self._matching.codes((sample.stores, {near: sample.rows[near]}), classes)
        found = np.searchsorted(known, codes, side="right") - np.searchsorted(known, codes)
        return np.bincount(slice_of, found, minlength=slices) / coming.size


def _codes_of(rows: Mapping[int, Array], relations: Sequence[int], positions: Array | slice) -> Array:
    """Return the codes of the components together that are at some positions."""
    return combined([rows[r][positions].astype(np.int64) for r in relations])
