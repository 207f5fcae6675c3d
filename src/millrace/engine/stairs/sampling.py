"""Samples of join keys, from which the fan-out of a join is known before a tuple is sent there.

A key is in the sample when its hash is below a threshold, so two relations sample the *same* keys, and
what the sampled keys of one find in the other says what all of them would (correlated sampling; Vengerov,
Menck, Zait & Chakkappen 2015, "Join size estimation subject to filter conditions"; the threshold that falls
as keys come is that of Gibbons & Tirthapura 2001). As long as a relation has few keys all of them are in the
sample and what it says is exact.

Two things are added against skew, where a single key may be worth more than all others together. How many
rows there are is known, so an estimate is corrected by how far the sampled keys' rows are from that (the
regression estimator; Särndal, Swensson & Wretman 1992, section 6.4): a foreign key's join with the key comes
out exact, however skewed it is. And keys that are frequent, seen in a small sample of rows, are counted apart
wherever both sides know them.

Estimates over truth, in 12 runs of 300,000 rows and 100,000 keys: a foreign key 1.00; with half of the keys
filtered 0.97 to 1.02, and 0.69 to 1.33 if they are skewed (Zipf 1); many-to-many 0.95 to 1.02, 0.87 to 1.10
with Zipf 1 on both sides, 0.66 to 2.1 with Zipf 0.5. A row costs 3 to 6 ns, an estimate 0.5 to 1.6 ms.
"""

from __future__ import annotations

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.kernels import meet, rows_of, runs, tally, thin, turn

KEYS = 2048
"""Keys in a sample, at most: fan-outs are known to a few percent."""

WINDOW = 131_072
"""Rows that count as recent: from half as many to so many."""

_ROWS = 4096
"""Rows in the sample of all rows, at most; half as many are in that of half a window."""

_FREQUENT = 5
"""A key that is so often in a sample of rows is counted apart."""

_NO_KEYS = np.empty(0, np.int64)
_TOGETHER = 16_384
"""Rows that are counted at once, or more."""

_STEADY = 8
"""Which keys are frequent is looked at again when one out of so many rows is new."""

_ALL = np.uint64(2**64 - 1)

_SCATTER, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1
"""An odd number that scatters what is multiplied with it, in words of 64 bits (Fibonacci hashing)."""


class _Rows:
    """A sample of rows: one out of every so many, from a place on that no pattern in the data follows."""

    def __init__(self, most: int) -> None:
        self.seen = 0
        self._pieces = [_NO_KEYS]
        self._most = most
        self._stride = 1

    @property
    def codes(self) -> Array:
        """Those in the sample."""
        if len(self._pieces) > 1:
            self._pieces = [np.concatenate(self._pieces)]
        return self._pieces[0]

    def add(self, codes: Array) -> None:
        """Look at more rows."""
        self.seen += len(codes)
        while self.seen // self._stride > self._most:  # every other one stands for what two stood for
            self._stride *= 2
            self._pieces = [self.codes[::2]]
        place = ((self.seen * _SCATTER & _WORD) >> 32) & (self._stride - 1)
        if place < len(codes):
            self._pieces.append(codes[place :: self._stride].copy())


