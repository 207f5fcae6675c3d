"""An index that is a list while it is small and a hash table later.

Raman, Deshpande & Hellerstein 2003, section 3.1: "the SteM may use a linked list when it holds a small
number of tuples, and switch to a hash-based implementation when the list size increases. This switch
can be made independent of other modules." A list of a few dozen codes is compared with a small batch of
probe tuples in one go, takes no memory, and costs nothing to set up. Measured, a hash table of so few rows is
made in the time of about a thousand comparisons; after that many the list gives way though it has not grown.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.engine.kernels import Multimap, Walk

Array = np.ndarray[Any, np.dtype[Any]]

LISTED = 32
"""Rows that a list holds at most."""

_WORTH = 1024
"""Comparisons that take as long as making a hash table of a few rows."""

_COMPARED = 1 << 20
"""Comparisons made at once: their outcomes lie in memory, a byte each."""


class ListWalk:
    """A probe of a list under way; the same to its user as :class:`millrace.engine.kernels.Walk`.

    Args:
        codes: Of the probe tuples, ``int64``, shape ``(n,)``.
        held: Of the rows that may match at all, shape ``(m,)``.
        low: Number of the first of those rows.
        high: Only rows below ``high[i]`` match probe tuple ``i``; None when there is no bound.
    """

    def __init__(self, codes: Array, held: Array, low: int, high: Array | None) -> None:
        self.is_new = True
        self._codes, self._held, self._low, self._high = codes, held, low, high
        self._done = 0 if len(held) else len(codes)
        self._ready = np.empty((2, 0), np.int32)

    @property
    def is_done(self) -> bool:
        """Whether every match has been returned."""
        return self._done >= len(self._codes) and not self._ready.shape[1]

    def matches(self, limit: int) -> tuple[Array, Array]:
        """Return positions of probe tuples and row numbers, at most ``limit`` of them, in order."""
        self.is_new = False
        if not self._ready.shape[1]:
            self._compare(max(1, min(limit, _COMPARED) // max(1, len(self._held))))
        ready, self._ready = self._ready[:, :limit], self._ready[:, limit:]
        return ready[0], ready[1]

    def _compare(self, size: int) -> None:
        """Compare the next so many probe tuples with every row."""
        low, self._done = self._done, self._done + size
        left, right = np.nonzero(self._codes[low : self._done, None] == self._held)
        left, right = left + low, right + self._low
        if self._high is not None:
            keep = right < self._high[left]
            left, right = left[keep], right[keep]
        self._ready = np.stack((left, right)).astype(np.int32)


class Index:
    """Rows by code: :class:`millrace.engine.kernels.Multimap` that begins as a list.

    Args:
        capacity: Rows to make room for at once.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._list = np.empty(0, np.int64)
        self._map: Multimap | None = None
        self._capacity = capacity
        self._compared = 0

    @property
    def is_list(self) -> bool:
        """Whether the rows are a list still."""
        return self._map is None

    @property
    def rows(self) -> int:
        """Number of rows inserted."""
        return len(self._list) if self._map is None else self._map.rows

    @property
    def distinct(self) -> int:
        """Number of different codes."""
        return len(np.unique(self._list)) if self._map is None else self._map.distinct

    @property
    def unique(self) -> bool:
        """Whether no code occurs twice."""
        return self.distinct == self.rows

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return int(self._list.nbytes) if self._map is None else self._map.nbytes

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that an index takes however few rows it has."""
        return 0 if self._map is None else self._map.least

    def insert(self, codes: Array) -> None:
        """Append rows ``self.rows, self.rows + 1, …`` with these ``int64`` codes, shape ``(n,)``."""
        if self._map is None and len(self._list) + len(codes) <= LISTED:
            self._list = np.concatenate((self._list, codes))
            return
        self._hashed(len(codes)).insert(codes)

    def probe(self, codes: Array, low: int = 0, high: Array | None = None) -> Walk | ListWalk:
        """Begin to match probe tuples with rows from number ``low`` on and below ``high[i]``."""
        self._compared += len(codes) * len(self._list)
        if self._map is None and self._compared <= _WORTH:
            return ListWalk(codes, self._list[low:], low, high)
        return self._hashed().probe(codes, low, high)

    def matches(self, walk: Walk | ListWalk, limit: int) -> tuple[Array, Array]:
        """Return the next matches: positions in the probe's codes and row numbers, ``int32``."""
        if isinstance(walk, ListWalk):
            return walk.matches(limit)
        assert self._map is not None, "nothing is inserted while a probe is under way"
        return self._map.matches(walk, limit)

    def _hashed(self, more: int = 0) -> Multimap:
        """Return the hash table; make it, with room for so many more rows, if there is only a list."""
        if self._map is None:
            self._map = Multimap(max(self._capacity, len(self._list) + more))
            self._map.insert(self._list)
            self._list = np.empty(0, np.int64)
        return self._map
