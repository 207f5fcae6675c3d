"""The source schedule: which relation to leave unbuilt, and in which order to read.

With everything at hand, the smaller relations are built first and the largest is streamed past
them without being built: half a hybrid hash join, and no memory for the largest (Raman et al.
2003, section 3.5). For early results all sources are read in turn and built instead, which is the
n-ary symmetric hash join of section 2.3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.errors import InputError
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
        weights: With interleaving, by relation number: how many batches of each arrive while so many of
            another do, empty ones counted; None for a batch of each in turn.
    """

    unbuilt: int | None
    interleaved: bool
    order: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    @classmethod
    def of(
        cls, spec: JoinSpec, *, online: bool, stream: str | None = None, built: Collection[int] = ()
    ) -> Schedule:
        """Choose the schedule of a block.

        Args:
            spec: The block.
            online: Results are to come early.
            stream: The relation to leave unbuilt.
            built: Relations that must not be left unbuilt: those with several access modules or an
                index, and those that share their tuples.
        """
        numbers = range(len(spec.relations))
        by_size = sorted(numbers, key=lambda r: (spec.relations[r].rows or 0, r))
        if online and len(spec.relations) > 1:
            return cls(None, True, tuple(by_size))
        # Set semantics needs a SteM to find duplicates in.
        free = [r for r in by_size if not spec.relations[r].distinct and r not in built]
        if stream is not None:
            unbuilt: int | None = spec.aliases.index(stream)
        else:
            unbuilt = free[-1] if free else None
        order = [r for r in by_size if r != unbuilt]
        return cls(unbuilt, unbuilt is None, tuple(order if unbuilt is None else [*order, unbuilt]))

    def check(self, spec: JoinSpec, built: Collection[int] = ()) -> None:
        """Raise InputError if the relation to leave unbuilt has to be built, as those in ``built`` have."""
        if self.unbuilt is not None and self.unbuilt in built:
            raise InputError(
                f"relation {spec.aliases[self.unbuilt]!r} must be built, for it has several access modules, "
                "an index, or shares its tuples with another relation; stream another relation"
            )
        if self.unbuilt is not None and spec.relations[self.unbuilt].distinct:
            raise InputError(
                f"relation {spec.aliases[self.unbuilt]!r} has set semantics and must be built, for "
                "duplicates are dropped in its SteM; stream another relation"
            )

    def for_joins(self) -> Schedule:
        """Return the schedule for binary joins, which can only leave unbuilt what comes after all else."""
        return replace(self, unbuilt=None) if self.interleaved else self

    def arrivals(
        self, sources: Mapping[int, Iterable[pa.RecordBatch]], batch_size: int
    ) -> Iterator[list[Arrival]]:
        """Yield what arrives, in rounds: all of a round may be built before any of it probes."""
        pieces = {r: cut(sources[r], batch_size) for r in self.order if r in sources}
        if not self.interleaved:
            for relation in pieces:
                for batch in pieces[relation]:
                    yield [(relation, batch)]
                yield [(relation, None)]
            return
        open_ = list(pieces)
        if self.weights is not None:
            yield from self._weighted(pieces, self.weights)
            return
        while open_:
            arrived: list[Arrival] = [(r, next(pieces[r], None)) for r in open_]
            yield arrived
            open_ = [r for r, batch in arrived if batch is not None]

    def _weighted(
        self, pieces: Mapping[int, Iterator[pa.RecordBatch]], weights: tuple[float, ...]
    ) -> Iterator[list[Arrival]]:
        """Yield one arrival at a time, of the relation that lags behind its weight most.

        A batch that a scan's filters have emptied still takes its time to arrive.
        """
        progress = dict.fromkeys(pieces, 0.0)
        while progress:
            relation = min(progress, key=lambda r: (progress[r], self.order.index(r)))
            batch = next(pieces[relation], None)
            if batch is None:
                del progress[relation]
            else:
                progress[relation] += 1 / weights[relation]
            yield [(relation, batch)]


def cut(source: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the source's batches, those larger than ``size`` rows as slices of it."""
    for batch in source:
        for low in range(0, max(1, batch.num_rows), size):
            yield batch.slice(low, size)
