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

Queues make a lottery feel costs: a slow module's is full more often, and then others get its tuples. A Spark
task has no queues, so there tickets are divided by the measured cost (``by_cost``).
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
        return share_out(candidates, _speeds(candidates))


def _speeds(candidates: Sequence[Candidate]) -> list[float]:
    """Return tuples per second of each module; one not yet tried is as fast as the fastest."""
    accounts = [c.measured for c in candidates]
    known = [max(a.cost, _FASTEST) for a in accounts if a.recent_in]
    fastest = min(known, default=1.0)
    return [1 / max(a.cost, _FASTEST) if a.recent_in else 1 / fastest for a in accounts]


LEAST_SHARE = 1 / 64
"""Share that a module without tickets gets, so that it may still earn some."""


class _Tickets(Policy):
    """A lottery, whichever tickets count.

    Args:
        by_cost: Whether tickets are divided by the measured cost, as no queues make it felt.
    """

    def __init__(self, *, by_cost: bool = False) -> None:
        self._by_cost = by_cost

    def _draw(self, candidates: Sequence[Candidate], tickets: Sequence[float]) -> Decision:
        """Return shares proportional to tickets, none below ``LEAST_SHARE``."""
        if self._by_cost:
            tickets = [t * speed for t, speed in zip(tickets, _speeds(candidates), strict=True)]
        return share_out(candidates, tickets, LEAST_SHARE)


class Lottery(_Tickets):
    """Shares tuples in proportion to all that the modules have dropped so far."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return shares proportional to tickets, none below ``LEAST_SHARE``."""
        candidates = modules_of(candidates)
        tickets = [max(0, c.measured.tuples_in - c.measured.tuples_out) for c in candidates]
        return self._draw(candidates, tickets)


_WINDOW = 512
"""Tuples of a signature in a window, at least: a window ends with the decision that fills it."""


@dataclass
class _Window:
    """Totals (tuples in, tickets) at the window's start, and the tickets of the window before."""

    began: dict[Operator, tuple[int, int]] = field(default_factory=dict)
    banked: dict[Operator, int] = field(default_factory=dict)


class WindowedLottery(_Tickets):
    """Shares tuples in proportion to what the modules dropped in the last window."""

    def __init__(self, *, by_cost: bool = False) -> None:
        super().__init__(by_cost=by_cost)
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
        return self._draw(candidates, [tickets.get(c.operator, 0) for c in candidates])
