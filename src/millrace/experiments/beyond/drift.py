"""Drift: predicates exchange their selectivities; and a control where they do not, written best-first."""

from __future__ import annotations

from contextlib import nullcontext
from unittest import mock

import numpy as np

from millrace.experiments.beyond.filtering import drawn, filtered, oracle, rates
from millrace.experiments.experiment import Outcome, Settings
from millrace.experiments.lab.costs import MICRO

LOTTERY, NEVER = "lottery", "never-forgets"
_COSTS = (30 * MICRO, 25 * MICRO, 20 * MICRO)
_KEEPS = ((0.9, 0.5, 0.1), (0.1, 0.9, 0.5), (0.5, 0.1, 0.9), (0.9, 0.5, 0.1))
"""Shares that the predicates keep, by phase."""

_STEADY_COSTS = (5 * MICRO, 50 * MICRO, 200 * MICRO)
_STEADY_KEEPS = (0.1, 0.5, 0.9)
_BATCH = 1000


def run(settings: Settings) -> Outcome:
    """Run lotteries and the regret-bounded policy over the same tuples, with drift and without."""
    random, seed = np.random.default_rng(settings.seed), settings.seed
    phase = settings["phase"]
    drifting = np.concatenate([drawn(phase, keeps, random) for keeps in _KEEPS])
    changes = tuple(phase * (number + 1) for number in range(len(_KEEPS) - 1))
    steady = drawn(2 * phase, _STEADY_KEEPS, random)
    bounded = "lottery" if settings.ablated == LOTTERY else "bounded"
    policies = {"lottery": "lottery", "windowed_lottery": "windowed_lottery", "bounded": bounded}
    blind = mock.patch("millrace.policies.bounded._Watch.departs", return_value=False)
    with blind if settings.ablated == NEVER else nullcontext():
        drifted = {
            name: filtered(drifting, _COSTS, _BATCH, policy=policy, seed=seed)
            for name, policy in policies.items()
        }
    stayed = {
        name: filtered(steady, _STEADY_COSTS, _BATCH, policy=policy, seed=seed)
        for name, policy in policies.items()
    }
    least = oracle(drifting, _COSTS, _BATCH, changes)
    written = filtered(steady, _STEADY_COSTS, _BATCH, order=range(len(_STEADY_COSTS)))
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
