"""The best and the worst static plan of a join, told by the exact sizes of what all plans make.

A left-deep plan of symmetric hash joins makes the tuples of each of its joins once, in whichever order base
tuples arrive. Conjuncts that close a cycle are verified on what a join has made, so that it makes those too
that fail. All of these are counted beforehand, by DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

from lab.benchmarks.state_cases import Case

Order = tuple[str, ...]


@dataclass(frozen=True)
class Plans:
    """What is known of a case beforehand.

    Attributes:
        rows: Of the result.
        best: The order whose joins make the fewest tuples, ``fewest``, results included; the first in lexical
            order of those that are equal.
        worst: The order whose joins make the most, ``most``; the last of those that are equal.
        fewest: Tuples.
        most: Tuples.
    """

    rows: int
    best: Order
    worst: Order
    fewest: int
    most: int

    @classmethod
    def of(cls, case: Case, count: Callable[[str], int]) -> Plans:
        """Count what the joins of all plans make.

        Args:
            case: The join.
            count: Returns the answer of a query that counts.
        """
        sizes: dict[str, int] = {}

        def made(order: Order) -> int:
            total = 0
            for query in steps(case, order):
                if query not in sizes:
                    sizes[query] = count(query)
                total += sizes[query]
            return total

        costs = {order: made(order) for order in left_deep(case)}
        best = min(costs, key=lambda order: (costs[order], order))
        worst = max(costs, key=lambda order: (costs[order], order))
        return cls(count(case.sql()), best, worst, costs[best], costs[worst])


def left_deep(case: Case) -> Iterator[Order]:
    """Yield the orders without a cross product; which of the first two comes first does not matter."""
    edges = set(case.edges.values())
    for order in permutations(case.relations):
        joined = all(
            any(frozenset((alias, earlier)) in edges for earlier in order[:place])
            for place, alias in enumerate(order)
            if place
        )
        if joined and order[0] < order[1]:
            yield order


def steps(case: Case, order: Order) -> Iterator[str]:
    """Yield for each join of a plan the query that counts what it makes before anything is verified."""
    numbers = {alias: number for number, alias in enumerate(case.relations)}
    for place in range(1, len(order)):
        inside = [text for text, ends in case.edges.items() if ends <= set(order[:place])]
        crossing = [
            text
            for text, ends in case.edges.items()
            if order[place] in ends and ends <= set(order[: place + 1])
        ]
        # Of several edges a plan takes that of the smallest numbers.
        along = min(crossing, key=lambda text: sorted(numbers[alias] for alias in case.edges[text]))
        taken = {*inside, along}
        yield case.sql(text for text in case.joins if text in taken)
