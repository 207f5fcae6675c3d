"""How many stored tuples have which code, in a bounded number of steps however often codes repeat.

Matches of a hot key are as many as the tuples that probe times those that are stored, so they are counted
rather than made: every different code is looked up once. What has more matches than are worth looking at is
counted among some of the stored tuples, and scaled up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.kernels import Multimap
from millrace.engine.stairs.stair import Segment

MATCHES = 65_536
"""Matches to look at before the rest is estimated."""

SAMPLE = 1024
"""Tuples of a slice that stand for all of them then."""


def counts(
    index: Multimap,
    segment: Segment,
    codes: Array,
    codes_at: Callable[[Array], Array],
    slices: Sequence[Array] | None = None,
) -> Array:
    """Return how many tuples of a segment have each code, exact up to ``MATCHES`` of them.

    Args:
        index: The segment's tuples by codes.
        segment: The segment.
        codes: What to look for, ``int64``, shape ``(n,)``.
        codes_at: Returns the codes of the tuples at positions in the segment.
        slices: Positions of the segment's tuples, in ascending order; by default all in one slice.

    Returns:
        Tuples by code and slice, shape ``(n, slices)``.
    """
    different, place_of = np.unique(codes, return_inverse=True)
    number = 1 if slices is None else len(slices)
    lows = [] if slices is None else [each[0] for each in slices[1:]]
    found = np.zeros(len(different) * number)
    walk = index.probe(different)
    looked = 0
    while not walk.is_done and looked < MATCHES:
        left, right = index.matches(walk, MATCHES)
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
    some = sampled(positions, SAMPLE)
    held = codes_at(some)
    places = np.minimum(np.searchsorted(different, held), len(different) - 1)
    hits = np.bincount(places[different[places] == held], minlength=len(different))
    return hits * (len(positions) / len(some))


def sampled(positions: Array, most: int) -> Array:
    """Return at most so many of the positions, one at random out of each of as many even parts."""
    if len(positions) <= most:
        return positions
    # At even distances, what recurs in the data at such a distance would seem to be everything or nothing.
    bounds = np.arange(most + 1) * len(positions) // most
    within = np.random.default_rng(len(positions)).random(most)
    return positions[bounds[:-1] + (within * np.diff(bounds)).astype(np.int64)]
