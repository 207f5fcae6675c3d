"""Predicates of declared cost: static orders and the oracle are what arithmetic says."""

from __future__ import annotations

import numpy as np
import pytest

from lab.experiments.beyond import filtering


def test_a_static_plan_takes_what_arithmetic_says():
    """The engine's calls, times their declared costs, are those of the order, counted with numpy."""
    random = np.random.default_rng(1)
    outcomes = random.random((3000, 3)) < np.array([0.2, 0.5, 0.8])
    costs = (5e-6, 2e-6, 1e-6)
    for order in ((0, 1, 2), (2, 0, 1)):
        work = filtering.filtered(outcomes, costs, 100, order=order)
        assert work.total == pytest.approx(filtering.cost(outcomes, costs, order))
        assert work.tuples[-1] == 3000 and len(work.tuples) == len(work.seconds) == 31


def test_no_policy_is_better_than_the_best_order_of_each_phase():
    """The oracle knows the truth; it changes its order where a phase begins, and only there."""
    random = np.random.default_rng(2)
    one, two = (filtering.drawn(2000, keeps, random) for keeps in ((0.9, 0.1, 0.5), (0.1, 0.9, 0.5)))
    costs = (1e-5, 1e-5, 1e-5)
    both = np.concatenate([one, two])
    least = filtering.oracle(both, costs, 500, (2000,))
    parts = [filtering.oracle(part, costs, 500).total for part in (one, two)]
    assert least.total == pytest.approx(sum(parts))
    assert filtering.oracle(both, costs, 500).total > 1.2 * least.total
    assert filtering.filtered(both, costs, 500, policy="bounded").total > least.total
