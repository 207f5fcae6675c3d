"""Eager migration: state follows every change of routing at once.

The greedy policy of Deshpande & Hellerstein 2004, section 4.2; it ignores what moving costs.
"""

from __future__ import annotations

from millrace.migration.base import Change, MigrationPolicy


class Eager(MigrationPolicy):
    """Moves everything."""

    def allowance(self, change: Change) -> int:
        """Return all tuples."""
        return change.tuples
