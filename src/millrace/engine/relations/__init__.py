"""Base tuples and their join keys."""

from millrace.engine.relations.code_column import MOST_ROOM, CodeColumn
from millrace.engine.relations.keys import codes, is_exact, is_key_type
from millrace.engine.relations.layout import KeyLayout
from millrace.engine.relations.store import BATCH_BYTES, KeyColumn, RelationStore, keyed, slices

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
