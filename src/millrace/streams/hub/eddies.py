"""The eddies of a cell: one for each *footprint*, the set of streams that some queries join.

They share the log and the lineages. From outside they are one run, which takes in tuples and gives out rows
of queries; a tuple goes to the eddies where some query wants it.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import ColumnRef, columns_of
from millrace.streams.hub.lineage import by_slot, columns, mask, rows_by_slot, shared
from millrace.streams.hub.query import StandingQuery
from millrace.streams.hub.registry import Admitted, Registry, read_fields
from millrace.streams.hub.task import ENVELOPE, Hub, name_of

if TYPE_CHECKING:
    from millrace.engine.figures import CellFigures
    from millrace.reports.micro_batch import Orders

Array = np.ndarray[Any, np.dtype[Any]]

_ROWS = 1 << 17
"""Results are divided among queries when there are so many of them, and at the end."""


class Footprint:
    """One eddy, for the queries that join the same streams.

    The registry has the queries of all footprints; ``lessons`` are of earlier eddies of this one.
    """

    def __init__(
        self, task: Hub, aliases: tuple[str, ...], registry: Registry, lessons: str | None = None
    ) -> None:
        self.aliases = aliases
        self._words = registry.words
        self.take(registry)
        self._reads = frozenset(ref for each in self._queries for ref in each.query.reads)
        # Where there is no query yet, rows of the eddy need a column all the same.
        first = next(stream for stream in task.streams if stream.alias == aliases[0])
        self._reads = self._reads or frozenset((ColumnRef(first.alias, first.time),))
        self._join = task.carrying(aliases, registry.words, self._reads)
        self.run = self._join.run(lessons)
        # By stream: tuples of all footprints up to the end of some batch, and those of this one.
        self._ends: dict[str, deque[tuple[int, int]]] = {alias: deque() for alias in aliases}

    def take(self, registry: Registry) -> None:
        """Go over to other queries."""
        self._queries = tuple(each for each in registry.queries if each.query.streams == self.aliases)
        self._mask = mask(self._queries, self._words)

    def takes(self, query: StandingQuery) -> bool:
        """Tell whether results have all that a query reads."""
        return query.reads <= self._reads

    def restore(self, arrived: Sequence[tuple[str, pa.RecordBatch]], ends: Sequence[int]) -> None:
        """Take in tuples whose results are out, wanted ones among them, with the alias of each stream.

        ``ends`` are how many tuples of the stream there were in all footprints by the end of each.
        """
        own = [
            (alias, wanted, end)
            for (alias, rows), end in zip(arrived, ends, strict=True)
            if alias in self.aliases and (wanted := having(rows, self._mask)).num_rows
        ]
        kept = self.run.restore((alias, rows) for alias, rows, _ in own)
        for (alias, _, end), last in zip(own, kept, strict=True):
            self._ends[alias].append((end, last))

    def extend(
        self, arrived: Mapping[str, pa.RecordBatch], ends: Mapping[str, int]
    ) -> Iterator[pa.RecordBatch]:
        """Yield results that have a component among these tuples, by query, as rows of ``ENVELOPE``.

        The tuples are by alias, wanted ones among them; ``ends`` are how many of each stream there are with
        them in all footprints.
        """
        own = {alias: having(rows, self._mask) for alias, rows in arrived.items() if alias in self.aliases}
        own = {alias: rows for alias, rows in own.items() if rows.num_rows}
        yield from self._divided(self.run.extend(own), self._queries)
        for alias in own:
            self._ends[alias].append((ends[alias], self.run.rows(alias)))

    def evict(self, below: Mapping[str, int]) -> None:
        """Drop tuples of streams; see :meth:`Eddies.evict`."""
        own = {}
        for alias in below.keys() & set(self.aliases):
            ends, first = self._ends[alias], 0
            while ends and ends[0][0] <= below[alias]:
                first = ends.popleft()[1]
            if first:
                own[alias] = first
        if own:
            self.run.evict(own)

    def of_window(
        self, old: Mapping[str, pa.RecordBatch], came: Sequence[Admitted]
    ) -> Iterator[pa.RecordBatch]:
        """Yield results of tuples that had all come before a query: new queries probe old data (PSoup).

        The old tuples are by stream; ``came`` are the queries.
        """
        own = tuple(each for each in came if each.query.streams == self.aliases)
        wanted = mask(own, self._words)
        given = {alias: having(rows, wanted) for alias, rows in old.items() if alias in self.aliases}
        if len(given) == len(self.aliases) and all(rows.num_rows for rows in given.values()):
            yield from self._divided(self._join.run().extend(given), own)

    def _divided(
        self, results: Iterator[pa.RecordBatch], queries: tuple[Admitted, ...]
    ) -> Iterator[pa.RecordBatch]:
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
            for alias in self.aliases
        ]
        words = shared(lineages, mask(queries, self._words))
        admitted = by_slot(queries)
        blocks: list[tuple[int, None, int, bytes]] = []
        for slot, places in rows_by_slot(words):
            query = admitted[slot].query
            block = _result(rows, query, places)
            if block.num_rows:
                blocks.append((query.id, None, block.num_rows, block.serialize().to_pybytes()))
        if blocks:
            yield enveloped(blocks)


class Eddies:
    """All eddies of a cell, as one run of its streams; ``lessons`` are of earlier eddies of the cell."""

    def __init__(self, task: Hub, registry: Registry, lessons: str | None = None) -> None:
        read = read_fields(lessons or "")
        known = read if isinstance(read, dict) else {}  # what cannot be read is nothing
        # All streams together always have one, if only to have something to tell of.
        kinds = dict.fromkeys((task.join.aliases, *(each.query.streams for each in registry.queries)))
        self._footprints = {
            aliases: Footprint(task, aliases, registry, known.get(",".join(aliases))) for aliases in kinds
        }
        self._rows = dict.fromkeys(task.join.aliases, 0)
        self._gone = dict.fromkeys(task.join.aliases, 0)

    def take(self, registry: Registry) -> None:
        """Go over to other queries."""
        for each in self._footprints.values():
            each.take(registry)

    def takes(self, query: StandingQuery) -> bool:
        """Tell whether there is an eddy whose results have all that a query reads."""
        found = self._footprints.get(query.streams)
        return found is not None and found.takes(query)

    def restore(self, arrived: Iterable[tuple[str, pa.RecordBatch]]) -> list[int]:
        """Take in tuples whose results are out; see :class:`millrace.streams.cell.Kept`."""
        came = list(arrived)
        ends = []
        for alias, rows in came:
            self._rows[alias] += rows.num_rows
            ends.append(self._rows[alias])
        for each in self._footprints.values():
            each.restore(came, ends)
        return ends

    def extend(self, arrived: Mapping[str, pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of queries that have a component among these tuples."""
        for alias, rows in arrived.items():
            self._rows[alias] += rows.num_rows
        for each in self._footprints.values():
            yield from each.extend(arrived, self._rows)

    def of_window(
        self, old: Mapping[str, pa.RecordBatch], came: Sequence[Admitted]
    ) -> Iterator[pa.RecordBatch]:
        """Yield what queries have of tuples that had all come before them."""
        for each in self._footprints.values():
            yield from each.of_window(old, came)

    def evict(self, below: Mapping[str, int]) -> None:
        """Drop tuples of streams.

        ``below`` is, by alias, the number of the first tuple that stays, in order of arrival.
        """
        self._gone |= below
        for each in self._footprints.values():
            each.evict(below)

    @property
    def nbytes(self) -> int:
        return sum(each.run.nbytes for each in self._footprints.values())

    def rows(self, alias: str) -> int:
        """Return how many tuples of a stream have been wanted so far, evicted ones counted."""
        return self._rows[alias]

    def held(self, alias: str) -> int:
        """Return how many tuples of a stream are kept, each once."""
        return self._rows[alias] - self._gone[alias]

    def nbytes_of(self, alias: str) -> tuple[int, int]:
        """Return the bytes of a stream's tuples in all eddies with their indexes, and of these alone."""
        sizes = [each.run.nbytes_of(alias) for names, each in self._footprints.items() if alias in names]
        return sum(whole for whole, _ in sizes), sum(indexes for _, indexes in sizes)

    def take_orders(self) -> Orders:
        """Return the orders that tuples took since this was last asked, those of most tuples first."""
        taken: Counter[str] = Counter()
        for each in self._footprints.values():
            taken.update(dict(each.run.take_orders()))
        return tuple(taken.most_common())

    def learned(self) -> str:
        """Return what the eddies have learned, as JSON."""
        return json.dumps(
            {",".join(aliases): each.run.learned() for aliases, each in self._footprints.items()}
        )

    def figures(self, cell: int) -> CellFigures:
        """Return what the eddy of all streams has done."""
        return next(iter(self._footprints.values())).run.figures(cell)


def having(rows: pa.RecordBatch, bits: Array) -> pa.RecordBatch:
    """Return the tuples whose lineages have one of these bits."""
    words = [rows.column(name).to_numpy() for name in columns(len(bits))]
    kept = np.logical_or.reduce([word & bit != 0 for word, bit in zip(words, bits, strict=True)])
    return rows if kept.all() else rows.filter(pa.array(kept))


def enveloped(rows: Iterable[tuple[int | None, int | None, int, bytes | None]]) -> pa.RecordBatch:
    """Return rows of ``ENVELOPE``."""
    columns_ = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns_, ENVELOPE, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENVELOPE)


def _result(rows: pa.RecordBatch, query: StandingQuery, places: Array) -> pa.RecordBatch:
    """Return a query's rows among results of its footprint."""
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
