"""Lowest expected matches first: keep the number of intermediate tuples small.

The routing policy for SteMs in Deshpande & Hellerstein 2004, section 4.1 ("lowest selectivity").
"""

from __future__ import annotations

from millrace.engine.policies.base import Candidate, LearningPolicy


class Greedy(LearningPolicy):
    """Routes to the operator that returns the fewest tuples per tuple sent."""

    def score(self, candidate: Candidate) -> float:
        """Return the expected tuples out per tuple in."""
        return candidate.selectivity
