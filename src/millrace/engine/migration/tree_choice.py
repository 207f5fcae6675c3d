"""When another spanning tree is worth rebuilding state for; only cyclic queries have one."""

from __future__ import annotations

from functools import cached_property

from millrace.engine.graph import QueryGraph
from millrace.engine.migration.forecast import Forecast
from millrace.engine.trees import JoinTree, spanning_trees

_SWITCH_GAIN = 2.0
"""Another spanning tree is taken if it is expected to leave less than half of the work."""

_REBUILD_COST = 3
"""Tuples' worth of work to put one base tuple into the state of another tree."""


class TreeChoice:
    """Looks from time to time whether another tree would leave much less work.

    Args:
        graph: The block's query graph.
        forecast: Of the work that a tree leaves.
        patience: Base tuples that arrive between two looks; twice as many after each change.
    """

    def __init__(self, graph: QueryGraph, forecast: Forecast, patience: int) -> None:
        self._graph = graph
        self._forecast = forecast
        self._patience = patience
        self._looked = 0

    @cached_property
    def _trees(self) -> tuple[JoinTree, ...]:
        return tuple(spanning_trees(self._graph))

    def better(self, present: JoinTree) -> JoinTree | None:
        """Return the tree to go on with, None for the present one."""
        arrived = sum(self._forecast.arrived)
        if arrived - self._looked < self._patience:
            return None
        self._looked = arrived
        if len(self._trees) < 2:
            return None
        work = self._forecast.work(present)
        best = min(self._trees, key=self._forecast.work)
        least = self._forecast.work(best)
        if work <= _SWITCH_GAIN * least or work - least <= _REBUILD_COST * arrived:
            return None
        self._patience *= 2
        return best
