"""A hash table from ``int64`` codes to row numbers: the one index under every join.

Rows are numbered in the order of insertion. Rows of the same code form a chain, newer rows before
older ones; a slot leads to the newest. Every link says whether the chain goes on behind its row: a
row ``r`` stands as ``r`` where it is the last and as ``-(r + 2)`` where another follows, so that
the end of a chain is known without a look at it; -1 is no row. A probe can stop when its output
buffer is full and go on later. Of rows that are inserted in between it finds some or none, and all of the
others: an insert may rebuild the slots, but never changes the links of older rows.

Two addressings lead to the chains. *Dense*: the codes seen span a range not much larger than their
number, so a code's slot is its distance from the smallest and no comparison is needed; this also
keeps the order of the data in memory, which is what makes probes by clustered keys cheap. *Hashed*:
Fibonacci hashing otherwise, to a line of the cache: five codes and behind them their heads, so that a code
is found with one cache miss. What has no room in its line is in one that follows. The choice is made anew
whenever the table grows.

Either way slots know their codes, and rows need not be looked at when the table grows: chains stay as
they are, and their heads move. Lines follow the hash from its highest bit on, so they are read and
written in the order in which they lie in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.engine.kernels.compiling import compiled

_END = -1
_FIBONACCI = np.uint64(0x9E3779B97F4A7C15)
_AHEAD = 256
"""Lines that are looked at before they are needed, so that cache misses overlap."""

_LINE, _SLOTS, _HEADS = 64, 5, 11
"""Bytes and slots of a line, which begins with its codes, and where its heads begin in steps of 4 bytes."""

_DENSE_SPREAD = 16
"""Range of codes over their number up to which addressing is dense: no hash, and up to 80 bytes a row."""

_DENSE_ALWAYS = 1 << 16
_TRUSTED = 3
"""Times as many rows as there are that a table makes room for because they are expected."""

_LEAST = int(np.iinfo(np.int64).min)
MAX_ROWS = 2**31 - 2


@compiled()
def _home(code, shift):  # type: ignore[no-untyped-def]
    return np.int64((np.uint64(code) * _FIBONACCI) >> shift)


@compiled()
def _slot_of(code, line, codes, heads):  # type: ignore[no-untyped-def]
    """Return the line and slot of a code, or those that are free where it belongs, from ``line`` on."""
    while True:
        for slot in range(_SLOTS):
            if heads[line, _HEADS + slot] == _END or codes[line, slot] == code:
                return line, slot
        line = (line + 1) & (len(codes) - 1)


@compiled("const int64[], int64, int64[,], int32[,], int32[], uint64")
def _link_hashed(new, first, codes, heads, nexts, shift):  # type: ignore[no-untyped-def]
    """Link rows ``first``, ``first + 1``, … with new codes; return how many of these were not there."""
    distinct = 0
    lines = np.empty(_AHEAD, np.int64)
    seen = np.empty(_AHEAD, np.int64)
    for start in range(0, len(new), _AHEAD):
        size = min(_AHEAD, len(new) - start)
        for i in range(size):
            lines[i] = _home(new[start + i], shift)
            seen[i] = codes[lines[i], 0]  # brings the line into the cache
        for i in range(size):
            line, slot = _slot_of(new[start + i], lines[i], codes, heads)
            head = heads[line, _HEADS + slot]
            row = first + start + i
            distinct += head == _END
            nexts[row] = head
            codes[line, slot] = new[start + i]
            heads[line, _HEADS + slot] = row if head == _END else -(row + 2)
    return distinct


@compiled("const int64[], int64, int32[], int32[], int64")
def _link_dense(codes, first, heads, nexts, base):  # type: ignore[no-untyped-def]
    """Link rows ``first``, ``first + 1``, … with these codes; return how many of the codes are new."""
    distinct = 0
    for place in range(len(codes)):
        row = first + place
        slot = codes[place] - base
        head = heads[slot]
        distinct += head == _END
        nexts[row] = head
        heads[slot] = row if head == _END else -(row + 2)
    return distinct


@compiled("const int64[,], const int32[,], int64, int64[,], int32[,], uint64")
def _move(old_codes, old_heads, first, codes, heads, shift):  # type: ignore[no-untyped-def]
    """Put the heads of chains, from column ``first`` on, into a hashed table that has none of their codes."""
    for i in range(len(old_codes)):
        for j in range(old_heads.shape[1] - first):
            if old_heads[i, first + j] != _END:
                code = old_codes[i, j]
                line, slot = _slot_of(code, _home(code, shift), codes, heads)
                codes[line, slot], heads[line, _HEADS + slot] = code, old_heads[i, first + j]


@compiled("const int64[], const int64[,], const int32[,], uint64, int32[], int32[]")
def _enter_hashed(wanted, codes, heads, shift, probes, rows):  # type: ignore[no-untyped-def]
    """Find the chains of codes; loads come in a pass of their own, so that cache misses overlap."""
    count = 0
    lines = np.empty(_AHEAD, np.int64)
    seen = np.empty(_AHEAD, np.int64)
    for start in range(0, len(wanted), _AHEAD):
        size = min(_AHEAD, len(wanted) - start)
        for i in range(size):
            lines[i] = _home(wanted[start + i], shift)
            seen[i] = codes[lines[i], 0]
        for i in range(size):
            line, slot = _slot_of(wanted[start + i], lines[i], codes, heads)
            link = heads[line, _HEADS + slot]
            probes[count] = start + i
            rows[count] = link
            count += link != _END
    return count


@compiled("const int64[], const int32[], int64, int32[], int32[]")
def _enter_dense(codes, heads, base, probes, rows):  # type: ignore[no-untyped-def]
    """Find the chains of codes."""
    size = np.uint64(len(heads))
    count = 0
    for i in range(len(codes)):
        slot = np.uint64(codes[i]) - np.uint64(np.int64(base))
        link = heads[slot] if slot < size else _END
        probes[count] = i
        rows[count] = link
        count += link != _END
    return count


@compiled("const int32[], int64, const int32[], int32[], int32[], int64, int64, int64, int32[], int32[]")
def _walk(nexts, low, high, probes, rows, place, kept, active, left, right):  # type: ignore[no-untyped-def]
    """Walk all chains a step at a time: no load waits for another, so cache misses overlap.

    ``probes`` and ``rows`` hold where each chain stands (a link), ``active`` of them; places below
    ``kept`` have been moved on already, those from ``place`` on have not. As newer rows come before
    older ones, a chain is left at the first row that is not above ``low``.
    """
    count = 0
    bounded = len(high) > 0
    while active > 0:
        stop = min(active, place + len(left) - count)
        for p in range(place, stop):
            i, link = probes[p], rows[p]
            row = -(link + 2) if link < _END else link
            goes_on = (link < _END) & (row > low)
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
_NO_CODES = np.empty((0, _LINE // 8), np.int64)


@dataclass
class Walk:
    """A probe under way: the chains of its tuples and how far they have been followed.

    Attributes:
        table: What is probed.
        probes: Positions of the tuples whose chains go on.
        rows: The link to the row at which each of those chains stands.
        active: Number of those chains.
        low: Only rows from this place on match.
        high: Only rows below place ``high[i]`` match tuple ``i``; empty when there is no bound.
        is_new: Whether no match has been asked for yet.
    """

    table: Multimap
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

    def pairs(self, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the next matches.

        A call looks at no more than a bounded number of candidates, so it may return fewer than
        ``limit`` matches, or none, although the walk is not done yet.

        Returns:
            Positions in the probe's codes and matching row numbers: ``int32``, equal shapes, at most
            ``limit`` of them.
        """
        self.is_new = False
        table, active = self.table, self.active
        if table.unique and not len(self.high) and active <= limit:
            self.active, left, right = 0, self.probes[:active], self.rows[:active]
        else:
            left, right = table.scratch(limit)
            bounds, chains = (self.low, self.high), (self.probes, self.rows)
            count, self.place, self.kept, self.active = _walk(
                table.nexts, *bounds, *chains, self.place, self.kept, active, left, right
            )
            left, right = left[:count].copy(), right[:count].copy()
        return left, right + np.int32(table.first) if table.first else right

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
        capacity: Rows that are expected; without them the table doubles when it is full.
        first: Number of the first row; probes go by numbers, which count up from it.

    Attributes:
        nexts: For each row the link to the next one of its chain.
    """

    def __init__(self, capacity: int = 0, first: int = 0) -> None:
        self.first = first
        self.rows = 0
        self.distinct = 0
        self._expected = capacity
        self.nexts = np.empty(max(capacity, 1024), np.int32)
        self._low = 0
        self._high = -1
        self._base: int | None = None  # the code of the first slot, with dense addressing
        self._shift = np.uint64(0)
        self._heads: np.ndarray = _NO_CODES.view(np.int32)
        self._codes = _NO_CODES  # with hashed addressing; the heads are then in the same memory
        self._left = np.empty(0, np.int32)
        self._right = np.empty(0, np.int32)

    @property
    def unique(self) -> bool:
        """Whether no code occurs twice."""
        return self.distinct == self.rows

    @property
    def nbytes(self) -> int:
        """Memory of the table in bytes; room for links that is not filled takes none yet."""
        return self.rows * self.nexts.itemsize + int(self._heads.nbytes)

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that a table takes however few rows it has."""
        few = self.rows * _DENSE_SPREAD < _DENSE_ALWAYS
        return int(self._heads.nbytes) if few else 0

    def insert(self, codes: np.ndarray) -> None:
        """Append rows with these ``int64`` codes, shape ``(n,)``.

        Raises:
            OverflowError: There would be more than ``MAX_ROWS`` rows.
        """
        if not len(codes):
            return
        codes = np.ascontiguousarray(codes, np.int64)
        first, self.rows = self.rows, self.rows + len(codes)
        if self.rows > MAX_ROWS:
            raise OverflowError(f"an index holds at most {MAX_ROWS} rows")
        low, high = int(codes.min()), int(codes.max())
        if first:
            low, high = min(low, self._low), max(high, self._high)
        self._low, self._high = low, high
        if self.rows > len(self.nexts):
            grown = np.empty(max(self.rows, 2 * len(self.nexts)), np.int32)
            grown[:first] = self.nexts[:first]
            self.nexts = grown
        if not self._fits(len(codes)):
            self._address(self.distinct + len(codes))
        if self._base is None:
            fresh = _link_hashed(codes, first, self._codes, self._heads, self.nexts, self._shift)
        else:
            fresh = _link_dense(codes, first, self._heads, self.nexts, self._base)
        self.distinct += int(fresh)

    def _fits(self, more: int) -> bool:
        """Whether there are slots for all codes, of which so many may be new."""
        if self._base is not None:
            return self._low >= self._base and self._high < self._base + len(self._heads)
        return 4 * (self.distinct + more) <= 3 * _SLOTS * len(self._codes)

    def _address(self, needed: int) -> None:
        """Choose the addressing for the codes seen so far, so many of which may differ; move the heads."""
        spread = self._high - self._low + 1
        codes, heads, base = self._codes, self._heads, self._base
        if spread > max(_DENSE_SPREAD * self.rows, _DENSE_ALWAYS):
            room = max(needed, min(self._expected, _TRUSTED * self.rows))
            bits = max(6, (4 * room // (3 * _SLOTS)).bit_length())
            memory = np.full((_LINE << bits) + _LINE, _END, np.int8)  # so no slot has a head
            start = -memory.ctypes.data % _LINE
            self._base, self._shift = None, np.uint64(64 - bits)
            self._codes = memory[start : start + (_LINE << bits)].view(np.int64).reshape(-1, _LINE // 8)
            self._heads, first = self._codes.view(np.int32), _HEADS
            if base is not None:
                taken = np.flatnonzero(heads != _END)
                codes, heads, first = (base + taken).reshape(-1, 1), heads[taken].reshape(-1, 1), 0
            _move(codes, heads, first, self._codes, self._heads, self._shift)
            return
        # Room on both sides, or every new extreme of randomly ordered codes would move it; as much on the
        # side where they go on, as ascending ones do.
        start, end = self._low - spread // 8, self._high + 1 + spread // 8
        if base is not None:
            start = base if self._low >= base else self._low - spread // 4
            end = base + len(heads) if self._high < base + len(heads) else self._high + 1 + spread // 4
        start = max(start, _LEAST)
        self._base, self._codes, self._heads = start, _NO_CODES, np.full(end - start, _END, np.int32)
        if base is None:
            taken = heads[:, _HEADS:] != _END
            self._heads[codes[:, :_SLOTS][taken] - start] = heads[:, _HEADS:][taken]
        else:
            self._heads[base - start : base - start + len(heads)] = heads

    def probe(self, codes: np.ndarray, low: int = 0, high: np.ndarray | None = None) -> Walk:
        """Begin to match probe tuples with rows.

        Args:
            codes: ``int64`` codes of the probe tuples, shape ``(n,)``.
            low: Only rows from this number on match.
            high: Only rows below ``high[i]`` match probe tuple ``i``, ``int32``, shape ``(n,)``.
        """
        codes = np.ascontiguousarray(codes, np.int64)
        probes, rows = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        if not self.rows:
            active = 0
        elif self._base is not None:
            active = _enter_dense(codes, self._heads, self._base, probes, rows)
        else:
            active = _enter_hashed(codes, self._codes, self._heads, self._shift, probes, rows)
        low = max(0, low - self.first)
        if high is None:
            high = _NO_ROWS if low == 0 else np.full(len(codes), MAX_ROWS, np.int32)
        elif self.first:
            high = high - np.int32(self.first)
        return Walk(self, probes, rows, active, low, high)

    def scratch(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays for a moment: fresh ones would fault their pages in at every probe."""
        if len(self._left) < size:
            self._left, self._right = np.empty(size, np.int32), np.empty(size, np.int32)
        return self._left[:size], self._right[:size]
