"""A cell of a stream LEFT JOIN a stream: tuples of the first are in the result, with a match or with nulls.

A tuple has no match when none has come until the watermark is so far that none in time may come any more.
Then it is given out with nulls: once, for the watermark of the latest micro-batch says which of them are out.

Which tuples have had a match is no state of its own. The log keeps tuples of the other stream for as long as
a tuple that they have matched may wait, so a cell that begins anew finds the matches again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array
from millrace.engine.plan.expressions import ColumnRef
from millrace.engine.plan.spec import JoinSpec, OutputColumn
from millrace.streams.arrivals import Arrived
from millrace.streams.block_log import Head, Log
from millrace.streams.cell import Cell
from millrace.streams.task import ContinuousJoin, Stream

ROW = "\0row"
"""Column of the preserved stream's tuples in memory: their number in the cell, in order of arrival."""

_NEVER = (1 << 63) - 1


class PreservingCell(Cell):
    """The state of a cell after some micro-batch; ``lessons`` are of earlier eddies of the cell."""

    def __init__(self, task: ContinuousJoin, lessons: str | None = None) -> None:
        assert task.preserved is not None
        self._alias = task.preserved
        super().__init__(task, run=replace(task, join=_numbered(task)).run(lessons))
        sources = (column.source for column in task.join.output)
        self._kept = [ROW, *dict.fromkeys(ref.column for ref in sources if ref.relation == self._alias)]
        self._rows: list[pa.RecordBatch] = []  # what results have of tuples that may wait, as they came
        self._first = 0  # the number of the first of these
        # The watermark, microseconds, at which each is given out unless it has a match; and whether it has.
        self._due, self._matched = np.empty(0, np.int64), np.empty(0, np.bool_)
        self._out = -1 << 63  # tuples due until this watermark are out

    @property
    def nbytes(self) -> int:
        waiting = sum(rows.nbytes for rows in self._rows) + self._due.nbytes + self._matched.nbytes
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
        first = self._first + len(self._due)
        rows = rows.append_column(ROW, pa.array(np.arange(first, first + rows.num_rows)))
        due = rows.column(stream.time).cast(pa.int64()).to_numpy() + stream.keeps + 1
        self._rows.append(rows.select(self._kept))
        self._due = np.append(self._due, due)
        self._matched = np.append(self._matched, np.zeros(rows.num_rows, np.bool_))
        return rows

    def extend(self, arrived: Mapping[int, Arrived]) -> Iterator[pa.RecordBatch]:
        return map(self._mark, super().extend(arrived))

    def _mark(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Note which tuples have a match now; return the results without their numbers."""
        *columns, numbers = results.columns
        places = numbers.to_numpy() - self._first
        self._matched[places[places >= 0]] = True
        return pa.RecordBatch.from_arrays(columns, schema=self._task.join.output_schema)

    def _find_unmatched(self, until: int) -> Array:
        """Return which tuples have no match, are not out, and are due until a watermark."""
        is_due: Array = (self._due > self._out) & (self._due <= until) & ~self._matched
        return is_due

    def give_up(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """Yield tuples, widened by nulls, that have found no match and now find none any more."""
        if watermark is None:
            return
        alone, end = self._find_unmatched(watermark), 0
        for rows in self._rows:
            start, end = end, end + rows.num_rows
            if alone[start:end].any():
                yield self._widened(rows, alone[start:end])
        self._out = watermark
        while self._rows and (self._due[: self._rows[0].num_rows] <= watermark).all():
            count = self._rows.pop(0).num_rows
            self._due, self._matched = self._due[count:], self._matched[count:]
            self._first += count

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
        waiting, expires = self._due[self._find_unmatched(_NEVER)], super().due
        dues = [int(waiting.min())] if len(waiting) else []
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
