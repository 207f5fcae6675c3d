"""Row groups on their way to the tasks.

Spark sends one function to all tasks, and so the row groups of all; a table of many files has ten thousands
of them. Each task's share is packed by itself, and a task unpacks its own only: the others are bytes to it.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence

from millrace.sources.tables import Split


def pack(splits: Sequence[Split]) -> bytes:
    """Return row groups as bytes: paths are long and alike, so they are compressed."""
    return zlib.compress(pickle.dumps(tuple(splits), pickle.HIGHEST_PROTOCOL), 1)


def unpack(parcel: bytes) -> tuple[Split, ...]:
    """Return what was packed."""
    found: tuple[Split, ...] = pickle.loads(zlib.decompress(parcel))  # noqa: S301  # the plan's own bytes
    return found
