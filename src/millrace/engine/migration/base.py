"""What every migration policy shares: the change it is asked about, and its answer.

A policy never sees state. It is asked at points of stasis, when all tuples that have arrived are through and
before more of them do, as long as some stored tuples are not where present routing would have put them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """At a point of stasis, some stored tuples are not where present routing would have put them.

    Attributes:
        tuples: How many.
        cost: Expected operations (insertions, probes, matches) that moving all of them takes.
        saving: Expected operations that having moved them spares until the sources end; may be negative.
        arrived: Source tuples that have arrived so far.
        remaining: Expected source tuples still to come, an estimate; 0.0 if there are known to be none.
        decision: Serial number of the change of routing that asks for the move.
        worked: Operations that routing has taken so far.
        spent: Operations that moves have taken so far.
        guessed: Whether the size of some relation that is still coming is not known, so that ``remaining``
            and ``saving`` go by an estimate of it, or by what has arrived.
    """

    tuples: int
    cost: float
    saving: float
    arrived: int
    remaining: float
    decision: int
    worked: float = math.inf
    spent: float = 0.0
    guessed: bool = False


class MigrationPolicy(ABC):
    """Decides when state follows routing. Answers depend on the changes asked about and nothing else.

    Attributes:
        weighs: Whether cost and saving matter to it. Then it is asked about those tuples alone that
            are worth moving by themselves; otherwise about all that are misplaced, unestimated.
        follows: Whether state ever follows routing; else no other spanning tree is taken either.
    """

    weighs = False
    follows = True

    @abstractmethod
    def allowance(self, change: Change) -> int:
        """Return how many of the tuples to move now, 0 to ``change.tuples``."""
