"""Pairs that are known by their numbers alone, and cross products, in steps of a block ripple join."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


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
