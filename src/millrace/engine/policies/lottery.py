"""Tuples for those who take them: the naive eddy, and lotteries among modules.

All three split tuples in proportion to what each module has done, as many draws would split them.

* The **naive** eddy (Avnur & Hellerstein 2000, section 4.1) has back-pressure alone: full queues turn tuples
  away from slow modules. Here modules work at once, so each gets its part of the tuples by its speed. It
  learns costs and is blind to selectivity.
* In a **lottery** (section 4.2) a module gains a ticket for each tuple it takes and pays one for each that
  it returns, so that its tickets count the tuples it has dropped.
* The **windowed** lottery (section 4.4) forgets: tickets are earned into escrow during a window, and the
  escrow of the last whole window is banked and bought with, so that a module has to prove itself again in
  each window. Windows are counted in tuples of a signature rather than in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.engine.eddy.operator import Operator
from millrace.engine.policies.base import Candidate, Decision, Policy, modules_of, share_out
from millrace.engine.tuples.batch import Signature

_FASTEST = 1e-9
"""Seconds per tuple below which modules are equally fast."""


class Naive(Policy):
    """Shares tuples in proportion to the modules' speed."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return shares proportional to tuples per second; a module not yet tried counts as the fastest."""
        candidates = modules_of(candidates)
        accounts = [c.measured for c in candidates]
        known = [max(a.cost, _FASTEST) for a in accounts if a.recent_in]
        fastest = min(known, default=1.0)
        speeds = [1 / max(a.cost, _FASTEST) if a.recent_in else 1 / fastest for a in accounts]
        return share_out(candidates, speeds)


LEAST_SHARE = 1 / 64
"""Share that a module without tickets gets, so that it may still earn some."""


class Lottery(Policy):
    """Shares tuples in proportion to all that the modules have dropped so far."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return shares proportional to tickets, none below ``LEAST_SHARE``."""
        candidates = modules_of(candidates)
        tickets = [max(0, c.measured.tuples_in - c.measured.tuples_out) for c in candidates]
        return share_out(candidates, tickets, LEAST_SHARE)


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

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return shares proportional to banked tickets, none below ``LEAST_SHARE``."""
        candidates = modules_of(candidates)
        window = self._windows.setdefault(signature, _Window())
        accounts = {c.operator: c.account for c in candidates}
        totals = {o: (a.tuples_in, a.tuples_in - a.tuples_out) for o, a in accounts.items()}
        taken, escrow = 0, {}
        for operator, (tuples_in, earned) in totals.items():
            in_before, earned_before = window.began.setdefault(operator, (0, 0))
            taken += tuples_in - in_before
            escrow[operator] = max(0, earned - earned_before)
        if taken >= _WINDOW:
            window.began, window.banked = totals, escrow
        tickets = window.banked or escrow  # the first window buys with what it has
        return share_out(candidates, [tickets.get(c.operator, 0) for c in candidates], LEAST_SHARE)
