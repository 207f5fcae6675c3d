"""What the router asks of join state, whichever architecture keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from millrace.eddy.buffer import Buffer
from millrace.eddy.memory import Held
from millrace.figures import ModuleFigures, StateFigures
from millrace.modules import Destination, SteM
from millrace.tuples import Signature, TupleBatch


@dataclass(frozen=True)
class Outlook:
    """What is known of a join before tuples of some signature were sent there.

    Attributes:
        name: The relation it leads to.
        guess: Expected matches per tuple.
        cumulative: Expected tuples per tuple after joining with everything behind it, where that is known.
    """

    name: str
    guess: float
    cumulative: float | None = None


@dataclass(frozen=True)
class StateTotals:
    """What join state held and did over a run, as in :class:`millrace.figures.CellFigures`."""

    state: tuple[StateFigures, ...]
    peak: int
    migrated: int = 0
    recomputed: int = 0
    lookups: tuple[ModuleFigures, ...] = ()


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

    def joins(self, signature: Signature) -> tuple[Destination, ...]:
        """Return the joins that are legal for tuples of a signature."""

    def outlook(self, signature: Signature, destination: Destination, *, alone: bool) -> Outlook:
        """Return what is known of a join; ``alone``: it is the only legal destination."""

    def due(self, destination: Destination, batch: TupleBatch) -> float | None:
        """Ask for what a join needs from elsewhere before it can take a batch.

        Returns:
            Until when it has to wait, at least, in seconds of the clock; None when it can take the batch.
        """

    def start(self, destination: Destination, batch: TupleBatch) -> Any:
        """Begin to join a batch; a probe with ``batch``, ``is_new`` and ``is_done``."""

    def matches(self, destination: Destination, probe: Any, limit: int) -> TupleBatch:
        """Return the next concatenated matches of a probe, at most ``limit``."""

    def leave(self, destination: Destination, probe: Any, buffer: Buffer) -> None:
        """A probe is done: keep its tuples where more matches may come."""

    def grown(self, relation: int, buffer: Buffer) -> None:
        """A relation has got tuples, or has ended: let go of tuples that wait for it."""

    def decided(self, signature: Signature, shares: Sequence[tuple[Destination, float]]) -> None:
        """The policy has decided."""

    def expire(self, below: Mapping[int, int], watermark: int) -> None:
        """No tuple is in flight: drop what has a component of a relation with a row number below these.

        Args:
            below: By relation; what is below has expired before the
            watermark: in the unit of the windows' times.
        """

    def precompute(self, stalled: int) -> None:
        """No tuple is in flight, and none will be soon: do what can be done without these relations."""

    def partial(self, span: int, limit: int) -> Iterator[TupleBatch]:
        """No tuple is in flight: yield the join of what has arrived of relations that predicates connect.

        Predicates that are not join predicates may or may not have been applied, as signatures say.
        """

    def rest(self) -> bool:
        """No tuple is in flight (a point of stasis): state may be moved now.

        Returns:
            Whether joins were legal that are not, or are legal that were not.
        """

    def held(self) -> Held:
        """Return how much memory it takes."""

    def figures(self) -> StateTotals:
        """Return what is held where, and what was moved."""
