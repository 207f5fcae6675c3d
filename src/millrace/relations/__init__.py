"""Base tuples and their join keys."""

from millrace.relations.code_column import MOST_ROOM, CodeColumn
from millrace.relations.keys import codes, is_exact, is_key_type
from millrace.relations.layout import KeyLayout
from millrace.relations.store import BATCH_BYTES, KeyColumn, RelationStore, keyed, slices

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
    "keyed",
    "slices",
]
