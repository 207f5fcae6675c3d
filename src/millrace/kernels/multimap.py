"""A chained hash table from ``int64`` codes to row numbers: the one index under every join.

Rows are numbered in the order of insertion, and a chain holds newer rows before older ones. A
probe can stop when its output buffer is full and go on later, as long as nothing is inserted in
between (an insert may rebuild the table).

Two addressings share the chains. *Dense*: the codes seen span a range not much larger than their
number, so a code's slot is its distance from the smallest and no comparison is needed; this also
keeps the order of the data in memory, which is what makes probes by clustered keys cheap. *Hashed*:
Fibonacci hashing otherwise. The choice is made anew whenever the table grows.
"""

from __future__ import annotations

import numpy as np
from numba import njit

START = -2
"""Cursor position meaning: this probe tuple's chain has not been entered yet."""

_END = -1
_FIBONACCI = np.uint64(0x9E3779B97F4A7C15)
_DENSE_SPREAD = 16
_DENSE_ALWAYS = 1 << 16
MAX_ROWS = 2**31 - 2


@njit(cache=True, nogil=True)
def _link_hashed(keys, first, last, heads, nexts, shift):  # type: ignore[no-untyped-def]
    unique = True
    for row in range(first, last):
        slot = (np.uint64(keys[row]) * _FIBONACCI) >> shift
        head = heads[slot]
        if head >= 0 and unique:
            other = head
            while other >= 0 and keys[other] != keys[row]:
                other = nexts[other]
            unique = other < 0
        nexts[row] = head
        heads[slot] = row
    return unique


@njit(cache=True, nogil=True)
def _link_dense(keys, first, last, heads, nexts, base):  # type: ignore[no-untyped-def]
    unique = True
    for row in range(first, last):
        slot = keys[row] - base
        head = heads[slot]
        unique &= head < 0
        nexts[row] = head
        heads[slot] = row
    return unique


@njit(cache=True, nogil=True)
def _enter_hashed(codes, heads, shift, entry):  # type: ignore[no-untyped-def]
    # A loop of its own: the loads do not depend on each other, so cache misses overlap.
    for i in range(len(codes)):
        entry[i] = heads[(np.uint64(codes[i]) * _FIBONACCI) >> shift]


@njit(cache=True, nogil=True)
def _enter_dense(codes, heads, base, entry):  # type: ignore[no-untyped-def]
    size = np.uint64(len(heads))
    for i in range(len(codes)):
        slot = np.uint64(codes[i]) - np.uint64(base)
        entry[i] = heads[slot] if slot < size else _END


@njit(cache=True, nogil=True)
def _match_single(codes, keys, entry, nexts, compare, left, right):  # type: ignore[no-untyped-def]
    # Codes are unique: at most one match a probe tuple, so the output always fits.
    count = 0
    for i in range(len(codes)):
        row = entry[i]
        if compare:
            while row >= 0 and keys[row] != codes[i]:
                row = nexts[row]
        left[count] = i
        right[count] = row
        count += row >= 0
    return count


@njit(cache=True, nogil=True)
def _match(codes, keys, entry, nexts, compare, low, high, i, row, left, right):  # type: ignore[no-untyped-def]
    count = 0
    bounded = len(high) > 0
    while i < len(codes):
        if row == START:
            row = entry[i]
        while row >= 0:
            if not compare or keys[row] == codes[i]:
                if not bounded or (row < high[i] and row >= low):
                    if count == len(left):
                        return i, row, count
                    left[count] = i
                    right[count] = row
                    count += 1
            row = nexts[row]
        row = START
        i += 1
    return i, row, count


_NO_BOUND = np.empty(0, np.int32)


