"""Results that the user prefers come first: most partial results per second.

Raman, Deshpande & Hellerstein 2003, section 4.1: a tuple goes where benefit over time is highest. The benefit
is what the partial results that come back are worth to the user, the expected matches times how much they
are wanted; the time is what a tuple takes there. Both hang on the signature, and so does the choice: tuples
of one signature are all wanted alike, so how much cancels out, and what is left is matches per second. Tuples
that the user does not prefer have no such hurry and are routed greedily, for little work.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.engine.policies.base import Candidate, LearningPolicy, Policy, Shares
from millrace.engine.policies.greedy import Greedy
from millrace.engine.policies.rank import seconds
from millrace.engine.tuples import Signature


class Interactive(Policy):
    """Routes preferred tuples for the most results per second, others for the least work.

    Args:
        seed: For what is explored.
    """

    def __init__(self, seed: int = 0) -> None:
        self._preferred = _MostPerSecond(seed)
        self._others = Greedy(seed)

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return the operator that suits tuples like these, with a small share for exploration."""
        policy = self._preferred if signature.preferred else self._others
        return self.follow(policy, signature, candidates)


class _MostPerSecond(LearningPolicy):
    """Routes to the operator that returns the most tuples per second."""

    def score(self, candidate: Candidate) -> float:
        """Return the expected tuples out per second, negated, for the least score wins."""
        return -candidate.selectivity / seconds(candidate)
