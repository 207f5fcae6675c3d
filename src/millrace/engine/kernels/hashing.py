"""Hash functions over numpy arrays: fixed-width codes and Arrow's variable-width values."""

from __future__ import annotations

import numpy as np

from millrace.engine.kernels.compiling import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_ONE, _EIGHT = np.uint64(1), np.uint64(8)


@compiled("const int64[]")
def mix(codes: np.ndarray) -> np.ndarray:
    """Return a well-mixed ``int64`` hash of each ``int64`` code (the splitmix64 finaliser)."""
    out = np.empty(len(codes), np.int64)
    for i in range(len(codes)):
        x = np.uint64(codes[i]) + _GOLDEN
        x = (x ^ (x >> _S30)) * _M1
        x = (x ^ (x >> _S27)) * _M2
        out[i] = np.int64(x ^ (x >> _S31))
    return out


@compiled("const int64[], const int64[]")
def combine(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return one ``int64`` hash for pairs of codes; order matters, collisions must be verified."""
    out = np.empty(len(left), np.int64)
    for i in range(len(left)):
        x = np.uint64(left[i]) * _M2 + _GOLDEN
        x = (x ^ (x >> _S30)) + np.uint64(right[i])
        x = (x ^ (x >> _S27)) * _M1
        out[i] = np.int64(x ^ (x >> _S31))
    return out


@compiled()
def _word(data, at):  # type: ignore[no-untyped-def]
    """Return eight bytes as a number, the first one lowest on every machine; compiled, it is one load."""
    word = np.uint64(0)
    for j in range(8):
        word |= np.uint64(data[at + np.uint64(j)]) << np.uint64(8 * j)
    return word


@compiled("const int32[], const uint8[]")
def hash_bytes(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return an ``int64`` hash of each byte string ``data[offsets[i]:offsets[i + 1]]``.

    Multiplications and shifts take in eight bytes at a time, and what is left, cut out of eight that are read
    at once, unless ``data`` ends before. Strings of one length that differ in one such word never collide.
    """
    n = len(offsets) - 1
    out = np.empty(n, np.int64)
    size = np.uint64(len(data))
    for i in range(n):
        at, end = np.uint64(offsets[i]), np.uint64(offsets[i + 1])
        h = (end - at) * _GOLDEN
        while at + _EIGHT <= end:
            h = (h ^ _word(data, at)) * _M1
            h ^= h >> _S32
            at += _EIGHT
        rest = np.uint64(0)
        if at + _EIGHT <= size:
            rest = _word(data, at) & ((_ONE << (_EIGHT * (end - at))) - _ONE)
        else:
            while at < end:
                end -= _ONE
                rest = (rest << _EIGHT) | np.uint64(data[end])
        h = (h ^ rest) * _M1
        h = (h ^ (h >> _S27)) * _M2
        out[i] = np.int64(h ^ (h >> _S31))
    return out
