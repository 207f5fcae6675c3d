"""Compiled kernels: numpy arrays in, numpy arrays out, knowing nothing of the rest.

Invariant: interpreted as plain Python, each returns the same; nothing is compiled before it is first
called.
"""

from millrace.engine.kernels.hashing import combine, hash_bytes, mix
from millrace.engine.kernels.multimap import MAX_ROWS, Multimap, Walk
from millrace.engine.kernels.tally import BEFORE, KEY, NOW, SETTLED, meet, rows_of, tally, thin

__all__ = [
    "BEFORE",
    "KEY",
    "MAX_ROWS",
    "NOW",
    "SETTLED",
    "Multimap",
    "Walk",
    "combine",
    "hash_bytes",
    "meet",
    "mix",
    "rows_of",
    "tally",
    "thin",
]
