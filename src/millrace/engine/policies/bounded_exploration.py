"""Exploring within a regret budget, where joins are among the operators.

To send a tuple to ``t`` before ``b`` instead of after it costs ``c(t) (1 - s(b)) - c(b) (1 - s(t))`` more,
for costs ``c`` and selectivities ``s``: each of the two meets what the other has left (the exchange argument
behind rank ordering; Ibaraki & Kameda 1984). For joins ``c`` is the same everywhere, and what is lost is
the difference of the matches. Three rules bound the loss:

* **Rate.** The share sent to another operator than the best one, times what that is expected to lose,
  is at most ``regret`` times what a tuple costs at the best.
* **Budget.** What was lost is measured, for expectations may be wrong: every tuple pays in ``regret`` times
  its cost at the best operator, and while more was lost than paid in, nothing is explored.
* **Trial.** What is not known is tried with a few tuples at a time, in short decisions: a join may
  multiply them by a number that nobody expects.

POLAR (Justen et al. 2024) bounds the regret of routing chunks over join orders in the same spirit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.engine.eddy.operator import Operator
from millrace.engine.policies.base import EXPLORED_SHARE, Candidate, LearningPolicy, Shares
from millrace.engine.tuples.batch import Signature

TRIAL = 16
"""Tuples with which something unknown is tried in one decision."""

TRIAL_HOLD = 1024
"""For how many tuples such a decision holds."""


@dataclass
class _RegretBudget:
    """What exploring may still cost for tuples of a signature, and what the last decision was."""

    left: float = 0.0
    best: Operator | None = None
    totals: dict[Operator, tuple[int, int]] = field(default_factory=dict)


class BoundedExploration(LearningPolicy):
    """Decides as another policy does, and explores within a budget.

    Args:
        policy: Knows which candidate is the best one, and what tuples cost.
        regret: Share of the cost of the best operator that exploring may cost.
    """

    def __init__(self, policy: LearningPolicy, regret: float) -> None:
        super().__init__()
        self._policy = policy
        self._regret = regret
        self._budgets: dict[Signature, _RegretBudget] = {}

    def score(self, candidate: Candidate) -> float:
        """Return what to minimise."""
        return self._policy.score(candidate)

    def price(self, candidate: Candidate) -> float:
        """Return what a tuple costs there."""
        return self._policy.price(candidate)

    def is_known(self, candidate: Candidate) -> bool:
        """Whether enough tuples were sent there to believe what was measured."""
        return self._policy.is_known(candidate)

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return the best candidate, and a share for one of the others if the budget allows."""
        self.hold = None
        self._settle(signature, candidates)
        shares = super().choose(signature, candidates)
        self._budgets[signature].best = shares[0][0]
        return shares

    def exploring(self, signature: Signature, best: Candidate, others: Sequence[Candidate]) -> Shares:
        """Return a share for the least known of the others that is within the budget."""
        if self._budgets[signature].left < 0:
            return ((best.operator, 1.0),)
        unknown = [c for c in others if not self.is_known(c)]
        tried = min(unknown or others, key=lambda c: (c.account.tuples_in, c.operator.target))
        share = self.affordable(best, tried)
        if unknown:
            share = min(share, TRIAL / TRIAL_HOLD)
            self.hold = TRIAL_HOLD
        else:
            self.coarse = True  # no surprise is to be met any more
        return ((best.operator, 1 - share), (tried.operator, share))

    def affordable(self, best: Candidate, tried: Candidate) -> float:
        """Return the share whose expected loss is within the regret."""
        loss = self.price(tried) * (1 - best.selectivity) - self.price(best) * (1 - tried.selectivity)
        allowed = self._regret * self.price(best)
        return EXPLORED_SHARE if loss <= 0 else min(EXPLORED_SHARE, allowed / loss)

    def _settle(self, signature: Signature, candidates: Sequence[Candidate]) -> None:
        """Book what the decision before this one has cost more than the best operator alone."""
        budget = self._budgets.setdefault(signature, _RegretBudget())
        best = next((c for c in candidates if c.operator == budget.best), None)
        for c in candidates:
            before = budget.totals.get(c.operator, (0, 0))
            budget.totals[c.operator] = c.account.tuples_in, c.account.tuples_out
            if best is None:
                continue
            tuples, out = c.account.tuples_in - before[0], c.account.tuples_out - before[1]
            budget.left += self._regret * tuples * self.price(best)
            if c is not best:
                lost = tuples * self.price(c) * (1 - best.selectivity) - self.price(best) * (tuples - out)
                budget.left -= max(0.0, lost)
