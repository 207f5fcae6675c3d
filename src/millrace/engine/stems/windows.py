"""Sliding windows: which tuples may meet, by time, and how long a tuple is of use.

A result is kept if the largest time among its windowed components is at most a relation's length beyond that
relation's own component, for every windowed relation. That says nothing of arrival, so an answer is the same
for any routing. Any two components of a result decide for themselves, so the check is made as soon as two of
them are in one tuple.

A component *expires* at its time plus its relation's length; a tuple, when the first of its components does.
What has expired before the *watermark*, below which no time will come any more, meets nothing to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.tuples import KeyLayout, RelationStore
from millrace.engine.tuples.batch import TupleBatch

Tuples = tuple[Mapping[int, RelationStore], Mapping[int, Array]]
NEVER = int(np.iinfo(np.int64).max)
"""When a tuple expires that has no windowed component."""


class Windows:
    """The sliding windows of a block, over times that stores keep as key codes.

    Args:
        graph: The block's query graph.
        layouts: Which key of each relation its times are.

    Attributes:
        span: Bit set of the relations that have a window.
        lengths: Their windows' lengths.
    """

    def __init__(self, graph: QueryGraph, layouts: Sequence[KeyLayout]) -> None:
        self.lengths = {r: w.length for r, w in enumerate(graph.windows) if w is not None}
        self.span = sum(1 << r for r in self.lengths)
        self._keys = {r: layout.time for r, layout in enumerate(layouts) if layout.time is not None}

    def decide(self, one: int, other: int) -> bool:
        """Whether tuples of two spans may be too far apart in time to meet."""
        return bool(one & self.span and other & self.span)

    def agree(self, one: Tuples, other: Tuples, left: Array, right: Array | None) -> Array:
        """Return which pairs of tuples are close enough in time, boolean, shape of ``left``.

        Args:
            one: Tuples of one side.
            other: Tuples of the other side.
            left: Position in ``one`` of each pair's tuple.
            right: The same for ``other``; None if they stand in the order of the pairs.
        """
        times: dict[int, Array] = {}
        for (stores, rows), places in ((one, left), (other, right)):
            for relation in self._windowed(rows):
                numbers = rows[relation] if places is None else rows[relation][places]
                times[relation] = self.times(stores, relation, numbers)
        latest = reduce(np.maximum, times.values()).view(np.uint64)
        keep = np.ones(len(latest), np.bool_)
        for relation, own in times.items():
            # The latest is never below: unsigned, the difference is right however far apart they are.
            keep &= latest - own.view(np.uint64) <= np.uint64(self.lengths[relation])
        return keep

    def times(self, stores: Mapping[int, RelationStore], relation: int, rows: Array) -> Array:
        """Return the times of base tuples, ``int64``."""
        return stores[relation].coded(self._keys[relation], rows)

    def expiries(self, batch: TupleBatch) -> dict[int, Array]:
        """Return when each windowed component of the tuples expires, ``int64``."""
        return {
            r: _plus(self.times(batch.stores, r, batch.rows[r]), self.lengths[r])
            for r in self._windowed(batch.rows)
        }

    def alive(self, batch: TupleBatch, watermark: int) -> Array:
        """Return which tuples have not expired before a watermark, boolean."""
        alive = np.ones(batch.size, np.bool_)
        for expiries in self.expiries(batch).values():
            alive &= expiries >= watermark
        return alive

    def expired(self, relation: int, store: RelationStore, watermark: int) -> int:
        """Return how many of the base tuples held, the oldest, have expired; they are in order of time."""
        bound = watermark - self.lengths[relation]
        if bound <= np.iinfo(np.int64).min:
            return 0
        return int(np.searchsorted(store.codes(self._keys[relation]), np.int64(bound)))

    def _windowed(self, rows: Mapping[int, Array]) -> list[int]:
        return [r for r in rows if r in self.lengths]


def _plus(times: Array, length: int) -> Array:
    """Return times plus a length, at most the largest time there is."""
    result: Array = np.where(times > NEVER - length, NEVER, times + np.int64(length))
    return result
