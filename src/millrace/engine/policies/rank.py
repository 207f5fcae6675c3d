"""Rank ordering: (selectivity - 1) / cost ascending.

Optimal for independent filters on one stream (Hellerstein & Stonebraker 1993; Ibaraki & Kameda
1984 for joins); it prefers a cheap module that drops little to a dear one that drops more. A
predicate is ranked by what was measured for all tuples that met it, so where predicates are correlated the
rank depends on who came before: ``a_greedy`` and ``bounded`` know better.
"""

from __future__ import annotations

from millrace.engine.policies.base import EXPLORED_SHARE, Candidate, LearningPolicy

UNMEASURED = 50e-9
"""Seconds per tuple assumed before a module was measured: about one probe of a cached index."""

_FEW = 32
"""Tuples after which what was measured at a predicate is believed: they may cost seconds each."""


class Rank(LearningPolicy):
    """Routes to the operator that drops the most tuples per second spent there."""

    def score(self, candidate: Candidate) -> float:
        """Return the rank: negative for modules that drop tuples, the lower the better."""
        measured = candidate.measured
        known = candidate.overall is not None and measured.recent_in > 0
        selectivity = measured.selectivity if known else candidate.selectivity
        return (selectivity - 1) / self.price(candidate) if selectivity < 1 else selectivity

    def price(self, candidate: Candidate) -> float:
        """Return the seconds per tuple."""
        return seconds(candidate)

    def is_known(self, candidate: Candidate) -> bool:
        """Whether enough tuples were sent there; few are enough for what every signature may call."""
        if candidate.overall is None:
            return super().is_known(candidate)
        return candidate.overall.recent_in >= _FEW

    def explored(self, best: Candidate, tried: Candidate) -> float:
        """Return a share that costs no more than it would at a module as cheap as the best one."""
        return EXPLORED_SHARE * min(1.0, self.price(best) / self.price(tried))


def seconds(candidate: Candidate) -> float:
    """Return the seconds that a tuple takes there, an assumption before any was measured."""
    return candidate.measured.cost or UNMEASURED
