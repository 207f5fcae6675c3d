"""A cell of a hub: its streams are kept once, for one eddy that runs all queries.

Changes of the queries come to it in front of the tuples of a micro-batch.

A base tuple's lineage (:mod:`millrace.engine.lineage`) is what the grouped filters and the time of its
arrival say. Nothing of it is stored: a cell that begins anew reads base tuples, and knows from their
micro-batches which queries they came too early for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.arrays import gathered
from millrace.engine.lineage import (
    BITS,
    Array,
    GroupedFilter,
    attach,
    name_of,
    rows_by_slot,
    with_lineages,
    word_bits,
)
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import columns_of
from millrace.spark.worker import look_again
from millrace.streams.arrivals import Arrived
from millrace.streams.block_log import LESSONS, Head
from millrace.streams.cell import Cell, task_property
from millrace.streams.hub.delivery import SinkFiles
from millrace.streams.hub.query import ENVELOPE, Admitted, Registry, StandingQuery, read_text, to_text
from millrace.streams.processor import Blocks, CellProcessor
from millrace.streams.task import ContinuousJoin, Stream

CHANGES = -3
"""Number, in place of a relation's, of a block that holds a change of the queries."""

_QUERIES = "queries"
"""Names what a cell's log has besides blocks: its queries."""

_ROWS = 1 << 17
"""Results are divided among queries when there are so many of them, and at the end."""


