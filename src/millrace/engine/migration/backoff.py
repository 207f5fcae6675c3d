"""State follows routing when that is expected to pay, ever less readily where routing does not settle.

The back-off that Deshpande & Hellerstein 2004, section 4.2, plan; how it weighs is in
:mod:`millrace.engine.migration.weighing`.
"""

from __future__ import annotations

from millrace.engine.migration.base import Change, MigrationPolicy
from millrace.engine.migration.weighing import Weighing


class Backoff(MigrationPolicy):
    """Moves everything that is worth moving, at once."""

    weighs = True

    def __init__(self) -> None:
        self._weighing = Weighing()

    def allowance(self, change: Change) -> int:
        """Return all of the tuples, as far as the budget goes, or 0."""
        return self._weighing.affordable(change)
