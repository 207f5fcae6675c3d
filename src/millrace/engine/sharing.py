"""One join for several queries, which end: each has the rows, or partial aggregates, that it has alone.

As in CACQ (Madden, Shah, Hellerstein & Raman 2002) an eddy joins for all of them tuples with lineages
(:mod:`millrace.engine.lineage`). Behind it each query gets its rows, evaluates what else it asks of them, and
aggregates them as it would alone. Rows of all queries leave as one table: a number says whose a row is, and
queries use the same columns where these have the same type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.aggregate import AggregateSpec, PartialAggregation
from millrace.engine.arrays import zeros
from millrace.engine.eddy.output import Output, Sink
from millrace.engine.figures import ModuleFigures
from millrace.engine.lineage import BITS, GroupedFilter, attach, columns, intersect, with_lineages
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import ColumnRef, Predicate, columns_of
from millrace.engine.plan.spec import JoinSpec, OutputColumn
from millrace.engine.tuples.batch import TupleBatch


@dataclass(frozen=True)
class SharingQuery:
    """What one query asks of a join that it shares.

    Attributes:
        filters: Of single relations, by alias, beyond those that all queries have.
        residuals: Of results, beyond those of the join.
        output: Its columns of the join; none for the number of its rows.
        aggregate: Of its rows; None gives them out as they are.
        places: Where its columns are among those that leave, in order.
    """

    filters: Mapping[str, tuple[Predicate, ...]]
    residuals: tuple[Predicate, ...]
    output: tuple[OutputColumn, ...]
    aggregate: AggregateSpec | None
    places: tuple[int, ...]

    @property
    def reads(self) -> frozenset[ColumnRef]:
        """The columns of results that it reads."""
        asked = (ref for residual in self.residuals for ref in columns_of(residual))
        return frozenset((*asked, *(column.source for column in self.output)))


@dataclass(frozen=True)
class Sharing:
    """The queries that share a join, in the order of their numbers.

    Attributes:
        schema: Of what leaves: the query's number, and columns. In rows of queries that have no such column
            it is null, or where it is not nullable, zero.
    """

    queries: tuple[SharingQuery, ...]
    schema: pa.Schema

    @cached_property
    def words(self) -> int:
        """How many words a lineage has."""
        return 1 + (len(self.queries) - 1) // BITS

    @cached_property
    def carriers(self) -> tuple[str, ...]:
        """The relations whose tuples carry a lineage, for some queries filter them."""
        return tuple(dict.fromkeys(alias for each in self.queries for alias in each.filters))

    def over_join(self, join: JoinSpec) -> JoinSpec:
        """Return the join that the eddy runs."""
        reads = frozenset[ColumnRef]().union(*(each.reads for each in self.queries))
        # A query that filters neither of two relations wants all pairs of their tuples.
        pairs = [
            pair
            for pair in combinations(self.carriers, 2)
            if all(any(map(each.filters.get, pair)) for each in self.queries)
        ]
        return with_lineages(join, self.words, reads, self.carriers, pairs)

    def over_source(
        self, alias: str, batches: Iterable[pa.RecordBatch | None]
    ) -> Iterable[pa.RecordBatch | None]:
        """Yield those of a relation's tuples that some query wants, with their lineages; None as it comes."""
        if alias not in self.carriers:
            return batches
        wanted = {slot: each.filters.get(alias, ()) for slot, each in enumerate(self.queries)}
        grouped = GroupedFilter(alias, wanted, self.words)
        return (rows if rows is None else attach(rows, grouped.evaluate(rows)) for rows in batches)


class Division(Sink):
    """Divides the results of a shared join among its queries; its output has the schema of ``sharing``.

    ``join`` is what the eddy runs. A query gathers its own columns, of its own rows.
    """

    name = "Output"

    def __init__(self, sharing: Sharing, join: JoinSpec, batch_size: int) -> None:
        super().__init__()
        self._sharing, self._numbers = sharing, {alias: n for n, alias in enumerate(join.aliases)}
        specs = [replace(join, output=each.output, count_only=not each.output) for each in sharing.queries]
        self._outputs = [Output(spec, batch_size) for spec in specs]
        self._aggregations = [
            None if each.aggregate is None else PartialAggregation(each.aggregate, spec.output_schema)
            for each, spec in zip(sharing.queries, specs, strict=True)
        ]

    def add(self, batch: TupleBatch) -> Iterator[pa.RecordBatch]:
        """Take result tuples; yield rows of queries that are ready."""
        self.counted += batch.size
        if not batch.size:
            return
        names = columns(self._sharing.words)
        carried = [self._take(batch, alias, names) for alias in self._sharing.carriers]
        lineage = intersect([[word.to_numpy() for word in words] for words in carried])
        for number, query in enumerate(self._sharing.queries):
            own = batch
            if lineage:
                bit = np.uint64(1 << number % BITS)
                own = batch.take(np.flatnonzero(lineage[number // BITS] & bit))
            for residual in query.residuals if own.size else ():
                given = {ref: self._take(own, ref.relation, [ref.column])[0] for ref in columns_of(residual)}
                passes = pc.fill_null(evaluate(residual, given), False)
                own = own.take(np.flatnonzero(passes.to_numpy(zero_copy_only=False)))
            if own.size:
                yield from self._give(number, self._outputs[number].add(own))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left of all queries."""
        for number, (output, aggregation) in enumerate(zip(self._outputs, self._aggregations, strict=True)):
            yield from self._give(number, output.finish())
            if aggregation is not None:
                yield from self._place(number, aggregation.finish())

    def figures(self) -> Iterator[ModuleFigures]:
        """Yield what was aggregated."""
        for query, aggregation in zip(self._sharing.queries, self._aggregations, strict=True):
            if aggregation is not None:
                yield aggregation.figures({o.name: str(o.source) for o in query.output})

    def _take(self, batch: TupleBatch, alias: str, names: Sequence[str]) -> list[pa.Array]:
        relation = self._numbers[alias]
        return batch.stores[relation].take(names, batch.rows[relation])

    def _give(self, number: int, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        aggregation = self._aggregations[number]
        for batch in rows:
            yield from self._place(number, [batch] if aggregation is None else aggregation.add(batch))

    def _place(self, number: int, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a query's rows among the columns that leave."""
        first, *fields = self._sharing.schema
        for batch in rows:
            own = dict(zip(self._sharing.queries[number].places, batch.columns, strict=True))
            arrays = [pa.repeat(pa.scalar(number, first.type), batch.num_rows)]
            for place, field in enumerate(fields):
                if place in own:
                    arrays.append(own[place])
                elif field.nullable:
                    arrays.append(pa.nulls(batch.num_rows, field.type))
                else:
                    arrays.append(zeros(field.type, batch.num_rows))
            yield pa.RecordBatch.from_arrays(arrays, schema=self._sharing.schema)
