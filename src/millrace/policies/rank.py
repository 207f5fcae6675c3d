"""Rank ordering: (selectivity - 1) / cost ascending.

Optimal for independent filters on one stream (Hellerstein & Stonebraker 1993; Ibaraki & Kameda
1984 for joins); it prefers a cheap module that drops little to a dear one that drops more.
"""

from __future__ import annotations

from millrace.policies.base import Candidate, LearningPolicy

_UNMEASURED = 50e-9
"""Seconds per tuple assumed before a module was measured: about one probe of a cached index."""


class Rank(LearningPolicy):
    """Routes to the destination that drops the most tuples per second spent there."""

    def score(self, candidate: Candidate) -> float:
        """Return the rank: negative for modules that drop tuples, the lower the better."""
        cost = candidate.account.cost or _UNMEASURED
        return (candidate.selectivity - 1) / cost if candidate.selectivity < 1 else candidate.selectivity
