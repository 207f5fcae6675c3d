"""Whole join orders as arms: how the neighbours of eddies route, for comparison with them.

POLAR (Justen et al., "POLAR: Adaptive and Non-invasive Join Order Selection via Plans of Least Resistance",
VLDB 2024, section 4) routes chunks of a streamed table over a few join orders and measures the *resistance*
of each, the intermediate tuples that a tuple of the chunk makes. SkinnerDB (Trummer et al., SIGMOD 2019,
section 4) picks a join order for each slice of time by upper confidence bounds (UCT). Both keep to one
order for a whole chunk, where an eddy decides anew for each signature.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

from millrace.engine.operator import Probe
from millrace.engine.policies.base import Candidate, Policy, Shares
from millrace.engine.statistics import Account
from millrace.engine.tuples import Signature


class ByOrders(Policy):
    """Sends each chunk of the streamed relation along one join order.

    Decisions have to be made for every batch, as they are where modules have input queues.

    Args:
        orders: Join orders, each the numbers of all relations, the streamed one first.
        made: Returns the intermediate tuples made so far.
    """

    def __init__(self, orders: Sequence[Sequence[int]], made: Callable[[], int]) -> None:
        self.orders = [tuple(order) for order in orders]
        self.chunks = [0] * len(orders)
        self._stream = 1 << self.orders[0][0]
        self._order = 0
        self._accounts: dict[int, Account] = {}
        self._made = made
        self._before = (0, 0)

    @abstractmethod
    def pick(self) -> int:
        """Return the order of the next chunk."""

    @abstractmethod
    def learn(self, order: int, resistance: float) -> None:
        """Take note of the tuples that the last chunk made, for each tuple of it."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return the present order's next join; each batch of the streamed relation is a chunk."""
        probes = {c.operator.target: c for c in candidates if isinstance(c.operator, Probe)}
        if signature.span == self._stream and probes:
            self._accounts.update((target, each.account) for target, each in probes.items())
            self._end_chunk()
            self._order = self.pick()
        for target in self.orders[self._order]:
            if target in probes:
                return ((probes[target].operator, 1.0),)
        return ((candidates[0].operator, 1.0),)

    def _end_chunk(self) -> None:
        begun, made = sum(account.tuples_in for account in self._accounts.values()), self._made()
        new, cost = begun - self._before[0], made - self._before[1]
        self._before = begun, made
        if new > 0:
            self.chunks[self._order] += 1
            self.learn(self._order, cost / new)


class _Measured(ByOrders):
    """Knows the resistance that each order had when it was last tried."""

    def __init__(self, orders: Sequence[Sequence[int]], made: Callable[[], int]) -> None:
        super().__init__(orders, made)
        self.resistance = [math.inf] * len(orders)

    def learn(self, order: int, resistance: float) -> None:
        """Keep what was measured last."""
        self.resistance[order] = resistance

    @property
    def best(self) -> int:
        """The order of least resistance."""
        return min(range(len(self.orders)), key=self.resistance.__getitem__)

    @property
    def untried(self) -> int | None:
        """An order that no chunk has taken yet."""
        return next((i for i, value in enumerate(self.resistance) if value == math.inf), None)


class InitOnce(_Measured):
    """Tries each order with one chunk, and keeps to the best one for ever."""

    def learn(self, order: int, resistance: float) -> None:
        """Keep what was measured first."""
        if self.resistance[order] == math.inf:
            self.resistance[order] = resistance

    def pick(self) -> int:
        """Return an order that has not been tried, or else the best."""
        return self.best if self.untried is None else self.untried


class Backoff(_Measured):
    """Tries all orders again and again, after twice as many chunks if the best one has stayed the best."""

    def __init__(self, orders: Sequence[Sequence[int]], made: Callable[[], int]) -> None:
        super().__init__(orders, made)
        self._trying = list(range(len(orders)))
        self._left = self._wait = len(orders)
        self._last = -1

    def pick(self) -> int:
        """Return the next order to try, or else the best."""
        if self._trying:
            return self._trying.pop(0)
        if self._left == self._wait:  # all have just been tried
            self._wait = 2 * self._wait if self.best == self._last else len(self.orders)
            self._left, self._last = self._wait, self.best
        self._left -= 1
        if self._left <= 0:
            self._left = self._wait
            self._trying = [i for i in range(len(self.orders)) if i != self.best]
        return self.best


class Dynamic(_Measured):
    """Goes on trying all orders, as often as keeps what that costs within a share of the best one's work.

    Args:
        orders: Join orders.
        made: Returns the intermediate tuples made so far.
        regret: The share.
    """

    def __init__(
        self, orders: Sequence[Sequence[int]], made: Callable[[], int], regret: float = 0.01
    ) -> None:
        super().__init__(orders, made)
        self._regret = regret
        self._budget = 0.0

    def pick(self) -> int:
        """Return the order tried least that the budget allows for, or else the best."""
        if self.untried is not None:
            return self.untried
        best = self.best
        self._budget += self._regret * (1 + self.resistance[best])
        others = [i for i in range(len(self.orders)) if i != best]
        if others:
            tried = min(others, key=self.chunks.__getitem__)
            price = self.resistance[tried] - self.resistance[best]
            if price <= self._budget:
                self._budget -= price
                return tried
        return best


class UpperConfidence(ByOrders):
    """Searches a tree of join orders by upper confidence bounds, a chunk at a time.

    The reward of a chunk is ``1 / (1 + resistance)``, so that it lies between 0 and 1.

    Args:
        orders: Join orders.
        made: Returns the intermediate tuples made so far.
        weight: Of exploration; small beside rewards of up to 1.
    """

    def __init__(self, orders: Sequence[Sequence[int]], made: Callable[[], int], weight: float = 0.2) -> None:
        super().__init__(orders, made)
        self._weight = weight
        self._visits: dict[tuple[int, ...], int] = {}
        self._rewards: dict[tuple[int, ...], float] = {}

    def learn(self, order: int, resistance: float) -> None:
        """Book the reward at every prefix of the order."""
        for length in range(len(self.orders[order]) + 1):
            prefix = self.orders[order][:length]
            self._visits[prefix] = self._visits.get(prefix, 0) + 1
            self._rewards[prefix] = self._rewards.get(prefix, 0.0) + 1 / (1 + resistance)

    def pick(self) -> int:
        """Descend the tree to an order."""
        left = list(range(len(self.orders)))
        for length in range(1, len(self.orders[0]) + 1):
            prefixes = dict.fromkeys(self.orders[i][:length] for i in left)
            chosen = max(prefixes, key=self._bound)
            left = [i for i in left if self.orders[i][:length] == chosen]
        return left[0]

    def _bound(self, prefix: tuple[int, ...]) -> float:
        visits = self._visits.get(prefix, 0)
        if not visits:
            return math.inf
        above = self._visits[prefix[:-1]]
        return self._rewards[prefix] / visits + self._weight * math.sqrt(math.log(above) / visits)
