"""Back-pressure: tuples go to modules as fast as each of them takes them.

The naive eddy of Avnur & Hellerstein 2000, section 4.1. Where modules have input queues, full ones turn
tuples away from slow modules, and the policy has nothing to do but to treat all others alike. Where a module
works at once, each gets its part of the tuples. It learns costs and is blind to selectivity.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.engine.policies.base import Candidate, Policy, Shares, modules_of, proportional
from millrace.engine.tuples import Signature

_FASTEST = 1e-9
"""Seconds per tuple below which modules are equally fast."""


class Naive(Policy):
    """Shares tuples in proportion to the modules' speed, or evenly where queues see to that."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return shares proportional to tuples per second; a module not yet tried counts as the fastest."""
        candidates = modules_of(candidates)
        if any(c.tickets is not None for c in candidates):
            return proportional(candidates, [1.0] * len(candidates))
        accounts = [c.measured for c in candidates]
        known = [max(a.cost, _FASTEST) for a in accounts if a.recent_in]
        fastest = min(known, default=1.0)
        speeds = [1 / max(a.cost, _FASTEST) if a.recent_in else 1 / fastest for a in accounts]
        return proportional(candidates, speeds)
