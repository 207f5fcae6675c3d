"""Compiled kernels: numpy arrays in, numpy arrays out, knowing nothing of the rest."""

from millrace.kernels.hashing import combine, hash_bytes, hash_parts, mix
from millrace.kernels.multimap import MAX_ROWS, Multimap, Walk
from millrace.kernels.tally import BEFORE, KEY, NOW, SETTLED, key_hashes, meet, place, rows_of, runs, tally

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
    "hash_parts",
    "key_hashes",
    "meet",
    "mix",
    "place",
    "rows_of",
    "runs",
    "tally",
]
