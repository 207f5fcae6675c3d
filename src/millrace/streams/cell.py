"""The state of a cell in memory: an eddy with everything that the cell's log says.

A worker process keeps its cells between micro-batches. Spark gives a task to any process that is free, so
this is a hope and no promise: a cell found here may be some micro-batches behind, and then catches up from
the log; one that came of an attempt which failed is of no use.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from millrace.reports.micro_batch import Orders, StreamFigures
from millrace.spark.worker import look_again
from millrace.streams.arrivals import Arrived
from millrace.streams.block_log import Head, Log, Part, Stored, mergeable
from millrace.streams.task import ContinuousJoin, Stream

if TYPE_CHECKING:
    from millrace.engine.eddy.continuous import ContinuousRun
    from millrace.engine.figures import CellFigures

_MOST_ROWS = 1 << 30
"""Rows have 32-bit numbers that count up for as long as an eddy lives."""

_STUCK = 1 << 12
"""Fewer expired tuples than this are left in memory, wherever they lie."""


class Cell:
    """A cell's state after some micro-batch, and the eddy that makes results of the next one.

    Args:
        lessons: What earlier eddies of the cell have learned.
        run: The eddy, where it is one of another join: of the same streams, with further columns.

    Attributes:
        token: Names the attempt at a micro-batch that this is the state after.
        batch: Number of that micro-batch.
        restored: Tuples that were read from the log so far.
    """

    def __init__(
        self, task: ContinuousJoin, lessons: str | None = None, run: ContinuousRun | None = None
    ) -> None:
        self.token = ""
        self.batch = -1
        self.restored = 0
        self._task = task
        self._run = run or task.run(lessons)
        self._blocks: dict[Part, Stored] = {}
        self._parts: set[Part] = set()
        # By stream, in order of arrival: the number of tuples up to the end of each part, and its newest.
        self._ends: dict[str, deque[tuple[int, int]]] = {stream.alias: deque() for stream in task.streams}
        self._fresh: list[tuple[Part, pa.RecordBatch]] = []
        self._stuck = 0

    @property
    def nbytes(self) -> int:
        return self._run.nbytes

    @property
    def held(self) -> int:
        """Tuples of streams that are kept."""
        return sum(self._run.held(alias) for alias in self._ends)

    @property
    def is_worn(self) -> bool:
        """Whether the eddy should be made anew: it has seen too many tuples, or keeps too many expired ones.

        Tuples leave it in order of arrival, so one from the far future holds back all that came after it.
        """
        if self._stuck > max(_STUCK, self.held - self._stuck):
            return True
        return any(self._run.rows(alias) > _MOST_ROWS for alias in self._ends)

    def streams(self, arrived: Mapping[int, Arrived], expired: Mapping[str, int]) -> Iterator[StreamFigures]:
        """Yield the figures of each stream, after a micro-batch.

        ``arrived`` is what came of those that are counted here, by the stream's number; ``expired`` counts
        the tuples that were let go, by alias.
        """
        sizes: dict[int, list[int]] = {stream.number: [] for stream in self._task.streams}
        for key, stored in self._blocks.items():
            sizes[key.relation].append(stored.size)
        for stream in self._task.streams:
            came, stored_sizes = arrived.get(stream.number), sizes[stream.number]
            nbytes, index_bytes = self._run.nbytes_of(stream.alias)
            yield StreamFigures(
                stream.alias,
                0 if came is None else came.rows.num_rows,
                0 if came is None else came.late,
                expired[stream.alias],
                self._run.held(stream.alias),
                nbytes,
                index_bytes,
                sum(stored_sizes),
                len(stored_sizes),
                int(came.times[-1]) if came is not None and len(came.times) else None,
            )

    def orders(self) -> Orders:
        """Return the orders that tuples took since this was last asked, those of most tuples first."""
        return self._run.take_orders()

    @property
    def learned(self) -> str:
        """What the eddy has learned, as JSON."""
        return self._run.learned()

    def figures(self, cell: int) -> CellFigures:
        return self._run.figures(cell)

    def follows(self, head: Head) -> bool:
        """Whether this is the state after the micro-batch of a head, or after one that led to it."""
        return self.token == head.token or head.chain.get(self.token) == self.batch

    def catch_up(self, log: Log, head: Head) -> None:
        """Take in what the log has and this does not."""
        if self.token == head.token:
            return
        blocks: dict[Part, Stored] = {}
        missed: list[tuple[Part, pa.RecordBatch]] = []
        for key in log.list():
            if key in self._blocks:
                blocks[key] = self._blocks[key]
                continue
            stream = self._task.by_number[key.relation]
            stored, rows = log.read(key, self._task.schema_of(stream))
            blocks[key] = stored
            start = 0
            for part, count in stored.parts:
                if part not in self._parts and not self._is_over(part, head.watermark):
                    missed.append((part, rows.slice(start, count)))
                start += count
        self._blocks = blocks
        self._take_in(sorted(missed, key=lambda each: (each[0].batch, each[0].newest)))
        self._forget(head.watermark)
        self.token, self.batch = head.token, head.batch

    def _take_in(self, missed: list[tuple[Part, pa.RecordBatch]]) -> None:
        streams = [self._task.by_number[part.relation] for part, _ in missed]
        names = [stream.alias for stream in streams]
        carried = (
            self._carried(s, rows, part.batch) for s, (part, rows) in zip(streams, missed, strict=True)
        )
        ends = self._run.restore(zip(names, carried, strict=True))
        for name, end, (part, rows) in zip(names, ends, missed, strict=True):
            self._ends[name].append((end, part.newest))
            self._parts.add(part)
            self.restored += rows.num_rows

    def _carried(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> pa.RecordBatch:
        """Return tuples of the log as the eddy takes them in, which may be fewer.

        ``batch`` is the micro-batch that they came with.
        """
        return self._task.complete(stream, rows)

    def extend(self, arrived: Mapping[int, Arrived]) -> Iterator[pa.RecordBatch]:
        """Yield the results of the next micro-batch, whose tuples are by the stream's number."""
        self.batch += 1
        self._fresh.clear()
        came = {self._task.by_number[number]: each for number, each in arrived.items() if each.rows.num_rows}
        before = {stream.alias: self._run.rows(stream.alias) for stream in came}
        carried = {s.alias: self._carried(s, each.rows, self.batch) for s, each in came.items()}
        yield from self._run.extend({alias: rows for alias, rows in carried.items() if rows.num_rows})
        for stream, each in came.items():
            blocks = [
                (Part(stream.number, newest, self.batch), rows) for newest, rows in each.blocks(stream.keeps)
            ]
            self._fresh += blocks
            end, last = before[stream.alias], self._run.rows(stream.alias)
            whole = (
                last - end == each.rows.num_rows
            )  # no tuple was left out, for a null key or another reason
            for part, rows in blocks:
                self._parts.add(part)
                end += rows.num_rows
                if whole or part is blocks[-1][0]:
                    self._ends[stream.alias].append((min(end, last), part.newest))

    def commit(self, log: Log, watermark: int | None) -> dict[str, int]:
        """Write the micro-batch to the log, without what has expired, and remove that.

        The watermark is in microseconds. Returns how many tuples have expired, by the stream's alias.
        """
        before = {alias: self._run.held(alias) for alias in self._ends}
        for part, rows in self._fresh:
            if not self._is_over(part, watermark):
                stored = log.append([(part, rows.num_rows)], self.batch, rows)
                self._blocks[stored.key] = stored
        self._fresh.clear()
        over = [key for key in self._blocks if self._is_over(key, watermark)]
        log.remove(over)
        for key in over:
            del self._blocks[key]
        self._forget(watermark)
        keeps = {stream.number: stream.keeps for stream in self._task.streams}
        for blocks in mergeable(self._blocks.values(), keeps):
            stream = self._task.by_number[blocks[0].key.relation]
            # Another block of this micro-batch may end at the same time: then they wait for the next one.
            newest = max(block.key.newest for block in blocks)
            if Part(stream.number, newest, self.batch) in self._blocks.keys() - {b.key for b in blocks}:
                continue
            merged = log.merge(blocks, self.batch, self._task.schema_of(stream))
            for block in blocks:
                del self._blocks[block.key]
            self._blocks[merged.key] = merged
        return {alias: held - self._run.held(alias) for alias, held in before.items()}

    @property
    def due(self) -> int | None:
        """Watermark at which the next tuples expire, microseconds; None while nothing is kept."""
        return min((self._expiry(key) for key in self._blocks), default=None)

    def _expiry(self, part: Part) -> int:
        return part.newest + max(0, self._task.by_number[part.relation].keeps) + 1

    def _is_over(self, part: Part, watermark: int | None) -> bool:
        return watermark is not None and self._expiry(part) <= watermark

    def _forget(self, watermark: int | None) -> None:
        """Evict from memory what has expired, as far as it was the first to arrive."""
        below, self._stuck = {}, 0
        for stream in self._task.streams:
            ends, first = self._ends[stream.alias], 0
            while ends and self._is_over(Part(stream.number, ends[0][1], 0), watermark):
                first = ends.popleft()[0]
            if first:
                below[stream.alias] = first
            self._stuck += sum(
                end - start
                for (start, _), (end, newest) in pairwise(ends)
                if self._is_over(Part(stream.number, newest, 0), watermark)
            )
        if below:
            self._run.evict(below)
        self._parts = {part for part in self._parts if not self._is_over(part, watermark)}


