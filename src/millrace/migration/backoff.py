"""State follows routing when that is expected to pay, ever less readily where routing does not settle.

The back-off that Deshpande & Hellerstein 2004, section 4.2, plan; how it weighs is in
:mod:`millrace.migration.weighing`.
"""

from __future__ import annotations

from millrace.migration.base import Change, MigrationPolicy
from millrace.migration.weighing import Weighing


class Backoff(MigrationPolicy):
    """Moves everything at once when it is worth it."""

    def __init__(self) -> None:
        self._weighing = Weighing()

    def allowance(self, change: Change) -> int:
        """Return all of the tuples or 0."""
        return change.tuples if self._weighing.is_worth_it(change) else 0
