"""Counting keys whose hash is below a threshold, in a small table with several counters a key.

The table has shape ``(slots, 4)``, a power of two of slots: the key, its rows that are settled, its rows
of now, and its rows before; only those of now are counted here, the others are the caller's to write. A key
is there when it has rows that are settled or of now. Slots are found by linear probing. The hash has two
rounds of multiplication: with one, keys at regular distances tend to fall on one side of a threshold.
"""

from __future__ import annotations

import numpy as np
from numba import njit

KEY, SETTLED, NOW, BEFORE = range(4)
"""Columns of the table."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


@njit(inline="always")
def _hash(code):  # type: ignore[no-untyped-def]
    x = (np.uint64(code) + _GOLDEN) * _ODD
    return (x ^ (x >> _HALF)) * _ODD


@njit(cache=True, nogil=True)
def key_hashes(codes: np.ndarray) -> np.ndarray:
    """Return the ``uint64`` hash of each ``int64`` code that thresholds are compared with."""
    out = np.empty(len(codes), np.uint64)
    for i in range(len(codes)):
        out[i] = _hash(codes[i])
    return out


@njit(cache=True, nogil=True)
def _slot(code, hashed, table):  # type: ignore[no-untyped-def]
    wrap = np.int64(len(table) - 1)
    slot = np.int64(hashed >> _HALF) & wrap
    while table[slot, KEY] != code and (table[slot, NOW] or table[slot, SETTLED]):
        slot = (slot + 1) & wrap
    return slot


@njit(cache=True, nogil=True)
def tally(codes, first, last, threshold, table, held, most):  # type: ignore[no-untyped-def]
    """Count codes from ``first`` up to ``last`` whose hash is not above the threshold.

    Returns:
        Where it stopped: at ``last``, or at the code for which there was no room, ``most`` keys being
        in the table; and the number of keys in the table, which was ``held``.
    """
    for i in range(first, last):
        hashed = _hash(codes[i])
        if hashed <= threshold:
            slot = _slot(codes[i], hashed, table)
            if not table[slot, NOW] and not table[slot, SETTLED]:
                if held == most:
                    return i, held
                held += 1
                table[slot, KEY] = codes[i]
            table[slot, NOW] += 1
    return last, held


@njit(cache=True, nogil=True)
def place(entries, table):  # type: ignore[no-untyped-def]
    """Put entries, rows of another table with different keys, into an empty table."""
    for entry in entries:
        table[_slot(entry[KEY], _hash(entry[KEY]), table)] = entry
