"""What is joined: chunks of base tuples, in memory or in spill files, and partitions of all relations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from millrace.engine.arrays import Array, sliced, to_arrow
from millrace.engine.spill.folder import SpillFile, Stored
from millrace.engine.tuples import KeyColumn, codes
from millrace.engine.tuples.keys import first_of_equal


@dataclass(frozen=True)
class ChunkStats:
    """How much of a relation there is.

    Attributes:
        rows: Number of tuples.
        bytes: Their Arrow buffers.
        lows: The smallest code of each key, in the order of the relation's keys; empty without a row.
        highs: The largest code of each key.
    """

    rows: int = 0
    bytes: int = 0
    lows: tuple[int, ...] = ()
    highs: tuple[int, ...] = ()

    def __add__(self, other: ChunkStats) -> ChunkStats:
        if not (self.rows and other.rows):
            return self if self.rows else other
        return ChunkStats(
            self.rows + other.rows,
            self.bytes + other.bytes,
            tuple(map(min, self.lows, other.lows)),
            tuple(map(max, self.highs, other.highs)),
        )


@dataclass(frozen=True)
class KeyRange:
    """Tuples whose code of key number ``key`` is at least ``low`` and below ``high``."""

    key: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Chunk:
    """Tuples of one relation, none of which has a null key.

    Attributes:
        stats: Their number and size; with a ``range``, of the whole chunk that they are chosen from.
        data: The tuples, or where they are.
        window: Only these of them, from one position up to another.
        range: Only those of a range of keys.
    """

    stats: ChunkStats
    data: pa.RecordBatch | Stored
    window: tuple[int, int] | None = None
    range: KeyRange | None = None

    def stored(self, file: SpillFile) -> Chunk:
        """Write a chunk in memory to a file."""
        return replace(self, data=file.write(self.data))

    def within(self, keys: KeyRange) -> Chunk:
        """Return the chunk's tuples in a range of keys; only their codes' bounds get narrower."""
        lows, highs = list(self.stats.lows), list(self.stats.highs)
        lows[keys.key] = max(lows[keys.key], keys.low)
        highs[keys.key] = min(highs[keys.key], keys.high - 1)
        return replace(self, stats=replace(self.stats, lows=tuple(lows), highs=tuple(highs)), range=keys)

    def pieces(self, rows: int) -> Iterator[Chunk]:
        """Yield chunks of at most so many rows, at least one each, that together are this one."""
        if self.stats.rows <= max(1, rows):
            yield self
            return
        first, last = self.window or (0, self.stats.rows)
        middle = (first + last) // 2
        for low, high in ((first, middle), (middle, last)):
            size = self.stats.bytes * (high - low) // (last - first)
            stats = replace(self.stats, rows=high - low, bytes=size)
            yield from replace(self, stats=stats, window=(low, high)).pieces(rows)

    def selected(self, batch: pa.RecordBatch, keys: Sequence[KeyColumn]) -> pa.RecordBatch:
        """Return the tuples of the chunk out of the batch that it was made of."""
        if self.window is not None:
            low, high = self.window
            batch = batch.slice(low, high - low)
        if self.range is not None:
            coded = codes_of(batch, keys[self.range.key])
            inside = (coded >= self.range.low) & (coded < self.range.high)
            if not inside.all():
                batch = batch.filter(to_arrow(inside))
        return batch


def total(chunks: Iterable[Chunk]) -> ChunkStats:
    """Return the stats of all chunks together."""
    return sum((chunk.stats for chunk in chunks), ChunkStats())


@dataclass(frozen=True, eq=False)
class Partition:
    """Tuples of every relation to be joined with each other, and with nothing else.

    Attributes:
        inputs: The tuples of each relation, by its number.
        level: How often they were divided: each level hashes keys in another way.
        spent: Attribute classes that do not divide the tuples any further.
        scale: How many times the expected state has to fit, since a larger one needed more than expected.
        intermediate: Whether intermediate tuples may be stored. Without, they are made again when needed.
    """

    inputs: Mapping[int, list[Chunk]]
    level: int = 0
    spent: frozenset[int] = field(default_factory=frozenset)
    scale: float = 1.0
    intermediate: bool = True

    @cached_property
    def stats(self) -> dict[int, ChunkStats]:
        return {relation: total(chunks) for relation, chunks in self.inputs.items()}

    @property
    def has_all(self) -> bool:
        """Whether there can be a result: every relation has a tuple."""
        return all(stats.rows for stats in self.stats.values())


def codes_of(batch: pa.RecordBatch, key: KeyColumn) -> Array:
    """Return the codes of a key, which is never null."""
    return codes(batch.column(key.name), key.type)[0]


def without_duplicates(batch: pa.RecordBatch, keys: Sequence[KeyColumn]) -> pa.RecordBatch:
    """Return the first of each group of equal tuples; all columns are keys (set semantics)."""
    if not keys:  # tuples without a column are all equal
        return batch.slice(0, 1)
    columns = [batch.column(key.name) for key in keys]
    first = first_of_equal(keys, [codes_of(batch, key) for key in keys], columns.__getitem__)
    return batch if len(first) == batch.num_rows else batch.take(to_arrow(first))


def sized(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices of about so many bytes; nothing without a row."""
    parts = -(-int(batch.nbytes) // max(1, size)) or 1
    return sliced(batch, max(1, -(-batch.num_rows // parts)))
