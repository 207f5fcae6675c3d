"""What Spark calls for a cell in each micro-batch: read the head, run the eddy, write the log."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millrace.errors import StateError
from millrace.reports.micro_batch import encode_cell
from millrace.spark.exchange import NOTHING
from millrace.spark.worker import acknowledge, keep_modules
from millrace.streams.arrivals import Arrived, arrived
from millrace.streams.block_log import LESSONS, Head, Log
from millrace.streams.cell import Cell, keep_cell, take_cell
from millrace.streams.preserving import PreservingCell
from millrace.streams.task import ContinuousJoin

CONTROL = -1
"""The key that always gets a row, whatever the cells: it notices if the checkpoint is of another join."""

OUTPUT = (
    "block binary, rows bigint, late bigint, results bigint, expired bigint, held bigint, bytes bigint, "
    "restored bigint, rebuilt bigint, seconds double, cells string"
)
"""Blocks of results; and, at the end of a cell, its figures, the last of which is its line."""

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

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803  # Spark's names
    ) -> Iterator[pd.DataFrame]:
        """Yield the results of a micro-batch in a cell."""
        blocks = [
            (int(n), bytes(b))
            for df in rows
            for n, b in zip(df["relation"], df["block"], strict=True)
            if n != NOTHING
        ]
        if key[0] == CONTROL:
            self._check()
            return
        yield from self._work(self._cells[key[0]], blocks, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803  # Spark's names
        expiredTimerInfo: Any,  # noqa: N803  # Spark's names
    ) -> Iterator[pd.DataFrame]:
        """Tell a cell that gets no tuples of the watermark, and evict from it."""
        yield from self._work(self._cells[key[0]], [], timerValues.getCurrentWatermarkInMs())

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

    def _work(
        self, number: int, blocks: list[tuple[int, bytes]], milliseconds: int
    ) -> Iterator[pd.DataFrame]:
        began = time.perf_counter()
        task, log = self._task, self._log
        watermark = milliseconds * 1000 if milliseconds > 0 else None
        head = log.head() or Head(task.fingerprint)
        # Each cell knows the watermark of each micro-batch, for what is late does not depend on the cell.
        tick = self._wake(head, milliseconds)
        if not blocks and (head.timer is None or head.timer > milliseconds):
            if tick != head.tick:
                log.put_head(replace(head, watermark=watermark, tick=tick))
            return
        cell, before, rebuilt = self._cell(number, head)
        # Until the first one Spark's watermark is 0, and that is what its joins go by.
        came = self._arrived(blocks, head.watermark or 0)
        results = 0
        for batch in chain(cell.extend(came), cell.give_up(watermark)):
            results += self._counted(batch)
            yield _row(block=batch.serialize().to_pybytes())
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
                token=cell.token,
                watermark=watermark,
                timer=None if cell.due is None else -(-cell.due // 1000),
                chain=head.follow(cell.token, anew=anew),
                tick=tick,
            )
        )
        keep_cell(task.name, number, cell, task.options.memory_budget or _MEMORY)
        yield _row(
            rows=sum(each.rows.num_rows for each in counted.values()),
            late=sum(each.late for each in counted.values()),
            results=results,
            expired=sum(expired.values()),
            held=cell.held,
            bytes=cell.nbytes,
            restored=cell.restored - before,
            rebuilt=int(rebuilt),
            seconds=time.perf_counter() - began,
            cells=encode_cell(cell.streams(counted, expired), cell.run.take_orders()),
        )

    def _counted(self, batch: pa.RecordBatch) -> int:
        """Return how many results a cell gives out with a batch."""
        rows: int = batch.num_rows
        return rows

    def _cell(self, number: int, head: Head) -> tuple[Cell, int, bool]:
        """Return the cell's state after the latest micro-batch, and how it came about.

        That is how much had been restored in it before; and whether it was made anew, for a cell that has
        worked before.
        """
        cell = take_cell(self._task.name, number, head)
        rebuilt = cell is None and head.batch >= 0  # a cell that has worked before
        kind = Cell if self._task.preserved is None else PreservingCell
        cell = cell or kind(self._task, self._log.text(LESSONS))
        before = cell.restored
        cell.catch_up(self._log, head)
        return cell, before, rebuilt

    def _arrived(self, blocks: list[tuple[int, bytes]], watermark: int) -> dict[int, Arrived]:
        """Return what is in time, by the stream's number."""
        batches: dict[int, list[pa.RecordBatch]] = {}
        for number, block in blocks:
            schema = self._task.schema_of(self._task.by_number[number])
            batches.setdefault(number, []).append(pa.ipc.read_record_batch(pa.py_buffer(block), schema))
        in_time = {
            number: arrived(batches[number], self._task.by_number[number].time, watermark)
            for number in sorted(batches)
        }
        return {number: each for number, each in in_time.items() if each is not None}

    def _wake(self, head: Head, milliseconds: int) -> int:
        """Have the cell woken when the watermark moves on, in milliseconds of event time."""
        new = milliseconds + 1
        if new != head.tick:
            if head.tick is not None:
                self._handle.deleteTimer(head.tick)
            self._handle.registerTimer(new)
        return new


def _row(block: bytes | None = None, **figures: float | str) -> pd.DataFrame:
    """Return a row of ``OUTPUT``."""
    names = [field.split()[0] for field in OUTPUT.split(", ")]
    return pd.DataFrame({name: [block if name == "block" else figures.get(name)] for name in names})
