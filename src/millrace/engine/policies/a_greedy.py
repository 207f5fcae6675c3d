"""A-Greedy: the greedy order by conditional selectivities, kept up as the data change.

Babu, Motwani, Munagala, Nishizawa & Widom 2004, "Adaptive Ordering of Pipelined Stream Filters":
the greedy invariant says that each predicate drops at least as many tuples per second, of those that the
ones before it pass, as any predicate behind it would. A sample of the tuples meets every
predicate (the profile window); when their outcomes break the invariant, the order is mended from
that place on. A violation counts only beyond a margin (thrashing avoidance), for near ties cost little.
"""

from __future__ import annotations

from millrace.engine.eddy.statistics import Profile
from millrace.engine.policies.filter_order import (
    Epoch,
    FilterOrderOptimizer,
    FilterOrderPolicy,
    Joint,
    Order,
    count_affordable,
)
from millrace.engine.tuples.batch import Signature

_RATE = 0.02
"""Share of the time in predicates that profiling may take."""

_WINDOW = 64
"""Profiled tuples to look back on."""

_MARGIN = 1.2
"""A predicate overtakes when it drops so many times more per second than the one before it."""


class AGreedy(FilterOrderPolicy):
    """Keeps the greedy invariant, by profiling a sample of the tuples for a share of the time.

    The seed is for what is explored among joins.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(_Greedy, seed)


class _Greedy(FilterOrderOptimizer):
    """An order that satisfies the greedy invariant within the margin."""

    def __init__(self, top: Signature, written: Order) -> None:
        super().__init__(top, written)
        self._saved = 0.0

    def wanted(self, profile: Profile, epoch: Epoch) -> int:
        """Mend the order, and return as many tuples as the time saved up for them allows."""
        joint = Joint(profile, self.order, newest=_WINDOW)
        self.order = joint.greedy(self.order, self.costs, _MARGIN)
        each = sum(self.costs.values()) - joint.cost(self.order, self.costs)
        self._saved += _RATE * epoch.seconds - epoch.profiled * each
        return count_affordable(self._saved, each)
