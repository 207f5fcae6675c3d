"""Base tuples by row number, the codes of their join keys, and batches of tuples that point to them.

Invariant: keys that Spark calls equal have equal codes; where others may have them too, a match is
verified.
"""

from millrace.engine.tuples.keys import KeyColumn, KeyLayout, codes, is_exact, is_key_type, keyed
from millrace.engine.tuples.store import BATCH_BYTES, MOST_ROOM, CodeColumn, RelationStore, is_run, slices

__all__ = [
    "BATCH_BYTES",
    "MOST_ROOM",
    "CodeColumn",
    "KeyColumn",
    "KeyLayout",
    "RelationStore",
    "codes",
    "is_exact",
    "is_key_type",
    "is_run",
    "keyed",
    "slices",
]
