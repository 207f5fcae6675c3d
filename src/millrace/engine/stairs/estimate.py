"""What moving stored tuples would cost, and what it would spare.

Tuples of one segment differ: those that arrived while the data were different may be of no use to anybody
any more, and best left where they are. So misplaced tuples are estimated in slices, by age, with samples:
tuples like those that will come probe the segment, to see how often its tuples are met; some of its tuples
probe the join that they would be moved to, to see what they would become. How many will come is followed
along present routing: to a STAIR come the base tuples of the relation at its edge's other end, and what
tuples of relations behind that one have become by then, which may be many more.

Everything is counted in operations: a tuple inserted, a tuple that probes, a match made.

Matches of a hot key are as many as the tuples that probe times those that are stored, so they are counted
rather than made: every different code is looked up once. What has more matches than are worth looking at is
counted among some of the stored tuples, and scaled up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.kernels import Multimap
from millrace.engine.stairs.fanout import FanoutModel
from millrace.engine.stairs.invariants import Route, Stairs
from millrace.engine.stairs.migration import Misplaced
from millrace.engine.stairs.stair import STAIR, Segment
from millrace.engine.stems.conditions import combine_codes
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import Signature, TupleBatch

_SLICES = 8
_RECENT = 1024
"""Tuples that stand for those to come."""

_SAMPLE = 64
"""Tuples that stand for those of a slice."""

_LEAST = 256
"""A segment of fewer tuples is one slice."""

MATCHES = 65_536
"""Matches to look at before the rest is estimated."""

_STORED = 1024
"""Tuples of a slice that stand for all of them then."""

MOVED, FOUND, REPLACED = 2, 2, 1
"""Operations to promote a tuple: for itself (it is inserted, and probes; to take a segment out is a sweep),
for each match (it is made and inserted), and for each longer tuple that it replaces where it is inserted."""

_SPARED = 3
"""Operations that an intermediate tuple takes: it is made, inserted, and probes."""


@dataclass(frozen=True)
class MigrationEstimate:
    """What is expected of moving a slice of a segment, the tuples at some positions.

    ``cost`` and ``saving`` are in operations; saving counts until the sources end.
    """

    misplaced: Misplaced
    positions: Array
    cost: float
    saving: float


def gain(slices: Iterable[MigrationEstimate]) -> float:
    """Return what moving those slices of a segment that are worth it spares, less what it costs."""
    return sum(max(0.0, each.saving - each.cost) for each in slices)


class MigrationEstimator:
    """Appraises misplaced tuples, by what is still to come and where it is routed at present."""

    def __init__(self, stairs: Stairs, stems: Sequence[SteM], forecast: FanoutModel, route: Route) -> None:
        self._stairs = stairs
        self._stems = stems
        self._matching = stems[0].matching
        self._forecast = forecast
        self._route = route

    def estimate(self, wrong: Misplaced) -> list[MigrationEstimate]:
        """Return the slices of a segment that belongs to another join, oldest first."""
        stairs, tree, span, place = self._stairs, self._stairs.tree, wrong.signature.span, wrong.place
        stair = stairs.joins[wrong.edge].stairs[wrong.owner]
        segment = stair.segments[wrong.signature]
        positions = segment.positions()
        slices = np.array_split(positions, 1 if len(positions) < _LEAST else _SLICES)
        # How often tuples to come on the other side would meet each slice.
        other = tree.far(wrong.edge, span)
        met = self._met(stair, segment, self._recent(other), slices) * self._visits(wrong.edge, other)
        # What its tuples would find, and who would meet them, at the other join.
        taken = [take_sample(each, _SAMPLE) for each in slices]
        sample = segment.batch(stairs.stores, np.concatenate(taken))
        slice_of = np.repeat(np.arange(len(slices)), [len(each) for each in taken])
        weights = np.array([len(each) / len(part) for each, part in zip(slices, taken, strict=True)])

        def of_slices(of_tuples: Array) -> Array:
            summed: Array = np.bincount(slice_of, of_tuples, minlength=len(slices)) * weights
            return summed

        near, far = tree.near(place, span), tree.far(place, span)
        found = of_slices(self._found(place, sample))
        replaced = of_slices(self._replaced(stairs.joins[place].stairs[near], sample))
        instead = of_slices(self._instead(near, far, place, sample)) * self._visits(place, far)
        moved = np.array([len(each) for each in slices])
        costs = MOVED * moved + FOUND * found + REPLACED * replaced
        savings = _SPARED * (met - instead)
        return [
            MigrationEstimate(wrong, each, float(cost), float(saving))
            for each, cost, saving in zip(slices, costs, savings, strict=True)
        ]

    def cost(self, wrong: Misplaced, positions: Array) -> float:
        """Return the operations expected of moving tuples of a segment, even if that is a demotion."""
        if wrong.place == wrong.edge:
            return float(MOVED * len(positions))
        slices = self.estimate(wrong)
        return sum(each.cost * float(np.isin(each.positions, positions).mean()) for each in slices)

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
        rows = take_sample(last, _RECENT)
        return TupleBatch(Signature(1 << relation), {relation: rows}, {relation: store})

    def _met(self, stair: STAIR, segment: Segment, coming: TupleBatch, slices: Sequence[Array]) -> Array:
        """Return how many tuples of each slice of a segment a recent tuple of the other side meets."""
        if not coming.size:
            return np.zeros(len(slices))
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

    def _found(self, place: int, sample: TupleBatch) -> Array:
        """Return how many matches each of the sampled tuples has at a join."""
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
        return found

    def _replaced(self, near: STAIR, sample: TupleBatch) -> Array:
        """Return how many tuples in a STAIR each of the sampled tuples is a part of (Invariant B)."""
        found = np.zeros(sample.size)
        span = sample.signature.span
        for signature, segment in near.segments.items():
            if segment.live and signature.span & span == span:
                relations, index = segment.by_shared(sample)
                codes = _codes_of(sample.rows, relations, slice(None))
                codes_at = partial(_codes_of, segment.rows(), relations)
                found += counts(index, segment, codes, codes_at)[:, 0]
        return found

    def _instead(self, near: int, far: int, place: int, sample: TupleBatch) -> Array:
        """Return how often a tuple to come would meet each of the sampled tuples at a join."""
        classes = self._stairs.tree.by_number[place].classes
        coming = self._recent(far)
        if not coming.size or not classes:
            return np.full(sample.size, float(coming.size > 0))
        known = np.sort(self._matching.codes((coming.stores, coming.rows), classes))
        codes = self._matching.codes((sample.stores, {near: sample.rows[near]}), classes)
        found: Array = np.searchsorted(known, codes, side="right") - np.searchsorted(known, codes)
        return found / coming.size


def _codes_of(rows: Mapping[int, Array], relations: Sequence[int], positions: Array | slice) -> Array:
    """Return the codes of the components together that are at some positions."""
    return combine_codes([rows[r][positions].astype(np.int64) for r in relations])


def counts(
    index: Multimap,
    segment: Segment,
    codes: Array,
    codes_at: Callable[[Array], Array],
    slices: Sequence[Array] | None = None,
) -> Array:
    """Return how many tuples of each slice have each code, shape ``(n, slices)``, exact up to ``MATCHES``.

    ``index`` finds the segment's tuples by such codes; ``codes`` are looked for, ``int64``, shape ``(n,)``.
    ``codes_at`` returns those of the tuples at positions in the segment. ``slices`` are such positions, in
    ascending order; by default all of the segment is one slice.
    """
    different, place_of = np.unique(codes, return_inverse=True)
    number = 1 if slices is None else len(slices)
    lows = [] if slices is None else [each[0] for each in slices[1:]]
    found = np.zeros(len(different) * number)
    walk = index.probe(different)
    looked = 0
    while not walk.is_done and looked < MATCHES:
        left, right = walk.pairs(MATCHES)
        looked += len(left)
        present = segment.present(right)
        if present is not None:
            left, right = left[present], right[present]
        places = left.astype(np.int64) * number + np.searchsorted(lows, right, side="right")
        found += np.bincount(places, minlength=len(found))
    result: Array = found.reshape(len(different), number)
    if not walk.is_done:
        more = np.concatenate([walk.probes[: walk.kept], walk.probes[walk.place : walk.active]])
        for i, positions in enumerate([segment.positions()] if slices is None else slices):
            result[more, i] = _estimated(different, positions, codes_at)[more]
    return result[place_of]


def _estimated(different: Array, positions: Array, codes_at: Callable[[Array], Array]) -> Array:
    """Return about how many of the tuples at these positions have each of different codes, in order."""
    some = take_sample(positions, _STORED)
    held = codes_at(some)
    places = np.minimum(np.searchsorted(different, held), len(different) - 1)
    hits = np.bincount(places[different[places] == held], minlength=len(different))
    return hits * (len(positions) / len(some))


def take_sample(positions: Array, most: int) -> Array:
    """Return at most so many of the positions, one at random out of each of as many even parts."""
    if len(positions) <= most:
        return positions
    # At even distances, what recurs in the data at such a distance would seem to be everything or nothing.
    bounds = np.arange(most + 1) * len(positions) // most
    within = np.random.default_rng(len(positions)).random(most)
    return positions[bounds[:-1] + (within * np.diff(bounds)).astype(np.int64)]
