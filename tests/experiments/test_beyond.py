"""What goes beyond the papers: correlated predicates, and drift. Everything is on the virtual clock."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.experiments.beyond import content, correlated, drift, filtering

SEEDS = range(5)
SIZES = {"beyond-correlated": {"tuples": 20_000}, "beyond-drift": {"phase": 8000}, "beyond-content": {}}
MINE = [correlated.EXPERIMENT, drift.EXPERIMENT, content.EXPERIMENT]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("each", MINE, ids=lambda each: each.id)
def test_the_claim_holds(each, seed):
    """For every seed, also with fewer tuples than by default."""
    outcome = each.run(each.settings(seed, SIZES[each.id]))
    assert outcome.holds, outcome.checks


@pytest.mark.parametrize("each", MINE, ids=lambda each: each.id)
def test_without_its_mechanism_the_claim_does_not_hold(each):
    """Rank for joint outcomes, the lottery for the regret budget, content unseen: the checks see it."""
    assert not each.run(each.settings(0, SIZES[each.id], ablated=True)).holds


def test_without_correlation_rank_is_as_good():
    """The check that rank loses looks at the correlation, not at rank."""
    outcome = correlated.EXPERIMENT.run(correlated.EXPERIMENT.settings(0, {"tuples": 20_000, "overlap": 0.0}))
    assert [check.holds for check in outcome.checks] == [False, True, False]
    assert outcome.figures["rank_over_best"] < 1.05


def test_a_run_is_the_same_each_time():
    """The clock is simulated and every choice is seeded."""
    settings = correlated.EXPERIMENT.settings(7, {"tuples": 5000})
    assert correlated.EXPERIMENT.run(settings) == correlated.EXPERIMENT.run(settings)


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
    one, two = (drift.drawn(2000, keeps, random) for keeps in ((0.9, 0.1, 0.5), (0.1, 0.9, 0.5)))
    costs = (1e-5, 1e-5, 1e-5)
    both = np.concatenate([one, two])
    least = filtering.oracle(both, costs, 500, (2000,))
    parts = [filtering.oracle(part, costs, 500).total for part in (one, two)]
    assert least.total == pytest.approx(sum(parts))
    assert filtering.oracle(both, costs, 500).total > 1.2 * least.total
    assert filtering.filtered(both, costs, 500, policy="bounded").total > least.total
