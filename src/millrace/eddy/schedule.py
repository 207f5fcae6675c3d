"""The source schedule: which relation to leave unbuilt, and in which order to read.

With everything at hand, the smaller relations are built first and the largest is streamed past
them without being built: half a hybrid hash join, and no memory for the largest (Raman et al.
2003, section 3.5). For early results all sources are read in turn and built instead, which is the
n-ary symmetric hash join of section 2.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from millrace.spec import JoinSpec

Arrival = tuple[int, pa.RecordBatch | None]
"""A relation's number with tuples of it, or with None when there will be no more (EOT)."""


@dataclass(frozen=True)
class Schedule:
    """How sources are read.

    Attributes:
        unbuilt: The relation streamed without a SteM, or None to build every relation.
        interleaved: Read all sources in turn, a batch each, rather than one after the other.
        order: Relation numbers; read one after the other, the unbuilt one comes last.
    """

    unbuilt: int | None
    interleaved: bool
    order: tuple[int, ...]

    @classmethod
    def of(cls, spec: JoinSpec, *, online: bool, stream: str | None = None) -> Schedule:
        """Choose the schedule of a block; ``stream`` names the relation to leave unbuilt."""
        numbers = range(len(spec.relations))
        by_size = sorted(numbers, key=lambda r: (spec.relations[r].rows or 0, r))
        if online and len(spec.relations) > 1:
            return cls(None, True, tuple(by_size))
        # Set semantics needs a SteM to find duplicates in.
        free = [r for r in by_size if not spec.relations[r].distinct]
        if stream is not None:
            unbuilt: int | None = spec.aliases.index(stream)
        else:
            unbuilt = free[-1] if free else None
        order = [r for r in by_size if r != unbuilt]
        return cls(unbuilt, unbuilt is None, tuple(order if unbuilt is None else [*order, unbuilt]))

    def arrivals(
        self, sources: Mapping[int, Iterable[pa.RecordBatch]], batch_size: int
    ) -> Iterator[list[Arrival]]:
        """Yield what arrives, in rounds: all of a round may be built before any of it probes."""
        pieces = {r: _cut(sources[r], batch_size) for r in self.order}
        if not self.interleaved:
            for relation in self.order:
                for batch in pieces[relation]:
                    yield [(relation, batch)]
                yield [(relation, None)]
            return
        open_ = list(self.order)
        while open_:
            arrived: list[Arrival] = [(r, next(pieces[r], None)) for r in open_]
            yield arrived
            open_ = [r for r, batch in arrived if batch is not None]


def _cut(source: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the source's batches, those larger than ``size`` rows as slices of it."""
    for batch in source:
        for low in range(0, batch.num_rows, size):
            yield batch.slice(low, size)
