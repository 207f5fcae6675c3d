"""A cell of a stream LEFT JOIN a stream: tuples of the first are in the result, with a match or with nulls.

A tuple has no match when none has come until the watermark is so far that none in time may come any more.
Then it is given out with nulls: once, for the watermark of the latest micro-batch says which of them are out.

Which tuples have had a match is no state of its own. The log keeps tuples of the other stream for as long as
a tuple that they have matched may wait, so a cell that begins anew finds the matches again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.plan.expressions import ColumnRef
from millrace.engine.plan.spec import JoinSpec, OutputColumn
from millrace.streams.arrivals import Arrived
from millrace.streams.block_log import Head, Log
from millrace.streams.cell import Cell
from millrace.streams.task import ContinuousJoin, Stream

Array = np.ndarray[Any, np.dtype[Any]]

ROW = "\0row"
"""Column of the preserved stream's tuples in memory: their number in the cell, in order of arrival."""


_PIECES = 64
"""Tuples wait in so many pieces at most; then these become one, without those that have a match."""

_NEVER = (1 << 63) - 1


@dataclass(eq=False)
class _Waiting:
    """Tuples that came about the same time.

    Attributes:
        numbers: Of each, rising.
        rows: What results have of them.
        due: For each the watermark, microseconds, at which it is given out unless it has a match.
        matched: For each whether it has one.
    """

    numbers: Array
    rows: pa.RecordBatch
    due: Array
    matched: Array

    def find_unmatched(self, after: int, until: int) -> Array:
        """Return which have no match, and are due after one watermark until another."""
        is_due: Array = (self.due > after) & (self.due <= until) & ~self.matched
        return is_due


class PreservingCell(Cell):
    """The state of a cell after some micro-batch; ``lessons`` are of earlier eddies of the cell."""

    def __init__(self, task: ContinuousJoin, lessons: str | None = None) -> None:
        assert task.preserved is not None
        self._alias = task.preserved
        super().__init__(task, run=replace(task, join=_numbered(task)).run(lessons))
        refs = [column.source for column in task.join.output]
        own = [ref.column for ref in refs if ref.relation == self._alias]
        time = next(stream.time for stream in task.streams if stream.alias == self._alias)
        self._kept = list(dict.fromkeys([time, *own]))  # a batch without a column has no number of rows
        self._waiting: list[_Waiting] = []
        self._count = 0
        self._out = -1 << 63  # tuples due until this watermark are out

    @property
    def nbytes(self) -> int:
        waiting = sum(w.rows.nbytes + w.due.nbytes + w.matched.nbytes for w in self._waiting)
        return super().nbytes + int(waiting)

    def catch_up(self, log: Log, head: Head) -> None:
        super().catch_up(log, head)
        if head.watermark is not None:
            self._out = head.watermark

    def _restore(self, arrived: Iterable[tuple[str, pa.RecordBatch]]) -> list[int]:
        """Join them again, for the matches; the results are out already."""
        ends = []
        for alias, rows in arrived:
            for results in self.run.extend({alias: rows} if rows.num_rows else {}):
                self._mark(results)
            ends.append(self.run.rows(alias))
        return ends

    def _carried(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> pa.RecordBatch:
        rows = self._task.complete(stream, rows)
        if stream.alias != self._alias:
            return rows
        numbers = np.arange(self._count, self._count + rows.num_rows)
        self._count += rows.num_rows
        due = rows.column(stream.time).cast(pa.int64()).to_numpy() + stream.keeps + 1
        matched = np.zeros(rows.num_rows, np.bool_)
        self._waiting.append(_Waiting(numbers, rows.select(self._kept), due, matched))
        return rows.append_column(ROW, pa.array(numbers))

    def extend(self, arrived: Mapping[int, Arrived]) -> Iterator[pa.RecordBatch]:
        return map(self._mark, super().extend(arrived))

    def _mark(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Note which tuples have a match now; return the results without their numbers."""
        *columns, numbers = results.columns
        rows = np.unique(numbers.to_numpy())
        for waiting in self._waiting:
            start, end = np.searchsorted(rows, (waiting.numbers[0], waiting.numbers[-1] + 1))
            if start < end:
                waiting.matched |= np.isin(waiting.numbers, rows[start:end], assume_unique=True)
        return pa.RecordBatch.from_arrays(columns, schema=self._task.join.output_schema)

    def give_up(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """Yield tuples, widened by nulls, that have found no match and now find none any more."""
        if len(self._waiting) > _PIECES:
            self._waiting = [*self._put_together()]
        if watermark is None:
            return
        for waiting in self._waiting:
            alone = waiting.find_unmatched(self._out, watermark)
            if alone.any():
                yield self._widened(waiting.rows, alone)
        self._waiting = [w for w in self._waiting if int(w.due.max()) > watermark]
        self._out = watermark

    def _put_together(self) -> Iterator[_Waiting]:
        """Yield all that still wait as one piece; nothing if none do."""
        left = [(w, w.find_unmatched(self._out, _NEVER)) for w in self._waiting]
        numbers, due = (
            np.concatenate([getattr(w, name)[mask] for w, mask in left]) for name in ("numbers", "due")
        )
        if len(numbers):
            rows = pa.concat_batches([w.rows.filter(pa.array(mask)) for w, mask in left])
            yield _Waiting(numbers, rows, due, np.zeros(len(numbers), np.bool_))

    def _widened(self, rows: pa.RecordBatch, alone: Array) -> pa.RecordBatch:
        """Return some of these tuples, with nulls for the other stream."""
        schema, mask, size = self._task.join.output_schema, pa.array(alone), int(np.count_nonzero(alone))
        columns = [
            rows.column(column.source.column).filter(mask)
            if column.source.relation == self._alias
            else pa.nulls(size, field.type)
            for column, field in zip(self._task.join.output, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    @property
    def due(self) -> int | None:
        """Watermark at which the next tuples are given out or expire, microseconds; None without any."""
        alone = ((w.due, w.find_unmatched(self._out, _NEVER)) for w in self._waiting)
        dues = [int(due[is_left].min()) for due, is_left in alone if is_left.any()]
        expires = super().due
        return min([*dues, *([] if expires is None else [expires])], default=None)


def _numbered(task: ContinuousJoin) -> JoinSpec:
    """Return the join with the numbers of the preserved stream's tuples as the last column of results."""
    join = task.join
    field = pa.field(ROW, pa.int64())
    relations = tuple(
        replace(r, schema=r.schema.append(field)) if r.alias == task.preserved else r for r in join.relations
    )
    output = (*join.output, OutputColumn(ROW, ColumnRef(task.preserved or "", ROW)))
    return replace(join, relations=relations, output=output)
