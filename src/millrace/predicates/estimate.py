"""What a query's calls will cost, from a sample that every predicate has judged and every lookup answered.

The order is the one that an eddy comes to: the predicate next that drops most of what is left a second (Babu
et al. 2004). How many rows reach it is a share of the sample, and so has an interval (Clopper & Pearson
1934).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.predicates.binomial import least_share, most_share

Array = np.ndarray[Any, np.dtype[Any]]

_DOUBT = 0.05
_COUNTING_ERROR = 2.5 * 0.05
"""Of Spark's approximate count of different values: its standard error, as often as 98 of 100 need it."""

_INSTANT = 1e-9


@dataclass(frozen=True)
class Judged:
    """What a predicate said of the sample.

    Attributes:
        name: Of the predicate.
        kept: Whether it keeps each row, shape ``(n,)``.
        seconds: That it took for the whole sample.
        per_second: Calls a second that it may make, or None for any number.
        distinct: About how many different arguments all rows have, where it is asked once for equal ones;
            else None.
        price: Of a request.
        raised: Rows of the sample that it raised for.
        batch: Rows that a request has, at most.
        asked: Rows of the sample that requests were made for: equal ones, and known ones, need none.
        requests: That were made for these.
        spent: What these cost by their answers.
    """

    name: str
    kept: Array
    seconds: float
    per_second: float | None = None
    distinct: int | None = None
    price: float = 0.0
    raised: int = 0
    batch: int = 1
    asked: int = 0
    requests: int = 0
    spent: float = 0.0


@dataclass(frozen=True)
class PredicateEstimate:
    """What a predicate is expected to be called for, in the place where it is called.

    Attributes:
        name: Of the predicate.
        calls: Rows that it will be called for: at least, by expectation, at most (95 % of samples).
        passed: Share of all rows that it keeps.
        minutes: Of one process, within its limits, for the expected calls.
        cost: Of the expected calls, in the unit of the prices.
        raised: Rows of the sample that it raised for.
        requests: For the expected calls: as few as their rows fill, and without repeated ones.
        sample_requests: That the sample took.
        sample_cost: What these have cost.
    """

    name: str
    calls: tuple[int, int, int]
    passed: float
    minutes: float
    cost: float
    raised: int
    requests: int = 0
    sample_requests: int = 0
    sample_cost: float = 0.0

    def __str__(self) -> str:
        told = (
            f"{self.name}: {_range(self.calls)} rows in {self.requests:,} requests, {self.minutes:,.1f} min"
        )
        told += f", keeps {self.passed:.1%}"
        told += f", costs {_money(self.cost)}" if self.cost else ""
        if self.sample_requests:
            told += f" (the sample took {self.sample_requests:,} requests"
            told += f" and cost {_money(self.sample_cost)})" if self.sample_cost else ")"
        return told + (f", raised for {self.raised:,} rows of the sample" if self.raised else "")


@dataclass(frozen=True)
class LookupEstimate:
    """What a lookup is expected to be asked for.

    Attributes:
        name: Of the lookup.
        keys: Distinct keys: at least, and at most. Fewer are asked for where other conditions drop rows
            before.
        sampled: Keys that were really asked for.
        requests: For the most keys, without repeated ones.
        minutes: That these take within the lookup's limits.
        cost: Of these, in the unit of the lookup's prices.
        rows: That a key has, on average.
        failed: Keys of the sample that could not be looked up.
        cached: Keys of the sample that were known from an earlier run.
    """

    name: str
    keys: tuple[int, int]
    sampled: int
    requests: int
    minutes: float
    cost: float
    rows: float
    failed: int
    cached: int

    def __str__(self) -> str:
        least, most = self.keys
        told = f"{self.name}: " + (f"{most:,}" if least == most else f"at most {most:,}") + " distinct keys"
        told += f", {self.requests:,} requests, {self.minutes:,.1f} min, {self.rows:,.3g} rows a key"
        told += f", costs {self.cost:,.2f}" if self.cost else ""
        told += f", {self.cached:,} of {self.sampled:,} keys were known before" if self.cached else ""
        return told + (f", {self.failed:,} of {self.sampled:,} keys failed" if self.failed else "")


@dataclass(frozen=True)
class CostPreview:
    """What a query's calls are expected to take.

    Attributes:
        rows: That predicates are to filter; 0 without any.
        sampled: Rows of the sample.
        kept: Rows that will be left: at least, by expectation, at most (95 % of samples).
        predicates: In the order in which they are best called.
        lookups: In no certain order.
        unknown: What could not be estimated and why, a sentence each.
    """

    rows: int
    sampled: int
    kept: tuple[int, int, int]
    predicates: tuple[PredicateEstimate, ...]
    lookups: tuple[LookupEstimate, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def cost(self) -> float:
        """Of all predicates' expected calls, and of all lookups' requests."""
        return sum(each.cost for each in self.predicates) + sum(each.cost for each in self.lookups)

    def __str__(self) -> str:
        lines = []
        if self.predicates:
            lines.append(f"{self.rows:,} rows; {_range(self.kept)} are left, as {self.sampled:,} of them say")
        lines += [*map(str, self.predicates), *map(str, self.lookups)]
        lines += [f"not estimated: {each}" for each in self.unknown]
        return "\n".join(lines)


def estimated(rows: int, judged: Sequence[Judged]) -> CostPreview:
    """Return what filtering so many rows is expected to take, if predicates judged one sample of them so."""
    sampled = len(judged[0].kept)
    alive, left, found = np.ones(sampled, np.bool_), list(judged), []
    while left:
        best = max(left, key=lambda each: float((alive & ~each.kept).sum()) / max(each.seconds, _INSTANT))
        left.remove(best)
        reached = int(alive.sum())
        calls = _bounds(rows, reached, sampled)
        if best.distinct is not None:
            least, most = (best.distinct / (1 + error) for error in (_COUNTING_ERROR, -_COUNTING_ERROR))
            # Which of these are left by then the sample does not say: equal arguments may meet other rows.
            fewest = min(int(least), calls[0]) if reached == sampled else 0
            calls = fewest, min(calls[1], best.distinct), min(calls[2], math.ceil(most))
        asked, requests = best.asked or sampled, math.ceil(calls[1] / best.batch)
        seconds = max(
            calls[1] * best.seconds / max(1, asked), requests / best.per_second if best.per_second else 0.0
        )
        found.append(
            PredicateEstimate(
                best.name,
                calls,
                float(best.kept.mean()) if sampled else 1.0,
                seconds / 60,
                requests * best.price + calls[1] * best.spent / max(1, asked),
                best.raised,
                requests,
                best.requests,
                best.requests * best.price + best.spent,
            )
        )
        alive &= best.kept
    return CostPreview(rows, sampled, _bounds(rows, int(alive.sum()), sampled), tuple(found))


def _bounds(rows: int, found: int, sampled: int) -> tuple[int, int, int]:
    """Return how many of all rows are like so many of the sample: at least, by expectation, at most."""
    if sampled >= rows:
        return found, found, found
    least, most = (bound(found, sampled, _DOUBT / 2) for bound in (least_share, most_share))
    return int(rows * least), round(rows * found / sampled), int(np.ceil(rows * most))


def _money(cost: float) -> str:
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.2g}"


def _range(numbers: tuple[int, int, int]) -> str:
    least, expected, most = numbers
    return f"{expected:,}" if least == most else f"{expected:,} ({least:,} to {most:,})"
