"""Results of a block: payload columns are gathered here, and nowhere earlier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from millrace.spec import JoinSpec
from millrace.tuples import TupleBatch


class Sink(Protocol):
    """Takes result tuples and makes the eddy's output of them.

    Attributes:
        counted: Result tuples so far.
    """

    counted: int

    def arrive(self, rows: int) -> None:
        """Take note that a batch of so many base tuples enters the eddy."""

    def add(self, batch: TupleBatch) -> Iterator[Any]:
        """Take result tuples; yield output that is ready."""

    def rest(self) -> Iterator[Any]:
        """Yield output that is ready when no tuple is in flight."""

    def idle(self) -> Iterator[Any]:
        """Yield what there is: nothing has arrived, and the eddy is about to wait."""

    def pause(self) -> Iterator[Any]:
        """Yield what there is, be it nothing: every source that has not ended has stalled."""

    def finish(self) -> Iterator[Any]:
        """Yield what is left."""


class Mask:
    """Tells for every tuple of a single relation whether it is in the result, in order of arrival."""

    name = "Mask"

    def __init__(self) -> None:
        self.counted = 0
        self._kept: list[np.ndarray[Any, np.dtype[np.bool_]]] = []

    def arrive(self, rows: int) -> None:
        """Begin a mask for the batch; all its tuples are done before the next batch comes."""
        self._kept.append(np.zeros(rows, np.bool_))

    def add(self, batch: TupleBatch) -> Iterator[pa.Array]:
        """Mark result tuples."""
        self.counted += batch.size
        self._kept[-1][batch.rows[0]] = True
        return iter(())

    def rest(self) -> Iterator[pa.Array]:
        """Yield the masks of the batches that have arrived, boolean without nulls."""
        for kept in self._kept:
            yield pa.array(kept)
        self._kept.clear()

    def idle(self) -> Iterator[pa.Array]:
        """Nothing: masks do not wait for each other."""
        return iter(())

    def pause(self) -> Iterator[pa.Array]:
        """Nothing: masks do not wait for each other."""
        return iter(())

    def finish(self) -> Iterator[pa.Array]:
        """Nothing is left."""
        return iter(())


class Output:
    """Turns result tuples into record batches of about ``batch_size`` rows.

    A block that is only counted gathers nothing: its result is one row with the count.
    """

    name = "Output"

    def __init__(self, spec: JoinSpec, batch_size: int) -> None:
        self._spec = spec
        self._schema = spec.output_schema
        self._size = batch_size
        self._columns = [(spec.aliases.index(o.source.relation), o.source.column) for o in spec.output]
        self._ready: list[pa.RecordBatch] = []
        self._rows = 0
        self.counted = 0

    def arrive(self, rows: int) -> None:
        """Nothing to note."""

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Nothing: rows are gathered over several arrivals."""
        return iter(())

    def add(self, batch: TupleBatch) -> Iterator[pa.RecordBatch]:
        """Take result tuples; yield a record batch when enough rows have come together."""
        self.counted += batch.size
        if self._spec.count_only or not batch.size:
            return
        if self._columns:
            arrays = [batch.stores[r].gather(column, batch.rows[r]) for r, column in self._columns]
            rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        else:  # Arrow takes the number of rows from a column that is then left out
            rows = pa.record_batch([pa.nulls(batch.size)], ["none"]).select([])
        self._ready.append(rows)
        self._rows += batch.size
        if self._rows >= self._size:
            yield from self._flush()

    def idle(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are ready."""
        return self._flush() if self._ready else iter(())

    def pause(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are ready, or an empty batch."""
        if self._ready:
            yield from self._flush()
        else:
            yield pa.RecordBatch.from_pylist([], self._schema)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left, and the count of a block that is only counted."""
        if self._spec.count_only:
            yield pa.RecordBatch.from_arrays([pa.array([self.counted], pa.int64())], schema=self._schema)
        else:
            yield from self._flush()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        if self._ready:
            yield self._ready[0] if len(self._ready) == 1 else pa.concat_batches(self._ready)
            self._ready, self._rows = [], 0
