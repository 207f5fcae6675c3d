"""Chunks: base tuples of one relation, in memory or as a batch of a spill file, and how large they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.engine.arrays import to_arrow
from millrace.engine.spill.folder import Stored
from millrace.engine.tuples import KeyColumn, codes
from millrace.engine.tuples.keys import first_of_equal


@dataclass(frozen=True)
class Extent:
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

    def __add__(self, other: Extent) -> Extent:
        if not self.rows or not other.rows:
            return self if self.rows else other
        return Extent(
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
        extent: Their number and size; with a ``range``, of the whole chunk that they are chosen from.
        data: The tuples, or where they are.
        window: Only these of them, from one position up to another.
        range: Only those of a range of keys.
    """

    extent: Extent
    data: pa.RecordBatch | Stored
    window: tuple[int, int] | None = None
    range: KeyRange | None = None

    def within(self, keys: KeyRange) -> Chunk:
        """Return the chunk's tuples in a range of keys; only their codes' bounds get narrower."""
        lows, highs = list(self.extent.lows), list(self.extent.highs)
        lows[keys.key] = max(lows[keys.key], keys.low)
        highs[keys.key] = min(highs[keys.key], keys.high - 1)
        return replace(self, extent=replace(self.extent, lows=tuple(lows), highs=tuple(highs)), range=keys)

    def halves(self) -> tuple[Chunk, Chunk]:
        """Return two chunks, of two rows or more, that together are this one."""
        first, last = self.window or (0, self.extent.rows)
        middle = (first + last) // 2

        def part(low: int, high: int) -> Chunk:
            share = self.extent.bytes * (high - low) // (last - first)
            return replace(
                self, extent=replace(self.extent, rows=high - low, bytes=share), window=(low, high)
            )

        return part(first, middle), part(middle, last)


def measured(batch: pa.RecordBatch, keys: Sequence[KeyColumn]) -> Extent:
    """Return the extent of tuples without null keys."""
    if not batch.num_rows:
        return Extent()
    coded = [codes(batch.column(key.name), key.type)[0] for key in keys]
    return Extent(
        batch.num_rows,
        int(batch.nbytes),
        tuple(int(c.min()) for c in coded),
        tuple(int(c.max()) for c in coded),
    )


def total(chunks: Iterable[Chunk]) -> Extent:
    """Return the extent of all chunks together."""
    found = [chunk.extent for chunk in chunks if chunk.extent.rows]
    if not found:
        return Extent()
    return Extent(
        sum(e.rows for e in found),
        sum(e.bytes for e in found),
        tuple(map(min, zip(*(e.lows for e in found), strict=True))),
        tuple(map(max, zip(*(e.highs for e in found), strict=True))),
    )


def selected(chunk: Chunk, batch: pa.RecordBatch, keys: Sequence[KeyColumn]) -> pa.RecordBatch:
    """Return the tuples of the chunk out of the batch that it was made of."""
    if chunk.window is not None:
        low, high = chunk.window
        batch = batch.slice(low, high - low)
    if chunk.range is not None:
        key = keys[chunk.range.key]
        coded = codes(batch.column(key.name), key.type)[0]
        inside = (coded >= chunk.range.low) & (coded < chunk.range.high)
        if not inside.all():
            batch = batch.filter(to_arrow(inside))
    return batch


def without_duplicates(batch: pa.RecordBatch, keys: Sequence[KeyColumn]) -> pa.RecordBatch:
    """Return the first of each group of equal tuples; all columns are keys (set semantics)."""
    if not keys:  # tuples without a column are all equal
        return batch.slice(0, 1)
    columns = [batch.column(key.name) for key in keys]
    coded = [codes(column, key.type)[0] for column, key in zip(columns, keys, strict=True)]
    first = first_of_equal(keys, coded, columns.__getitem__)
    return batch if len(first) == batch.num_rows else batch.take(to_arrow(first))
