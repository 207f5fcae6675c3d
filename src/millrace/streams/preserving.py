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
        super().__init__(task, run=replace(task, join=_number_rows(task)).run(lessons))
        sources = (column.source for column in task.join.output)
        self._kept = [ROW, *dict.fromkeys(ref.column for ref in sources if ref.relation == self._alias)]
        self._came = 0
        # Tuples without a match before this micro-batch, as they came: what results have of them, their
        # numbers, the watermark, microseconds, that gives them out, and whether they still have no match.
        self._waiting: list[pa.RecordBatch] = []
        self._numbers, self._due = np.empty(0, np.int64), np.empty(0, np.int64)
        self._is_alone = np.empty(0, np.bool_)

    @property
    def nbytes(self) -> int:
        waiting = (*self._waiting, self._numbers, self._due, self._is_alone)
        return super().nbytes + sum(int(each.nbytes) for each in waiting)

    def catch_up(self, log: Log, head: Head) -> None:
        super().catch_up(log, head)
        for _ in self.give_up(head.watermark):
            pass  # it is out already

    def _restore(self, arrived: Iterable[tuple[str, pa.RecordBatch]]) -> list[int]:
        """Join them again, for the matches; the results are out already."""
        ends = []
        for alias, rows in arrived:
            for results in self.run.extend({alias: rows} if rows.num_rows else {}):
                self._mark(results)
            ends.append(self.run.rows(alias))
        return ends

    def _carry(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> pa.RecordBatch:
        rows = self._task.complete(stream, rows)
        if stream.alias != self._alias:
            return rows
        numbers = np.arange(self._came, self._came + rows.num_rows)
        times = rows.column(stream.time).cast(pa.int64()).to_numpy()
        self._came += rows.num_rows
        rows = rows.append_column(ROW, pa.array(numbers))
        self._waiting.append(rows.select(self._kept))
        self._numbers = np.append(self._numbers, numbers)
        stays = stream.expires(0)
        self._due = np.append(self._due, np.minimum(times, _NEVER - stays) + stays)
        self._is_alone = np.append(self._is_alone, np.ones(rows.num_rows, np.bool_))
        return rows

    def extend(self, arrived: Mapping[int, Arrived]) -> Iterator[pa.RecordBatch]:
        return map(self._mark, super().extend(arrived))

    def _mark(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Note which tuples have a match now; return the results without their numbers."""
        *columns, numbers = results.columns
        found = numbers.to_numpy()
        places = np.searchsorted(self._numbers, found)
        places, found = places[places < len(self._numbers)], found[places < len(self._numbers)]
        self._is_alone[places[self._numbers[places] == found]] = False
        return pa.RecordBatch.from_arrays(columns, schema=self._task.join.output_schema)

    def give_up(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Yield tuples, widened by nulls, that have found no match and now find none any more."""
        is_due = self._due <= watermark
        gone, stay = self._is_alone & is_due, self._is_alone & ~is_due
        waiting, self._waiting, end = self._waiting, [], 0
        for rows in waiting:
            start, end = end, end + rows.num_rows
            if gone[start:end].any():
                yield self._widen(rows.filter(pa.array(gone[start:end])))
            if stay[start:end].any():
                whole = stay[start:end].all()
                self._waiting.append(rows if whole else rows.filter(pa.array(stay[start:end])))
        self._numbers, self._due, self._is_alone = self._numbers[stay], self._due[stay], self._is_alone[stay]

    def _widen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return tuples with nulls for the other stream."""
        schema = self._task.join.output_schema
        columns = [
            rows.column(column.source.column)
            if column.source.relation == self._alias
            else pa.nulls(rows.num_rows, field.type)
            for column, field in zip(self._task.join.output, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    @property
    def due(self) -> int | None:
        """Watermark at which the next tuples are given out or expire, microseconds; None without any."""
        dues = (super().due, int(self._due.min()) if len(self._due) else None)
        return min((due for due in dues if due is not None), default=None)


def _number_rows(task: ContinuousJoin) -> JoinSpec:
    """Return the join with the numbers of the preserved stream's tuples as the last column of results."""
    join = task.join
    field = pa.field(ROW, pa.int64())
    relations = tuple(
        replace(r, schema=r.schema.append(field)) if r.alias == task.preserved else r for r in join.relations
    )
    output = (*join.output, OutputColumn(ROW, ColumnRef(task.preserved or "", ROW)))
    return replace(join, relations=relations, output=output)