class KeySample:
    """The keys of one relation: a sample with counts, of all rows so far and of the recent ones.

    Args:
        keys: Keys to hold, at most; a power of two.
        window: Rows that count as recent.
    """

    def __init__(self, keys: int = KEYS, window: int = WINDOW) -> None:
        self._half = max(1, window // 2)
        self._threshold = _ALL
        self._table = np.zeros((2 * keys, 4), np.int64)
        self._slots = np.empty(keys, np.int32)
        self._held = 0
        self._rows = [0, 0, 0]  # in all; in this half of the window; in the half before
        self._nulls = [0, 0, 0]
        self._samples = (_Rows(_ROWS), _Rows(_ROWS // 2), _Rows(_ROWS // 2))
        self._frequent: dict[bool, tuple[int, Array, Array]] = {}
        self._waiting: list[tuple[Array, int]] = []
        self._waiting_rows = 0

    @property
    def rows(self) -> int:
        """Number of rows added, those without a key among them."""
        self._catch_up()
        return self._rows[0]

    @property
    def recent_rows(self) -> int:
        """Number of rows in the recent window."""
        self._catch_up()
        return self._rows[1] + self._rows[2]

    @property
    def rate(self) -> float:
        """Share of the keys that the sample holds; 1.0 means all, and that what it says is exact."""
        self._catch_up()
        return float(self._threshold) / 2.0**64

    @property
    def distinct(self) -> float:
        """Number of different keys so far, an estimate."""
        rate = self.rate
        return self._held / rate

    def add(self, codes: Array, nulls: int = 0) -> None:
        """Count rows.

        Args:
            codes: Key codes of the rows that have a key, ``int64``, shape ``(n,)``; they must not change
                before the sample is next asked for something.
            nulls: Number of further rows, whose key is null and matches nothing.
        """
        self._waiting.append((codes, nulls))
        self._waiting_rows += len(codes)
        if self._waiting_rows >= _TOGETHER or len(self._waiting) >= _TOGETHER:
            self._catch_up()

    def _catch_up(self) -> None:
        """Count what has been added, many small batches at once."""
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        nulls = sum(n for _, n in waiting)
        codes = waiting[0][0] if len(waiting) == 1 else np.concatenate([codes for codes, _ in waiting])
        for counts in (self._rows, self._nulls):
            counts[0] += nulls
            counts[1] += nulls
        first = 0
        while first < len(codes):
            last = min(len(codes), first + max(1, self._half - self._rows[1]))
            self._count(codes, first, last)
            first = last
            if self._rows[1] >= self._half:
                self._turn()

    def _count(self, codes: Array, first: int, last: int) -> None:
        at = first
        while True:
            at, self._held = tally(codes, at, last, self._threshold, self._table, self._slots, self._held)
            if at == last:
                break
            self._thin()
        piece = codes[first:last]
        for sample in self._samples[:2]:
            sample.add(piece)
        self._rows[0] += last - first
        self._rows[1] += last - first

    @property
    def _taken(self) -> Array:
        """The slots that have a key."""
        return self._slots[: self._held]

    def _thin(self) -> None:
        """Halve the threshold, and drop the keys that are above it now."""
        self._threshold >>= np.uint64(1)
        self._held = thin(self._table, self._slots, self._held, self._threshold)

    def _turn(self) -> None:
        """Begin another half of the window; the half before the present one is recent no more."""
        turn(self._table, self._taken)
        for counts in (self._rows, self._nulls):
            counts[1:] = [0, counts[1]]
        self._samples = (self._samples[0], _Rows(_ROWS // 2), self._samples[1])
        self._frequent.pop(True, None)

    def keyed_rows(self, *, recent: bool = False) -> int:
        """Return the number of rows that have a key."""
        self._catch_up()
        if recent:
            return self.recent_rows - self._nulls[1] - self._nulls[2]
        return self._rows[0] - self._nulls[0]

    def frequent(self, *, recent: bool = False) -> tuple[Array, Array]:
        """Return keys that are frequent among the sampled rows, ascending, and estimated rows of each."""
        rows = self.rows
        until, keys, estimated = self._frequent.get(recent, (0, _NO_KEYS, _NO_KEYS))
        if rows >= until:
            samples = self._samples[1:] if recent else self._samples[:1]
            codes = np.sort(np.concatenate([sample.codes for sample in samples]))
            keys, sampled = runs(codes, _FREQUENT)
            estimated = sampled * (sum(sample.seen for sample in samples) / max(1, len(codes)))
            self._frequent[recent] = rows + rows // _STEADY + 1, keys, estimated
        return keys, estimated

    def known(self, keys: Array, *, recent: bool = False) -> Array:
        """Return rows of each key: counted ones, else estimated where the key is frequent, else -1."""
        rows: Array = rows_of(keys, self._table, self._threshold, recent)
        frequent, estimated = self.frequent(recent=recent)
        places = np.searchsorted(frequent, keys)
        unknown = np.flatnonzero((rows < 0) & (places < len(frequent)))
        unknown = unknown[frequent[places[unknown]] == keys[unknown]]
        rows[unknown] = estimated[places[unknown]]
        return rows

    def meet(self, held: KeySample, apart: Array, *, recent: bool) -> Array:
        """Return what :func:`millrace.engine.kernels.meet` sums up over both samples."""
        self._catch_up()
        threshold = min(self._threshold, held.threshold)
        sums: Array = meet(self._table, self._taken, held._table, held._taken, threshold, recent, apart)
        return sums

    @property
    def threshold(self) -> np.uint64:
        """What the hashes of sampled keys do not exceed."""
        self._catch_up()
        return self._threshold


def support(probing: KeySample, held: KeySample, *, recent: bool = True) -> int:
    """Return on how many keys of the probing relation an estimate of :func:`fanout` rests; 0 is a guess."""
    return int(probing.meet(held, _NO_KEYS, recent=recent)[0]) if held.rows else 0


def fanout(probing: KeySample, held: KeySample, *, recent: bool = True) -> float:
    """Return the expected number of matches in the whole of ``held`` for one tuple of ``probing``.

    Args:
        probing: Keys of the tuples that probe.
        held: Keys of the tuples that they are compared with.
        recent: Whether tuples to come are like the recent ones of ``probing`` or like all so far.

    Returns:
        Matches per tuple, exact while both samples hold all keys, 0.0 where sampled keys of ``probing``
        find nothing. Where there is none to look for, a guess: with nothing held 1.0, otherwise as
        if the keys of the relation with fewer of them were all among those of the other (System R;
        Selinger et al. 1979). :func:`support` tells knowledge from guesses.
    """
    if not held.rows:
        return 1.0
    tuples = probing.recent_rows if recent else probing.rows
    with_key = probing.keyed_rows(recent=recent)
    if tuples and not with_key:
        return 0.0
    rate = min(probing.rate, held.rate)
    apart, mine, yours = _NO_KEYS, _NO_KEYS, _NO_KEYS
    if rate < 1:
        candidates = _both(probing.frequent(recent=recent)[0], held.frequent()[0])
        if len(candidates):
            mine, yours = probing.known(candidates, recent=recent), held.known(candidates)
            known = (mine >= 0) & (yours >= 0)
            apart, mine, yours = candidates[known], mine[known], yours[known]
    sums = probing.meet(held, apart, recent=recent)
    if not tuples or (not sums[0] and not len(apart)):
        share = with_key / tuples if tuples else 1.0
        return share * held.keyed_rows() / max(1.0, probing.distinct, held.distinct)
    rest = max(0.0, with_key - mine.sum()), max(0.0, held.keyed_rows() - yours.sum())
    return max(0.0, float(mine @ yours) + _regression(sums, rest, rate)) / tuples


def _both(some: Array, others: Array) -> Array:
    """Return the keys of either, ascending."""
    return np.union1d(some, others) if len(some) and len(others) else some if len(some) else others


def _regression(sums: Array, rows: tuple[float, float], rate: float) -> float:
    """Return the matches of all keys from those of sampled keys.

    Args:
        sums: Over the sampled keys, see :func:`millrace.engine.kernels.meet`.
        rows: Of all keys, on either side.
        rate: Share of the keys that is in the sample.

    Matches of a key are taken to hang on its rows ``x`` in one relation and ``z`` in the other, linearly and
    with a spread that grows with both; sampled keys tell by how much, and the sample's own chance excess or
    lack of rows is taken out by that. With all keys in the sample nothing is left to take out.
    """
    _, x, z, y, xx, zz, xz, xy, zy = sums
    if rate >= 1:
        return float(y)
    within = xx * zz - xz * xz
    if within > 1e-9 * xx * zz:  # the two slopes of least squares
        of_x, of_z = (xy * zz - zy * xz) / within, (zy * xx - xy * xz) / within
    else:  # the same rows on both sides, or none on one: a plain ratio
        of_x, of_z = y / max(1.0, x), 0.0
    return float(y / rate + of_x * (rows[0] - x / rate) + of_z * (rows[1] - z / rate))
