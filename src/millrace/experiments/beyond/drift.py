"""Drift: predicates exchange their selectivities; and a control where they do not, written best-first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from unittest import mock

import numpy as np

from millrace.experiments.beyond.filtering import MICRO, Outcomes, filtered, oracle
from millrace.experiments.experiment import Outcome, Panel, Settings

LOTTERY, NEVER = "lottery", "never-forgets"
_COSTS = (30 * MICRO, 25 * MICRO, 20 * MICRO)
_KEEPS = ((0.9, 0.5, 0.1), (0.1, 0.9, 0.5), (0.5, 0.1, 0.9), (0.9, 0.5, 0.1))
"""Shares that the predicates keep, by phase."""

_STEADY_COSTS = (5 * MICRO, 50 * MICRO, 200 * MICRO)
_STEADY_KEEPS = (0.1, 0.5, 0.9)
_BATCH = 1000


def drawn(tuples: int, keeps: Sequence[float], random: np.random.Generator) -> Outcomes:
    """Return outcomes of independent predicates, shape ``(tuples, predicates)``."""
    return random.random((tuples, len(keeps))) < np.array(keeps)


def run(settings: Settings) -> Outcome:
    """Run lotteries and the regret-bounded policy over the same tuples, with drift and without."""
    random = np.random.default_rng(settings.seed)
    phase = settings.whole("phase")
    drifting = np.concatenate([drawn(phase, keeps, random) for keeps in _KEEPS])
    changes = tuple(phase * (number + 1) for number in range(len(_KEEPS) - 1))
    steady = drawn(2 * phase, _STEADY_KEEPS, random)
    bounded = "lottery" if settings.ablated == LOTTERY else "bounded"
    policies = {"lottery": "lottery", "windowed_lottery": "windowed_lottery", "bounded": bounded}
    blind = mock.patch("millrace.policies.bounded._Watch.departs", return_value=False)
    drifted, stayed = {}, {}
    for number, (name, policy) in enumerate(policies.items()):
        with blind if settings.ablated == NEVER else nullcontext():
            drifted[name] = filtered(drifting, _COSTS, _BATCH, policy=policy, seed=settings.seed)
        stayed[name] = filtered(steady, _STEADY_COSTS, _BATCH, policy=policy, seed=settings.seed)
        settings.progress((number + 1) / len(policies))
    least = oracle(drifting, _COSTS, _BATCH, changes)
    written = filtered(steady, _STEADY_COSTS, _BATCH, order=range(len(_STEADY_COSTS)))
    ratios = {name: work.total / least.total for name, work in drifted.items()}
    regrets = {name: work.total / written.total for name, work in stayed.items()}
    marks = tuple((change, "change") for change in changes)
    over_time = {**drifted, "best order of each phase": least}
    calm = {**stayed, "order as written": written}
    label = "time (µs per tuple)"
    return Outcome(
        (
            Panel("drift", "tuples", label, [w.rate(n) for n, w in over_time.items()], marks=marks),
            Panel("no drift, written best-first", "tuples", label, [w.rate(n) for n, w in calm.items()]),
        ),
        {
            **{f"{name}_over_best": ratio for name, ratio in ratios.items()},
            **{f"{name}_over_written": ratio for name, ratio in regrets.items()},
            "lottery_over_bounded": ratios["lottery"] / ratios["bounded"],
            "window_over_bounded": ratios["windowed_lottery"] / ratios["bounded"],
        },
    )
