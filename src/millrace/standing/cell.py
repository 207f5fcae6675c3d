"""A cell of a hub: one eddy for all queries, and its results divided among these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.expressions import ColumnRef, columns_of, evaluate
from millrace.standing.lineage import (
    Lineages,
    by_slot,
    carrying,
    columns,
    mask,
    rows_by_slot,
    shared,
)
from millrace.standing.registry import Admitted, Registry
from millrace.standing.task import ENVELOPE, Hub, name_of
from millrace.streams.arrivals import Arrived
from millrace.streams.cell import Cell
from millrace.streams.log import Head, Log
from millrace.streams.task import Stream

_ROWS = 1 << 17
"""Results are divided among queries when there are so many of them, and at the end."""


class HubCell(Cell):
    """The state of a cell after some micro-batch, for some set of queries.

    Args:
        task: The hub's join.
        registry: The queries.
        lessons: What earlier eddies of the cell have learned.

    Attributes:
        changes: Numbers of the changes of queries that the next micro-batch is to tell of.
    """

    def __init__(self, task: Hub, registry: Registry, lessons: str | None = None) -> None:
        self._reads: frozenset[ColumnRef] = frozenset().union(*(a.query.reads for a in registry.queries))
        if not self._reads:
            self._reads = frozenset((ColumnRef(task.streams[0].alias, task.streams[0].time),))
        self._words = registry.words
        self._joined = task.carrying(self._words, self._reads)
        super().__init__(task, lessons, self._joined)
        self._hub = task
        self._used: frozenset[int] = frozenset()
        self._old: dict[str, list[pa.RecordBatch]] = {}
        self._came: tuple[Admitted, ...] = ()
        self.changes: tuple[int, ...] = ()
        self._set(registry)

    def _set(self, registry: Registry) -> None:
        self._registry = registry
        self._lineages = Lineages(self._hub.streams, registry)
        self._used |= registry.slots

    @property
    def registry(self) -> Registry:
        """The queries."""
        return self._registry

    def takes(self, registry: Registry) -> bool:
        """Go over to other queries; returns False where the state has to be made anew for them.

        It has where a query wants tuples of the window, columns that results do not have, or the bit of one
        that has gone, which tuples may still carry.
        """
        if registry == self._registry:
            return True
        known = {each.query.id for each in self._registry.queries}
        came = [each for each in registry.queries if each.query.id not in known]
        reads = frozenset().union(*(each.query.reads for each in came))
        fits = (
            registry.words == self._words
            and reads <= self._reads
            and all(each.query.since == "now" and each.slot not in self._used for each in came)
        )
        if fits:
            self._set(registry)
        return fits

    def catch_up_for(self, log: Log, head: Head, came: tuple[Admitted, ...]) -> None:
        """Take in what the log has, and find what the window has for new queries.

        Args:
            log: The cell's.
            head: Its head.
            came: Queries that want results of tuples which had all come before them. State is empty.
        """
        self._came = came
        self.catch_up(log, head)

    def _carried(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> pa.RecordBatch:
        found = carrying(rows, self._lineages.of(stream, rows, batch))
        if self._came:
            bits = mask(self._came, self._words)
            words = [found.column(name).to_numpy() for name in columns(self._words)]
            wanted = np.logical_or.reduce([word & bit != 0 for word, bit in zip(words, bits, strict=True)])
            self._old.setdefault(stream.alias, []).append(found.filter(pa.array(wanted)))
        return found

    def extend(self, arrived: Mapping[int, Arrived]) -> Iterator[pa.RecordBatch]:
        """Yield the results of the next micro-batch, as rows of ``ENVELOPE``.

        Args:
            arrived: Its tuples, by the stream's number.
        """
        if self.changes:
            yield _enveloped((None, change, 0, None) for change in self.changes)
            self.changes = ()
        if self._came:
            yield from self._of_window()
        if not self._hub.keeps_all:
            arrived = {number: self._wanted(number, each) for number, each in arrived.items()}
        yield from self._divided(super().extend(arrived), self._registry.queries)

    def _of_window(self) -> Iterator[pa.RecordBatch]:
        """Yield results of tuples that had all come before a query: new queries probe old data (PSoup)."""
        came, self._came = self._came, ()
        old, self._old = self._old, {}
        run = self._joined.run()
        given = {alias: pa.concat_batches(batches) for alias, batches in old.items()}
        if len(given) == len(self._hub.streams):
            yield from self._divided(run.extend(given), came)

    def _wanted(self, number: int, arrived: Arrived) -> Arrived:
        """Return the tuples that some query wants."""
        stream = self._hub.by_number[number]
        wanted = self._lineages.of(stream, arrived.rows, self.batch + 1).any(axis=1)
        return replace(arrived, rows=arrived.rows.filter(pa.array(wanted)), times=arrived.times[wanted])

    def _divided(
        self, results: Iterator[pa.RecordBatch], queries: tuple[Admitted, ...]
    ) -> Iterator[pa.RecordBatch]:
        """Yield results of the shared join by query."""
        waiting: list[pa.RecordBatch] = []
        count = 0
        for batch in results:
            waiting.append(batch)
            count += batch.num_rows
            if count >= _ROWS:
                yield from self._by_query(pa.concat_batches(waiting), queries)
                waiting, count = [], 0
        if count:
            yield from self._by_query(pa.concat_batches(waiting), queries)

    def _by_query(self, rows: pa.RecordBatch, queries: tuple[Admitted, ...]) -> Iterator[pa.RecordBatch]:
        lineages = [
            [rows.column(name_of(ColumnRef(alias, name))).to_numpy() for name in columns(self._words)]
            for alias in self._hub.join.aliases
        ]
        words = shared(lineages, mask(queries, self._words))
        known = by_slot(queries)
        found: list[tuple[int, None, int, bytes]] = []
        for slot, places in rows_by_slot(words):
            query = known[slot].query
            block = _result(rows, query.columns, query.residuals, query.schema, places)
            if block.num_rows:
                found.append((query.id, None, block.num_rows, block.serialize().to_pybytes()))
        if found:
            yield _enveloped(found)


def _result(
    rows: pa.RecordBatch,
    refs: tuple[ColumnRef, ...],
    residuals: tuple[Any, ...],
    schema: pa.Schema,
    places: Any,
) -> pa.RecordBatch:
    """Return a query's rows among results of the shared join."""
    taken = pa.array(places)
    if residuals:
        read = {ref for residual in residuals for ref in columns_of(residual)}
        given = {ref: rows.column(name_of(ref)).take(taken) for ref in read}
        for residual in residuals:
            passes = pc.fill_null(evaluate(residual, given), False)
            taken, given = taken.filter(passes), {ref: each.filter(passes) for ref, each in given.items()}
    arrays = [
        rows.column(name_of(ref)).take(taken).cast(field.type)
        for ref, field in zip(refs, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _enveloped(rows: Iterable[tuple[int | None, int | None, int, bytes | None]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ENVELOPE, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENVELOPE)
