"""When join state is moved after routing has changed: what such a policy sees, and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """Stored tuples that are not where present routing would have put them, at a point of stasis.

    Attributes:
        tuples: How many.
        cost: Expected insertions and probe results that moving all of them takes.
        saving: Expected intermediate tuples spared until the sources end; negative if there will be more.
        arrived: Source tuples that have arrived so far.
        remaining: Expected source tuples still to come, 0.0 if there are none.
        decision: Serial number of the routing change that asks for the move.
    """

    tuples: int
    cost: float
    saving: float
    arrived: int
    remaining: float
    decision: int


class MigrationPolicy(ABC):
    """Says how many misplaced tuples to move."""

    @abstractmethod
    def allowance(self, change: Change) -> int:
        """Return how many of the tuples to move now, 0 to ``change.tuples``."""
