"""The log of a cell: the base tuples of its streams, and nothing else, in Spark's checkpointed state.

Indexes and intermediate tuples are made anew of it, which is what STAIRs call demotion to base tuples
(Deshpande & Hellerstein 2004, section 3.1). A block is a few thousand tuples of about the same time, so that
what has expired is removed block by block, without reading it.

A call of Spark's state is a message that is waited for, 50 to 100 microseconds: the log is read whole when a
cell begins, and never while it goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from millrace.errors import StateError
from millrace.streams.task import FORMAT

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

_MERGED = 16
"""So many blocks of a stream that follow each other become one, until they are of this size:"""
_LARGE = 1 << 22
_SHARES = 8
"""Merged are blocks of the same eighth of the time for which tuples are kept."""

# One variable, because Spark takes some 10 ms a task to make each, for every field of its type.
_KEY = StructType([StructField("key", StringType())])
_VALUE = StructType([StructField("text", StringType()), StructField("block", BinaryType())])
_HEAD, _LESSONS = "head", "lessons"

_CHAIN = 64
"""So many micro-batches behind, state in memory can catch up."""


class Part(NamedTuple):
    """Tuples of one stream that came with one micro-batch, of about the same time.

    Attributes:
        relation: The stream's number.
        newest: Event time of the newest, microseconds.
        batch: Number of the micro-batch, counted by the cell.
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
        token: Names what came of that attempt at it.
        watermark: Of the latest micro-batch of Spark's, microseconds; None while there is none.
        timer: When tuples expire next, milliseconds; None while nothing is kept.
        chain: The tokens of micro-batches before it: who has the state after one of these has only to catch
            up.
        tick: The timer of Spark's that wakes the cell, milliseconds; None before there is one.
        format: Version of what was stored.
    """

    fingerprint: str
    batch: int = -1
    token: str = ""
    watermark: int | None = None
    timer: int | None = None
    chain: dict[str, int] = field(default_factory=dict)
    tick: int | None = None
    format: int = FORMAT

    def followed(self, token: str) -> dict[str, int]:
        """Return the chain of the next head."""
        chain = {**self.chain, token: self.batch + 1}
        return dict(list(chain.items())[-_CHAIN:])


@dataclass(frozen=True)
class Stored:
    """A block of the log.

    Attributes:
        key: By which it is stored: the stream, its newest tuple, and the micro-batch that stored it.
        parts: What it is made of, in order, each with its number of tuples.
        size: Of the block, bytes.
    """

    key: Part
    parts: tuple[tuple[Part, int], ...]
    size: int


class Log:
    """The log of the cell that Spark works on."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getMapState("log", _KEY, _VALUE)

    def head(self) -> Head | None:
        """Return the head; None for a cell that is new.

        Raises:
            StateError: It is of a version that this one does not read.
        """
        text = self.text(_HEAD)
        if text is None:
            return None
        fields = json.loads(text)
        if fields.get("format") == 2:
            fields["tick"] = fields["timer"]  # the cell was woken when tuples expired, and else not
        elif fields.get("format") != FORMAT:
            raise StateError(
                f"the checkpoint has format {fields.get('format')} of a continuous join, and this version of "
                f"Millrace reads formats 2 and {FORMAT}: go on with the version that wrote it, or begin with "
                "an empty checkpoint folder"
            )
        return Head(**fields)

    def put_head(self, head: Head) -> None:
        self.put_text(_HEAD, json.dumps(asdict(head) | {"format": FORMAT}, separators=(",", ":")))

    def lessons(self) -> str | None:
        """Return what eddies of the cell have learned; None while it is nothing."""
        return self.text(_LESSONS)

    def put_lessons(self, text: str) -> None:
        self.put_text(_LESSONS, text)

    def text(self, name: str) -> str | None:
        """Return what is kept besides the blocks under a name; None if it is nothing."""
        value = self._state.getValue((name,))
        return None if value is None else str(value[0])

    def put_text(self, name: str, text: str) -> None:
        """Replace what is kept under a name, which is an identifier."""
        self._state.updateValue((name,), (text, b""))

    def list(self) -> Sequence[Part]:
        """Return the keys of all blocks, those stored first in front."""
        keys = (key for (key,) in self._state.keys() if not key.isidentifier())  # noqa: SIM118
        return sorted((Part(*map(int, key.split(","))) for key in keys), key=lambda key: (key.batch, key))

    def read(self, key: Part, schema: pa.Schema) -> tuple[Stored, pa.RecordBatch]:
        """Return a block and its tuples.

        Raises:
            StateError: There is none of that key.
        """
        stored = self._state.getValue((_name(key),))
        if stored is None:
            raise StateError(f"the log of a cell lists block {tuple(key)} and does not have it")
        text, data = stored
        parts = tuple((Part(*part), rows) for part, rows in json.loads(text))
        return Stored(key, parts, len(data)), pa.ipc.read_record_batch(pa.py_buffer(data), schema)

    def append(self, parts: Sequence[tuple[Part, int]], batch: int, rows: pa.RecordBatch) -> Stored:
        """Store tuples as a block.

        ``parts`` are what they are made of, in order, each with its number of tuples; ``batch`` is the
        micro-batch that stores them.
        """
        relation, newest = parts[0][0].relation, max(part.newest for part, _ in parts)
        stored = Stored(Part(relation, newest, batch), tuple(parts), 0)
        data = rows.serialize().to_pybytes()
        text = json.dumps([[tuple(part), rows] for part, rows in parts], separators=(",", ":"))
        self._state.updateValue((_name(stored.key),), (text, data))
        return replace(stored, size=len(data))

    def remove(self, keys: Iterable[Part]) -> None:
        for key in keys:
            self._state.removeKey((_name(key),))

    def merge(self, blocks: Sequence[Stored], batch: int, schema: pa.Schema) -> Stored:
        """Make one block of several of a stream."""
        tuples = [self.read(block.key, schema)[1] for block in blocks]
        self.remove(block.key for block in blocks)
        return self.append(
            [part for block in blocks for part in block.parts], batch, pa.concat_batches(tuples)
        )


def _name(key: Part) -> str:
    """Return the name of a block in Spark's state."""
    return ",".join(map(str, key))


def mergeable(blocks: Iterable[Stored], keeps: Mapping[int, int]) -> Iterator[list[Stored]]:
    """Yield small blocks that are worth merging: of one stream, and of about the same time.

    A micro-batch a second leaves thousands of blocks an hour, and each is a message when a cell begins.
    Sixteen of like size become one, so a tuple is written again at most a few times, and never where it would
    keep tuples that are far older than itself.

    ``blocks`` are all of a cell. ``keeps`` has the microseconds for which tuples are kept, by stream.
    """
    groups: dict[tuple[int, int, int], list[Stored]] = {}
    for block in blocks:
        if block.size < _LARGE:
            relation, newest, _ = block.key
            level = int(math.log(max(1, len(block.parts)), _MERGED))
            groups.setdefault((relation, newest // max(1, keeps[relation] // _SHARES), level), []).append(
                block
            )
    yield from (group for group in groups.values() if len(group) >= _MERGED)
