"""Policies that know costs and selectivities, against the best static order of each phase."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.policies.cases import CASES, shadowed
from tests.engine.policies.simulator import oracle, simulate, static

SEEDS = range(5)

TARGETS = {
    "bounded": {"a": 1.05, "b": 1.05, "drift": 1.10, "correlated": 1.10, "written best": 1.02, "free": 1.10},
    "a_greedy": {"a": 1.05, "b": 1.05, "drift": 1.12, "correlated": 1.10, "written best": 1.03, "free": 1.40},
    "rank": {"a": 1.05, "b": 1.05, "drift": 1.12, "written best": 1.05, "free": 1.10},
}
"""Cost-weighted calls over those of the oracle, at most."""


def test_the_oracle_is_the_best_of_all_orders_in_each_phase() -> None:
    """It is never worse than an order that stays, and equal to it where nothing changes."""
    for name, case in ((name, make(0)) for name, make in CASES.items()):
        stays = oracle(case.outcomes, case.costs)
        assert case.oracle <= stays
        assert (case.oracle == stays) == (name != "drift")
        assert stays <= static(case.outcomes, case.costs, (0, 1, 2))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("policy", "name", "most"),
    [(p, name, most) for p, cases in TARGETS.items() for name, most in cases.items()],
)
def test_calls_are_close_to_the_oracles(policy: str, name: str, most: float, seed: int) -> None:
    """Learning costs, selectivities and correlations on the way costs a few percent of the work."""
    case = CASES[name](seed)
    assert simulate(case.outcomes, case.costs, policy).work <= most * case.oracle


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", ["a_greedy", "bounded"])
def test_joint_outcomes_see_what_ranks_cannot(policy: str, seed: int) -> None:
    """A predicate that met only what another one left it looks useless, and rank never puts it first."""
    case = shadowed(seed)
    ranked = simulate(case.outcomes, case.costs, "rank").work / case.oracle
    profiled = simulate(case.outcomes, case.costs, policy).work / case.oracle
    assert ranked > 1.2
    assert profiled < 1.1


@pytest.mark.parametrize("policy", ["a_greedy", "bounded"])
def test_cheap_predicates_are_not_cut_to_pieces(policy: str) -> None:
    """Where predicates cost next to nothing the eddy's own time stays below that of the order as written."""
    case = CASES["free"](0)
    simulation = simulate(case.outcomes, case.costs, policy)
    assert simulation.pieces < 50
    assert simulation.cost < simulate(case.outcomes, case.costs, "fixed").cost


@pytest.mark.parametrize("policy", ["a_greedy", "bounded"])
def test_many_predicates(policy: str) -> None:
    """With more orders than can be compared one by one the greedy one is found."""
    random = np.random.default_rng(3)
    kept = np.array([0.95, 0.9, 0.8, 0.7, 0.5, 0.4, 0.3, 0.1])
    outcomes, costs = random.random((20_000, 8)) < kept, (20e-6,) * 8
    best = static(outcomes, costs, tuple(range(7, -1, -1)))
    assert simulate(outcomes, costs, policy).work < 1.1 * best
