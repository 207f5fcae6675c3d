"""The source schedule: which relation to leave unbuilt, and in which order to read.

With everything at hand, the smaller relations are built first and the largest is streamed past
them without being built: half a hybrid hash join, and no memory for the largest (Raman et al.
2003, section 3.5). For early results all sources are read in turn and built instead, which is the
n-ary symmetric hash join of section 2.3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import sliced
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.tuples import codes
from millrace.errors import InputError


class Stalled(Enum):
    """What arrives of a source that has nothing at present; it is asked again in the next round."""

    STALLED = "stalled"


STALLED = Stalled.STALLED
Source = Iterable[pa.RecordBatch | None]
"""Record batches of a relation; None where there is nothing at present."""

Arrival = tuple[int, pa.RecordBatch | Stalled | None]
"""A relation's number with tuples of it, with None when there will be no more (EOT), or with STALLED."""

_NEVER_SEEN = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class Schedule:
    """How sources are read.

    Attributes:
        unbuilt: The relation streamed without a SteM, or None to build every relation.
        interleaved: Read all sources in turn, a batch each, rather than one after the other.
        order: Relation numbers; read one after the other, the unbuilt one comes last.
        weights: With interleaving, by relation number: how many batches of each arrive while so many of
            another do, empty ones counted; None for a batch of each in turn.
        times: By relation number, the column that a sliding window goes by. Relations without one are read
            first, then always that one whose times lag behind, so that nothing waits for long in state.
    """

    unbuilt: int | None
    interleaved: bool
    order: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    times: tuple[str | None, ...] | None = None

    @classmethod
    def of(
        cls, spec: JoinSpec, *, online: bool, stream: str | None = None, built: Collection[int] = ()
    ) -> Schedule:
        """Choose the schedule of a block: ``online`` for early results, ``stream`` left unbuilt if given.

        Relations in ``built`` must not be left unbuilt: they have several access modules or an index, or
        share their tuples.
        """
        numbers = range(len(spec.relations))
        by_size = sorted(numbers, key=lambda r: (spec.relations[r].rows or 0, r))
        windows = [r.window for r in spec.relations]
        if any(windows) and len(windows) > 1 and stream is None:
            return cls(
                None, True, tuple(by_size), times=tuple(None if w is None else w.column for w in windows)
            )
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

    def arrivals(self, sources: Mapping[int, Source], batch_size: int) -> Iterator[list[Arrival]]:
        """Yield what arrives, in rounds: all of a round may be built before any of it probes.

        A source that stalls holds up no other, but that the unbuilt relation is read when all others have
        ended. A round in which nothing but STALLED arrives is one in which nothing can be done.
        """
        empty = self.weights is not None
        pieces = {r: cut(sources[r], batch_size, empty=empty) for r in self.order if r in sources}
        if self.interleaved and self.weights is None and self.times is None:
            open_ = list(pieces)
            while open_:
                arrived: list[Arrival] = [(r, next(pieces[r], None)) for r in open_]
                yield arrived
                open_ = [r for r, batch in arrived if batch is not None]
            return
        # One arrival at a time, of the relation that has progressed least.
        progress: dict[int, float] = dict.fromkeys(pieces, 0.0)
        if self.interleaved and self.times is not None:
            progress = {r: -np.inf if self.times[r] is None else _NEVER_SEEN for r in pieces}
        while progress:
            arrived = []
            for relation in sorted(progress, key=lambda r: (progress[r], self.order.index(r))):
                if not self.interleaved and relation == self.unbuilt and len(progress) > 1:
                    continue
                batch = next(pieces[relation], None)
                arrived.append((relation, batch))
                if batch is None:
                    del progress[relation]
                elif batch is not STALLED:
                    progress[relation] = self._progressed(relation, progress[relation], batch)
                if batch is not STALLED:
                    break
            yield arrived

    def _progressed(self, relation: int, progress: float, batch: pa.RecordBatch) -> float:
        """Return how far a relation is after one more batch.

        A batch that a scan's filters have emptied still takes its time to arrive.
        """
        if not self.interleaved:
            return progress
        if self.weights is not None:
            return progress + 1 / self.weights[relation]
        column = None if self.times is None else self.times[relation]
        if column is None:
            return progress
        times, valid = codes(batch.column(column), batch.schema.field(column).type)
        known = times if valid is None else times[valid]
        return int(known[-1]) if len(known) else progress


def cut(source: Source, size: int, *, empty: bool = False) -> Iterator[pa.RecordBatch | Stalled]:
    """Yield the source's batches, those larger than ``size`` rows as slices of it; STALLED for None.

    Batches without a row are left out unless ``empty`` says otherwise.
    """
    for batch in source:
        if batch is None:
            yield STALLED
        elif empty and not batch.num_rows:
            yield batch
        else:
            yield from sliced(batch, size)
