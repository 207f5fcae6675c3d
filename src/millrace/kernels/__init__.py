"""Compiled kernels: numpy arrays in, numpy arrays out, knowing nothing of the rest."""

from millrace.kernels.hashing import combine, hash_bytes, mix
from millrace.kernels.multimap import MAX_ROWS, Multimap, Walk

__all__ = ["MAX_ROWS", "Multimap", "Walk", "combine", "hash_bytes", "mix"]
