"""Declared costs: what modules' work takes on the virtual clock, on the one processor that they share.

Avnur & Hellerstein 2000, section 3.3, give selections a cost in *delay units*, as spin loops; here one unit
is one second of the virtual clock, or whatever the experiment says.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from millrace.graph import QueryGraph
from millrace.spec import JoinSpec
from millrace.trees import edges_of

Place = tuple[str, int]
"""What an operator does, and its target (:attr:`millrace.operator.Operator.place`)."""

Cost = float | Callable[[], float]
"""Seconds per tuple, the same all the time or asked for whenever there is work."""


class Costs:
    """Costs by place; work without a declared cost takes no time. To be given to a virtual clock."""

    def __init__(self) -> None:
        self._costs: dict[Hashable, tuple[Cost, float]] = {}

    def declare(self, place: Place, cost: Cost, match: float = 0.0) -> None:
        """Declare what a module takes for each tuple in, and besides for each match that it returns."""
        self._costs[place] = cost, match

    def __call__(self, work: Hashable, tuples_in: int, tuples_out: int) -> float:
        """Return the seconds that the work takes."""
        cost, match = self._costs.get(work, (0.0, 0.0))
        return tuples_in * (cost() if callable(cost) else cost) + tuples_out * match


def join_of(spec: JoinSpec, one: str, other: str) -> Place:
    """Return the place of the binary join of two relations, by their aliases."""
    ends = {spec.aliases.index(one), spec.aliases.index(other)}
    (number,) = (edge.number for edge in edges_of(QueryGraph.of(spec)) if set(edge.ends) == ends)
    return "join", number
