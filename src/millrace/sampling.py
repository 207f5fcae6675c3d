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
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.kernels import BEFORE, KEY, NOW, SETTLED, key_hashes, mix, place, tally

Array = np.ndarray[Any, np.dtype[Any]]

KEYS = 2048
"""Keys in a sample, at most: fan-outs are known to a few percent."""

WINDOW = 131_072
"""Rows that count as recent: from half as many to so many."""

_ROWS = 4096
"""Rows in the sample of all rows, at most; half as many are in that of half a window."""

_FREQUENT = 5
"""A key that is so often in a sample of rows is counted apart."""

_ALL = np.uint64(2**64 - 1)


class _Rows:
    """A sample of rows: one out of every so many, at a place that no pattern in the data follows."""

    def __init__(self, most: int) -> None:
        self.codes = np.empty(0, np.int64)
        self.seen = 0
        self._most = most
        self._stride = 1

    def add(self, codes: Array) -> None:
        """Look at more rows."""
        first, last = self.seen, self.seen + len(codes)
        self.seen = last
        while last // self._stride > self._most:  # every other one stands for the two blocks that become one
            self._stride *= 2
            self.codes = self.codes[::2]
        blocks = np.arange(first // self._stride, last // self._stride + 1)
        places = blocks * self._stride + (mix(blocks) & (self._stride - 1)) - first
        places = places[(places >= 0) & (places < len(codes))]
        self.codes = np.concatenate([self.codes, codes[places]])


class KeySample:
    """The keys of one relation: a sample with counts, of all rows so far and of the recent ones.

    Args:
        keys: Keys to hold, at most; a power of two.
        window: Rows that count as recent.
    """

    def __init__(self, keys: int = KEYS, window: int = WINDOW) -> None:
        self._most = keys
        self._half = max(1, window // 2)
        self._threshold = _ALL
        self._table = np.zeros((4 * keys, 4), np.int64)  # sparse, so that a look is one comparison
        self._held = 0
        self._rows = [0, 0, 0]  # in all; in this half of the window; in the half before
        self._nulls = [0, 0, 0]
        self._samples = (_Rows(_ROWS), _Rows(_ROWS // 2), _Rows(_ROWS // 2))
        self._looked_up: dict[tuple[bool, bool], tuple[Array, ...]] = {}

    @property
    def rows(self) -> int:
        """Number of rows added, those without a key among them."""
        return self._rows[0]

    @property
    def recent_rows(self) -> int:
        """Number of rows in the recent window."""
        return self._rows[1] + self._rows[2]

    @property
    def rate(self) -> float:
        """Share of the keys that the sample holds; 1.0 means all, and that what it says is exact."""
        return float(self._threshold) / 2.0**64

    @property
    def distinct(self) -> float:
        """Number of different keys so far, an estimate."""
        return self._held / self.rate

    def add(self, codes: Array, nulls: int = 0) -> None:
        """Count rows.

        Args:
            codes: Key codes of the rows that have a key, ``int64``, shape ``(n,)``.
            nulls: Number of further rows, whose key is null and matches nothing.
        """
        self._looked_up.clear()
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
            at, self._held = tally(codes, at, last, self._threshold, self._table, self._held, self._most)
            if at == last:
                break
            self._thin()
        piece = codes[first:last]
        for sample in self._samples[:2]:
            sample.add(piece)
        self._rows[0] += last - first
        self._rows[1] += last - first

    def _entries(self) -> Array:
        return self._table[(self._table[:, NOW] > 0) | (self._table[:, SETTLED] > 0)]

    def _thin(self) -> None:
        """Halve the threshold, and drop the keys that are above it now."""
        self._threshold >>= np.uint64(1)
        entries = self._entries()
        entries = entries[key_hashes(entries[:, KEY]) <= self._threshold]
        self._table = np.zeros_like(self._table)
        place(entries, self._table)
        self._held = len(entries)

    def _turn(self) -> None:
        """Begin another half of the window; the half before the present one is recent no more."""
        self._table[:, SETTLED] += self._table[:, NOW]
        self._table[:, BEFORE] = self._table[:, NOW]
        self._table[:, NOW] = 0
        for counts in (self._rows, self._nulls):
            counts[1:] = [0, counts[1]]
        self._samples = (self._samples[0], _Rows(_ROWS // 2), self._samples[1])

    def keyed_rows(self, *, recent: bool = False) -> int:
        """Return the number of rows that have a key."""
        if recent:
            return self.recent_rows - self._nulls[1] - self._nulls[2]
        return self._rows[0] - self._nulls[0]

    def counts(self, threshold: np.uint64, *, recent: bool = False) -> tuple[Array, Array]:
        """Return the keys whose hash is not above the threshold, ascending, and rows of each."""
        if (True, recent) not in self._looked_up:
            entries = self._entries()
            rows = entries[:, NOW] + entries[:, BEFORE if recent else SETTLED]
            keys, rows = entries[rows > 0, KEY], rows[rows > 0]
            order = np.argsort(keys)
            self._looked_up[True, recent] = keys[order], rows[order], key_hashes(keys[order])
        keys, rows, hashes = self._looked_up[True, recent]
        if threshold >= self._threshold:
            return keys, rows
        return keys[hashes <= threshold], rows[hashes <= threshold]

    def frequent(self, *, recent: bool = False) -> tuple[Array, Array]:
        """Return keys that are frequent among the sampled rows, ascending, and estimated rows of each."""
        if (False, recent) not in self._looked_up:
            samples = [s for s in (self._samples[1:] if recent else self._samples[:1]) if len(s.codes)]
            codes = np.concatenate([np.empty(0, np.int64), *(s.codes for s in samples)])
            weights = [np.full(len(s.codes), s.seen / len(s.codes)) for s in samples]
            keys, places, sampled = np.unique(codes, return_inverse=True, return_counts=True)
            rows = np.bincount(places, np.concatenate([np.empty(0), *weights]), len(keys))
            often = sampled >= _FREQUENT
            self._looked_up[False, recent] = keys[often], rows[often]
        keys, rows = self._looked_up[False, recent]
        return keys, rows

    def known(self, keys: Array, *, recent: bool = False) -> Array:
        """Return rows of each key: counted ones, else estimated where the key is frequent, else -1."""
        rows = np.where(key_hashes(keys) <= self._threshold, 0.0, -1.0)
        for source, counts in (self.frequent(recent=recent), self.counts(_ALL, recent=recent)):
            _, places, sources = np.intersect1d(keys, source, assume_unique=True, return_indices=True)
            rows[places] = counts[sources]
        return rows

    @property
    def threshold(self) -> np.uint64:
        """What the hashes of sampled keys do not exceed."""
        return self._threshold


def support(probing: KeySample, held: KeySample, *, recent: bool = True) -> int:
    """Return on how many keys of the probing relation an estimate of :func:`fanout` rests; 0 is a guess."""
    if not held.rows:
        return 0
    return len(probing.counts(min(probing.threshold, held.threshold), recent=recent)[0])


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
    threshold = min(probing.threshold, held.threshold)
    keys, rows = probing.counts(threshold, recent=recent)
    other_keys, other_rows = held.counts(threshold)
    tuples = probing.recent_rows if recent else probing.rows
    with_key = probing.keyed_rows(recent=recent)
    if tuples and not with_key:
        return 0.0
    if not len(keys):
        share = with_key / tuples if tuples else 1.0
        return share * held.keyed_rows() / max(1.0, probing.distinct, held.distinct)
    if threshold == _ALL:
        return _matches(keys, rows, other_keys, other_rows) / tuples
    candidates = np.union1d(probing.frequent(recent=recent)[0], held.frequent()[0])
    mine, yours = probing.known(candidates, recent=recent), held.known(candidates)
    known = (mine >= 0) & (yours >= 0)
    apart, mine, yours = candidates[known], mine[known], yours[known]
    rest, other_rest = ~np.isin(keys, apart), ~np.isin(other_keys, apart)
    found = float(mine @ yours) + _regression(
        (keys[rest], rows[rest], max(0.0, with_key - mine.sum())),
        (other_keys[other_rest], other_rows[other_rest], max(0.0, held.keyed_rows() - yours.sum())),
        float(threshold) / 2.0**64,
    )
    return max(0.0, found) / tuples


def _matches(keys: Array, rows: Array, other_keys: Array, other_rows: Array) -> float:
    """Return the number of pairs of rows with equal keys."""
    _, one, two = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
    return float(rows[one].astype(float) @ other_rows[two])


def _regression(one: tuple[Array, Array, float], two: tuple[Array, Array, float], rate: float) -> float:
    """Return the matches of all keys from those of sampled keys.

    Args:
        one: Sampled keys of a relation, ascending, their rows, and the rows of all its keys.
        two: The same of the other relation.
        rate: Share of the keys that is in the sample.

    Matches of a key are taken to hang on its rows ``x`` in one relation and ``z`` in the other, linearly and
    with a spread that grows with both; sampled keys tell by how much, and the sample's own chance excess or
    lack of rows is taken out by that. With all keys in the sample nothing is left to take out.
    """
    keys = np.union1d(one[0], two[0])
    if not len(keys):
        return 0.0
    x, z = np.zeros(len(keys)), np.zeros(len(keys))
    x[np.searchsorted(keys, one[0])] = one[1]
    z[np.searchsorted(keys, two[0])] = two[1]
    y = x * z
    weight = 1 / (x + z)
    xx, zz, xz = weight * x @ x, weight * z @ z, weight * x @ z
    size = xx * zz - xz * xz
    if size > 1e-9 * xx * zz:
        xy, zy = weight * x @ y, weight * z @ y
        by_x, by_z = (zz * xy - xz * zy) / size, (xx * zy - xz * xy) / size
    else:  # the same rows on both sides, or none on one: a plain ratio
        by_x, by_z = y.sum() / max(1.0, x.sum()), np.float64(0.0)
    lacking = by_x * (one[2] - x.sum() / rate) + by_z * (two[2] - z.sum() / rate)
    return float(y.sum() / rate + lacking)
