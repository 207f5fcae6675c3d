"""What Spark calls for a cell in each micro-batch: read the head, run the eddy, write the log."""

# ruff: noqa: N802, N803  # names of Spark's

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millrace.errors import StateError
from millrace.reports.micro_batch import encode_cell
from millrace.spark.exchange import NOTHING
from millrace.spark.worker import acknowledge, keep_modules, worker_task
from millrace.streams.arrivals import Arrived, sort_arrivals
from millrace.streams.block_log import LESSONS, Head, Log
from millrace.streams.cell import Cell, keep_cell, take_cell
from millrace.streams.preserving import PreservingCell
from millrace.streams.task import ContinuousJoin

CONTROL = -1
"""The key that always gets a row, whatever the cells: it notices if the checkpoint is of another join."""

Blocks = Mapping[int, Sequence[bytes]]
"""What came to a cell, by the relation's number."""

OUTPUT = "block binary, cells string"
"""Blocks of results; and, at the end of a cell, the line of its figures."""

_MEMORY = 1 << 30
"""Bytes of state that a worker process keeps warm."""

_LEARNING = 16
"""What was learned is stored after so many micro-batches."""

_ANEW = 256
"""The window is written anew after so many micro-batches."""


class CellProcessor(StatefulProcessor):
    """Runs the cells of a continuous join; ``keys`` are Spark's, by the cell's number."""

    def __init__(self, task: ContinuousJoin, keys: tuple[int, ...]) -> None:
        self._task = task
        self._cells = {key: cell for cell, key in enumerate(keys)}

    def init(self, handle: StatefulProcessorHandle) -> None:
        acknowledge()
        keep_modules()
        self._handle = handle
        self._log = Log(handle)

    @worker_task
    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Yield the results of a micro-batch in a cell."""
        blocks: dict[int, list[bytes]] = {}
        for df in rows:
            for number, block in zip(df["relation"], df["block"], strict=True):
                blocks.setdefault(int(number), []).append(bytes(block))
        blocks.pop(NOTHING, None)
        if key[0] == CONTROL:
            self._check()
            return
        yield from self._work(self._cells[key[0]], blocks, timerValues.getCurrentWatermarkInMs())

    @worker_task
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Tell a cell that gets no tuples of the watermark, and evict from it."""
        yield from self._work(self._cells[key[0]], {}, timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        """Nothing is held."""

    def _check(self) -> None:
        """Refuse a checkpoint of another join: raise StateError."""
        head = self._log.head()
        if head is None:
            self._log.put_head(Head(self._task.fingerprint))
        elif head.fingerprint != self._task.fingerprint:
            raise StateError(
                "the checkpoint is of another join: tables, columns, conditions of equality, event times or "
                f"the number of cells ({self._task.cells} now, by spark.sql.shuffle.partitions or option "
                "cells) are not those that it was begun with; go on with these, or begin with an empty "
                "checkpoint folder. Policy, architecture, memory and the number of cores may change"
            )

    def _work(self, number: int, blocks: Blocks, milliseconds: int) -> Iterator[pd.DataFrame]:
        began = time.perf_counter()
        task, log = self._task, self._log
        watermark = milliseconds * 1000  # 0 until there is one, which is what Spark's joins go by, too
        head = log.head() or Head(task.fingerprint)
        # Each cell knows the watermark of each micro-batch, for what is late does not depend on the cell.
        tick = self._wake(head, milliseconds)
        if not blocks and (head.timer is None or head.timer > milliseconds):
            if tick != head.tick:
                log.put_head(replace(head, watermark=watermark, tick=tick))
            return
        kept = take_cell(task.name, number, head)
        cell = self._begin(number, kept, head, blocks, watermark)
        rebuilt, before = cell is not kept and head.batch >= 0, cell.restored  # it has worked before
        del kept  # the memory of one that does not go on
        cell.catch_up(log, head)
        came = self._sort_arrived(blocks, head.watermark)
        results = 0
        for batch in chain(cell.extend(came), cell.give_up(watermark)):
            results += self._count_results(batch)
            yield _make_row(block=batch.serialize().to_pybytes())
        # Nothing that is given out depends on what follows.
        expired = cell.commit(log, watermark)
        counted = {n: each for n, each in came.items() if number in task.by_number[n].counted}
        anew = (cell.batch + 1) % _ANEW == 0
        if anew:
            cell.write_anew(log)
        cell.token = uuid.uuid4().hex
        if cell.batch % _LEARNING == 0:
            log.put_text(LESSONS, cell.run.learned())
        log.put_head(
            replace(
                head,
                batch=cell.batch,
                watermark=watermark,
                timer=None if cell.due is None else -(-cell.due // 1000),
                chain=head.follow(cell.token, anew=anew),
                tick=tick,
            )
        )
        keep_cell(task.name, number, cell, task.options.memory_budget or _MEMORY)
        line = encode_cell(
            cell.measure(counted, expired),
            cell.run.take_orders(),
            results=results,
            bytes=cell.nbytes,
            restored=cell.restored - before,
            rebuilt=int(rebuilt),
            worked=time.perf_counter() - began,
        )
        yield _make_row(cells=line)

    def _count_results(self, batch: pa.RecordBatch) -> int:
        """Return how many results a cell gives out with a batch."""
        return int(batch.num_rows)

    def _begin(self, number: int, kept: Cell | None, head: Head, blocks: Blocks, watermark: int) -> Cell:
        """Return the cell to go on with, which has to catch up: the one that was kept, or a new one."""
        kind = Cell if self._task.preserved is None else PreservingCell
        return kept or kind(self._task, self._log.text(LESSONS))

    def _sort_arrived(self, blocks: Blocks, watermark: int) -> dict[int, Arrived]:
        """Return what is in time, by the stream's number."""
        came = {}
        for stream in self._task.streams:
            schema = self._task.schema_of(stream)
            own = [pa.ipc.read_record_batch(pa.py_buffer(b), schema) for b in blocks.get(stream.number, ())]
            if own:
                came[stream.number] = sort_arrivals(own, stream.time, watermark)
        return came

    def _wake(self, head: Head, milliseconds: int) -> int:
        """Have the cell woken when the watermark moves on, in milliseconds of event time."""
        new = milliseconds + 1
        if new != head.tick:
            if head.tick is not None:
                self._handle.deleteTimer(head.tick)
            self._handle.registerTimer(new)
        return new


def _make_row(block: bytes | None = None, cells: str | None = None) -> pd.DataFrame:
    """Return a row of ``OUTPUT``."""
    return pd.DataFrame({"block": [block], "cells": [cells]})
