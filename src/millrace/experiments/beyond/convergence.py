"""Convergence: how much of the best order's work each policy spends beyond it, over time.

Avnur & Hellerstein 2000, section 6, leave open "how long it takes for an eddy to converge on a good
ordering". Three selections of the same cost; nothing changes. Regret is the time beyond the best order's,
over what that order takes for a thousand tuples.
"""

from __future__ import annotations

import numpy as np

from millrace.experiments.beyond.filtering import best, cost, drawn, filtered
from millrace.experiments.experiment import Outcome, Panel, Settings
from millrace.experiments.lab.costs import MICRO

_COSTS = (20 * MICRO, 20 * MICRO, 20 * MICRO)
_KEEPS = (0.9, 0.5, 0.1)
_BATCH = 100
_BROKEN = {"lottery": {"bounded": "lottery"}, "even-tickets": {"lottery": "naive"}}
"""What decides in place of a policy."""


def run(settings: Settings) -> Outcome:
    """Follow the regret of policies."""
    tuples = settings["tuples"]
    passing = drawn(tuples, _KEEPS, np.random.default_rng(settings.seed))
    a_tuple = cost(passing, _COSTS, best(passing, _COSTS)) / tuples
    regrets: dict[str, np.ndarray] = {}
    at = np.array([0])
    for policy in ("naive", "lottery", "a_greedy", "bounded"):
        played = _BROKEN.get(settings.ablated, {}).get(policy, policy)
        work = filtered(passing, _COSTS, _BATCH, policy=played, seed=settings.seed)
        at = np.array(work.tuples)
        regrets[policy] = np.array(work.seconds) / a_tuple - at

    def rate(policy: str) -> float:
        """Return the regret for each tuple of the second half of the table."""
        half, end = np.interp([tuples / 2, tuples], at, regrets[policy])
        return float((end - half) / (tuples / 2))

    figures = {f"{policy}_in_the_end": rate(policy) for policy in regrets}
    figures["lottery_over_naive"] = figures["lottery_in_the_end"] / figures["naive_in_the_end"]
    curves = {policy: found / 1000 for policy, found in regrets.items()}
    label = "time beyond the best order's (that of 1,000 tuples)"
    return Outcome([Panel.over("Regret", "tuples", label, at, curves)], figures)
