"""Policies that learn nothing: a static order, and chance.

A static order is what a conventional plan would do, and the yardstick for adaptive policies. Chance makes
no sense as a plan, but whatever it does the answer must be right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from millrace.engine.eddy.operator import Select
from millrace.engine.policies.base import Candidate, Policy, Shares
from millrace.engine.tuples.batch import Signature
from millrace.options import Order


class Fixed(Policy):
    """Selections first, then joins in the given order of aliases; unnamed ones follow as written.

    Args:
        order: Aliases; groups of them, as for static plans, count as what is in them, from the left.
    """

    def __init__(self, order: Order = ()) -> None:
        self._place = {alias.lower(): place for place, alias in enumerate(_aliases(order))}

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return the candidate that comes first in the order."""

        def place(candidate: Candidate) -> tuple[bool, int, int]:
            named = self._place.get(candidate.name.lower(), len(self._place))
            return not isinstance(candidate.operator, Select), named, candidate.operator.target

        return ((min(candidates, key=place).operator, 1.0),)


def _aliases(order: Order) -> Iterator[str]:
    for part in order:
        if isinstance(part, str):
            yield part
        else:
            yield from _aliases(part)


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