class HubCell(Cell):
    """The state of a cell after some micro-batch, for some set of queries.

    Args:
        came: Queries that want results of tuples which had all come before them. These tuples are in the log
            that the cell catches up from; the next micro-batch gives the results out.

    Attributes:
        files: Those of the next micro-batch.
        tells: Whether the next micro-batch is to tell which changes it has made.
    """

    def __init__(
        self, task: ContinuousJoin, registry: Registry, lessons: str | None, came: Sequence[Admitted]
    ) -> None:
        self._reads = frozenset(ref for each in registry.queries for ref in each.query.reads)
        self._join = replace(task, join=with_lineages(task.join, registry.words, self._reads))
        super().__init__(task, run=self._join.run(lessons))
        self._used: frozenset[int] = frozenset()
        self._came, self._old = came, dict[str, list[pa.RecordBatch]]()
        self.files: SinkFiles
        self.tells: bool
        self._set(registry)

    def _set(self, registry: Registry) -> None:
        self.registry = registry
        self._filters = {}
        for alias in self._task.join.aliases:
            wanted = {each.slot: each.query.select_conditions(alias) for each in registry.queries}
            self._filters[alias] = GroupedFilter(alias, wanted, registry.words)
        self._used |= {each.slot for each in registry.queries}

    def switch(self, registry: Registry) -> bool:
        """Go over to other queries; returns False where the state has to be made anew for them.

        It has where a query wants tuples of the window or columns that results do not have, or the bit of one
        that has gone, which tuples may still carry.
        """
        if registry == self.registry:
            return True
        known = {each.query.id for each in self.registry.queries}
        fits = registry.words == self.registry.words and all(
            each.query.since == "now" and each.slot not in self._used and each.query.reads <= self._reads
            for each in registry.queries
            if each.query.id not in known
        )
        if fits:
            self._set(registry)
        return fits

    def _carry(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> pa.RecordBatch:
        rows = self._task.complete(stream, rows)
        lineage = self._filters[stream.alias].evaluate(rows)
        for each in self.registry.queries:
            if each.batch > batch:
                outside = _find_unseen(each, rows.column(stream.time), stream)
                lineage[outside, each.slot // BITS] &= ~np.uint64(1 << each.slot % BITS)
        if self._came:
            bits = word_bits((each.slot for each in self._came), self.registry.words)
            self._old.setdefault(stream.alias, []).append(attach(rows, lineage & bits))
        return attach(rows, lineage)

    def _distinguish(self, batch: int) -> int:
        """Return how many queries see tuples of a micro-batch as new; the others want them of the window."""
        return sum(each.batch <= batch for each in self.registry.queries)

    def extend(self, arrived: Mapping[int, Arrived]) -> Iterator[pa.RecordBatch]:
        """Yield the results of the next micro-batch, as rows of ``ENVELOPE``."""
        if self.tells:
            made = [self.registry.newest.number, *(each.query.id for each in self.registry.queries)]
            yield pa.RecordBatch.from_pylist([{"made": made}], ENVELOPE)
        with self.files:
            if self._came:
                yield from self._probe_window()
            yield from self._divide(super().extend(arrived), self.registry.queries)
            self.files.finish()
        if self.files.lost:
            lost = [{"query": number, "lost": why} for number, why in self.files.lost.items()]
            yield pa.RecordBatch.from_pylist(lost, ENVELOPE)

    def _probe_window(self) -> Iterator[pa.RecordBatch]:
        """Yield results of tuples that had all come before a query: new queries probe old data (PSoup)."""
        came, self._came = self._came, ()
        old = {alias: pa.concat_batches(rows) for alias, rows in self._old.items()}
        self._old.clear()
        wanted = {alias: rows for alias, rows in old.items() if rows.num_rows}
        if len(wanted) == len(self._task.streams):
            yield from self._divide(self._join.run().extend(wanted), came)

    def _divide(
        self, results: Iterator[pa.RecordBatch], queries: Sequence[Admitted]
    ) -> Iterator[pa.RecordBatch]:
        """Write the rows of each query among results of the shared join, or yield them for its function."""
        by_slot = {each.slot: each.query for each in queries}
        wanted = word_bits(by_slot, self.registry.words)
        for rows in gathered(results, _ROWS):
            found: list[dict[str, Any]] = []
            for slot, places in rows_by_slot(rows, self._join.join.aliases, wanted):
                query = by_slot[slot]
                own = _take_rows(rows, query, places)
                if own.num_rows:
                    found.append({"query": query.id, "rows": own.num_rows})
                    if query.sink is None:
                        found[-1]["block"] = own.serialize().to_pybytes()
                    else:
                        self.files.write(query, own)
            if found:
                yield pa.RecordBatch.from_pylist(found, ENVELOPE)


def _find_unseen(query: Admitted, times: pa.Array, stream: Stream) -> Array | slice:
    """Return which tuples that had come before a query it does not see."""
    if query.query.since == "now":
        return slice(None)
    outside: Array = times.cast(pa.int64()).to_numpy() <= query.watermark - stream.expires(0)
    return outside


def _take_rows(rows: pa.RecordBatch, query: StandingQuery, places: Array) -> pa.RecordBatch:
    """Return a query's rows among results of the shared join."""
    taken = pa.array(places)
    for residual in query.residuals:
        given = {ref: rows.column(name_of(ref)).take(taken) for ref in {*columns_of(residual)}}
        taken = taken.filter(pc.fill_null(evaluate(residual, given), False))
    arrays = [
        rows.column(name_of(ref)).take(taken).cast(field.type)
        for ref, field in zip(query.columns, query.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=query.schema)


class HubProcessor(CellProcessor):
    """Runs the cells of a hub; ``make`` returns the files of a micro-batch, which are to have a name."""

    def __init__(self, task: ContinuousJoin, keys: tuple[int, ...], make: Callable[[str], SinkFiles]) -> None:
        super().__init__(task, keys)
        self._make_files = make

    def _begin(self, number: int, kept: Cell | None, head: Head, blocks: Blocks, watermark: int) -> Cell:
        """Return the cell for the queries of the next micro-batch."""
        assert kept is None or isinstance(kept, HubCell), "the plan is a hub's"
        if kept is not None and kept.token == head.token:
            registry = kept.registry
        else:
            text = self._log.text(_QUERIES)
            registry = Registry() if text is None else read_text(text)
        changes = [change for change in map(read_text, blocks.get(CHANGES, ())) if change]
        now = head.batch + 1
        if changes:
            registry = registry.apply(changes, now, watermark)
            self._log.put_text(_QUERIES, to_text(registry))
        if kept is None or not kept.switch(registry):
            if kept is not None:
                look_again()
            window = [each for each in registry.queries if each.batch == now and each.query.since == "window"]
            kept = HubCell(self._task, registry, self._log.text(LESSONS), window)
        kept.tells = number == 0 and bool(changes)
        # Without Spark there is no number but the cell's.
        batch = int(task_property("streaming.sql.batchId") or now)
        kept.files = self._make_files(f"{batch:010}-{number:05}.parquet")
        return kept

    def _count_results(self, batch: pa.RecordBatch) -> int:
        """Return the rows of all queries."""
        return sum(batch.column("rows").drop_null().to_pylist())
