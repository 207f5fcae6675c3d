"""When insertions need not enforce Invariant B any more.

Whoever moves only a part of what belongs together may break B+ (:mod:`millrace.engine.stairs.invariants`),
and until it holds again every intermediate tuple that is inserted is compared with what is stored. Once
nothing is misplaced B+ holds by itself. But what does not pay to be moved stays misplaced for good; mostly
it clashes with nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.stairs.estimate import MOVED, MigrationEstimator
from millrace.engine.stairs.invariants import Stairs
from millrace.engine.stairs.migration import Misplaced, clashing

_SHARE = 8
"""The first look is worth it when an insertion for one out of so many stored tuples has enforced B."""


class Enforcement:
    """Finds out whether B+ holds, and what to move where it does not.

    To look takes about as long as to insert all tuples, so it is done after an eighth as many insertions
    that enforced B, and after twice as many the next time.

    Args:
        stairs: The state.
        estimator: Says what moving tuples costs.
    """

    def __init__(self, stairs: Stairs, estimator: MigrationEstimator) -> None:
        self._stairs = stairs
        self._estimator = estimator
        self._next = 0

    def find(self, wrong: Sequence[Misplaced]) -> dict[Misplaced, Array]:
        """Let insertions enforce B no longer if B+ holds, whatever is misplaced.

        Args:
            wrong: What is misplaced. Two tuples of which neither is do not clash.

        Returns:
            If B+ does not hold: positions of misplaced tuples that break it, as soon as to move them is
            expected to cost no more than to enforce B has.
        """
        stairs = self._stairs
        if not stairs.enforcing:
            stairs.enforced = self._next = 0
        if not stairs.enforcing or stairs.enforced < max(stairs.tuples / _SHARE, self._next):
            return {}
        self._next = 2 * stairs.enforced
        clashes = clashing(stairs)
        if not clashes:
            stairs.enforcing = False
            return {}
        keys = {one: (one.edge, one.owner, one.signature) for one in wrong}
        found = {one: clashes[key] for one, key in keys.items() if key in clashes}
        costs = sum(self._cost(one, positions) for one, positions in found.items())
        return found if costs <= stairs.enforced else {}

    def _cost(self, one: Misplaced, positions: Array) -> float:
        """Return the operations expected of moving tuples of a segment."""
        if one.place == one.edge:
            return float(MOVED * len(positions))
        slices = self._estimator.estimate(one)
        return sum(each.cost * float(np.isin(each.positions, positions).mean()) for each in slices)
