"""Results of a block: payload columns are gathered here, and nowhere earlier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import array_of, counted, joined, to_arrow
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.tuples import BATCH_BYTES, RelationStore
from millrace.engine.tuples.batch import TupleBatch


class Sink(ABC):
    """Takes result tuples and makes the eddy's output of them.

    ``name`` is for reports; ``counted`` is the number of result tuples so far.
    """

    name: str

    def __init__(self) -> None:
        self.counted = 0

    def arrive(self, batch: TupleBatch) -> None:  # noqa: B027  # not all have something to note
        """Take note of base tuples that enter the eddy."""

    @abstractmethod
    def add(self, batch: TupleBatch) -> Iterator[Any]:
        """Take result tuples; yield output that is ready."""

    def rest(self) -> Iterator[Any]:
        """Yield output that is ready when no tuple is in flight."""
        return iter(())

    def idle(self, *, stalled: bool = False) -> Iterator[Any]:
        """Yield what there is, for the eddy is about to wait; be it nothing when all sources have stalled."""
        return iter(())

    def finish(self) -> Iterator[Any]:
        """Yield what is left."""
        return iter(())


class Mask(Sink):
    """Tells for every tuple of a single relation whether it is in the result, in order of arrival."""

    name = "Mask"

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[RelationStore, np.ndarray[Any, np.dtype[np.bool_]]] = {}

    def arrive(self, batch: TupleBatch) -> None:
        """Begin a mask for the batch, which has a store of its own; tuples of several may be on their way."""
        self._kept[batch.stores[0]] = np.zeros(batch.size, np.bool_)

    def add(self, batch: TupleBatch) -> Iterator[pa.Array]:
        self.counted += batch.size
        self._kept[batch.stores[0]][batch.rows[0]] = True
        return iter(())

    def rest(self) -> Iterator[pa.Array]:
        """Yield the masks of the batches that have arrived, boolean without nulls."""
        for kept in self._kept.values():
            yield to_arrow(kept)
        self._kept.clear()


class Output(Sink):
    """Turns result tuples into record batches of about ``batch_size`` rows, fewer where rows are wide.

    A block that is only counted gathers nothing: its result is one row with the count. Of texts and the like
    about ``most`` bytes are gathered at once.
    """

    name = "Output"

    def __init__(self, spec: JoinSpec, batch_size: int, most: int = BATCH_BYTES) -> None:
        super().__init__()
        self._spec = spec
        self._schema = spec.output_schema
        self._size, self._most = batch_size, most
        self._columns: dict[int, list[tuple[int, str]]] = {}  # by relation: places in the output, and names
        for place, o in enumerate(spec.output):
            relation = spec.visible.index(o.source.relation)
            self._columns.setdefault(relation, []).append((place, o.source.column))
        self._gathered = {relation: [name for _, name in own] for relation, own in self._columns.items()}
        self._ready: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: TupleBatch) -> Iterator[pa.RecordBatch]:
        """Take result tuples; yield a record batch when enough rows have come together."""
        self.counted += batch.size
        if self._spec.count_only or not batch.size:
            return
        for piece in batch.pieces(self._gathered, self._most):
            yield from self._add(piece)

    def _add(self, batch: TupleBatch) -> Iterator[pa.RecordBatch]:
        if self._columns:
            arrays: dict[int, pa.Array] = {}
            for relation, columns in self._columns.items():
                taken = batch.stores[relation].take(self._gathered[relation], batch.rows[relation])
                arrays.update(zip((place for place, _ in columns), taken, strict=True))
            rows = pa.RecordBatch.from_arrays([arrays[i] for i in range(len(arrays))], schema=self._schema)
        else:
            rows = counted(batch.size)
        self._ready.append(rows)
        self._rows += batch.size
        self._bytes += int(rows.nbytes)
        if self._rows >= self._size or self._bytes >= self._most:
            yield from self._flush()

    def idle(self, *, stalled: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are ready; if sources have stalled an empty batch where there are none."""
        if stalled and not self._ready:
            yield pa.RecordBatch.from_pylist([], self._schema)
        yield from self._flush()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left, and the count of a block that is only counted."""
        if self._spec.count_only:
            yield pa.RecordBatch.from_arrays([array_of([self.counted], pa.int64())], schema=self._schema)
        else:
            yield from self._flush()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        if self._ready:
            yield joined(self._ready)
            self._ready, self._rows, self._bytes = [], 0, 0
