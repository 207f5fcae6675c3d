"""Lottery scheduling: modules earn tuples by consuming tuples.

Avnur & Hellerstein 2000, section 4.2: a module gains a ticket for each tuple it takes and pays one
for each that it returns, so that its tickets count the tuples it has dropped. A batch is split as
many draws would split it: in proportion to the tickets.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.engine.policies.base import Candidate, Policy, Shares, modules_of, proportional
from millrace.engine.statistics import Account
from millrace.engine.tuples import Signature

LEAST_SHARE = 1 / 64
"""Share that a module without tickets gets, so that it may still earn some."""


def tickets_of(candidate: Candidate, account: Account) -> int:
    """Return a module's tickets: counted where it has an input queue, by the books where it works at once."""
    return account.tuples_in - account.tuples_out if candidate.tickets is None else candidate.tickets


class Lottery(Policy):
    """Shares tuples in proportion to all that the modules have dropped so far."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return shares proportional to tickets, none below ``LEAST_SHARE``."""
        candidates = modules_of(candidates)
        tickets = [max(0, tickets_of(c, c.measured)) for c in candidates]
        return proportional(candidates, tickets, LEAST_SHARE)
