"""State follows routing at once: the greedy migration policy of Deshpande & Hellerstein 2004, section 4.2."""

from __future__ import annotations

from millrace.engine.migration.base import Change, MigrationPolicy


class Eager(MigrationPolicy):
    """Moves everything, whatever it costs: it thrashes where selectivities fluctuate."""

    def allowance(self, change: Change) -> int:
        """Return all of the tuples."""
        return change.tuples
