"""Lottery scheduling: modules earn tuples by consuming tuples.

Avnur & Hellerstein 2000, section 4.2: a module gains a ticket for each tuple it takes and pays one
for each that it returns, so that its tickets count the tuples it has dropped. A batch is split as
many draws would split it: in proportion to the tickets.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.policies.base import Candidate, Policy, Shares, modules_of, proportional
from millrace.tuples import Signature

LEAST_SHARE = 1 / 64
"""Share that a module without tickets gets, so that it may still earn some."""


class Lottery(Policy):
    """Shares tuples in proportion to all that the modules have dropped so far."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return shares proportional to tickets, none below ``LEAST_SHARE``."""
        candidates = modules_of(candidates)
        tickets = [max(0, c.measured.tuples_in - c.measured.tuples_out) for c in candidates]
        return proportional(candidates, tickets, LEAST_SHARE)
