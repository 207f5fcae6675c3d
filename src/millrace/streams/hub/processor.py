"""What Spark calls for a cell of a hub: changes of the queries first, then tuples."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from millrace.spark.worker import look_again
from millrace.streams import warm
from millrace.streams.arrivals import Arrived
from millrace.streams.block_log import Head
from millrace.streams.cell import Cell
from millrace.streams.hub.cell import HubCell
from millrace.streams.hub.registry import Change, Registry
from millrace.streams.hub.task import CHANGES, Hub
from millrace.streams.processor import CellProcessor

# What a cell's log has besides blocks: the changes it has seen, and its queries.
_SEEN, _QUERIES = "seen", "queries"


class HubProcessor(CellProcessor):
    """Runs the cells of a hub; ``keys`` are Spark's, by the cell's number."""

    def __init__(self, task: Hub, keys: tuple[int, ...]) -> None:
        super().__init__(task, keys)
        self._hub = task

    def _work(
        self, number: int, blocks: list[tuple[int, bytes]], milliseconds: int
    ) -> Iterator[pd.DataFrame]:
        self._changes = [Change.from_json(json.loads(block)) for n, block in blocks if n == CHANGES]
        self._watermark = milliseconds * 1000 if milliseconds > 0 else None
        yield from super()._work(number, blocks, milliseconds)

    def _arrived(self, blocks: list[tuple[int, bytes]], watermark: int) -> dict[int, Arrived]:
        return super()._arrived([each for each in blocks if each[0] != CHANGES], watermark)

    def _cell(self, number: int, head: Head) -> tuple[Cell, int, bool]:
        """Return the cell's state after the latest micro-batch, for the queries of the next one."""
        seen = int(self._log.text(_SEEN) or 0)
        kept = warm.take(warm.query(), self._task.name, number, head)
        assert kept is None or isinstance(kept, HubCell), "the plan is a hub's"
        registry = kept.registry if kept is not None and kept.registry.seen == seen else None
        if registry is None:
            registry = self._read()
        after = registry.after(self._changes, head.batch + 1, self._watermark)
        if after != registry:
            self._log.put_text(_SEEN, str(after.seen))
            self._log.put_text(_QUERIES, after.to_text())
        came = tuple(each for each in after.queries if each.batch == head.batch + 1)
        window = tuple(each for each in came if each.query.since == "window")
        rebuilt = kept is None or bool(window) or not kept.takes(after)
        if kept is None or rebuilt:
            if kept is not None:
                look_again()
            kept = HubCell(self._hub, after, self._log.lessons())
            before = 0
            kept.catch_up_for(self._log, head, window)
        else:
            before = kept.restored
            kept.catch_up(self._log, head)
        if number == 0:
            kept.changes = tuple(range(registry.version + 1, after.version + 1))
        return kept, before, rebuilt and head.batch >= 0

    def _counted(self, batch: pa.RecordBatch) -> int:
        """Return the rows of all queries."""
        return sum(batch.column("rows").to_pylist())

    def _read(self) -> Registry:
        """Return the queries as the state has them."""
        text = self._log.text(_QUERIES)
        return Registry() if text is None else Registry.from_text(text)
