"""What joint outcomes of predicates say about orders: expected costs, and how sure they are.

An order's cost is a sum over sets of predicates: whoever stands behind a set is called for the tuples that
pass all of it. With joint outcomes every such share is known for every order at once, correlations
included, and two orders can be compared tuple by tuple, which takes out most of the noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from math import prod, sqrt

from millrace.engine.eddy.statistics import Profile

_BELIEF = 4.0
"""Tuples that independence counts for where few tuples tell how it really is."""

_EXHAUSTIVE = 4
"""Up to so many predicates all orders are compared; beyond, the greedy one is taken."""

Order = tuple[int, ...]


Counts = Mapping[tuple[int, int], tuple[int, int]]


class Joint:
    """Shares of tuples that pass sets of predicates (bit sets), with thin sets smoothed.

    Args:
        profile: Joint outcomes.
        order: The order in use: what was observed there is worth more than what the profile says.
        observed: By predicate and set of predicates passed before: tuples met and passed outside
            the profile.
        newest: How many of the newest profiled tuples to look at; all of them when None.
        counted: Counts from earlier looks at the very same tuples, by set; counts are added to it.
    """

    def __init__(
        self,
        profile: Profile,
        order: Order,
        observed: Counts | None = None,
        newest: int | None = None,
        counted: dict[int, int] | None = None,
    ) -> None:
        self._profile = profile
        self._newest = newest
        self.tuples = profile.held if newest is None else min(newest, profile.held)
        self._counts: dict[int, int] = {} if counted is None else counted
        self._counts[0] = self.tuples
        self._shares: dict[int, float] = {0: 1.0}
        self._alone = {i: (self._count(1 << i) + 0.5) / (self.tuples + 1) for i in order}
        self._strata: list[tuple[int, int, float]] = []
        before, reaching = 0, 1.0
        for i in order:
            met, passed = (observed or {}).get((i, before), (0, 0))
            met += self._count(before)
            passed += self._count(before | 1 << i)
            rate = (passed + _BELIEF * self._alone[i]) / (met + _BELIEF)
            self._strata.append((before, i, reaching * (1 - rate)))
            before, reaching = before | 1 << i, reaching * rate
        self._whole = reaching

    def _count(self, passed: int) -> int:
        """Return the number of profiled tuples that pass all of these predicates."""
        known = self._counts.get(passed)
        if known is None:
            last = passed.bit_length() - 1
            known = self._profile.passing(last, passed & ~(1 << last), self._newest)[1]
            self._counts[passed] = known
        return known

    def share(self, passed: int) -> float:
        """Return the share of tuples that pass all of these predicates.

        The tuples that each predicate of the order in use rejects are a stratum. How large it is was
        observed on many tuples; how the other predicates fare in it, only the profile knows.
        """
        known = self._shares.get(passed)
        if known is None:
            known = self._whole + sum(
                size * self._within(before, rejecting, passed)
                for before, rejecting, size in self._strata
                if not passed >> rejecting & 1
            )
            self._shares[passed] = known
        return known

    def _within(self, before: int, rejecting: int, passed: int) -> float:
        """Return the share that passes, of the tuples that one predicate rejects and those before it pass."""
        open_ones = passed & ~before
        if not open_ones:
            return 1.0
        expected = prod(share for i, share in self._alone.items() if open_ones >> i & 1)
        reject = 1 << rejecting
        tuples = self._count(before) - self._count(before | reject)
        passing = self._count(before | passed) - self._count(before | passed | reject)
        return (passing + _BELIEF * expected) / (tuples + _BELIEF)

    def conditional(self, predicate: int, given: int = 0) -> float:
        """Return the share that passes the predicate of the tuples that pass all of ``given``."""
        return self.share(given | 1 << predicate) / self.share(given)

    def cost(self, order: Order, costs: Mapping[int, float]) -> float:
        """Return the expected seconds per tuple of an order, from seconds per call."""
        return sum(costs[i] * calls for i, calls in self.calls(order).items())

    def calls(self, order: Order) -> dict[int, float]:
        """Return the expected calls of each predicate per tuple of an order."""
        return {i: self.share(before) for i, before in _places(order)}

    def saving(self, old: Order, new: Order, costs: Mapping[int, float]) -> tuple[float, float]:
        """Return what one order is expected to save over another, and the standard error, per tuple.

        Both orders are priced on the same tuples. The error has a term that falls with the number
        of tuples even where all of them agreed: a handful of them says little about the rare ones
        (as in Bernstein's inequality).
        """
        weights: dict[int, float] = {}
        for order, sign in ((old, 1.0), (new, -1.0)):
            for i, before in _places(order):
                weights[before] = weights.get(before, 0.0) + sign * costs[i]
        terms = [(before, weight) for before, weight in weights.items() if weight]
        mean = sum(weight * self.share(before) for before, weight in terms)
        square = sum(a * b * self.share(one | other) for one, a in terms for other, b in terms)
        extent = max(sum(max(0.0, sign * weight) for _, weight in terms) for sign in (1, -1))
        tuples = max(1, self.tuples)
        return mean, sqrt(max(0.0, square - mean * mean) / tuples) + extent / tuples / 2

    def ranked(self, written: Order, costs: Mapping[int, float]) -> list[Order]:
        """Return the orders worth a thought, cheapest first; of equal ones that nearest to ``written``."""
        if len(written) > _EXHAUSTIVE:
            return [self.greedy(written, costs)]
        return sorted(permutations(written), key=lambda order: self.cost(order, costs))

    def greedy(self, ready: Sequence[int], costs: Mapping[int, float]) -> Order:
        """Return the order in which each predicate drops the most per second of what gets there."""
        order: Order = ()
        given = 0
        rest = list(ready)
        while rest:
            gains = [self.gain(i, given, costs) for i in rest]
            order += (rest.pop(gains.index(max(gains))),)
            given |= 1 << order[-1]
        return order

    def gain(self, predicate: int, given: int, costs: Mapping[int, float]) -> float:
        """Return the tuples that the predicate drops per second, of those that pass ``given``."""
        return (1 - self.conditional(predicate, given)) / costs[predicate]


def _places(order: Order) -> Iterator[tuple[int, int]]:
    """Yield each predicate with the set of those before it."""
    before = 0
    for i in order:
        yield i, before
        before |= 1 << i
