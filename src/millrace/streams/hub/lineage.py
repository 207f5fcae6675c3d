"""Lineages: for each tuple, a bit a query that may still want it.

A base tuple's lineage is what the grouped filters and the time of its arrival say. A result's is the
intersection of its components' (CACQ's completion bits). Nothing of it is stored: a cell that begins anew
reads base tuples, and knows from their micro-batches which queries they came too early for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.streams.hub.grouped import GroupedFilter
from millrace.streams.hub.registry import BITS, Admitted, Registry
from millrace.streams.task import Stream

Array = np.ndarray[Any, np.dtype[Any]]

STEM = "__lineage_"
"""What the columns are called that carry a lineage, behind it the number of the word."""


class Lineages:
    """Gives tuples of streams their lineages."""

    def __init__(self, streams: Sequence[Stream], registry: Registry) -> None:
        self._queries = registry.queries
        self._filters = {
            stream.alias: GroupedFilter(
                stream.alias,
                {
                    each.slot: each.query.of(stream.alias)
                    for each in registry.queries
                    if stream.alias in each.query.streams
                },
                registry.words,
            )
            for stream in streams
        }

    def of(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> Array:
        """Return the lineage of each tuple: ``uint64``, a row a tuple, a column a word.

        ``batch`` is the micro-batch that they came with, counted by the cell.
        """
        lineage = self._filters[stream.alias].passed(rows)
        times: Array | None = None
        for each in self._queries:
            if each.batch <= batch:
                continue
            if times is None:
                times = rows.column(stream.time).cast(pa.int64()).to_numpy()
            outside = _outside(each, times, stream.keeps)
            lineage[outside, each.word] &= np.uint64(~each.bit & (1 << BITS) - 1)
        return lineage


def _outside(query: Admitted, times: Array, keeps: int) -> Array | slice:
    """Return which tuples that had come before a query it does not see."""
    if query.query.since == "now":
        return slice(None)
    if query.watermark is None:
        return slice(0)
    return times + max(0, keeps) < query.watermark


def columns(words: int) -> list[str]:
    """Return the columns of a lineage."""
    return [f"{STEM}{word}" for word in range(words)]


def carrying(rows: pa.RecordBatch, lineage: Array) -> pa.RecordBatch:
    """Return the tuples that some query wants, with their lineages behind their columns."""
    wanted = lineage.any(axis=1)
    if not wanted.all():
        rows, lineage = rows.filter(pa.array(wanted)), lineage[wanted]
    arrays = [pa.array(np.ascontiguousarray(word)) for word in lineage.T]
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *arrays], names=[*rows.schema.names, *columns(lineage.shape[1])]
    )


def mask(queries: Sequence[Admitted], words: int) -> Array:
    """Return the lineage of what these queries want."""
    bits = np.zeros(words, np.uint64)
    for query in queries:
        bits[query.word] |= np.uint64(query.bit)
    return bits


def shared(lineages: Sequence[Sequence[Array]], wanted: Array) -> list[Array]:
    """Return the words of results' lineages, of each component's; ``wanted`` are the bits that count."""
    return [
        reduce(np.bitwise_and, (component[word] for component in lineages)) & wanted[word]
        for word in range(len(wanted))
    ]


def rows_by_slot(words: Sequence[Array]) -> Iterator[tuple[int, Array]]:
    """Yield each slot that is set in some lineage, with the rows that it is set in, in order."""
    for number, word in enumerate(words):
        if not word.any():
            continue
        bits = np.unpackbits(word.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
        slots, rows = np.nonzero(bits.T)
        first = np.flatnonzero(np.diff(slots, prepend=-1))
        for start, end in zip(first, [*first[1:], len(slots)], strict=True):
            yield number * BITS + int(slots[start]), rows[start:end]


def by_slot(queries: Sequence[Admitted]) -> Mapping[int, Admitted]:
    """Return queries by their slots."""
    return {each.slot: each for each in queries}