class Multimap:
    """Rows by code, insert and resumable probe.

    Args:
        capacity: Rows to make room for at once; the table doubles when it is full.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.rows = 0
        self.unique = True
        self._keys = np.empty(max(capacity, 1024), np.int64)
        self._nexts = np.empty(len(self._keys), np.int32)
        self._low = 0
        self._high = -1
        self._base: int | None = None
        self._shift = np.uint64(0)
        self._heads = np.full(0, _END, np.int32)
        self._counted = (0, 0)
        self._left = np.empty(0, np.int32)
        self._right = np.empty(0, np.int32)

    @property
    def nbytes(self) -> int:
        """Memory of the table in bytes."""
        return int(self._keys.nbytes + self._nexts.nbytes + self._heads.nbytes)

    def distinct(self) -> int:
        """Return about how many different codes there are (exact when addressing is dense)."""
        if self.unique:
            return self.rows
        if self._counted[0] != self.rows:
            self._counted = (self.rows, int(np.count_nonzero(self._heads >= 0)))
        return self._counted[1]

    def insert(self, codes: np.ndarray) -> None:
        """Append rows ``self.rows, self.rows + 1, …`` with these ``int64`` codes, shape ``(n,)``."""
        if not len(codes):
            return
        first, self.rows = self.rows, self.rows + len(codes)
        if self.rows > MAX_ROWS:
            raise OverflowError(f"an index holds at most {MAX_ROWS} rows")
        low, high = int(codes.min()), int(codes.max())
        if first:
            low, high = min(low, self._low), max(high, self._high)
        self._low, self._high = low, high
        if self.rows > len(self._keys):
            self._keys = _grown(self._keys, self.rows)
            self._nexts = _grown(self._nexts, self.rows)
        self._keys[first : self.rows] = codes
        if not self._fits():
            self._address()
            first, self.unique = 0, True
        self._link(first)

    def _fits(self) -> bool:
        if not len(self._heads):
            return False
        if self._base is not None:
            return self._low >= self._base and self._high < self._base + len(self._heads)
        return self.rows <= len(self._heads)

    def _address(self) -> None:
        """Choose the addressing for the codes seen so far.

        A hashed table starts at a load of at most 1/4 and is rebuilt at 1, so that all rebuilds
        together insert a third of the rows once more.
        """
        spread = self._high - self._low + 1
        if spread <= max(_DENSE_SPREAD * self.rows, _DENSE_ALWAYS):
            self._base = self._low
            self._heads = np.full(spread, _END, np.int32)
        else:
            self._base = None
            bits = max(12, (4 * self.rows - 1).bit_length())
            self._shift = np.uint64(64 - bits)
            self._heads = np.full(1 << bits, _END, np.int32)

    def _link(self, first: int) -> None:
        if self._base is not None:
            unique = _link_dense(self._keys, first, self.rows, self._heads, self._nexts, self._base)
        else:
            unique = _link_hashed(self._keys, first, self.rows, self._heads, self._nexts, self._shift)
        self.unique = self.unique and bool(unique)

    def enter(self, codes: np.ndarray) -> np.ndarray:
        """Return the first row of each code's chain, ``int32``, -1 where the chain is empty."""
        entry = np.empty(len(codes), np.int32)
        if not self.rows:
            entry.fill(_END)
        elif self._base is not None:
            _enter_dense(codes, self._heads, self._base, entry)
        else:
            _enter_hashed(codes, self._heads, self._shift, entry)
        return entry

    def probe(
        self,
        codes: np.ndarray,
        limit: int,
        cursor: tuple[int, int] = (0, START),
        entry: np.ndarray | None = None,
        low: int = 0,
        high: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, tuple[int, int] | None]:
        """Match probe tuples with rows.

        Args:
            codes: ``int64`` codes of the probe tuples, shape ``(n,)``.
            limit: Matches to return at most, in this call.
            cursor: Where to go on, from the previous call; the start by default.
            entry: What :meth:`enter` gave when this probe began. A resumed probe must pass it.
            low: Only rows from this number on match.
            high: Only rows below ``high[i]`` match probe tuple ``i``, shape ``(n,)``.

        Returns:
            Positions in ``codes``, matching row numbers (``int32``, equal shapes), and the cursor
            to go on from, or None when all matches have been returned.
        """
        if entry is None:
            entry = self.enter(codes)
        compare = self._base is None
        n = len(codes)
        if self.unique and high is None and low == 0 and cursor == (0, START) and n <= limit:
            left, right = self._buffers(n)
            count = _match_single(codes, self._keys, entry, self._nexts, compare, left, right)
            return left[:count].copy(), right[:count].copy(), None
        bound = _NO_BOUND if high is None and low == 0 else high
        if bound is None:
            bound = np.full(n, MAX_ROWS, np.int32)
        left, right = self._buffers(limit)
        i, row, count = _match(
            codes, self._keys, entry, self._nexts, compare, low, bound, *cursor, left, right
        )
        return left[:count].copy(), right[:count].copy(), None if i >= n else (i, row)

    def _buffers(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return two scratch arrays: fresh ones would fault their pages in at every probe."""
        if len(self._left) < size:
            self._left, self._right = np.empty(size, np.int32), np.empty(size, np.int32)
        return self._left[:size], self._right[:size]


def _grown(array: np.ndarray, needed: int) -> np.ndarray:
    grown = np.empty(max(needed, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown
