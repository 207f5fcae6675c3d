"""Policies that order predicates: how soon they converge, and what correlation and drift do to them.

Avnur & Hellerstein 2000, section 6, leave open "how long it takes for an eddy to converge on a good
ordering". Regret is the time beyond the best order's, over what that order takes for a thousand tuples.
Predicates are correlated where what one shows behind another is not what it would do in front of it, and
drift where they exchange their selectivities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from unittest import mock

import numpy as np

from lab.experiments.beyond.filtering import Outcomes, Work, best, cost, drawn, filtered, oracle, rates
from lab.experiments.experiment import Curve, Outcome, Panel, Settings
from lab.experiments.lab.costs import MICRO

RANK, INDEPENDENT, LOTTERY, NEVER = "rank", "independent", "lottery", "never-forgets"
_BROKEN = {"lottery": {"bounded": "lottery"}, "even-tickets": {"lottery": "naive"}}
"""What decides in place of a policy whose convergence is followed."""

_QUIET = 0.1
"""Share of the tuples that come before the first of the correlated predicates begins to reject any."""

_DRIFTING = ((0.9, 0.5, 0.1), (0.1, 0.9, 0.5), (0.5, 0.1, 0.9), (0.9, 0.5, 0.1))
"""Shares that drifting predicates keep, by phase."""


def played_by(
    policies: Mapping[str, str], outcomes: Outcomes, costs: Sequence[float], batch: int, seed: int
) -> dict[str, Work]:
    """Return what the same tuples take by each policy, by the names of curves."""
    return {
        name: filtered(outcomes, costs, batch, policy=policy, seed=seed) for name, policy in policies.items()
    }


def convergence(settings: Settings) -> Outcome:
    """Follow the regret of policies over three selections of the same cost, where nothing changes."""
    tuples, costs = settings["tuples"], (20 * MICRO,) * 3
    passing = drawn(tuples, (0.9, 0.5, 0.1), np.random.default_rng(settings.seed))
    a_tuple = cost(passing, costs, best(passing, costs)) / tuples
    regrets: dict[str, np.ndarray] = {}
    at = np.array([0])
    for policy in ("naive", "lottery", "a_greedy", "bounded"):
        played = _BROKEN.get(settings.ablated, {}).get(policy, policy)
        work = filtered(passing, costs, 100, policy=played, seed=settings.seed)
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


def correlated_outcomes(tuples: int, overlap: float, seed: int) -> Outcomes:
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


def correlated(settings: Settings) -> Outcome:
    """Run rank and a_greedy over the same tuples."""
    costs, batch = (45 * MICRO, 60 * MICRO), 500
    overlap = 0.0 if settings.ablated == INDEPENDENT else settings["overlap"]
    found = correlated_outcomes(settings["tuples"], overlap, settings.seed)
    change = round(len(found) * _QUIET)
    policies = {"rank": "rank", "a_greedy": "rank" if settings.ablated == RANK else "a_greedy"}
    works = played_by(policies, found, costs, batch, settings.seed)
    least = oracle(found, costs, batch, (change,))
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


def drift(settings: Settings) -> Outcome:
    """Run lotteries and the regret-bounded policy over the same tuples, with drift and without."""
    random, phase, batch = np.random.default_rng(settings.seed), settings["phase"], 1000
    costs, steady_costs = (30 * MICRO, 25 * MICRO, 20 * MICRO), (5 * MICRO, 50 * MICRO, 200 * MICRO)
    drifting = np.concatenate([drawn(phase, keeps, random) for keeps in _DRIFTING])
    changes = tuple(phase * (number + 1) for number in range(len(_DRIFTING) - 1))
    steady = drawn(2 * phase, (0.1, 0.5, 0.9), random)
    bounded = "lottery" if settings.ablated == LOTTERY else "bounded"
    policies = {"lottery": "lottery", "windowed_lottery": "windowed_lottery", "bounded": bounded}
    blind = mock.patch("millrace.engine.policies.bounded._Watch.departs", return_value=False)
    with blind if settings.ablated == NEVER else nullcontext():
        drifted = played_by(policies, drifting, costs, batch, settings.seed)
    stayed = played_by(policies, steady, steady_costs, batch, settings.seed)
    least = oracle(drifting, costs, batch, changes)
    written = filtered(steady, steady_costs, batch, order=range(len(steady_costs)))
    ratios = {name: work.total / least.total for name, work in drifted.items()}
    figures = {f"{name}_over_best": ratio for name, ratio in ratios.items()}
    figures |= {f"{name}_over_written": work.total / written.total for name, work in stayed.items()}
    figures["lottery_over_bounded"] = ratios["lottery"] / ratios["bounded"]
    figures["window_over_bounded"] = ratios["windowed_lottery"] / ratios["bounded"]
    marks = [(change, "change") for change in changes]
    panels = [
        rates("drift", {**drifted, "best order of each phase": least}, marks=marks),
        rates("no drift, written best-first", {**stayed, "order as written": written}),
    ]
    return Outcome(panels, figures)
