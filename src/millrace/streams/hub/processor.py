"""What Spark calls for a cell of a hub: changes of the queries first, then tuples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pandas as pd
import pyarrow as pa

from millrace.spark.worker import look_again
from millrace.streams.arrivals import Arrived
from millrace.streams.block_log import LESSONS, Head
from millrace.streams.cell import Cell, take_cell
from millrace.streams.hub.cell import HubCell
from millrace.streams.hub.query import Change, Registry, from_json, read_json, to_text
from millrace.streams.processor import CellProcessor

CHANGES = -3
"""Number, in place of a relation's, of a block that holds a change of the queries."""

_QUERIES = "queries"
"""Names what a cell's log has besides blocks: its queries."""


class HubProcessor(CellProcessor):
    """Runs the cells of a hub."""

    def _work(
        self, number: int, blocks: list[tuple[int, bytes]], milliseconds: int
    ) -> Iterator[pd.DataFrame]:
        self._changes = list(changes_in(block for n, block in blocks if n == CHANGES))
        self._watermark = milliseconds * 1000 if milliseconds > 0 else None
        yield from super()._work(number, blocks, milliseconds)

    def _arrived(self, blocks: list[tuple[int, bytes]], watermark: int) -> dict[int, Arrived]:
        return super()._arrived([each for each in blocks if each[0] != CHANGES], watermark)

    def _cell(self, number: int, head: Head) -> tuple[Cell, int, bool]:
        """Return the cell's state after the latest micro-batch, for the queries of the next one."""
        kept = take_cell(self._task.name, number, head)
        assert kept is None or isinstance(kept, HubCell), "the plan is a hub's"
        if kept is not None and kept.token == head.token:
            registry = kept.registry
        else:
            text = self._log.text(_QUERIES)
            registry = Registry() if text is None else from_json(json.loads(text), "the queries of a hub")
        after = registry.after(self._changes, head.batch + 1, self._watermark)
        if self._changes:
            self._log.put_text(_QUERIES, to_text(after))
        came = tuple(each for each in after.queries if each.batch == head.batch + 1)
        window = tuple(each for each in came if each.query.since == "window")
        rebuilt = kept is None or bool(window) or not kept.takes(after)
        if kept is None or rebuilt:
            if kept is not None:
                look_again()
            kept = HubCell(self._task, after, self._log.text(LESSONS))
            before = 0
            kept.came = window
        else:
            before = kept.restored
        kept.catch_up(self._log, head)
        if number == 0 and self._changes:
            kept.changes = after.made  # all of them, for what was told before may have been lost
        return kept, before, rebuilt and head.batch >= 0

    def _counted(self, batch: pa.RecordBatch) -> int:
        """Return the rows of all queries."""
        return sum(batch.column("rows").to_pylist())


def changes_in(texts: Iterable[bytes]) -> Iterator[Change]:
    """Yield the changes of some files; a damaged file has none."""
    for fields in map(read_json, texts):
        if fields is not None:
            yield from_json(fields, "a change of a hub's queries")
