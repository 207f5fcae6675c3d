"""Lottery scheduling that forgets: banked and escrow tickets.

Avnur & Hellerstein 2000, section 4.4: tickets are earned into escrow during a window, and the
escrow of the last whole window is banked and bought with, so that a module has to prove itself
again in each window. Windows are counted in tuples of a signature rather than in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.engine.operator import Operator
from millrace.engine.policies.base import Candidate, Policy, Shares, modules_of, proportional
from millrace.engine.policies.lottery import LEAST_SHARE, tickets_of
from millrace.engine.tuples import Signature

_WINDOW = 512
"""Tuples of a signature in a window, at least: a window ends with the decision that fills it."""


@dataclass
class _Window:
    """Totals (tuples in, tickets) at the window's start, and the tickets of the window before."""

    began: dict[Operator, tuple[int, int]] = field(default_factory=dict)
    banked: dict[Operator, int] = field(default_factory=dict)


class WindowedLottery(Policy):
    """Shares tuples in proportion to what the modules dropped in the last window."""

    def __init__(self) -> None:
        self._windows: dict[Signature, _Window] = {}

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return shares proportional to banked tickets, none below ``LEAST_SHARE``."""
        candidates = modules_of(candidates)
        window = self._windows.setdefault(signature, _Window())
        totals = {c.operator: (c.account.tuples_in, tickets_of(c, c.account)) for c in candidates}
        taken, escrow = 0, {}
        for operator, (tuples_in, earned) in totals.items():
            in_before, earned_before = window.began.setdefault(operator, (0, 0))
            taken += tuples_in - in_before
            escrow[operator] = max(0, earned - earned_before)
        if taken >= _WINDOW:
            window.began, window.banked = totals, escrow
        tickets = window.banked or escrow  # the first window buys with what it has
        return proportional(candidates, [tickets.get(c.operator, 0) for c in candidates], LEAST_SHARE)
