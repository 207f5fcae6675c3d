"""How much memory a run takes, and who is told when it may have become more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.engine.eddy.operator import Work
from millrace.engine.stairs.stair import STAIR
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import TupleBatch


@dataclass(frozen=True)
class Held:
    """What join state holds.

    Attributes:
        nbytes: Bytes of base tuples, intermediate tuples and indexes.
        least: The part of them that indexes take however few tuples there are.
    """

    nbytes: int
    least: int


class Watch:
    """Is told whenever a run may hold more than before. This one does nothing."""

    def attach(
        self, stems: Sequence[SteM], state: Callable[[], Held], in_flight: Callable[[], Iterable[Work]]
    ) -> None:
        """Take note of what to look at.

        Args:
            stems: Base tuples by relation.
            state: Returns what the run's state holds.
            in_flight: Returns its batches and probes in flight.
        """

    def look(self, *, at_stasis: bool = False) -> None:
        """The run may hold more than before.

        Args:
            at_stasis: No tuple is in flight: state is being moved.
        """


def held_by(stems: Iterable[SteM], stairs: Iterable[STAIR]) -> Held:
    """Return what SteMs and STAIRs hold."""
    bases = [stem.base for stem in stems]
    segments = [segment for stair in stairs for segment in stair.segments.values()]
    return Held(
        sum(base.nbytes for base in bases) + sum(segment.nbytes for segment in segments),
        sum(base.least for base in bases) + sum(segment.least for segment in segments),
    )


def bytes_in_flight(works: Iterable[Work], stems: Iterable[SteM]) -> int:
    """Return the bytes of batches and probes, and of base tuples that they alone refer to."""
    kept = {id(stem.store) for stem in stems}
    size, streamed = 0, dict[int, int]()
    for work in works:
        routed: Any = work if isinstance(work, TupleBatch) else work[1]
        batch: TupleBatch = getattr(routed, "batch", routed)
        arrays = [*batch.rows.values(), *([] if batch.stamps is None else [batch.stamps])]
        size += sum(array.nbytes for array in arrays)
        if routed is not work:
            size += 8 * batch.size  # how far the chain of each tuple has been followed
        streamed.update({id(s): s.nbytes for s in batch.stores.values() if id(s) not in kept})
    return size + sum(streamed.values())
