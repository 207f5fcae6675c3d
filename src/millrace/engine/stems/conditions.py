"""What makes two tuples match: keys that are equal, and times that are close enough.

Keys are compared by their codes, attribute class by attribute class, and verified where codes cannot decide.

*Windows* slide. A result is kept if the largest time among its windowed components is at most a relation's
length beyond that relation's own component, for every windowed relation. That says nothing of arrival, so an
answer is the same for any routing. Any two components of a result decide for themselves, so the check is made
as soon as two of them are in one tuple.

A component *expires* at its time plus its relation's length; a tuple, when the first of its components does.
What has expired before the *watermark*, below which no time will come any more, meets nothing to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.kernels import combine
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.tuples import BATCH_BYTES, KeyLayout, RelationStore, slices
from millrace.engine.tuples.batch import TupleBatch
from millrace.engine.tuples.keys import are_equal

Classes = tuple[int, ...]
Tuples = tuple[Mapping[int, RelationStore], Mapping[int, Array]]
"""Per spanned relation, the store and the row numbers in it."""


class Matching:
    """Key codes of tuples of one block, and the conjuncts that a hash cannot decide."""

    def __init__(self, graph: QueryGraph) -> None:
        self.graph = graph
        self.layouts = [KeyLayout.of(graph, r) for r in range(graph.relations)]
        self.windows = Windows(graph, self.layouts)

    def member(self, relations: Mapping[int, Array], attribute: int) -> tuple[int, int]:
        """Return the relation of a tuple, and its key, that have the attribute class."""
        for relation in relations:
            key = self.layouts[relation].of_class.get(attribute)
            if key is not None:
                return relation, key
        raise AssertionError("a bound class has a member in the tuple")

    def bound(self, tuples: Tuples, classes: Classes) -> list[Array]:
        """Return the codes of these classes, for each an array of shape ``(n,)``."""
        stores, rows = tuples
        members = [self.member(rows, attribute) for attribute in classes]
        return [stores[relation].coded(key, rows[relation]) for relation, key in members]

    def codes(self, tuples: Tuples, classes: Classes) -> Array:
        """Return one ``int64`` code per tuple for all of these classes together, shape ``(n,)``."""
        return combine_codes(self.bound(tuples, classes))

    def decides(self, relation: int, classes: Classes) -> bool:
        """Whether equal codes alone prove that tuples agree on these classes."""
        layout = self.layouts[relation]
        return len(classes) == 1 and layout.keys[layout.of_class[classes[0]]].exact

    def agree(
        self, one: Tuples, other: Tuples, classes: Classes, left: Array, right: Array | None
    ) -> Array | None:
        """Return which pairs of tuples agree on these classes, and are close enough in time; None: all.

        ``left`` and ``right`` are the positions of each pair's tuples in ``one`` and ``other``. ``right`` is
        None if they stand in the order of the pairs.
        """
        keep = self.verified(one, other, classes, left, right) if classes else None
        if self.windows.decide(one[1], other[1]):
            near = self.windows.agree(one, other, left, right)
            keep = near if keep is None else keep & near
        return keep

    def verified(
        self, one: Tuples, other: Tuples, classes: Classes, left: Array, right: Array | None
    ) -> Array:
        """Return which pairs agree on every one of the classes, at least one, null agreeing with nothing."""
        keep: Array | None = None
        for attribute in classes:
            a, mine = self.member(one[1], attribute)
            b, theirs = self.member(other[1], attribute)
            rows_a = one[1][a][left]
            rows_b = other[1][b] if right is None else other[1][b][right]
            equal = one[0][a].coded(mine, rows_a) == other[0][b].coded(theirs, rows_b)
            key = self.layouts[a].keys[mine]
            if not key.exact:
                name = self.layouts[b].keys[theirs].name
                widths = (
                    one[0][a].widths([key.name], rows_a, BATCH_BYTES),
                    other[0][b].widths([name], rows_b, BATCH_BYTES),
                )
                for part in slices(widths, len(equal), BATCH_BYTES):
                    sides = one[0][a].gather(key.name, rows_a[part]), other[0][b].gather(name, rows_b[part])
                    equal[part] &= are_equal(key, *sides)
            keep = equal if keep is None else keep & equal
        assert keep is not None, "at least one class is to be verified"
        return keep


class Windows:
    """The sliding windows of a block, over times that stores keep as key codes.

    ``lengths`` are in the unit of their times.
    """

    def __init__(self, graph: QueryGraph, layouts: Sequence[KeyLayout]) -> None:
        self.lengths = {r: own[0].length for r, own in enumerate(graph.windows) if own is not None}
        self._keys = {r: layout.time for r, layout in enumerate(layouts) if layout.time is not None}

    def decide(self, one: Mapping[int, Array], other: Mapping[int, Array]) -> bool:
        """Whether tuples of these relations may be too far apart in time to meet."""
        return bool(self.lengths and self._windowed(one) and self._windowed(other))

    def agree(self, one: Tuples, other: Tuples, left: Array, right: Array | None) -> Array:
        """Return which pairs of tuples are close enough in time, as :meth:`Matching.agree` does."""
        times: dict[int, Array] = {}
        for (stores, rows), places in ((one, left), (other, right)):
            for relation in self._windowed(rows):
                numbers = rows[relation] if places is None else rows[relation][places]
                times[relation] = self._times(stores, relation, numbers)
        latest = reduce(np.maximum, times.values()).view(np.uint64)
        keep = np.ones(len(latest), np.bool_)
        for relation, own in times.items():
            # The latest is never below: unsigned, the difference is right however far apart they are.
            keep &= latest - own.view(np.uint64) <= np.uint64(self.lengths[relation])
        return keep

    def alive(self, batch: TupleBatch, watermark: int) -> Array:
        """Return which tuples have not expired before a watermark, boolean."""
        alive = np.ones(batch.size, np.bool_)
        for relation in self._windowed(batch.rows):
            times = self._times(batch.stores, relation, batch.rows[relation])
            alive &= times >= self._oldest(relation, watermark)
        return alive

    def expired(self, relation: int, store: RelationStore, watermark: int) -> int:
        """Return how many of the base tuples held, the oldest, have expired; they are in order of time."""
        oldest = self._oldest(relation, watermark)
        return int(np.searchsorted(store.codes(self._keys[relation]), oldest))

    def _oldest(self, relation: int, watermark: int) -> np.int64:
        """Return the earliest time of a component that has not expired before a watermark."""
        return np.int64(max(watermark - self.lengths[relation], np.iinfo(np.int64).min))

    def _times(self, stores: Mapping[int, RelationStore], relation: int, rows: Array) -> Array:
        return stores[relation].coded(self._keys[relation], rows)

    def _windowed(self, rows: Mapping[int, Array]) -> list[int]:
        return [r for r in rows if r in self.lengths]


def combine_codes(coded: Sequence[Array]) -> Array:
    """Return one code for several."""
    result = coded[0]
    for codes in coded[1:]:
        result = combine(result, codes)
    return result
