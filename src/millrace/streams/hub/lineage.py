"""Lineages of a hub's tuples, as :mod:`millrace.engine.lineage` has them.

A base tuple's lineage is what the grouped filters and the time of its arrival say. Nothing of it is stored: a
cell that begins anew reads base tuples, and knows from their micro-batches which queries they came too early
for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pyarrow as pa

from millrace.engine.lineage import BITS, STEM, Array, GroupedFilter, word_bits
from millrace.streams.hub.query import Admitted, Registry
from millrace.streams.task import Stream


class Lineages:
    """Gives tuples of streams their lineages."""

    def __init__(self, streams: Sequence[Stream], registry: Registry) -> None:
        self._queries = registry.queries
        self._filters = {
            alias: GroupedFilter(
                alias, {each.slot: each.query.of(alias) for each in registry.queries}, registry.words
            )
            for alias in (stream.alias for stream in streams)
        }

    def of(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> Array:
        """Return the lineage of each tuple: ``uint64``, a row a tuple, a column a word.

        ``batch`` is the micro-batch that they came with, counted by the cell.
        """
        lineage = self._filters[stream.alias].evaluate(rows)
        times: Array | None = None
        for each in self._queries:
            if each.batch <= batch:
                continue
            if times is None:
                times = rows.column(stream.time).cast(pa.int64()).to_numpy()
            outside = _outside(each, times, stream.keeps)
            lineage[outside, each.slot // BITS] &= ~np.uint64(1 << each.slot % BITS)
        return lineage


def _outside(query: Admitted, times: Array, keeps: int) -> Array | slice:
    """Return which tuples that had come before a query it does not see."""
    if query.query.since == "now":
        return slice(None)
    if query.watermark is None:
        return slice(0)
    return times + max(0, keeps) < query.watermark


def select(rows: pa.RecordBatch, queries: Sequence[Admitted]) -> pa.RecordBatch:
    """Return the tuples, which carry their lineages, that some of these queries want."""
    names = [name for name in rows.schema.names if name.startswith(STEM)]
    bits = word_bits((query.slot for query in queries), len(names))
    words = (rows.column(name).to_numpy() & bit for name, bit in zip(names, bits, strict=True))
    return rows.filter(pa.array(reduce(np.bitwise_or, words) != 0))
