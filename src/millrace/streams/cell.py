"""The state of a cell in memory: an eddy with everything that the cell's log says.

A worker process keeps its cells between micro-batches. Spark gives a task to any process that is free, so
this is a hope and no promise: a cell found here may be some micro-batches behind, and then catches up from
the log; one that came of an attempt which failed is of no use.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from millrace.reports.micro_batch import StreamFigures
from millrace.spark.task_inputs import WatchedTable
from millrace.spark.worker import look_again
from millrace.streams.arrivals import Arrived
from millrace.streams.block_log import BlockKey, Head, Log
from millrace.streams.task import ContinuousJoin, Stream

if TYPE_CHECKING:
    from millrace.engine.eddy.continuous import ContinuousRun

_MOST_ROWS = 1 << 30
"""Rows have 32-bit numbers that count up for as long as an eddy lives."""

_STUCK = 1 << 12
"""Fewer expired tuples than this are left in memory, wherever they lie."""

_LARGE = 1 << 22
"""Bytes of a block that is not written anew."""

_SHARES = 8
"""One block are tuples of the same eighth of the time for which they are kept: few stay on for others."""


class Cell:
    """A cell's state after some micro-batch, and the eddy that makes results of the next one.

    Args:
        lessons: What earlier eddies of the cell have learned.
        run: The eddy, where it is one of another join: of the same streams, with further columns.

    Attributes:
        run: The eddy.
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
        watched = (table for table in task.tables.values() if isinstance(table, WatchedTable))
        # Before they are read: what is written meanwhile is read next time.
        self._watched = [(table, table.open().states) for table in watched]
        self.run = run or task.run(lessons)
        self._sizes: dict[BlockKey, int] = {}  # of all blocks of the log, in bytes
        # By stream, in order of arrival: the number of tuples up to the end of each block, and its newest.
        self._ends: dict[str, deque[tuple[int, int]]] = {stream.alias: deque() for stream in task.streams}
        self._fresh: list[tuple[BlockKey, pa.RecordBatch]] = []
        self._stuck = 0

    @property
    def nbytes(self) -> int:
        return self.run.nbytes

    @property
    def is_worn(self) -> bool:
        """Whether the eddy should be made anew.

        It has seen too many tuples, or a table was written anew, or it keeps too many expired tuples: they
        leave it in order of arrival, so one from the far future holds back all that came after it.
        """
        if any(table.is_changed(states) for table, states in self._watched):
            return True
        held = sum(self.run.held(alias) for alias in self._ends)
        return self._stuck > max(_STUCK, held - self._stuck) or any(
            self.run.rows(alias) > _MOST_ROWS for alias in self._ends
        )

    def measure(self, arrived: Mapping[int, Arrived], expired: Mapping[str, int]) -> Iterator[StreamFigures]:
        """Yield the figures of each stream, after a micro-batch.

        ``arrived`` is what came of those that are counted here, by the stream's number; ``expired`` counts
        the tuples that were let go, by alias.
        """
        for stream in self._task.streams:
            came = arrived.get(stream.number)
            times: Any = () if came is None else came.times
            stored = [size for key, size in self._sizes.items() if key.relation == stream.number]
            nbytes, index_bytes = self.run.nbytes_of(stream.alias)
            yield StreamFigures(
                stream.alias,
                len(times),
                0 if came is None else came.late,
                expired[stream.alias],
                self.run.held(stream.alias),
                nbytes,
                index_bytes,
                sum(stored),
                len(stored),
                int(times[-1]) if len(times) else None,
            )

    def follows(self, head: Head) -> bool:
        """Whether this is the state after the micro-batch of a head, or after one that led to it."""
        return self.token in head.chain

    def catch_up(self, log: Log, head: Head) -> None:
        """Take in what the log has and this does not."""
        if self.token == head.token:
            return
        known, self._sizes = self._sizes, {}
        missed: list[tuple[Stream, BlockKey, pa.RecordBatch]] = []
        for key in log.list():
            if key in known:
                self._sizes[key] = known[key]
            else:
                stream = self._task.by_number[key.relation]
                rows, self._sizes[key] = log.read(key, self._task.schema_of(stream))
                missed.append((stream, key, rows))
        ends = self._restore((s.alias, self._carry(s, rows, key.batch)) for s, key, rows in missed)
        for end, (stream, key, rows) in zip(ends, missed, strict=True):
            self._ends[stream.alias].append((end, key.newest))
            self.restored += rows.num_rows
        self._forget(head.watermark)
        self.token, self.batch = head.token, head.batch

    def _restore(self, arrived: Iterable[tuple[str, pa.RecordBatch]]) -> list[int]:
        """Take in tuples by alias whose results are out; as :meth:`ContinuousRun.restore`."""
        return self.run.restore(arrived)

    def _carry(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> pa.RecordBatch:
        """Return tuples of the log as the eddy takes them in, which may be fewer.

        ``batch`` is the micro-batch that they came with.
        """
        return self._task.complete(stream, rows)

    def extend(self, arrived: Mapping[int, Arrived]) -> Iterator[pa.RecordBatch]:
        """Yield the results of the next micro-batch, whose tuples are by the stream's number."""
        self.batch += 1
        streams = self._task.by_number
        came = [(streams[number], each) for number, each in arrived.items() if each.rows.num_rows]
        carried = {s.alias: self._carry(s, each.rows, self.batch) for s, each in came}
        yield from self.run.extend({alias: rows for alias, rows in carried.items() if rows.num_rows})
        for stream, each in came:
            # Tuples that the eddy left out are counted as if they were the first: so none goes too early.
            end, ends = self.run.rows(stream.alias) - each.rows.num_rows, self._ends[stream.alias]
            before = ends[-1][0] if ends else 0
            for newest, rows in each.blocks(stream.keeps):
                end += rows.num_rows
                self._fresh.append((BlockKey(stream.number, newest, self.batch), rows))
                ends.append((max(before, end), newest))

    def give_up(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Yield what a micro-batch gives out because its watermark, microseconds, has come."""
        return iter(())

    def commit(self, log: Log, watermark: int) -> dict[str, int]:
        """Write the micro-batch to the log, without what has expired, and remove that.

        The watermark is in microseconds. Returns how many tuples have expired, by the stream's alias.
        """
        before = {alias: self.run.held(alias) for alias in self._ends}
        for key, rows in self._fresh:
            if self._expiry(key) > watermark:
                self._sizes[key] = log.put(key, rows)
        self._fresh.clear()
        over = [key for key in self._sizes if self._expiry(key) <= watermark]
        log.remove(over)
        for key in over:
            del self._sizes[key]
        self._forget(watermark)
        return {alias: held - self.run.held(alias) for alias, held in before.items()}

    def write_anew(self, log: Log) -> None:
        """Write the window anew: small blocks of a stream become large ones.

        A micro-batch a second leaves thousands of blocks an hour, and each is a message when a cell begins.
        A tuple is written again as often as the window is while its eighth of it fills, and never where it
        would keep tuples that are far older than itself.
        """
        groups: dict[tuple[int, ...], list[BlockKey]] = {}
        for key in sorted(key for key, size in self._sizes.items() if size < _LARGE):
            share = key.newest // max(1, self._task.by_number[key.relation].keeps // _SHARES)
            group = groups.setdefault((key.relation, share, self._distinguish(key.batch)), [])
            group.append(key)
            if sum(self._sizes[each] for each in group) >= _LARGE:
                self._join_blocks(log, group)
                group.clear()
        for group in groups.values():
            self._join_blocks(log, group)

    def _join_blocks(self, log: Log, keys: list[BlockKey]) -> None:
        if len(keys) < 2:
            return
        made = BlockKey(keys[0].relation, keys[-1].newest, max(key.batch for key in keys))
        if made in self._sizes and made not in keys:
            return  # another block has that name: these wait for the next time
        schema = self._task.schema_of(self._task.by_number[made.relation])
        # As they came, for tuples leave memory in that order.
        rows = [log.read(key, schema)[0] for key in sorted(keys, key=lambda key: (key.batch, key))]
        log.remove(keys)
        for key in keys:
            del self._sizes[key]
        self._sizes[made] = log.put(made, pa.concat_batches(rows))

    def _distinguish(self, batch: int) -> int:
        """Return what tells apart tuples that become no block together, of the micro-batch they came with."""
        return 0

    @property
    def due(self) -> int | None:
        """Watermark at which the next tuples expire, microseconds; None while nothing is kept."""
        return min((self._expiry(key) for key in self._sizes), default=None)

    def _expiry(self, key: BlockKey) -> int:
        return self._task.by_number[key.relation].expires(key.newest)

    def _forget(self, watermark: int) -> None:
        """Evict from memory what has expired, as far as it was the first to arrive."""
        below, self._stuck = dict[str, int](), 0
        for stream in self._task.streams:
            ends = self._ends[stream.alias]
            while ends and stream.expires(ends[0][1]) <= watermark:
                below[stream.alias] = max(below.get(stream.alias, 0), ends.popleft()[0])
            self._stuck += sum(
                end - start
                for (start, _), (end, newest) in pairwise(ends)
                if stream.expires(newest) <= watermark
            )
        if below:
            self.run.evict(below)


_CELLS: OrderedDict[tuple[str, str, int], Cell] = OrderedDict()


_QUERY = "sql.streaming.queryId"  # which stays over restarts


def task_property(name: str) -> str:
    """Return what Spark tells the task that runs here; nothing where there is none."""
    context = TaskContext.get()
    return (context.getLocalProperty(name) or "") if context else ""


def take_cell(plan: str, cell: int, head: Head) -> Cell | None:
    """Take a cell out that can go on; None if there is none. Who fails with it does not put it back.

    What is here of the query's earlier starts goes. The head is of the cell's log; a state has to lead to it.
    """
    query = task_property(_QUERY)
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
    _CELLS[task_property(_QUERY), plan, cell] = state
    kept = len(_CELLS)
    while len(_CELLS) > 1 and sum(each.nbytes for each in _CELLS.values()) > budget:
        _CELLS.popitem(last=False)
    if len(_CELLS) < kept:
        look_again()
