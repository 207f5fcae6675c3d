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

from dataclasses import dataclass

import numpy as np
from numba import njit

_END = -1
_FIBONACCI = np.uint64(0x9E3779B97F4A7C15)
_DENSE_SPREAD = 16
_DENSE_ALWAYS = 1 << 16
_LEAST = int(np.iinfo(np.int64).min)
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
def _enter_hashed(codes, heads, shift, probes, rows):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(len(codes)):
        row = heads[(np.uint64(codes[i]) * _FIBONACCI) >> shift]
        probes[count] = i
        rows[count] = row
        count += row >= 0
    return count


@njit(cache=True, nogil=True)
def _enter_dense(codes, heads, base, probes, rows):  # type: ignore[no-untyped-def]
    size = np.uint64(len(heads))
    count = 0
    for i in range(len(codes)):
        slot = np.uint64(codes[i]) - np.uint64(base)
        row = heads[slot] if slot < size else _END
        probes[count] = i
        rows[count] = row
        count += row >= 0
    return count


@njit(cache=True, nogil=True)
def _walk(codes, keys, nexts, low, high, probes, rows, place, kept, active, left, right):  # type: ignore[no-untyped-def]
    """Walk all chains a step at a time: no load waits for another, so cache misses overlap.

    ``probes`` and ``rows`` hold where each chain stands, ``active`` of them; places below
    ``kept`` have been moved on already, those from ``place`` on have not. An empty ``keys`` means
    that every row of a chain matches, an empty ``nexts`` that no chain has a second row.
    """
    count = 0
    compare, bounded, follow = len(keys) > 0, len(high) > 0, len(nexts) > 0
    while active > 0:
        stop = min(active, place + len(left) - count)
        if not bounded and not follow:
            for p in range(place, stop):
                left[count] = probes[p]
                right[count] = rows[p]
                count += not compare or keys[rows[p]] == codes[probes[p]]
        elif not bounded and not compare:
            for p in range(place, stop):
                i, row = probes[p], rows[p]
                left[count] = i
                right[count] = row
                count += 1
                row = nexts[row]
                probes[kept] = i
                rows[kept] = row
                kept += row >= 0
        else:
            for p in range(place, stop):
                i, row = probes[p], rows[p]
                hit = not compare or keys[row] == codes[i]
                if bounded:
                    hit = hit and low <= row and row < high[i]
                left[count] = i
                right[count] = row
                count += hit
                if follow:
                    row = nexts[row]
                    probes[kept] = i
                    rows[kept] = row
                    kept += row >= 0
        place = stop
        if place < active:
            return count, place, kept, active
        active, place, kept = kept, 0, 0
    return count, 0, 0, 0


_NO_ROWS = np.empty(0, np.int32)
_NO_KEYS = np.empty(0, np.int64)


@dataclass
class Walk:
    """A probe under way: the chains of its tuples and how far they have been followed.

    Attributes:
        codes: ``int64`` codes of the probe tuples, shape ``(n,)``.
        is_new: Whether no match has been asked for yet.
        is_done: Whether every match has been returned.
    """

    codes: np.ndarray
    probes: np.ndarray
    rows: np.ndarray
    active: int
    low: int
    high: np.ndarray
    place: int = 0
    kept: int = 0
    is_new: bool = True

    @property
    def is_done(self) -> bool:
        """Whether every match has been returned."""
        return self.active == 0


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

        A hashed table starts at a load of at most 1/2 and is rebuilt at 1, so that all rebuilds
        together insert each row about once more.
        """
        spread = self._high - self._low + 1
        if spread <= max(_DENSE_SPREAD * self.rows, _DENSE_ALWAYS):
            # Room on both sides, or every new extreme of randomly ordered codes would rebuild it.
            self._base = max(self._low - spread // 8, _LEAST)
            self._heads = np.full(spread + spread // 4, _END, np.int32)
        else:
            self._base = None
            bits = max(12, (2 * self.rows - 1).bit_length())
            self._shift = np.uint64(64 - bits)
            self._heads = np.full(1 << bits, _END, np.int32)

    def _link(self, first: int) -> None:
        if self._base is not None:
            unique = _link_dense(self._keys, first, self.rows, self._heads, self._nexts, self._base)
        else:
            unique = _link_hashed(self._keys, first, self.rows, self._heads, self._nexts, self._shift)
        self.unique = self.unique and bool(unique)

    def probe(self, codes: np.ndarray, low: int = 0, high: np.ndarray | None = None) -> Walk:
        """Begin to match probe tuples with rows.

        Args:
            codes: ``int64`` codes of the probe tuples, shape ``(n,)``.
            low: Only rows from this number on match.
            high: Only rows below ``high[i]`` match probe tuple ``i``, ``int32``, shape ``(n,)``.
        """
        probes, rows = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        if not self.rows:
            active = 0
        elif self._base is not None:
            active = _enter_dense(codes, self._heads, self._base, probes, rows)
        else:
            active = _enter_hashed(codes, self._heads, self._shift, probes, rows)
        if high is None:
            high = _NO_ROWS if low == 0 else np.full(len(codes), MAX_ROWS, np.int32)
        return Walk(codes, probes, rows, active, low, high)

    def matches(self, walk: Walk, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the next matches of a probe.

        A call looks at no more than a bounded number of candidates, so it may return fewer than
        ``limit`` matches, or none, although the walk is not done yet.

        Returns:
            Positions in ``walk.codes`` and matching row numbers: ``int32``, equal shapes, at most
            ``limit`` of them.
        """
        walk.is_new = False
        dense = self._base is not None
        if dense and self.unique and not len(walk.high) and walk.active <= limit:
            active, walk.active = walk.active, 0
            return walk.probes[:active], walk.rows[:active]
        left, right = self._buffers(limit)
        count, walk.place, walk.kept, walk.active = _walk(
            walk.codes,
            _NO_KEYS if dense else self._keys,
            _NO_ROWS if dense and self.unique else self._nexts,
            walk.low,
            walk.high,
            walk.probes,
            walk.rows,
            walk.place,
            walk.kept,
            walk.active,
            left,
            right,
        )
        return left[:count].copy(), right[:count].copy()

    def _buffers(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return two scratch arrays: fresh ones would fault their pages in at every probe."""
        if len(self._left) < size:
            self._left, self._right = np.empty(size, np.int32), np.empty(size, np.int32)
        return self._left[:size], self._right[:size]


def _grown(array: np.ndarray, needed: int) -> np.ndarray:
    grown = np.empty(max(needed, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown
