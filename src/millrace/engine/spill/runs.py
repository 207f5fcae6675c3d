"""Sorted runs, and the key ranges that they are merged into.

Each run is a budget's worth of one relation, sorted by the code of one attribute class and written as
batches whose bounds are remembered. A range of keys is then a few neighbouring batches of each run;
ranges are cut so that each fits, and read in the order of keys, so that every run is read from its
beginning to its end. Order among the tuples of a range does not matter to an eddy, so runs are merged by
range and not tuple by tuple.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import to_arrow
from millrace.engine.spill.chunks import Chunk, KeyRange, Partition, codes_of, sized
from millrace.engine.spill.context import SpillContext

_RUN_BYTES = 1 << 30
"""Bytes that are sorted at once, at most: texts of one Arrow array have offsets of 32 bits."""

_FIRST, _END = -(1 << 63), 1 << 63


class Runs:
    """Runs being written, one relation after the other.

    Args:
        context: Of the run of the block.
        attribute: The class whose codes tuples are sorted by; relations without it are written as
            they come. None for all relations.
    """

    def __init__(self, context: SpillContext, attribute: int | None) -> None:
        self._context = context
        self._attribute = attribute
        self._pending: list[pa.RecordBatch] = []
        self._waiting = 0
        self._current = 0
        self._chunks: dict[int, list[Chunk]] = {relation: [] for relation in context.order}

    def add(self, relation: int, batch: pa.RecordBatch) -> None:
        """Take tuples without null keys."""
        if relation != self._current:
            self.finish()
            self._current = relation
        self._pending.append(batch)
        self._waiting += int(batch.nbytes)
        self._context.budget.wait(int(batch.nbytes))
        # Sorting takes the tuples twice, their codes, and their new order.
        most = min(self._context.budget.state // 4, _RUN_BYTES)
        if self._waiting + 8 * sum(b.num_rows for b in self._pending) >= most:
            self.finish()

    def finish(self) -> None:
        """Sort what waits and write it."""
        if not self._pending:
            return
        relation, context = self._current, self._context
        batch = pa.concat_batches(self._pending)
        taken = 2 * self._waiting + 16 * batch.num_rows  # a copy at a time, codes, and their order
        context.budget.wait(taken - self._waiting)
        self._pending, self._waiting = [], 0
        if context.covers(self._attribute, relation):
            order = np.argsort(codes_of(batch, context.key(self._attribute, relation)), kind="stable")
            batch = batch.take(to_arrow(order))
            del order
        file = context.new_file(relation)
        for piece in sized(batch, context.budget.buffer // 24):
            self._chunks[relation].append(context.chunk(relation, piece).stored(file))
        file.finish()
        context.budget.wait(-taken)

    def partitions(self) -> list[Partition]:
        """Return key ranges in their order, each as large as fits, for ranges that may have results."""
        context, attribute = self._context, self._attribute
        if attribute is None:
            return [Partition(self._chunks)]
        bounds: set[int] = set()
        for relation, chunks in self._chunks.items():
            if context.covers(attribute, relation):
                key = context.layouts[relation].of_class[attribute]
                bounds.update(chunk.stats.lows[key] for chunk in chunks)
                bounds.update(chunk.stats.highs[key] + 1 for chunk in chunks)
        cuts = [_FIRST, *sorted(bounds), _END]
        partitions, at = [], 0
        while at < len(cuts) - 1:
            low, high = at + 1, len(cuts) - 1  # the largest end whose range fits, the next one if none does
            while low < high:
                middle = (low + high + 1) // 2
                if context.fits(self._range(attribute, cuts[at], cuts[middle])):
                    low = middle
                else:
                    high = middle - 1
            partitions.append(self._range(attribute, cuts[at], cuts[low]))
            at = low
        return [partition for partition in partitions if partition.has_all]

    def _range(self, attribute: int, low: int, high: int) -> Partition:
        inputs = {}
        for relation, chunks in self._chunks.items():
            inputs[relation] = chunks
            if self._context.covers(attribute, relation):
                key = self._context.layouts[relation].of_class[attribute]
                inputs[relation] = [
                    chunk.within(KeyRange(key, low, high))
                    for chunk in chunks
                    if chunk.stats.lows[key] < high and chunk.stats.highs[key] >= low
                ]
        return Partition(inputs, spent=frozenset([attribute] if high - low == 1 else []))
