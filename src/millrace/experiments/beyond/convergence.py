"""Convergence: how much of the best order's work each policy spends beyond it, over time.

Avnur & Hellerstein 2000, section 6, leave open "how long it takes for an eddy to converge on a good
ordering". Three selections of the same cost; nothing changes. Regret is the time beyond the best order's,
over what that order takes for a thousand tuples.
"""

from __future__ import annotations

import numpy as np

from millrace.experiments.beyond.filtering import MICRO, Work, best, cost, filtered
from millrace.experiments.experiment import Curve, Outcome, Panel, Settings

_COSTS = (20 * MICRO, 20 * MICRO, 20 * MICRO)
_KEEPS = (0.9, 0.5, 0.1)
_BATCH = 100
LOTTERY, BOUNDED = "lottery", "bounded"


def run(settings: Settings) -> Outcome:
    """Follow the regret of policies."""
    tuples = settings.whole("tuples")
    passing = np.random.default_rng(settings.seed).random((tuples, len(_KEEPS))) < np.array(_KEEPS)
    a_tuple = cost(passing, _COSTS, best(passing, _COSTS)) / tuples
    learning = LOTTERY if settings.ablated == "lottery" else BOUNDED
    works: dict[str, Work] = {}
    for policy in ("naive", LOTTERY, "a_greedy", BOUNDED):
        played = learning if policy == BOUNDED else policy
        played = "naive" if settings.ablated == "even-tickets" and policy == LOTTERY else played
        works[policy] = filtered(passing, _COSTS, _BATCH, policy=played, seed=settings.seed)
        settings.progress(len(works) / 4)
    regrets = {
        policy: np.array(work.seconds) / a_tuple - np.array(work.tuples) for policy, work in works.items()
    }
    at = np.array(works[BOUNDED].tuples)

    def rate(policy: str, low: float, high: float) -> float:
        """Return the regret for each tuple between two shares of the table."""
        ends = np.interp([low * tuples, high * tuples], at, regrets[policy])
        return float(ends[1] - ends[0]) / ((high - low) * tuples)

    figures = {f"{policy}_at_first": rate(policy, 0.0, 0.05) for policy in works}
    figures |= {f"{policy}_in_the_end": rate(policy, 0.5, 1.0) for policy in works}
    figures["lottery_over_naive"] = figures["lottery_in_the_end"] / figures["naive_in_the_end"]
    curves = [Curve(policy, at.tolist(), (found / 1000).tolist()) for policy, found in regrets.items()]
    panel = Panel("Regret", "tuples", "time beyond the best order's (that of 1,000 tuples)", curves)
    return Outcome((panel,), figures)
