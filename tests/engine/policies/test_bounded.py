"""The regret budget, hysteresis and drift of the policy ``bounded``; what profiles say about orders."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from millrace.engine.policies import DECISION_SECONDS, POLICIES
from millrace.engine.policies.filter_order import START, Meter
from millrace.engine.policies.joint import Joint
from millrace.engine.statistics import Account, Profile
from millrace.engine.tuples import Signature
from millrace.errors import OptionError
from millrace.options import Options
from tests.engine.laws import same_examples
from tests.engine.policies.cases import independent, outcomes_of, shadowed
from tests.engine.policies.simulator import oracle, simulate, static
from tests.engine.policies.test_policies import candidate

LAWS = same_examples(40)
costs_drawn = st.lists(st.floats(1, 1000), min_size=2, max_size=4)


@LAWS
@given(st.data(), costs_drawn, st.sampled_from([0.01, 0.05]), st.integers(0, 1 << 20))
def test_regret_is_bounded(data: st.DataObject, costs: list[float], regret: float, seed: int) -> None:
    """Whatever predicates cost and keep, however they are written: not more than the share above it.

    The constant is the first handful of profiled tuples and a millisecond, half as much again for
    decisions that the data had suggested by chance, and one decision, during which nothing can be done.
    """
    kept = data.draw(st.lists(st.floats(0, 1), min_size=len(costs), max_size=len(costs)))
    case = independent(seed, tuple(costs), tuple(kept), 8000)
    written = static(case.outcomes, case.costs, tuple(range(len(costs))))
    simulation = simulate(case.outcomes, case.costs, "bounded", regret=regret)
    constant = 1.5 * (START * sum(case.costs) + 0.001) + DECISION_SECONDS
    assert simulation.work <= (1 + regret) * written + constant


def test_a_minute_is_not_spent_on_seconds() -> None:
    """With predicates of a second each, only the first handful of tuples is profiled."""
    case = independent(0, (1e6, 1e6, 1e6), (0.1, 0.5, 0.9), 100)
    simulation = simulate(case.outcomes, case.costs, "bounded")
    assert simulation.profiled == START


def test_a_larger_regret_may_profile_more() -> None:
    """The option sets what exploration costs where the order as written is the best."""
    case = independent(0, (5, 50, 200), (0.1, 0.5, 0.9))
    profiled = [simulate(case.outcomes, case.costs, "bounded", regret=r).profiled for r in (0.001, 0.01, 0.1)]
    assert profiled[0] < profiled[1] < profiled[2]


@pytest.mark.parametrize("seed", [1, 49, 79, 193, 260, 358])
def test_an_order_that_keeps_looking_better_than_it_is_is_given_up(seed: int) -> None:
    """Few profiled tuples may mislead again and again; an overdrawn budget ends that."""
    case = independent(seed, (186.6, 120.4, 100), (0.0, 0.5, 0.5), 8000)
    written = static(case.outcomes, case.costs, (0, 1, 2))
    assert simulate(case.outcomes, case.costs, "bounded").work <= 1.04 * written


@pytest.mark.parametrize("seed", range(5))
def test_near_ties_do_not_thrash(seed: int) -> None:
    """Predicates within a few percent change places a few times at most, and equal ones for no loss."""
    case = independent(seed, (50, 50, 50), (0.5, 0.5, 0.5))
    simulation = simulate(case.outcomes, case.costs, "bounded")
    assert simulation.work < 1.02 * static(case.outcomes, case.costs, (0, 1, 2))
    case = independent(seed, (50, 51, 49), (0.5, 0.51, 0.49))
    firsts = [
        max(shares, key=lambda pair: (pair[0].action == "select", pair[1]))[0].target
        for signature, shares in simulate(case.outcomes, case.costs, "bounded").decisions
        if not signature.done
    ]
    assert sum(one != two for one, two in pairwise(firsts)) <= 5


def test_clusters_are_no_drift() -> None:
    """Tuples that come in short runs of the same outcome neither empty the budget nor upset the order."""
    for seed in range(12):
        case = independent(seed, (20, 40, 60), (0.2, 0.5, 0.8), 800)
        outcomes = np.repeat(case.outcomes, 25, axis=0)
        assert simulate(outcomes, case.costs, "bounded").work < 1.03 * oracle(outcomes, case.costs)


@pytest.mark.parametrize("seed", range(5))
def test_a_change_at_the_end_of_the_order_is_noticed(seed: int) -> None:
    """The last predicate of the order is watched too, though there is nothing to decide before it."""
    case = shadowed(seed)
    assert simulate(case.outcomes, case.costs, "bounded").work < 1.08 * case.oracle


def test_what_other_tasks_learned_is_used_at_once() -> None:
    """With costs and joint outcomes taught, the first tuples go to the best predicate and nowhere else."""
    profile = Profile()
    case = independent(0, (200, 50, 5), (0.9, 0.5, 0.1), 200)
    profile.add(dict(enumerate(case.outcomes.T)))
    candidates = [candidate(i, action="select", profile=profile) for i in range(3)]
    for c, cost in zip(candidates, case.costs, strict=True):
        assert c.overall is not None
        c.overall.recent_in, c.overall.recent_seconds = 200, 200 * cost
    candidates.append(candidate(0, action="profile", profile=profile))
    shares = dict(POLICIES["bounded"](Options(policy="bounded")).choose(Signature(1), candidates))
    assert shares[candidates[2].operator] > 0.7


def test_the_first_calls_are_not_believed() -> None:
    """A second of imports at the first call does not make a predicate dear for good."""
    account = Account(1000)
    meter = Meter(account)
    account.update(8, 4, 1.0)
    meter.read()
    assert meter.cost == 1 / 8
    account.update(10, 5, 0.001)
    assert meter.read() == pytest.approx(0.001)
    assert meter.cost == pytest.approx(0.0001)


@LAWS
@given(st.integers(0, 1), st.integers(1, 1500), st.integers(0, 1 << 20))
def test_a_machine_that_stops_once_costs_a_few_tuples(predicate: int, call: int, seed: int) -> None:
    """Wherever it stops, what it did not come from is not paid for: neither by order nor by budget."""
    case = independent(seed, (1, 1), (0.9, 0.02), 2000)
    simulation = simulate(case.outcomes, case.costs, "bounded", 100, (predicate, call))
    assert simulation.calls[0] < 500


def test_a_predicate_that_becomes_dear_is_believed() -> None:
    """The second reading above all others says that it was no accident."""
    account = Account(1_000_000)
    meter = Meter(account)
    for seconds in (1.0, 1.0, 1.0, 100.0):
        account.update(100, 50, seconds)
        meter.read()
    assert meter.cost == pytest.approx(0.01)
    for _ in range(20):
        account.update(100, 50, 100.0)
        meter.read()
    assert meter.cost > 0.8


bits = st.lists(st.integers(0, 15), min_size=1, max_size=400)


@LAWS
@given(bits, st.permutations(range(4)), st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=4))
def test_orders_are_priced_by_joint_outcomes(drawn: list[int], order: list[int], costs: list[float]) -> None:
    """Prices lie between the dearest predicate's and the sum; the ranking has the cheapest first."""
    profile = Profile()
    profile.add(outcomes_of(15, drawn))
    joint = Joint(profile, tuple(order))
    named = dict(enumerate(costs))
    ranked = joint.ranked((0, 1, 2, 3), named)
    prices = [joint.cost(each, named) for each in ranked]
    assert sorted(ranked) == sorted(permutations(range(4)))
    assert prices == sorted(prices)
    assert costs[ranked[0][0]] <= prices[0] <= prices[-1] <= sum(costs) * (1 + 1e-9)
    saving, error = joint.saving(ranked[-1], ranked[0], named)
    assert saving == pytest.approx(prices[-1] - prices[0], abs=1e-9)
    # Also where all tuples agreed: they are only so many.
    assert error >= saving / len(drawn) / 2 * (1 - 1e-9)


