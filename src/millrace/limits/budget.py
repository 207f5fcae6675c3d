"""Hard budgets: how many requests may be made, and what they may cost, over all tasks of a query.

A call is counted before it is made, and what it costs is reserved then: the fixed price, or the highest that
a call has had so far, for what it will be is known afterwards only. Until a call has told its price, calls
are made one by one. So requests never exceed their budget; cost never does at a fixed price, and otherwise by
no more than the first call, or calls under way that are dearer than any before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from millrace.errors import OptionError, PriceError


@dataclass(frozen=True)
class Budget:
    """What may be spent.

    Attributes:
        max_requests: Calls, repeated ones included; None sets no bound.
        max_cost: In any unit, the one of the prices; None sets no bound.
        price: Of each call; None where it is told when the call is over.
    """

    max_requests: int | None = None
    max_cost: float | None = None
    price: float | None = None

    def __bool__(self) -> bool:
        return self.max_requests is not None or self.max_cost is not None


@dataclass(frozen=True)
class Spent:
    """What has been spent of one budget, for a report.

    Attributes:
        name: Whose it is: of a predicate, a lookup, or a limit group.
        requests: Calls that were begun.
        max_requests: So many may be.
        cost: What those that are over have cost.
        max_cost: What they may cost.
    """

    name: str
    requests: int
    max_requests: int | None
    cost: float
    max_cost: float | None

    def __str__(self) -> str:
        parts = []
        if self.max_requests is not None:
            parts.append(f"{self.requests:,} of {self.max_requests:,} requests (max_requests)")
        if self.max_cost is not None:
            cost = f"{self.cost:,.6g} of {self.max_cost:,.6g} (max_cost)"
            parts.append(f"{cost} in {self.requests:,} requests")
        return ", ".join(parts)


class Spending:
    """What has been spent of a budget.

    Attributes:
        requests: Calls that were begun.
        cost: What those that are over have cost.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.requests = 0
        self.cost = 0.0
        self._under_way = 0
        self._highest = budget.price or 0.0
        self._is_told = budget.price is not None  # what a call costs, which may be nothing

    @property
    def may_begin(self) -> bool:
        """Whether one more call may be made now."""
        most, requests = self.budget.max_cost, self.budget.max_requests
        if requests is not None and self.requests >= requests:
            return False
        if most is None:
            return True
        if not self._is_told and self._under_way:
            return False
        return self.cost < most and self.cost + (self._under_way + 1) * self._highest <= most

    @property
    def is_over(self) -> bool:
        """Whether no call may be made any more, and those that were made have ended: they are paid for."""
        return not self._under_way and not self.may_begin

    def begin(self) -> bool:
        """Count a call if it may be made now; tell whether."""
        if not self.may_begin:
            return False
        self.requests += 1
        self._under_way += 1
        return True

    def end(self, cost: float | None) -> None:
        """Count what a call has cost; one that nothing was told of has cost what was reserved."""
        self._under_way -= 1
        known = self.budget.price if cost is None or self.budget.price is not None else cost
        self.cost += self._highest if known is None else known
        if known is not None:
            self._highest = max(self._highest, known)
            self._is_told = True

    def spent(self, name: str = "") -> Spent:
        budget = self.budget
        return Spent(name, self.requests, budget.max_requests, self.cost, budget.max_cost)

    def __str__(self) -> str:
        return str(self.spent())


@dataclass(frozen=True)
class Usage:
    """What a call of a language model has taken, in tokens.

    Attributes:
        read: By the model.
        written: By the model.
        told: Whether the endpoint has said so; else it is a guess, and no cost can be made of it.
    """

    read: int
    written: int
    told: bool = True

    @property
    def tokens(self) -> int:
        return self.read + self.written


NO_BUDGET = Budget()

Cost = Callable[[Any, Any], float]
"""Returns what a call has cost, by its request and its answer."""


def budget_of(what: str, max_requests: object, max_cost: object, cost: object) -> Budget:
    """Return a budget as a user gives it.

    Args:
        what: Whose it is, for errors.
        max_requests: A whole number above 0, or None.
        max_cost: A number above 0, or None.
        cost: With ``max_cost``: a number above 0, or a function of request and answer.

    Raises:
        OptionError: It is something else.
    """
    if max_requests is not None and (type(max_requests) is not int or max_requests < 1):
        raise OptionError(f"{what}: max_requests is {max_requests!r}, expected a whole number above 0")
    if max_cost is not None and not _is_number(max_cost):
        raise OptionError(f"{what}: max_cost is {max_cost!r}, expected a number above 0")
    if cost is not None and not callable(cost) and not _is_number(cost):
        raise OptionError(
            f"{what}: cost is {cost!r}, expected a number above 0, or a function of request and answer"
        )
    if (cost is None) != (max_cost is None):
        raise OptionError(f"{what}: max_cost and cost go together: what calls may cost, and what one costs")
    price = None if cost is None or callable(cost) else float(cast(float, cost))
    return Budget(max_requests, None if max_cost is None else float(cast(float, max_cost)), price)


def cost_of(cost: Cost, request: object, answer: object) -> float:
    """Return what a user's function says of a call's cost.

    Raises:
        PriceError: It raised, or it is no number from 0 on.
    """
    try:
        found = float(cost(request, answer))
    except PriceError:
        raise
    except Exception as error:
        raise PriceError(f"the function for cost raised {type(error).__name__}: {error}") from error
    if not 0 <= found < math.inf:
        raise PriceError(f"the function for cost returned {found!r}, expected a number from 0 on")
    return found


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 < cast(float, value) < math.inf