_CELLS: OrderedDict[tuple[str, str, int], Cell] = OrderedDict()


def query_id() -> str:
    """Return Spark's number of the query whose task runs here, which stays over restarts; else nothing."""
    context = TaskContext.get()
    return (context.getLocalProperty("sql.streaming.queryId") or "") if context else ""


def take_cell(plan: str, cell: int, head: Head) -> Cell | None:
    """Take a cell out that can go on; None if there is none. Who fails with it does not put it back.

    What is here of the query's earlier starts goes. The head is of the cell's log; a state has to lead to it.
    """
    query = query_id()
    old = [key for key in _CELLS if query and key[0] == query and key[1] != plan]
    for key in old:
        del _CELLS[key]
    state = _CELLS.pop((query, plan, cell), None)
    if state is not None and (not state.follows(head) or state.is_worn):
        old, state = [*old, (query, plan, cell)], None
    if old:
        look_again()
    return state


def keep_cell(plan: str, cell: int, state: Cell, budget: int) -> None:
    """Keep a cell, and let go of others that have not been used for long.

    Cells kept here may take ``budget`` bytes together. This one stays whatever it takes: it was just in
    memory, and making it anew costs most.
    """
    _CELLS[query_id(), plan, cell] = state
    kept = len(_CELLS)
    while len(_CELLS) > 1 and sum(each.nbytes for each in _CELLS.values()) > budget:
        _CELLS.popitem(last=False)
    if len(_CELLS) < kept:
        look_again()
