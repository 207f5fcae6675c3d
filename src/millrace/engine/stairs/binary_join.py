"""Binary joins: two STAIRs, each other's duals, along one edge of the spanning tree.

A tuple that is *routed to a join* is inserted on its own side and probes the other (Dual Routing,
Deshpande & Hellerstein 2004, section 3.1). With join attributes that is a symmetric hash join; without any
it is a block ripple join, whose pairs the block's other predicates thin out. Once everything on one side has
arrived, tuples of the other only probe, for nobody will come to look for them: an index join, or the
second phase of a hash join.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import Edge, side_name
from millrace.engine.stairs.stair import STAIR, StairProbe
from millrace.engine.stems.conditions import Matching
from millrace.engine.tuples import RelationStore
from millrace.engine.tuples.batch import TupleBatch


class BinaryJoin:
    """The join along one edge.

    Args:
        edge: The edge.
        spec: The block, for names.
        matching: Codes of the block's keys.
        stores: Base tuples by relation.
    """

    def __init__(
        self, edge: Edge, spec: JoinSpec, matching: Matching, stores: Mapping[int, RelationStore]
    ) -> None:
        self.edge = edge
        self.stairs = {
            end: STAIR(
                end,
                edge.classes,
                matching,
                stores,
                f"STAIR({side_name(spec, matching.graph, edge, end)})",
                spec.relations[end].rows or 0,
            )
            for end in edge.ends
        }

    def near(self, batch: TupleBatch) -> STAIR:
        """Return the STAIR that tuples are inserted into."""
        a, b = self.edge.ends
        return self.stairs[a if batch.signature.span >> a & 1 else b]

    def dual(self, stair: STAIR) -> STAIR:
        """Return the STAIR at the other end."""
        a, b = self.edge.ends
        return self.stairs[b if stair.owner == a else a]

    def route(
        self,
        batch: TupleBatch,
        *,
        kept: bool = True,
        merged: bool = False,
        apart: Collection[int] = (),
        skip: int = 0,
        stored: TupleBatch | None = None,
    ) -> StairProbe:
        """Insert tuples on their side and begin to probe the other.

        Args:
            batch: Tuples with a component of exactly one of the two relations.
            kept: False when everything on the other side has arrived: nothing will ever look for them.
            merged: Enforce Invariant B, for state has been moved.
            apart: Then, spans of stored tuples that none of these can agree with.
            skip: Leave out matches that would span these relations.
            stored: What to insert instead of the tuples: different parts of them.
        """
        near = self.near(batch)
        codes = near.codes(batch)
        if kept and stored is not None:
            near.merge(stored)
        elif kept and merged:
            near.merge(batch, apart)
        elif kept:
            near.insert(batch, codes)
        return self.dual(near).start(batch, codes, skip)

    def matches(self, probe: StairProbe, limit: int) -> TupleBatch:
        """Return the next concatenated matches of a probe, at most ``limit``."""
        return self.dual(self.near(probe.batch)).matches(probe, limit)