@LAWS
@given(bits.filter(lambda drawn: len(drawn) > 1), st.permutations(range(4)))
def test_shares_follow_the_counts(drawn: list[int], order: list[int]) -> None:
    """Repeated a thousand times over, tuples speak for themselves: shares are those counted."""
    drawn = (drawn * 600)[:50_000]
    profile = Profile(len(drawn))
    profile.add(outcomes_of(15, drawn))
    joint = Joint(profile, tuple(order))
    for passed in range(16):
        counted = sum(each & passed == passed for each in drawn) / len(drawn)
        assert joint.share(passed) == pytest.approx(counted, abs=0.02)


def test_what_was_observed_in_the_order_outweighs_the_profile() -> None:
    """A small profile that says half pass gives way to many tuples of which few pass."""
    profile = Profile()
    profile.add(outcomes_of(3, [3, 0] * 8))
    joint = Joint(profile, (0, 1), {(0, 0): (10_000, 100)})
    assert joint.share(1) == pytest.approx(0.01, abs=0.002)
    assert joint.share(3) < joint.share(2) < 0.2


@pytest.mark.parametrize("regret", [0, -0.1, 1.5, float("nan"), "much", None, True])
def test_a_regret_that_is_no_share_is_refused(regret: object) -> None:
    """The error names the option, the value and what is expected."""
    with pytest.raises(OptionError, match=r"regret is .*: expected a share above 0 and at most 1"):
        Options(regret=regret)
