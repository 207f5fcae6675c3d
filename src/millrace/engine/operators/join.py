"""Joining by STAIRs: insertion into one, and a probe of its dual.

Deshpande & Hellerstein 2004, section 3.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.engine.operator import Estimate, Join, Step
from millrace.engine.operators.index_join import IndexJoin
from millrace.engine.state.stair import StairProbe
from millrace.engine.tuples import Signature, TupleBatch

if TYPE_CHECKING:
    from millrace.engine.architectures.stairs import StairState


class StairJoin(Join):
    """The join along an edge that is, at present, one of the spanning tree's.

    Args:
        edge: The edge's number.
        name: What the join is called.
        state: The block's STAIRs.
    """

    def __init__(self, edge: int, name: str, state: StairState) -> None:
        super().__init__(edge, name, name)
        self._state = state

    def estimate(self, signature: Signature, *, alone: bool) -> Estimate:
        """Return the matches that samples lead to expect, at the join and in all."""
        return self._state.estimate(self.target, signature.span, alone=alone)

    def due(self, batch: TupleBatch) -> float | None:
        """Return until when an index join has to wait for its index."""
        join = self._state.stairs.joins[self.target]
        return join.due(batch) if isinstance(join, IndexJoin) else None

    def start(self, batch: TupleBatch) -> StairProbe:
        """Insert into a STAIR and begin to probe its dual (Dual Routing)."""
        return self._state.start(self.target, batch)

    def step(self, work: StairProbe, limit: int) -> Step:
        """Return the next matches; what is to come will find the tuples in their STAIR."""
        found = self._state.matches(self.target, work, limit)
        return Step((found,), found.size, None if work.is_done else work)
