"""A hash table from ``int64`` codes to row numbers: the one index under every join.

Rows are numbered in the order of insertion. Rows of the same code form a chain, newer rows before
older ones; a slot leads to the newest. Every link says whether the chain goes on behind its row: a
row ``r`` stands as ``r`` where it is the last and as ``-(r + 2)`` where another follows, so that
the end of a chain is known without a look at it; -1 is no row. A probe can stop when its output
buffer is full and go on later, as long as nothing is inserted in between (an insert may rebuild
the table).

Two addressings lead to the chains. *Dense*: the codes seen span a range not much larger than their
number, so a code's slot is its distance from the smallest and no comparison is needed; this also
keeps the order of the data in memory, which is what makes probes by clustered keys cheap. *Hashed*:
Fibonacci hashing with linear probing otherwise; a slot holds a part of the hash beside the row, so
that a code that is not there seldom costs a look at the keys. The choice is made anew whenever the
table grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

_END = -1
_FIBONACCI = np.uint64(0x9E3779B97F4A7C15)
_DENSE_SPREAD = 16
_PARTS = 1024
"""Arrays of keys that are kept as they came, at most, before they are put together."""

_DENSE_ALWAYS = 1 << 16
_LEAST = int(np.iinfo(np.int64).min)
_SPREAD = np.uint64(29)
_TAG_BITS = np.uint64(0x7FFFFFFF)
_TAG = np.int64(0x7FFFFFFF << 32)
_MORE = np.int64(1 << 31)
_ROW = np.int64(0x7FFFFFFF)
MAX_ROWS = 2**31 - 2


@njit(inline="always")
def _tag(hashed):  # type: ignore[no-untyped-def]
    return np.int64((hashed ^ (hashed >> _SPREAD)) & _TAG_BITS) << 32


@njit(inline="always")
def _link(held):  # type: ignore[no-untyped-def]
    row = held & _ROW
    return -(row + 2) if held & _MORE else row


@njit(cache=True, nogil=True)
def _link_hashed(keys, first, last, slots, nexts, shift):  # type: ignore[no-untyped-def]
    distinct = 0
    wrap = len(slots) - 1
    for row in range(first, last):
        hashed = np.uint64(keys[row]) * _FIBONACCI
        tag, slot = _tag(hashed), np.int64(hashed >> shift)
        held = slots[slot]
        while held != _END and (held & _TAG != tag or keys[held & _ROW] != keys[row]):
            slot = (slot + 1) & wrap
            held = slots[slot]
        fresh = held == _END
        distinct += fresh
        nexts[row] = _END if fresh else _link(held)
        slots[slot] = tag | row | (0 if fresh else _MORE)
    return distinct


@njit(cache=True, nogil=True)
def _link_dense(keys, first, heads, nexts, base):  # type: ignore[no-untyped-def]
    """Link rows ``first``, ``first + 1``, … with these keys."""
    distinct = 0
    for place in range(len(keys)):
        row = first + place
        slot = keys[place] - base
        head = heads[slot]
        distinct += head == _END
        nexts[row] = head
        heads[slot] = row if head == _END else -(row + 2)
    return distinct


@njit(cache=True, nogil=True)
def _enter_hashed(codes, keys, slots, shift, probes, rows):  # type: ignore[no-untyped-def]
    count = 0
    wrap = len(slots) - 1
    for i in range(len(codes)):
        hashed = np.uint64(codes[i]) * _FIBONACCI
        tag, slot = _tag(hashed), np.int64(hashed >> shift)
        held = slots[slot]
        while held != _END and (held & _TAG != tag or keys[held & _ROW] != codes[i]):
            slot = (slot + 1) & wrap
            held = slots[slot]
        probes[count] = i
        rows[count] = _link(held) if held != _END else _END
        count += held != _END
    return count


@njit(cache=True, nogil=True)
def _enter_dense(codes, heads, base, probes, rows):  # type: ignore[no-untyped-def]
    size = np.uint64(len(heads))
    count = 0
    for i in range(len(codes)):
        slot = np.uint64(codes[i]) - np.uint64(np.int64(base))
        link = heads[slot] if slot < size else _END
        probes[count] = i
        rows[count] = link
        count += link != _END
    return count


@njit(cache=True, nogil=True)
def _walk(nexts, low, high, probes, rows, place, kept, active, left, right):  # type: ignore[no-untyped-def]
    """Walk all chains a step at a time: no load waits for another, so cache misses overlap.

    ``probes`` and ``rows`` hold where each chain stands (a link), ``active`` of them; places below
    ``kept`` have been moved on already, those from ``place`` on have not.
    """
    count = 0
    bounded = len(high) > 0
    while active > 0:
        stop = min(active, place + len(left) - count)
        for p in range(place, stop):
            i, link = probes[p], rows[p]
            goes_on = link < _END
            row = -(link + 2) if goes_on else link
            left[count] = i
            right[count] = row
            count += not bounded or (low <= row and row < high[i])
            probes[kept] = i
            rows[kept] = nexts[row if goes_on else 0]  # no look, hence no cache miss, at a chain's end
            kept += goes_on
        place = stop
        if place < active:
            return count, place, kept, active
        active, place, kept = kept, 0, 0
    return count, 0, 0, 0


_NO_ROWS = np.empty(0, np.int32)


@dataclass
class Walk:
    """A probe under way: the chains of its tuples and how far they have been followed.

    Attributes:
        probes: Positions of the tuples whose chains go on.
        rows: The link to the row at which each of those chains stands.
        active: Number of those chains.
        low: Only rows from this number on match.
        high: Only rows below ``high[i]`` match tuple ``i``; empty when there is no bound.
        is_new: Whether no match has been asked for yet.
    """

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

    def narrow(self, wanted: np.ndarray) -> None:
        """Follow only these chains further, where that is cheap: between two steps along all of them.

        Args:
            wanted: Whether a match of the tuple ``probes[i]`` is still wanted, shape ``(active,)``.
        """
        if self.place or self.kept or wanted.all():
            return
        kept = np.flatnonzero(wanted)
        self.probes, self.rows, self.active = self.probes[kept], self.rows[kept], len(kept)


class Multimap:
    """Rows by code, insert and resumable probe.

    Args:
        capacity: Rows to make room for at once; the table doubles when it is full.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.rows = 0
        self.distinct = 0
        self._keys = np.empty(max(capacity, 1024), np.int64)
        self._nexts = np.empty(len(self._keys), np.int32)
        # Keys behind those: with dense addressing nobody looks at them until the table is rebuilt.
        self._pending: list[np.ndarray] = []
        self._low = 0
        self._high = -1
        self._base: int | None = None
        self._shift = np.uint64(0)
        self._slots = np.full(0, _END, np.int32)  # int64 when hashed: tag and row
        self._left = np.empty(0, np.int32)
        self._right = np.empty(0, np.int32)

    @property
    def unique(self) -> bool:
        """Whether no code occurs twice."""
        return self.distinct == self.rows

    @property
    def nbytes(self) -> int:
        """Memory of the table in bytes; room that is not filled takes none yet."""
        return self.rows * (self._keys.itemsize + self._nexts.itemsize) + int(self._slots.nbytes)

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that a table takes however few rows it has."""
        return int(self._slots.nbytes) if self.rows * _DENSE_SPREAD < _DENSE_ALWAYS else 0

    def insert(self, codes: np.ndarray) -> None:
        """Append rows ``self.rows, self.rows + 1, …`` with these ``int64`` codes, shape ``(n,)``.

        The codes may be kept as they are, without a copy, so they must not change afterwards.
        """
        if not len(codes):
            return
        first, self.rows = self.rows, self.rows + len(codes)
        if self.rows > MAX_ROWS:
            raise OverflowError(f"an index holds at most {MAX_ROWS} rows")
        low, high = int(codes.min()), int(codes.max())
        if first:
            low, high = min(low, self._low), max(high, self._high)
        self._low, self._high = low, high
        if self.rows > len(self._nexts):
            self._nexts = _grown(self._nexts, self.rows)
        self._pending.append(codes)
        if len(self._pending) > _PARTS:
            self._settle()
        if not self._fits() and not self._address():
            first, self.distinct = 0, 0
        if self._base is None:
            self._settle()
            keys = self._keys
            self.distinct += _link_hashed(keys, first, self.rows, self._slots, self._nexts, self._shift)
        elif first:
            self._link(codes, first)
        else:
            row = self.rows - sum(map(len, self._pending))
            self._link(self._keys[:row], 0)
            for part in self._pending:
                self._link(part, row)
                row += len(part)

    def _link(self, codes: np.ndarray, first: int) -> None:
        """Link rows from ``first`` on, which have these codes, by dense addressing."""
        self.distinct += _link_dense(codes, first, self._slots, self._nexts, self._base)

    def _settle(self) -> None:
        """Put all keys side by side."""
        low = self.rows - sum(map(len, self._pending))
        if self.rows > len(self._keys):
            self._keys = _grown(self._keys[:low], max(self.rows, 2 * len(self._keys)))
        for codes in self._pending:
            self._keys[low : low + len(codes)] = codes
            low += len(codes)
        self._pending.clear()

    def _fits(self) -> bool:
        if self._base is not None:
            return self._low >= self._base and self._high < self._base + len(self._slots)
        return 4 * self.rows <= 3 * len(self._slots)

    def _address(self) -> bool:
        """Choose the addressing for the codes seen so far, with room for as many again.

        Returns:
            Whether the rows linked so far are still linked.
        """
        spread = self._high - self._low + 1
        if spread > max(_DENSE_SPREAD * self.rows, _DENSE_ALWAYS):
            bits = max(12, (2 * self.rows - 1).bit_length())
            self._base = None
            self._shift = np.uint64(64 - bits)
            self._slots = np.full(1 << bits, _END, np.int64)
            return False
        # Room on both sides, or every new extreme of randomly ordered codes would move it.
        base = max(self._low - spread // 8, _LEAST)
        end = self._high + 1 + spread // 8
        if self._base is None:
            self._base = base
            self._slots = np.full(end - base, _END, np.int32)
            return False
        old, base = self._base, min(base, self._base)
        slots = np.full(max(end, old + len(self._slots)) - base, _END, np.int32)
        slots[old - base : old - base + len(self._slots)] = self._slots
        self._base, self._slots = base, slots
        return True

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
            active = _enter_dense(codes, self._slots, self._base, probes, rows)
        else:
            active = _enter_hashed(codes, self._keys, self._slots, self._shift, probes, rows)
        if high is None:
            high = _NO_ROWS if low == 0 else np.full(len(codes), MAX_ROWS, np.int32)
        return Walk(probes, rows, active, low, high)

    def matches(self, walk: Walk, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the next matches of a probe.

        A call looks at no more than a bounded number of candidates, so it may return fewer than
        ``limit`` matches, or none, although the walk is not done yet.

        Returns:
            Positions in the probe's codes and matching row numbers: ``int32``, equal shapes, at most
            ``limit`` of them.
        """
        walk.is_new = False
        if self.unique and not len(walk.high) and walk.active <= limit:
            active, walk.active = walk.active, 0
            return walk.probes[:active], walk.rows[:active]
        left, right = self._buffers(limit)
        count, walk.place, walk.kept, walk.active = _walk(
            self._nexts,
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
