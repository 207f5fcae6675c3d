"""State follows routing in slices, each of them weighed.

The stages that Deshpande & Hellerstein 2004, section 4.2, plan. What is moved in one go is in proportion to
what has arrived meanwhile, so results never stop for long; and since every slice must still pay, a migration
ends where it no longer would: near the end of the sources, or when routing has changed again.
"""

from __future__ import annotations

from millrace.engine.migration.base import Change, MigrationPolicy
from millrace.engine.migration.weighing import Weighing

SLICE = 4
"""Tuples to move for each source tuple that has arrived since the policy was last asked, at most."""

FIRST = 16
"""The first slice for a decision is at most one in so many of the source tuples that have arrived: how far
points of stasis lie apart is known only when the policy is asked again."""


class Staged(MigrationPolicy):
    """Moves a slice at a time while it is worth it."""

    weighs = True

    def __init__(self) -> None:
        self._weighing = Weighing()
        self._asked = 0
        self._decision: int | None = None

    def allowance(self, change: Change) -> int:
        """Return 0 or a slice: ``SLICE`` tuples for each that arrived since the last time, one at least."""
        most = SLICE * (change.arrived - self._asked)
        if change.decision != self._decision:
            most = min(most, change.arrived // FIRST)
        self._asked, self._decision = change.arrived, change.decision
        return self._weighing.affordable(change, max(1, most))
