"""Correlated predicates: what a predicate shows behind another is not what it would do in front of it."""

from __future__ import annotations

import numpy as np

from millrace.experiments.beyond.filtering import Outcomes, filtered, oracle, rates
from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.costs import MICRO

RANK, INDEPENDENT = "rank", "independent"
_COSTS = (45 * MICRO, 60 * MICRO)
_BATCH = 500
_QUIET = 0.1
"""Share of the tuples that come before the first predicate begins to reject any."""


def outcomes(tuples: int, overlap: float, seed: int) -> Outcomes:
    """Return outcomes of two predicates, shape ``(tuples, 2)``.

    The second keeps 40 %. The first keeps everything at first; later 30 %, nearly all of it among those that
    the second keeps too: behind it the first seems to keep 75 %, and in front of it leaves it little to do.
    So it is for a share of the tuples, ``overlap``; outcomes of others are independent.
    """
    random = np.random.default_rng(seed)
    second = random.random(tuples) < 0.4
    together = random.random(tuples) < overlap
    first = random.random(tuples) < np.where(together, np.where(second, 0.75, 0.0), 0.3)
    first[: round(tuples * _QUIET)] = True
    return np.stack([first, second], axis=1)


def run(settings: Settings) -> Outcome:
    """Run rank and a_greedy over the same tuples."""
    overlap = 0.0 if settings.ablated == INDEPENDENT else settings["overlap"]
    found = outcomes(settings["tuples"], overlap, settings.seed)
    change = round(len(found) * _QUIET)
    policies = {"rank": "rank", "a_greedy": "rank" if settings.ablated == RANK else "a_greedy"}
    works = {
        name: filtered(found, _COSTS, _BATCH, policy=policy, seed=settings.seed)
        for name, policy in policies.items()
    }
    least = oracle(found, _COSTS, _BATCH, (change,))
    shown = {**works, "best order of each phase": least}
    marks = [(change, "predicate 1 begins to reject")]
    rank, joint = (work.total / least.total for work in works.values())
    curves = [Curve(name, work.tuples, work.seconds) for name, work in shown.items()]
    panels = [
        Panel("work", "tuples", "predicates' time (s)", curves, marks=marks),
        rates("work per tuple", shown, marks=marks),
    ]
    figures = {"rank_over_best": rank, "a_greedy_over_best": joint, "a_greedy_over_rank": joint / rank}
    return Outcome(panels, figures)
