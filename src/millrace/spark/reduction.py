"""Filters on the map side of an exchange: what has no match in small relations is not sent.

Small relations that have filters, and those that filters reach through these, are read whole by every map
task, so that filters travel along the join graph (:mod:`millrace.engine.operators.transfer`) before the
exchange and not behind it. Reading a few megabytes again in each task costs less than sending what they would
drop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.engine.architectures.stems import stems_of
from millrace.engine.arrivals.key_ranges import KeyRanges
from millrace.engine.arrivals.paths import Paths
from millrace.engine.figures import ModuleFigures
from millrace.engine.graph import QueryGraph
from millrace.engine.operator import Operator, Step
from millrace.engine.operators.transfer import Transfers
from millrace.engine.spec import JoinSpec
from millrace.engine.state.stem import singletons
from millrace.engine.statistics import Statistics
from millrace.engine.tuples import TupleBatch
from millrace.spark.placement import Size
from millrace.spark.task_inputs import Scan

_SMALL = 16 * 1024 * 1024
"""Bytes in memory of a relation that every map task reads."""

_LARGE = 4
"""Times as many bytes that a map task sends, or it is not worth reading."""


@dataclass(frozen=True)
class Reduction:
    """The small relations that every map task reads first, by number, in the order of reading."""

    join: JoinSpec
    scans: tuple[tuple[int, Scan], ...]

    @property
    def aliases(self) -> tuple[str, ...]:
        """The small relations."""
        return tuple(self.join.aliases[number] for number, _ in self.scans)


def small_relations(join: JoinSpec, sizes: Sequence[Size], filtered: Sequence[bool], tasks: int) -> list[int]:
    """Return relations that every map task should read, the smallest first; tasks filter some relations."""
    graph = QueryGraph.of(join)
    most = min(_SMALL, sum(size.bytes for size in sizes) // (_LARGE * tasks))
    small: list[int] = []
    for number in sorted(range(len(join.relations)), key=lambda n: sizes[n].rows):
        size = sizes[number]
        reached = any(number in graph.neighbours(1 << other) for other in small)
        if size.splits is None or size.bytes > most or len(graph.roles(number)) > 1:
            continue
        if filtered[number] or reached:
            small.append(number)
            most -= size.bytes
    return small


class Reducer:
    """Filters the relations that one map task sends; ``ranges`` learns what need not be read of them."""

    def __init__(self, reduction: Reduction | None, ranges: KeyRanges) -> None:
        self._statistics = Statistics()
        self._near = 0
        if reduction is None:
            return
        self._aliases = reduction.join.aliases
        graph = QueryGraph.of(reduction.join)
        self._stems = stems_of(reduction.join, graph, Paths.scans(graph))
        self._transfers = Transfers(
            graph, None, self._stems, self._aliases, self._statistics, self._visit, ranges
        )
        for number, scan in reduction.scans:
            stem = self._stems[number]
            for batch in scan.read(0):
                matching = self._match(number, batch, built=False)
                if matching.size:
                    stem.build(matching, None)
            stem.complete = True
            self._transfers.ended(number)
            self._near |= sum(1 << other for other in graph.neighbours(1 << number))

    def reduce(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return those rows of a relation that may have matches in all small relations."""
        if not self._near >> number & 1:  # nor does a semi-joined relation meet any of them
            return batch
        matching = self._match(number, batch, built=True)
        return matching.stores[number].chunk(matching.rows[number])

    def figures(self) -> tuple[ModuleFigures, ...]:
        """Return what each filter did."""
        return tuple(
            ModuleFigures(each.name, each.action, a.tuples_in, a.tuples_out, a.calls, a.seconds)
            for each, a in self._statistics.items()
            if isinstance(each, Operator) and a.calls
        )

    def _match(self, number: int, batch: pa.RecordBatch, *, built: bool) -> TupleBatch:
        tuples = singletons(self._stems[number], batch, self._aliases[number], built=built)
        return self._transfers.reduce(number, tuples)

    def _visit(self, transfer: Operator, batch: TupleBatch) -> Step:
        """Let a filter work on a batch, and book what came of it."""
        began = time.perf_counter()
        step = transfer.step(transfer.start(batch), batch.size)
        self._statistics.update(transfer, batch.size, step.tuples_out, time.perf_counter() - began)
        return step
