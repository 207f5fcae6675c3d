"""A cell of a hub: its streams are kept once, for eddies that run all queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from millrace.streams.arrivals import Arrived
from millrace.streams.block_log import Head, Log
from millrace.streams.cell import Cell
from millrace.streams.hub.eddies import Eddies, enveloped, having
from millrace.streams.hub.lineage import Lineages, carrying, mask
from millrace.streams.hub.registry import Admitted, Registry
from millrace.streams.hub.task import Hub
from millrace.streams.task import Stream


class HubCell(Cell):
    """The state of a cell after some micro-batch, for some set of queries.

    ``lessons`` are of earlier eddies of the cell.

    Attributes:
        changes: Numbers of the changes of queries that the next micro-batch is to tell of.
    """

    def __init__(self, task: Hub, registry: Registry, lessons: str | None = None) -> None:
        self._eddies = Eddies(task, registry, lessons)
        super().__init__(task, run=self._eddies)
        self._hub = task
        self._words = registry.words
        self._used: frozenset[int] = frozenset()
        self._old: dict[str, list[pa.RecordBatch]] = {}
        self._came: tuple[Admitted, ...] = ()
        self.changes: tuple[int, ...] = ()
        self._set(registry)

    def _set(self, registry: Registry) -> None:
        self._registry = registry
        self._lineages = Lineages(self._hub.streams, registry)
        self._eddies.take(registry)
        self._used |= registry.slots

    @property
    def registry(self) -> Registry:
        return self._registry

    def takes(self, registry: Registry) -> bool:
        """Go over to other queries; returns False where the state has to be made anew for them.

        It has where a query wants tuples of the window, streams that none has joined or columns that results
        do not have, or the bit of one that has gone, which tuples may still carry.
        """
        if registry == self._registry:
            return True
        known = {each.query.id for each in self._registry.queries}
        fits = registry.words == self._words and all(
            each.query.since == "now" and each.slot not in self._used and self._eddies.takes(each.query)
            for each in registry.queries
            if each.query.id not in known
        )
        if fits:
            self._set(registry)
        return fits

    def catch_up_for(self, log: Log, head: Head, came: tuple[Admitted, ...]) -> None:
        """Take in what the log has, and find what the window has for new queries.

        ``came`` are queries that want results of tuples which had all come before them. State is empty.
        """
        self._came = came
        self.catch_up(log, head)

    def _carried(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> pa.RecordBatch:
        rows = self._task.complete(stream, rows)
        tuples = carrying(rows, self._lineages.of(stream, rows, batch))
        if self._came:
            old = having(tuples, mask(self._came, self._words))
            self._old.setdefault(stream.alias, []).append(old)
        return tuples

    def extend(self, arrived: Mapping[int, Arrived]) -> Iterator[pa.RecordBatch]:
        """Yield the results of the next micro-batch, as rows of ``ENVELOPE``.

        ``arrived`` are its tuples, by the stream's number.
        """
        if self.changes:
            yield enveloped((None, change, 0, None) for change in self.changes)
            self.changes = ()
        if self._came:
            came, self._came = self._came, ()
            old, self._old = self._old, {}
            yield from self._eddies.of_window({a: pa.concat_batches(rows) for a, rows in old.items()}, came)
        if not self._hub.keeps_all:
            arrived = {number: self._wanted(number, each) for number, each in arrived.items()}
        yield from super().extend(arrived)

    def _wanted(self, number: int, arrived: Arrived) -> Arrived:
        """Return the tuples that some query wants."""
        stream = self._hub.by_number[number]
        wanted = self._lineages.of(stream, arrived.rows, self.batch + 1).any(axis=1)
        return replace(arrived, rows=arrived.rows.filter(pa.array(wanted)), times=arrived.times[wanted])
