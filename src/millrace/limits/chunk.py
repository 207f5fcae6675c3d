"""Keys, their rows on the way between tasks, and what a task hears of the keys that it wants.

A key is the digest of a call's arguments: equal arguments have equal keys, in every process.

Rows of several keys travel and are kept together, as one Arrow IPC stream: what is done once a chunk
would cost too much once a key. They are cut only where somebody wants a part of them.
"""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from millrace.errors import encodable

_FEW_RANGES = 8

KEY_BYTES = 16

LONGEST_TEXT = 4_000
"""Characters of a failure's text that are told."""

# Their repr tells value and type exactly. An object's own repr might not: it may name a memory
# address, which means something else in each process, or leave out the middle of an array.
_EXACT = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        str,
        bytes,
        bytearray,
        decimal.Decimal,
        dt.date,
        dt.datetime,
        dt.time,
        dt.timedelta,
    }
)


def digest(arguments: Sequence[Any]) -> bytes:
    """Return a key of ``KEY_BYTES`` bytes for the arguments of one call.

    Values that are equal but of different types (1, 1.0, True) have different keys: a function can
    tell them apart.
    """
    return blake2b(_text(arguments).encode(), digest_size=KEY_BYTES).digest()


def _text(value: Any) -> str:
    kind = type(value)
    if kind in _EXACT:
        return repr(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{_text(key)}:{_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, tuple | list):
        fields = getattr(value, "__fields__", ())  # of a struct, as Spark makes them
        return f"{kind.__name__}{fields!r}[{','.join(map(_text, value))}]"
    return f"{kind.__name__}<{pickle.dumps(value, protocol=5).hex()}>"


class _Failure(NamedTuple):
    kind: str
    message: str
    attempts: int
    binding: str = ""


class Failure(_Failure):
    """What came of a key that could not be looked up; its texts can be stored, whatever they were made of.

    Attributes:
        kind: What went wrong, in a word or two ("HTTP 503", "TimeoutError").
        message: The reason, without secrets.
        attempts: How often it was asked.
        binding: The key's values as JSON text, for people.
    """

    __slots__ = ()

    def __new__(cls, kind: str, message: str, attempts: int, binding: str = "") -> Self:
        return super().__new__(cls, encodable(kind), encodable(message), attempts, encodable(binding))


@dataclass(frozen=True)
class Chunk:
    """The rows of some keys.

    Attributes:
        keys: Digests of ``KEY_BYTES`` bytes, distinct.
        counts: Number of rows of each key; zero for one that has none.
        rows: An Arrow IPC stream with the rows in the keys' order.
    """

    keys: list[bytes]
    counts: list[int]
    rows: bytes = field(repr=False)

    @classmethod
    def of(cls, keys: list[bytes], counts: list[int], rows: pa.RecordBatch | pa.Table) -> Chunk:
        """Return the chunk with these rows.

        Raises:
            ValueError: The counts do not fit the keys, or the rows.
        """
        if len(keys) != len(counts) or sum(counts) != rows.num_rows:
            raise ValueError(
                f"{len(keys)} keys, {len(counts)} counts of {sum(counts)} rows, but {rows.num_rows} rows"
            )
        return cls(keys, counts, encoded(rows))

    def table(self) -> pa.Table:
        """Return the rows; shares memory with the chunk."""
        return decoded(self.rows)

    def only(self, keys: Collection[bytes]) -> Chunk:
        """Return the part with these of its keys."""
        places = zip(self.keys, accumulate(self.counts, initial=0), self.counts, strict=False)
        chosen = [place for place in places if place[0] in keys]
        counts = [count for _, _, count in chosen]
        rows = cut(self.rows, [first for _, first, _ in chosen], counts)
        return Chunk.of([key for key, _, _ in chosen], counts, rows)

    def parts(self, most: int) -> Iterator[Chunk]:
        """Yield the chunk in pieces of whole keys, of about ``most`` bytes of rows at most."""
        if not self.keys:
            return
        if len(self.rows) <= most or len(self.keys) == 1:
            yield self
            return
        half = len(self.keys) // 2
        table, split = self.table(), sum(self.counts[:half])
        for keys, counts, rows in (
            (self.keys[:half], self.counts[:half], table.slice(0, split)),
            (self.keys[half:], self.counts[half:], table.slice(split)),
        ):
            yield from Chunk.of(keys, counts, rows).parts(most)


@dataclass
class Claimed:
    """What a task that wants some keys has to do.

    Attributes:
        ask: Keys to look up here, and to settle, to fail or to give up.
        found: Rows that are known already; together they have each of their keys once.
        failed: Keys that another task, or an earlier attempt, could not look up.
        waiting: Keys that another task looks up now; news will say what comes of it.
    """

    ask: list[bytes] = field(default_factory=list)
    found: list[Chunk] = field(default_factory=list)
    failed: dict[bytes, Failure] = field(default_factory=dict)
    waiting: list[bytes] = field(default_factory=list)

    def left(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of the keys that were wanted of which nothing is said."""
        said = {*self.ask, *self.failed, *self.waiting, *(key for chunk in self.found for key in chunk.keys)}
        return [key for key in keys if key not in said]


def encoded(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Return rows as an Arrow IPC stream."""
    if isinstance(rows, pa.Table):
        rows = rows.combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def decoded(payload: bytes) -> pa.Table:
    """Return the rows of an Arrow IPC stream, without copying them."""
    with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
        return reader.read_all()


def cut(rows: bytes, firsts: Sequence[int], counts: Sequence[int]) -> pa.Table:
    """Return some ranges of an IPC stream's rows."""
    table = decoded(rows)
    if len(firsts) <= _FEW_RANGES:
        return pa.concat_tables(
            [table.slice(*each) for each in zip(firsts, counts, strict=True)] or [table[:0]]
        )
    lengths = np.asarray(counts, np.int64)
    ends = np.cumsum(lengths)
    starts = np.asarray(firsts, np.int64) - (ends - lengths)
    return table.take(pa.array(np.repeat(starts, lengths) + np.arange(ends[-1])))
