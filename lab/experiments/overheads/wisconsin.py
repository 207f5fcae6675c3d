"""Tables of the Wisconsin benchmark: tenk1 to tenk5 and hundredk1 to hundredk5.

DeWitt, *The Wisconsin Benchmark: Past, Present, and Future* (1993), section 2; Deshpande 2004, section 3.1,
uses tuples of 244 bytes. Thirteen integers of 4 bytes take 52 of these, so that each of the three strings
has 64 letters, of which the first seven tell it apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

TUPLE_BYTES = 244
_LETTERS = 64
_DISTINCT = 7
_CYCLE = ("AAAA", "HHHH", "OOOO", "VVVV")

Array = np.ndarray[Any, np.dtype[Any]]


def wisconsin(rows: int, seed: int | Sequence[int]) -> pa.Table:
    """Return one table of so many rows.

    ``unique2`` counts from 0, and is the primary key; ``unique1`` holds the same numbers in random
    order, and all other columns but ``stringu2`` and ``string4`` follow from it.
    """
    unique1 = np.random.default_rng(seed).permutation(rows).astype(np.int32)
    unique2 = np.arange(rows, dtype=np.int32)
    percent = unique1 % 100
    numbers = {
        "unique1": unique1,
        "unique2": unique2,
        "two": unique1 % 2,
        "four": unique1 % 4,
        "ten": unique1 % 10,
        "twenty": unique1 % 20,
        "onePercent": percent,
        "tenPercent": unique1 % 10,
        "twentyPercent": unique1 % 5,
        "fiftyPercent": unique1 % 2,
        "unique3": unique1,
        "evenOnePercent": percent * 2,
        "oddOnePercent": percent * 2 + 1,
    }
    strings = {
        "stringu1": _padded(_spelled(unique1)),
        "stringu2": _padded(_spelled(unique2)),
        "string4": _padded(np.array(_CYCLE, "S4").view(np.uint8).reshape(4, 4)[unique2 % 4]),
    }
    return pa.table({**{name: pa.array(values) for name, values in numbers.items()}, **strings})


def _spelled(numbers: Array) -> Array:
    """Return numbers in base 26 as letters A to Z, shape ``(n, 7)``."""
    powers = 26 ** np.arange(_DISTINCT - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None].astype(np.int64) // powers % 26 + ord("A")).astype(np.uint8)


def _padded(beginnings: Array) -> pa.Array:
    """Return strings of 64 letters that begin so, and go on with x."""
    letters = np.full((len(beginnings), _LETTERS), ord("x"), np.uint8)
    letters[:, : beginnings.shape[1]] = beginnings
    offsets = np.arange(len(beginnings) + 1, dtype=np.int32) * _LETTERS
    return pa.StringArray.from_buffers(len(beginnings), pa.py_buffer(offsets), pa.py_buffer(letters))
