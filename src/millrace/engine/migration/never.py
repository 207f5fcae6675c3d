"""State stays where it is: what EddyJoins do, with their burden of history (Deshpande 2004)."""

from __future__ import annotations

from millrace.engine.migration.base import Change, MigrationPolicy


class Never(MigrationPolicy):
    """Moves nothing: tuples stored before a change of routing cost as much as ever."""

    follows = False

    def allowance(self, change: Change) -> int:
        """Return 0."""
        return 0
