"""Random routing: no sense as a plan, but whatever it does the answer must be right."""

from __future__ import annotations

import random
from collections.abc import Sequence

from millrace.engine.policies.base import Candidate, Policy, Shares
from millrace.engine.tuples import Signature


class Random(Policy):
    """Splits tuples at random among all legal operators."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return random shares for a random choice of one or two candidates."""
        chosen = self._random.sample(list(candidates), min(len(candidates), self._random.randint(1, 2)))
        if len(chosen) == 1:
            return ((chosen[0].operator, 1.0),)
        share = self._random.random()
        return ((chosen[0].operator, share), (chosen[1].operator, 1 - share))
