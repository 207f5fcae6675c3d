"""The log of a cell: the base tuples of its streams, and nothing else, in Spark's checkpointed state.

Indexes and intermediate tuples are made anew of it, which is what STAIRs call demotion to base tuples
(Deshpande & Hellerstein 2004, section 3.1). A block is a few thousand tuples of about the same time, so that
what has expired is removed block by block, without reading it.

A call of Spark's state is a message that is waited for, 50 to 100 microseconds: the log is read whole when a
cell begins, and never while it goes on, but for writing the window anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from millrace.errors import StateError
from millrace.streams.task import FORMAT

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

# One variable, because Spark takes some 10 ms a task to make each, for every field of its type.
_KEY = StructType([StructField("key", StringType())])
_VALUE = StructType([StructField("text", StringType()), StructField("block", BinaryType())])
_HEAD, LESSONS = "head", "lessons"

_CHAIN = 64
"""So many micro-batches behind, state in memory can catch up."""


class BlockKey(NamedTuple):
    """Names a block: tuples of one stream, of about the same time.

    Attributes:
        relation: The stream's number.
        newest: Event time of the newest, microseconds.
        batch: Number of the latest micro-batch that one came with, counted by the cell.
    """

    relation: int
    newest: int
    batch: int


@dataclass(frozen=True)
class Head:
    """What a cell's log begins with.

    Attributes:
        fingerprint: Of the join.
        batch: Number of the latest micro-batch, counted by the cell.
        watermark: Of the latest micro-batch of Spark's, microseconds; 0 while there is none.
        timer: When tuples expire next, milliseconds; None while nothing is kept.
        chain: The tokens of micro-batches up to it: who has the state after one of these has only to catch
            up. Since the window was written anew, for blocks have other names from then on.
        tick: The timer of Spark's that wakes the cell, milliseconds; None before there is one.
        format: Version of what was stored.
    """

    fingerprint: str
    batch: int = -1
    watermark: int = 0
    timer: int | None = None
    chain: Sequence[str] = ()
    tick: int | None = None
    format: int = FORMAT

    @property
    def token(self) -> str:
        """Names the attempt at the micro-batch that was committed; empty before there is one."""
        return self.chain[-1] if self.chain else ""

    def follow(self, token: str, *, anew: bool = False) -> Sequence[str]:
        """Return the chain of the next head, which has this token; ``anew`` if it wrote the window anew."""
        return [*(() if anew else self.chain), token][-_CHAIN:]


class Log:
    """The log of the cell that Spark works on."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getMapState("log", _KEY, _VALUE)

    def head(self) -> Head | None:
        """Return the head; None for a cell that is new.

        Raises:
            StateError: It is of another version.
        """
        text = self.text(_HEAD)
        if text is None:
            return None
        fields = json.loads(text)
        if fields.get("format") != FORMAT:
            raise StateError(
                f"the checkpoint has format {fields.get('format')} of a continuous join, and this version of "
                f"Millrace reads format {FORMAT}: go on with the version that wrote it, or begin with an "
                "empty checkpoint folder"
            )
        return Head(**fields)

    def put_head(self, head: Head) -> None:
        self.put_text(_HEAD, json.dumps(asdict(head), separators=(",", ":")))

    def text(self, name: str) -> str | None:
        """Return what is kept besides the blocks under a name; None if it is nothing."""
        value = self._state.getValue((name,))
        return None if value is None else str(value[0])

    def put_text(self, name: str, text: str) -> None:
        """Replace what is kept under a name, which is an identifier."""
        self._state.updateValue((name,), (text, b""))

    def list(self) -> Sequence[BlockKey]:
        """Return the keys of all blocks, those that came first in front."""
        keys = (key for (key,) in self._state.keys() if not key.isidentifier())  # noqa: SIM118
        return sorted((BlockKey(*map(int, key.split(","))) for key in keys), key=lambda k: (k.batch, k))

    def read(self, key: BlockKey, schema: pa.Schema) -> tuple[pa.RecordBatch, int]:
        """Return the tuples of a block, and its size in bytes.

        Raises:
            StateError: There is none of that key.
        """
        stored = self._state.getValue((_name(key),))
        if stored is None:
            raise StateError(f"the log of a cell lists block {tuple(key)} and does not have it")
        data = stored[1]
        return pa.ipc.read_record_batch(pa.py_buffer(data), schema), len(data)

    def put(self, key: BlockKey, rows: pa.RecordBatch) -> int:
        """Store tuples as a block, and return its size in bytes."""
        data = rows.serialize().to_pybytes()
        self._state.updateValue((_name(key),), ("", data))
        return len(data)

    def remove(self, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            self._state.removeKey((_name(key),))


def _name(key: BlockKey) -> str:
    """Return the name of a block in Spark's state."""
    return ",".join(map(str, key))
