"""A cell of a hub: its streams are kept once, for one eddy that runs all queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.arrays import gathered
from millrace.engine.lineage import (
    Array,
    attach,
    columns,
    intersect,
    name_of,
    rows_by_slot,
    with_lineages,
    word_bits,
)
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import ColumnRef, columns_of
from millrace.streams.arrivals import Arrived
from millrace.streams.cell import Cell
from millrace.streams.hub.lineage import Lineages, select
from millrace.streams.hub.query import Admitted, Registry, StandingQuery
from millrace.streams.task import ContinuousJoin, Stream

ENVELOPE = pa.schema({"query": pa.int64(), "change": pa.int64(), "rows": pa.int64(), "block": pa.binary()})
"""What cells give out: a block of a query's rows; or, without one, the number of a change that is made."""

_ROWS = 1 << 17
"""Results are divided among queries when there are so many of them, and at the end."""


class HubCell(Cell):
    """The state of a cell after some micro-batch, for some set of queries.

    ``lessons`` are of earlier eddies of the cell.

    Attributes:
        registry: The queries.
        changes: Numbers of the changes that the next micro-batch is to tell of as made.
        came: Queries that want results of tuples which had all come before them. It is set before the state
            catches up from nothing, and the next micro-batch gives these results out.
    """

    def __init__(self, task: ContinuousJoin, registry: Registry, lessons: str | None = None) -> None:
        self._words = registry.words
        self._reads = frozenset(ref for each in registry.queries for ref in each.query.reads)
        self._join = replace(task, join=with_lineages(task.join, self._words, self._reads))
        super().__init__(task, run=self._join.run(lessons))
        self._used: frozenset[int] = frozenset()
        self._old: dict[str, list[pa.RecordBatch]] = {}
        self.came: tuple[Admitted, ...] = ()
        self.changes: Sequence[int] = ()
        self._set(registry)

    def _set(self, registry: Registry) -> None:
        self.registry = registry
        self._lineages = Lineages(self._task.streams, registry)
        self._used |= {each.slot for each in registry.queries}

    def takes(self, registry: Registry) -> bool:
        """Go over to other queries; returns False where the state has to be made anew for them.

        It has where a query wants tuples of the window or columns that results do not have, or the bit of one
        that has gone, which tuples may still carry.
        """
        if registry == self.registry:
            return True
        known = {each.query.id for each in self.registry.queries}
        fits = registry.words == self._words and all(
            each.query.since == "now" and each.slot not in self._used and each.query.reads <= self._reads
            for each in registry.queries
            if each.query.id not in known
        )
        if fits:
            self._set(registry)
        return fits

    def _carried(self, stream: Stream, rows: pa.RecordBatch, batch: int) -> pa.RecordBatch:
        rows = self._task.complete(stream, rows)
        tuples = attach(rows, self._lineages.of(stream, rows, batch))
        if self.came:
            self._old.setdefault(stream.alias, []).append(select(tuples, self.came))
        return tuples

    def _distinguish(self, batch: int) -> int:
        """Return how many queries see tuples of a micro-batch as new; the others want them of the window."""
        return sum(each.batch <= batch for each in self.registry.queries)

    def extend(self, arrived: Mapping[int, Arrived]) -> Iterator[pa.RecordBatch]:
        """Yield the results of the next micro-batch, as rows of ``ENVELOPE``.

        ``arrived`` are its tuples, by the stream's number.
        """
        if self.changes:
            yield envelop((None, change, 0, None) for change in self.changes)
            self.changes = ()
        if self.came:
            came, self.came = self.came, ()
            old, self._old = self._old, {}
            yield from self._of_window({a: pa.concat_batches(rows) for a, rows in old.items()}, came)
        yield from self._divided(super().extend(arrived), self.registry.queries)

    def _of_window(
        self, old: Mapping[str, pa.RecordBatch], came: Sequence[Admitted]
    ) -> Iterator[pa.RecordBatch]:
        """Yield results of tuples that had all come before a query: new queries probe old data (PSoup)."""
        if len(old) == len(self._task.streams) and all(rows.num_rows for rows in old.values()):
            yield from self._divided(self._join.run().extend(old), came)

    def _divided(
        self, results: Iterator[pa.RecordBatch], queries: Sequence[Admitted]
    ) -> Iterator[pa.RecordBatch]:
        for rows in gathered(results, _ROWS):
            yield from self._by_query(rows, queries)

    def _by_query(self, rows: pa.RecordBatch, queries: Sequence[Admitted]) -> Iterator[pa.RecordBatch]:
        lineages = [
            [rows.column(name_of(ColumnRef(alias, name))).to_numpy() for name in columns(self._words)]
            for alias in self._join.join.aliases
        ]
        admitted = {each.slot: each for each in queries}
        blocks: list[tuple[int, None, int, bytes]] = []
        wanted = word_bits(admitted, self._words)
        words = [word & bits for word, bits in zip(intersect(lineages), wanted, strict=True)]
        for slot, places in rows_by_slot(words):
            query = admitted[slot].query
            block = _result(rows, query, places)
            if block.num_rows:
                blocks.append((query.id, None, block.num_rows, block.serialize().to_pybytes()))
        if blocks:
            yield envelop(blocks)


def envelop(rows: Iterable[tuple[int | None, int | None, int, bytes | None]]) -> pa.RecordBatch:
    """Return rows of ``ENVELOPE``."""
    arrays = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), ENVELOPE, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENVELOPE)


def _result(rows: pa.RecordBatch, query: StandingQuery, places: Array) -> pa.RecordBatch:
    """Return a query's rows among results of the shared join."""
    taken = pa.array(places)
    if query.residuals:
        read = {ref for residual in query.residuals for ref in columns_of(residual)}
        given = {ref: rows.column(name_of(ref)).take(taken) for ref in read}
        for residual in query.residuals:
            passes = pc.fill_null(evaluate(residual, given), False)
            taken, given = taken.filter(passes), {ref: each.filter(passes) for ref, each in given.items()}
    arrays = [
        rows.column(name_of(ref)).take(taken).cast(field.type)
        for ref, field in zip(query.columns, query.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=query.schema)
