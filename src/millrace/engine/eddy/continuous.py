"""A block run over and over: one eddy keeps its state from one micro-batch to the next.

What has arrived stays in SteMs or STAIRs, so each result comes out once: with the micro-batch that the last
of its components arrives in (Raman, Deshpande & Hellerstein 2003, section 2.2; TimeStamp).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Unpack

import pyarrow as pa

from millrace.engine.access.schedule import Arrival, Source
from millrace.engine.eddy.context import Given
from millrace.engine.eddy.run import Run
from millrace.engine.eddy.statistics import as_text
from millrace.engine.figures import CellFigures
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stairs.state import StairState
from millrace.options import Options


class ContinuousRun:
    """Runs a block over relations of which some never end.

    Args:
        streams: Aliases of the relations that never end; one that shares their tuples is not named.
        tables: The others, read to their ends before anything of a stream arrives.
        options: Of an eddy; every relation is built, whatever they say of ``online``.
        given: See :class:`millrace.engine.eddy.context.Given`. With a ``warm_start`` the eddy goes on with
            what earlier runs of the block have learned.

    Raises:
        InputError: What is given does not go together, or the options ask for a static plan.
        OptionError: No policy can be made of what the options name.
    """

    def __init__(
        self,
        spec: JoinSpec,
        streams: Collection[str],
        tables: Mapping[str, Source],
        options: Options,
        **given: Unpack[Given],
    ) -> None:
        sources: dict[str, Source] = {r.alias: () for r in spec.sources if r.same_as is None}
        self._run = Run(spec, sources | dict(tables), replace(options, online=True), **given)
        context, self._dataflow = self._run.context, self._run.eddy_for("a join that goes on")
        self._stems, self._statistics = context.stems, context.statistics
        leads = {r.alias: r.same_as or r.alias for r in spec.relations}
        # Without SteMs, relations that are the same data get their tuples one by one.
        self._fed = {
            alias: tuple(
                n
                for n, r in enumerate(context.spec.relations)
                if leads[r.alias] == alias and r.same_as is None
            )
            for alias in leads.values()
        }
        self._run.fill()
        for alias in self._fed:
            if alias not in streams:
                self._read(alias, tables[alias])

    def _read(self, alias: str, table: Source) -> None:
        """Take in all of a relation that ends."""
        self.restore((alias, batch) for batch in table if isinstance(batch, pa.RecordBatch))
        ends: list[Arrival] = [(n, None) for n in self._fed[alias]]
        self._dataflow.admit(ends)

    def extend(self, arrived: Mapping[str, pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results that have a component among these new tuples of streams, each once."""
        came: list[Arrival] = [(n, batch) for alias, batch in arrived.items() for n in self._fed[alias]]
        return self._dataflow.push(came)

    def restore(self, arrived: Iterable[tuple[str, pa.RecordBatch]]) -> list[int]:
        """Take in tuples whose results, among them and with all before them, are out already.

        State is what base tuples say, so it is made of them as if everything had been demoted to these
        (Deshpande & Hellerstein 2004, section 3.1).

        Returns:
            For each of these batches, how many tuples of its relation have been kept up to its end.
        """
        ends = []
        for alias, batch in arrived:
            for relation in self._fed[alias] if batch.num_rows else ():
                self._dataflow.build(relation, batch)
            ends.append(self.rows(alias))
        state = self._dataflow.state
        if isinstance(state, StairState):
            state.switch(state.stairs.tree)
        return ends

    def evict(self, below: Mapping[str, int]) -> None:
        """Drop tuples; ``below`` has by alias the number of the first that stays, in order of arrival."""
        self._dataflow.state.expire({n: row for alias, row in below.items() for n in self._fed[alias]}, 0)

    @property
    def nbytes(self) -> int:
        """Memory of the join state and of the relations beside it, in bytes."""
        beside = self._run.context.filters.figures()
        return self._dataflow.state.held().nbytes + sum(each.nbytes for each in beside)

    def rows(self, alias: str) -> int:
        """Return how many tuples of a stream have been kept so far, evicted ones counted."""
        return self._stems[self._fed[alias][0]].rows

    def held(self, alias: str) -> int:
        return self._stems[self._fed[alias][0]].store.held

    def nbytes_of(self, alias: str) -> tuple[int, int]:
        """Return the bytes of a stream's base tuples with their indexes, and of the indexes alone."""
        stems = [self._stems[number] for number in self._fed[alias]]
        whole = sum(stem.nbytes for stem in stems)
        return whole, whole - sum(stem.store.nbytes for stem in stems)

    def take_orders(self) -> tuple[tuple[str, int], ...]:
        """Return the orders that tuples took since this was last asked, those of most tuples first."""
        return self._statistics.take_orders()

    def learned(self) -> str:
        """Return what the eddy has learned about costs and selectivities, as text for a warm start."""
        return as_text(self._statistics.accounts)

    def figures(self, cell: int = 0) -> CellFigures:
        return self._run.figures(cell)
