"""Sorted runs, and the key ranges that they are merged into.

Each run is a budget's worth of one relation, sorted by the code of one attribute class and written as
batches whose bounds are remembered. A range of keys is then a few neighbouring batches of each run;
ranges are cut so that each fits, and read in the order of keys, so that every run is read from its
beginning to its end. Order among the tuples of a range does not matter to an eddy, so runs are merged by
range and not tuple by tuple.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import to_arrow
from millrace.engine.spill.chunks import Chunk, KeyRange
from millrace.engine.spill.work import Setting, Work
from millrace.engine.tuples import codes

_RUN_BYTES = 1 << 30
"""Bytes that are sorted at once, at most: texts of one Arrow array have offsets of 32 bits."""

_FIRST, _END = -(1 << 63), 1 << 63


class Runs:
    """Runs being written, one relation after the other.

    Args:
        setting: The run of the block.
        attribute: The class whose codes tuples are sorted by; relations without it are written as
            they come. None for all relations.
    """

    def __init__(self, setting: Setting, attribute: int | None) -> None:
        self._setting = setting
        self._attribute = attribute
        self._pending: list[pa.RecordBatch] = []
        self._waiting = 0
        self._current = 0
        self._chunks: dict[int, list[Chunk]] = {relation: [] for relation in setting.order}

    def add(self, relation: int, batch: pa.RecordBatch) -> None:
        """Take tuples without null keys."""
        if relation != self._current:
            self.finish()
            self._current = relation
        self._pending.append(batch)
        self._waiting += int(batch.nbytes)
        self._setting.memory.wait(int(batch.nbytes))
        # Sorting takes the tuples twice, their codes, and their new order.
        most = min(self._setting.budget.state // 4, _RUN_BYTES)
        if self._waiting + 8 * sum(b.num_rows for b in self._pending) >= most:
            self.finish()

    def finish(self) -> None:
        """Sort what waits and write it."""
        if not self._pending:
            return
        relation, setting = self._current, self._setting
        batch = pa.concat_batches(self._pending)
        taken = 2 * self._waiting + 16 * batch.num_rows  # a copy at a time, codes, and their order
        setting.memory.wait(taken - self._waiting)
        self._pending, self._waiting = [], 0
        if setting.covers(self._attribute, relation):
            order = np.argsort(self._codes(relation, batch), kind="stable")
            batch = batch.take(to_arrow(order))
            del order
        writer = setting.folder.writer(relation, batch.schema)
        pieces = -(-int(batch.nbytes) // max(1, setting.budget.buffer // 24)) or 1
        step = max(1, -(-batch.num_rows // pieces))
        for low in range(0, batch.num_rows, step):
            chunk = setting.chunk(relation, batch.slice(low, step))
            stored = writer.write(setting.read(relation, chunk))
            self._chunks[relation].append(Chunk(chunk.extent, stored))
        setting.folder.finish(writer)
        setting.memory.wait(-taken)

    def works(self) -> list[Work]:
        """Return key ranges in their order, each as large as fits, for ranges that may have results."""
        whole = Work(self._chunks)
        if self._attribute is None:
            return [whole]
        bounds: set[int] = set()
        for relation, chunks in self._chunks.items():
            if self._setting.covers(self._attribute, relation):
                key = self._key(relation)
                bounds.update(chunk.extent.lows[key] for chunk in chunks)
                bounds.update(chunk.extent.highs[key] + 1 for chunk in chunks)
        cuts = [_FIRST, *sorted(bounds), _END]
        works, at = [], 0
        while at < len(cuts) - 1:
            low, high = at + 1, len(cuts) - 1  # the largest end whose range fits, the next one if none does
            while low < high:
                middle = (low + high + 1) // 2
                if self._range(cuts[at], cuts[middle]).fits(self._setting):
                    low = middle
                else:
                    high = middle - 1
            works.append(self._range(cuts[at], cuts[low]))
            at = low
        return [work for work in works if work.possible]

    def _range(self, low: int, high: int) -> Work:
        inputs = {}
        for relation, chunks in self._chunks.items():
            if self._setting.covers(self._attribute, relation):
                key = self._key(relation)
                keys = KeyRange(key, low, high)
                inputs[relation] = [
                    chunk.within(keys)
                    for chunk in chunks
                    if chunk.extent.lows[key] < high and chunk.extent.highs[key] >= low
                ]
            else:
                inputs[relation] = chunks
        single = high - low == 1 and self._attribute is not None
        return Work(inputs, spent=frozenset([self._attribute] if single else []))  # type: ignore[list-item]

    def _keys(self, relation: int) -> Any:
        return self._setting.layouts[relation].keys

    def _key(self, relation: int) -> int:
        assert self._attribute is not None
        return self._setting.layouts[relation].of_class[self._attribute]

    def _codes(self, relation: int, batch: pa.RecordBatch) -> Any:
        key = self._keys(relation)[self._key(relation)]
        return codes(batch.column(key.name), key.type)[0]
