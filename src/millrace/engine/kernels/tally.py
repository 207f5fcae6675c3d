"""Counting keys whose hash is below a threshold, in a small table with several counters a key.

The table has shape ``(slots, 4)``, a power of two of slots: the key, its rows that are settled, its rows
of now, and its rows before; only those of now are counted here, the others are the caller's to write. A key
is there when it has rows that are settled or of now. Slots are found by linear probing; which are taken is
kept beside, so that nobody walks over the others. The hash has two rounds of multiplication: with one, keys
at regular distances tend to fall on one side of a threshold.
"""

from __future__ import annotations

import numpy as np

from millrace.engine.kernels.compiling import compiled

KEY, SETTLED, NOW, BEFORE = range(4)
"""Columns of the table."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


@compiled()
def _hash(code):  # type: ignore[no-untyped-def]
    x = (np.uint64(code) + _GOLDEN) * _ODD
    return (x ^ (x >> _HALF)) * _ODD


@compiled()
def _slot(code, hashed, table):  # type: ignore[no-untyped-def]
    wrap = np.int64(len(table) - 1)
    slot = np.int64(hashed >> _HALF) & wrap
    while table[slot, KEY] != code and (table[slot, NOW] or table[slot, SETTLED]):
        slot = (slot + 1) & wrap
    return slot


@compiled("const int64[], int64, int64, uint64, int64[,], int32[], int64")
def tally(codes, first, last, threshold, table, taken, held):  # type: ignore[no-untyped-def]
    """Count codes from ``first`` up to ``last`` whose hash is not above the threshold.

    ``taken`` begins with the ``held`` slots that are taken, and has room for as many as there may be.

    Returns:
        Where it stopped: at ``last``, or at the code for which there was no room; and the number of
        slots that are taken now.
    """
    for i in range(first, last):
        hashed = _hash(codes[i])
        if hashed <= threshold:
            slot = _slot(codes[i], hashed, table)
            if not table[slot, NOW] and not table[slot, SETTLED]:
                if held == len(taken):
                    return i, held
                taken[held] = slot
                held += 1
                table[slot, KEY] = codes[i]
            table[slot, NOW] += 1
    return last, held


@compiled("int64[,], int32[], int64, uint64")
def thin(table, taken, held, threshold):  # type: ignore[no-untyped-def]
    """Drop the keys whose hash is above a threshold; returns how many slots are taken now."""
    entries = np.empty((held, 4), np.int64)
    kept = 0
    for i in range(held):
        entry = table[taken[i]]
        if _hash(entry[KEY]) <= threshold:
            entries[kept] = entry
            kept += 1
        entry[:] = 0
    for i in range(kept):
        slot = _slot(entries[i, KEY], _hash(entries[i, KEY]), table)
        table[slot] = entries[i]
        taken[i] = slot
    return kept


@compiled("const int64[,], const int32[], const int64[,], const int32[], uint64, boolean, const int64[]")
def meet(mine, my_slots, theirs, their_slots, threshold, recent, apart):  # type: ignore[no-untyped-def]
    """Sum up what the keys of two tables that are not above the threshold have in common.

    With ``x`` rows of a key in one table and ``z`` in the other, each sum runs over all keys of both. Slots
    are those that are taken. With ``recent``, rows of now and before count in ``mine``, rather than all rows.
    ``apart`` are keys to leave out, ascending.

    Returns:
        The number of keys in ``mine``, and the sums of ``x``, ``z``, ``x z``, and, each over ``x + z``,
        of ``x x``, ``z z``, ``x z``, ``x x z`` and ``z x z``.
    """
    sums = np.zeros(9)
    for side in range(2):
        table, other = (mine, theirs) if side == 0 else (theirs, mine)
        for at in my_slots if side == 0 else their_slots:
            entry = table[at]
            settled, now = entry[SETTLED], entry[NOW]
            hashed = _hash(entry[KEY])
            if hashed > threshold:
                continue
            if len(apart):
                place = np.searchsorted(apart, entry[KEY])
                if place < len(apart) and apart[place] == entry[KEY]:
                    continue
            own = other[_slot(entry[KEY], hashed, other)]
            if side == 0:
                x = np.float64(now + entry[BEFORE] if recent else now + settled)
                z = np.float64(own[NOW] + own[SETTLED])
                if x == 0:
                    continue
                sums[0] += 1
            else:
                x = np.float64(own[NOW] + own[BEFORE] if recent else own[NOW] + own[SETTLED])
                z = np.float64(now + settled)
                if x != 0:
                    continue  # counted already
            weight = 1 / (x + z)
            sums[1] += x
            sums[2] += z
            sums[3] += x * z
            sums[4] += weight * x * x
            sums[5] += weight * z * z
            sums[6] += weight * x * z
            sums[7] += weight * x * x * z
            sums[8] += weight * z * x * z
    return sums


@compiled("const int64[], const int64[,], uint64, boolean")
def rows_of(keys, table, threshold, recent):  # type: ignore[no-untyped-def]
    """Return the rows of each key in the table, -1 for a key that is above the threshold."""
    rows = np.empty(len(keys))
    for i in range(len(keys)):
        hashed = _hash(keys[i])
        entry = table[_slot(keys[i], hashed, table)]
        rows[i] = entry[NOW] + (entry[BEFORE] if recent else entry[SETTLED]) if hashed <= threshold else -1.0
    return rows
