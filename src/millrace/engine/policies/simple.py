"""Policies that score each module by itself and take the best one; and two that learn nothing.

* **Greedy**: the lowest expected matches first, to keep the number of intermediate tuples small. This is
  the routing policy for SteMs in Deshpande & Hellerstein 2004, section 4.1 ("lowest selectivity").
* **Rank** ordering: (selectivity - 1) / cost ascending, optimal for independent filters on one stream
  (Hellerstein & Stonebraker 1993; Ibaraki & Kameda 1984 for joins). It prefers a cheap module that drops
  little to a dear one that drops more. A predicate is ranked by what was measured for all tuples that met
  it, so where predicates are correlated the rank depends on who came before: ``a_greedy`` and ``bounded``
  know better. A predicate that is only seen behind one that shadows it looks useless, and never comes first.
* **Interactive**: results that the user prefers come first (Raman, Deshpande & Hellerstein 2003, section
  4.1). A tuple goes where benefit over time is highest. The benefit is what the partial results that come
  back are worth to the user, the expected matches times how much they are wanted; the time is what a tuple
  takes there. Tuples of one signature are all wanted alike, so how much cancels out, and what is left is
  matches per second. Tuples that the user does not prefer have no such hurry and are routed greedily, for
  little work.
* **Fixed**: a static order, what a conventional plan would do, and the yardstick for adaptive policies.
* **Random**: chance makes no sense as a plan, but whatever it does the answer must be right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from millrace.engine.eddy.operator import Kind
from millrace.engine.policies.base import Candidate, Decision, LearningPolicy, Policy
from millrace.engine.tuples.batch import Signature
from millrace.options import Order

UNMEASURED = 50e-9
"""Seconds per tuple assumed before a module was measured: about one probe of a cached index."""

_FEW = 32
"""Tuples after which what was measured at a predicate is believed: they may cost seconds each."""


class Greedy(LearningPolicy):
    """Routes to the operator that returns the fewest tuples per tuple sent."""

    def score(self, candidate: Candidate) -> float:
        return candidate.selectivity


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


def seconds(candidate: Candidate) -> float:
    """Return the seconds that a tuple takes there, an assumption before any was measured."""
    return candidate.measured.cost or UNMEASURED


class _MostPerSecond(LearningPolicy):
    """Routes to the operator that returns the most tuples per second."""

    def score(self, candidate: Candidate) -> float:
        """Return the expected tuples out per second, negated, for the least score wins."""
        return -candidate.selectivity / seconds(candidate)


class Interactive(Policy):
    """Routes preferred tuples for the most results per second, others for the least work."""

    def __init__(self, seed: int = 0) -> None:
        self._preferred = _MostPerSecond(seed)
        self._others = Greedy(seed)

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        policy = self._preferred if signature.preferred else self._others
        return policy.choose(signature, candidates)


class Fixed(Policy):
    """Selections first, then joins in the given order of aliases; unnamed ones follow as written.

    Groups of aliases, as for static plans, count as what is in them, from the left.
    """

    def __init__(self, order: Order = ()) -> None:
        self._place = {alias.lower(): place for place, alias in enumerate(names_in(order))}

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        def place(candidate: Candidate) -> tuple[bool, int, int]:
            named = self._place.get(candidate.name.lower(), len(self._place))
            return candidate.operator.kind is not Kind.SELECT, named, candidate.operator.target

        return Decision.of(min(candidates, key=place))


def names_in(order: Order) -> Iterator[str]:
    """Yield the aliases in an order, from the left."""
    for part in order:
        if isinstance(part, str):
            yield part
        else:
            yield from names_in(part)


class Random(Policy):
    """Splits tuples at random among all legal operators."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return random shares for a random choice of one or two candidates."""
        chosen = self._random.sample(list(candidates), min(len(candidates), self._random.randint(1, 2)))
        if len(chosen) == 1:
            return Decision.of(chosen[0])
        share = self._random.random()
        return Decision(((chosen[0].operator, share), (chosen[1].operator, 1 - share)))
