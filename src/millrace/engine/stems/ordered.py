"""Pairs that are found without a hash table: by order, for inequalities, and of cross products.

Raman, Deshpande & Hellerstein 2003, section 2.1.4: a SteM searches by arbitrary predicates and has a hash
table *or a tree* on a join column. Here the tree is a few sorted runs, merged so that their sizes fall
geometrically: appending costs O(log n) a row, a probe is a binary search in each run.

Values become whole numbers in the same order. Spark's order of floats holds: NaN is equal to itself and above
everything else, -0.0 equals 0.0. A null compares with nothing, so it is in no run.

Both kinds of pairs are known by their numbers alone, so a probe returns them in steps, as a block ripple join
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array
from millrace.engine.tuples import codes, is_exact, is_key_type


class Pairs:
    """Counts pairs off that come in cells of known sizes.

    Args:
        counts: Pairs in each cell.
    """

    def __init__(self, counts: Array) -> None:
        self._starts = np.concatenate(([0], np.cumsum(counts)))
        self._done = 0
        self.is_new = True

    @property
    def is_done(self) -> bool:
        """Whether every pair has been returned."""
        return bool(self._done >= self._starts[-1])

    def _next(self, limit: int) -> tuple[Array, Array]:
        """Return the cells of the next pairs, at most ``limit``, and which pairs of these cells they are."""
        self.is_new = False
        numbers = np.arange(self._done, min(self._done + limit, int(self._starts[-1])))
        self._done += limit
        cells = np.searchsorted(self._starts, numbers, side="right") - 1
        return cells, numbers - self._starts[cells]


class Product(Pairs):
    """Pairs every probe tuple with every row between its bounds: steps of a block ripple join.

    Args:
        tuples: Number of probe tuples.
        low: Only rows from this number on.
        end: Only rows below this number.
        high: Only rows below ``high[i]`` for probe tuple ``i``.
    """

    def __init__(self, tuples: int, low: int, end: int, high: Array | None) -> None:
        counts = np.full(tuples, end, np.int64) if high is None else high.astype(np.int64)
        super().__init__(np.maximum(counts - low, 0))
        self._low = low

    def pairs(self, limit: int) -> tuple[Array, Array]:
        """Return the next pairs, at most ``limit``: positions of tuples, and row numbers."""
        left, offsets = self._next(limit)
        right = offsets + self._low
        return left.astype(np.int32), right.astype(np.int32)


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether values of the type can be put in order as whole numbers."""
    return is_key_type(kind) and is_exact(kind)


def places(array: pa.Array, kind: pa.DataType) -> tuple[Array, Array | None]:
    """Return the values' places in the order of ``kind``, and which of them are not null.

    Returns:
        ``int64``, shape ``(n,)``; and a boolean mask, or None when no value is null.
    """
    numbers, valid = codes(array, kind)
    if pa.types.is_floating(kind):  # the bits of negative numbers count the wrong way round
        numbers = np.where(numbers < 0, numbers ^ np.int64(0x7FFFFFFFFFFFFFFF), numbers)
    return numbers, valid


@dataclass(frozen=True)
class _Run:
    values: Array
    rows: Array


class Ranges(Pairs):
    """Pairs every probe tuple with the rows in its range; resumable.

    Args:
        runs: The index's runs.
        lows: The bounds that a value must lie above, with whether the bound itself is in.
        highs: The same for bounds that it must lie below.
        valid: Tuples none of whose bounds is null; None for all.
        tuples: Number of probe tuples, ``n``; every bound has shape ``(n,)``.
        first: Only rows from this number on.
        before: Only rows below ``before[i]`` for probe tuple ``i``; None when there is no bound.
    """

    def __init__(
        self,
        runs: Sequence[_Run],
        lows: Sequence[tuple[Array, bool]],
        highs: Sequence[tuple[Array, bool]],
        valid: Array | None,
        tuples: int,
        first: int,
        before: Array | None,
    ) -> None:
        self._runs = runs
        self._first = first
        self._before = before
        self._tuples = tuples
        self._begins = []
        counts = []
        for run in runs:
            begin, end = np.zeros(tuples, np.int64), np.full(tuples, len(run.values))
            for bound, closed in lows:
                begin = np.maximum(begin, np.searchsorted(run.values, bound, "left" if closed else "right"))
            for bound, closed in highs:
                end = np.minimum(end, np.searchsorted(run.values, bound, "right" if closed else "left"))
            found = np.maximum(end - begin, 0)
            counts.append(found if valid is None else np.where(valid, found, 0))
            self._begins.append(begin)
        super().__init__(np.concatenate([*counts, np.zeros(0, np.int64)]))

    def pairs(self, limit: int) -> tuple[Array, Array]:
        """Return the next pairs, at most ``limit``: positions of tuples, and row numbers."""
        cells, offsets = self._next(limit)
        left = cells % self._tuples if self._tuples else cells
        right = np.empty(len(cells), np.int32)
        which = cells // self._tuples if self._tuples else cells
        for i in np.unique(which).tolist():
            at = which == i
            right[at] = self._runs[i].rows[self._begins[i][left[at]] + offsets[at]]
        keep = right >= self._first
        if self._before is not None:
            keep &= right < self._before[left]
        return left[keep].astype(np.int32), right[keep]


class OrderedIndex:
    """Rows in the order of one column's values, in sorted runs."""

    def __init__(self) -> None:
        self.rows = 0
        self._runs: list[_Run] = []

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return sum(int(run.values.nbytes + run.rows.nbytes) for run in self._runs)

    def insert(self, values: Array, valid: Array | None) -> None:
        """Append rows ``self.rows, self.rows + 1, …`` with these :func:`places`, invalid ones left out."""
        rows = np.arange(self.rows, self.rows + len(values), dtype=np.int32)
        self.rows += len(values)
        if valid is not None:
            values, rows = values[valid], rows[valid]
        if not len(values):
            return
        pieces = [_Run(values, rows)]
        size = len(values)
        while self._runs and len(self._runs[-1].values) < 2 * size:
            pieces.append(self._runs.pop())
            size += len(pieces[-1].values)
        self._runs.append(_sorted(pieces))

    def evict(self, below: int) -> None:
        """Drop the rows below this number."""
        kept = [(run, run.rows >= below) for run in self._runs]
        self._runs = [_Run(run.values[keep], run.rows[keep]) for run, keep in kept if keep.any()]

    def probe(
        self,
        lows: Sequence[tuple[Array, bool]],
        highs: Sequence[tuple[Array, bool]],
        valid: Array | None,
        tuples: int,
        first: int = 0,
        before: Array | None = None,
    ) -> Ranges:
        """Begin to match probe tuples with the rows in their ranges; see :class:`Ranges`."""
        return Ranges(tuple(self._runs), lows, highs, valid, tuples, first, before)


def _sorted(pieces: Sequence[_Run]) -> _Run:
    # Sorting what consists of sorted runs is merging them: numpy's stable sort finds the runs.
    values = np.concatenate([piece.values for piece in reversed(pieces)])
    rows = np.concatenate([piece.rows for piece in reversed(pieces)])
    order = np.argsort(values, kind="stable")
    return _Run(values[order], rows[order])
