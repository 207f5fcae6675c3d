"""What the router asks of join state, whichever architecture keeps it, and how much memory that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from millrace.engine.eddy.operator import Operator, Work
from millrace.engine.figures import ModuleFigures, StateFigures
from millrace.engine.stairs.stair import STAIR, Segment
from millrace.engine.stems.bindings import BindingSet
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples import RelationStore
from millrace.engine.tuples.batch import Signature, TupleBatch


@dataclass(frozen=True)
class StateTotals:
    """What join state held and did over a run, as in :class:`millrace.engine.figures.CellFigures`."""

    state: tuple[StateFigures, ...]
    peak: int
    migrated: int = 0
    recomputed: int = 0
    lookups: tuple[ModuleFigures, ...] = ()


@dataclass(frozen=True)
class Held:
    """Bytes of base tuples, intermediate tuples and indexes; ``least`` are those of indexes of few tuples."""

    nbytes: int
    least: int


class JoinState(Protocol):
    """Where tuples wait for those that they join with: SteMs alone, or binary joins made of STAIRs.

    Attributes:
        stems: One for each relation: the base tuples, and for the SteMs architecture the indexes too.
        grouped: Whether all that arrives in a round may be built before any of it probes.
    """

    stems: Sequence[SteM]
    grouped: bool

    def build(self, relation: int, batch: TupleBatch) -> TupleBatch:
        """Take base tuples, and return those that go on."""

    def joins(self, signature: Signature) -> Sequence[Operator]:
        """Return the joins, and lookups, that are legal for tuples of a signature."""

    def on_build(self, relation: int) -> Sequence[TupleBatch]:
        """A relation has got tuples, or has ended: return the tuples that waited for that."""

    def note_decision(self, signature: Signature, shares: Sequence[tuple[Operator, float]]) -> None:
        """The policy has decided. By default nothing depends on that."""
        return

    def expire(self, below: Mapping[int, int], watermark: int) -> None:
        """No tuple is in flight: drop what has a component of a relation with a row number below these.

        All of that expired before the watermark, which is in the unit of the windows' times.
        """

    def precompute(self, stalled: int) -> None:
        """No tuple is in flight, and none will be soon: do what can be done without these relations."""
        return

    def at_stasis(self) -> bool:
        """No tuple is in flight (a point of stasis): state may be moved now.

        Return whether joins were legal that are not, or are legal that were not.
        """

    def waiting(self) -> Sequence[TupleBatch]:
        """Return the tuples that wait for more of some relation."""
        return ()

    def waits(self) -> int:
        """Return how many these are."""
        return 0

    def held(self) -> Held:
        """Return how much memory it takes."""

    def figures(self) -> StateTotals:
        """Return what is held where, and what was moved."""


class Watch(Protocol):
    """Is told whenever a run may hold more than before."""

    def attach(
        self, stems: Sequence[SteM], state: Callable[[], Held], in_flight: Callable[[], Iterable[Work]]
    ) -> None:
        """Take note of what to look at; ``in_flight`` returns the run's batches and probes in flight."""

    def look(self, *, at_stasis: bool = False) -> None:
        """The run may hold more than before; ``at_stasis``: none is in flight, and state is being moved."""


def held_by(stems: Iterable[SteM], stairs: Iterable[STAIR], asked: Iterable[BindingSet] = ()) -> Held:
    """Return what SteMs, STAIRs and bindings that were asked for hold; what self-joins share counts once."""
    bases = {id(stem.store): stem for stem in stems}.values()
    segments = [segment for stair in stairs for segment in stair.segments.values()]
    parts: list[SteM | Segment | BindingSet] = [*bases, *segments, *asked]
    return Held(sum(part.nbytes for part in parts), sum(part.least for part in parts))


def bytes_in_flight(works: Iterable[Work], stores: Iterable[RelationStore]) -> int:
    """Return the bytes of batches and probes, and of tuples that they alone refer to, not these stores."""
    kept = set(map(id, stores))
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
