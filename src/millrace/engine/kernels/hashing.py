"""Hash functions over numpy arrays: fixed-width codes and Arrow's variable-width values."""

from __future__ import annotations

import numpy as np

from millrace.engine.kernels.compiling import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)
_FNV_PRIME = np.uint64(0x100000001B3)
_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_BYTE = np.uint64(8)


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


@compiled("const int32[], const uint8[]")
def hash_bytes(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return an ``int64`` hash of each byte string ``data[offsets[i]:offsets[i + 1]]`` (FNV-1a)."""
    n = len(offsets) - 1
    out = np.empty(n, np.int64)
    for i in range(n):
        h = _FNV_BASIS
        for j in range(offsets[i], offsets[i + 1]):
            h = (h ^ np.uint64(data[j])) * _FNV_PRIME
        out[i] = np.int64(h)
    return out


@compiled("const int32[], const uint8[]")
def hash_parts(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return an ``int64`` hash of each byte string's length and of eight bytes at its front, middle and back.

    However long the strings are, one takes some 20 ns. Those of up to 24 bytes are hashed whole.
    """
    n = len(offsets) - 1
    out = np.empty(n, np.int64)
    for i in range(n):
        low, high = offsets[i], offsets[i + 1]
        size = min(high - low, 8)
        middle, last = low + (high - low - size) // 2, high - size
        front = inner = back = np.uint64(0)
        for j in range(size):
            front = (front << _BYTE) | np.uint64(data[low + j])
            inner = (inner << _BYTE) | np.uint64(data[middle + j])
            back = (back << _BYTE) | np.uint64(data[last + j])
        x = np.uint64(high - low) * _GOLDEN + front
        x = (x ^ (x >> _S30)) * _M1 + inner
        x = (x ^ (x >> _S27)) * _M2 + back
        out[i] = np.int64(x ^ (x >> _S31))
    return out
