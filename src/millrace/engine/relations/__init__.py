"""Base tuples of a relation by row number, and the codes of their join keys.

Invariant: keys that Spark calls equal have equal codes; where others may have them too, a match is
verified.
"""

from millrace.engine.relations.code_column import MOST_ROOM, CodeColumn
from millrace.engine.relations.keys import KeyColumn, KeyLayout, codes, is_exact, is_key_type
from millrace.engine.relations.store import BATCH_BYTES, RelationStore, is_run, keyed, slices

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
