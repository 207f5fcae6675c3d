"""The regret budget, hysteresis and drift of the policy ``bounded``; what profiles say about orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.eddy.statistics import Account, Profile
from millrace.engine.plan.expressions import Call
from millrace.engine.policies.base import DECISION_SECONDS
from millrace.engine.policies.filter_order import START, Joint, Meter
from millrace.errors import OptionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.blocks import ROW, filtering, numbered
from tests.engine.laws import same_examples
from tests.engine.operators import outcomes_of

# An eddy over selections only, with declared costs.


MICRO = 1e-6
PIECE = 30 * MICRO
"""Seconds that a piece costs the eddy whatever its size; a third of it shows in the module's account."""


@dataclass(frozen=True)
class Case:
    """Outcomes of shape ``(tuples, predicates)``, seconds per call, and where a new phase begins."""

    outcomes: np.ndarray
    costs: tuple[float, ...]
    changes: tuple[int, ...] = ()

    def static(self, order: Sequence[int], begin: int = 0, end: int | None = None) -> float:
        """Return the cost-weighted calls of one order for some of the tuples, seconds."""
        outcomes, work = self.outcomes[begin:end], 0.0
        for i in order:
            work += len(outcomes) * self.costs[i]
            outcomes = outcomes[outcomes[:, i]]
        return work

    @property
    def written(self) -> float:
        return self.static(range(len(self.costs)))

    @property
    def best(self) -> float:
        """Those of the best order of each phase."""
        orders = list(permutations(range(len(self.costs))))
        bounds = (0, *self.changes, len(self.outcomes))
        return sum(min(self.static(order, *phase) for order in orders) for phase in pairwise(bounds))


class Filtered:
    """Tuples that have gone through predicates of declared costs in virtual time, so many at a time.

    The machine may stop for a tenth of a second, at a predicate and a call of it.
    """

    def __init__(self, case: Case, policy="bounded", regret=0.01, batch=10_000, stop=None) -> None:
        self.outcomes, self.costs = case.outcomes, case.costs
        self.calls = np.zeros(len(self.costs), np.int64)
        self._clock, self._stop = VirtualClock(), stop
        made = [PredicateSpec(f"p{i}", self._predicate(i), "arrow") for i in range(len(self.costs))]
        calls, how = [Call(spec, (ROW,)) for spec in made], {"policy": policy, "regret": regret}
        eddy = filtering(numbered(len(self.outcomes)), calls, batch, self._clock, batch_size=batch, **how)
        assert sum(mask.true_count for mask in eddy.run()) == self.outcomes.all(axis=1).sum()
        self.figures = eddy.figures()
        self.pieces = sum(m.calls for m in self.figures.modules if m.action in ("select", "profile"))
        self.profiled = sum(m.tuples_in for m in self.figures.modules if m.action == "profile")

    @property
    def work(self) -> float:
        """Cost-weighted calls, seconds."""
        return float(self.calls @ np.array(self.costs))

    def _predicate(self, i: int) -> Callable[[pa.Array], pa.Array]:
        def passes(rows: pa.Array) -> pa.Array:
            self.calls[i] += len(rows)
            self._clock.advance(len(rows) * self.costs[i] + PIECE / 3)
            if self._stop is not None and i == self._stop[0] and self.calls[i] >= self._stop[1]:
                self._stop = None
                self._clock.advance(0.1)
            return pa.array(self.outcomes[rows.to_numpy(), i])

        return passes


def independent(seed: int, costs: tuple[float, ...], kept: tuple[float, ...], tuples: int = 20_000) -> Case:
    """Return a case of independent predicates; costs in microseconds."""
    drawn = np.random.default_rng(seed).random((tuples, len(costs)))
    return Case(drawn < np.array(kept), tuple(c * MICRO for c in costs))


def drift(seed: int, tuples: int = 20_000) -> Case:
    """Return a case in which the predicates exchange their selectivities three times."""
    turns = [np.roll((0.9, 0.5, 0.1), turn) for turn in range(4)]
    phases = [independent(seed * 4 + i, (200, 50, 5), tuple(k), tuples // 4) for i, k in enumerate(turns)]
    changes = (tuples // 4, tuples // 2, 3 * tuples // 4)
    return Case(np.vstack([each.outcomes for each in phases]), phases[0].costs, changes)


def clustered(seed: int) -> Case:
    """Return a case whose tuples come in short runs of the same outcome, which are no drift."""
    case = independent(seed, (20, 40, 60), (0.2, 0.5, 0.8), 800)
    return replace(case, outcomes=np.repeat(case.outcomes, 25, axis=0))


def correlated(seed: int, tuples: int = 20_000) -> Case:
    """Return a case in which predicates 0 and 1 reject nearly the same tuples, so that 2 comes second."""
    random = np.random.default_rng(seed)
    drawn = random.random((tuples, 3))
    first = drawn[:, 0] < 0.3
    same = np.where(random.random(tuples) < 0.97, first, drawn[:, 1] < 0.3)
    third = drawn[:, 2] < 0.5
    return Case(np.stack([same, first, third], axis=1), (50 * MICRO, 48 * MICRO, 55 * MICRO))


def shadowed(seed: int, tuples: int = 20_000) -> Case:
    """Return a case in which predicate 0 comes to reject most, but little of what 1 has left to it."""
    random = np.random.default_rng(seed)
    before = tuples // 10
    second = random.random(tuples) < 0.4
    first = random.random(tuples) < np.where(second, 0.75, 0.0)
    first[:before] = True
    return Case(np.stack([first, second], axis=1), (45 * MICRO, 60 * MICRO), (before,))


CASES: dict[str, tuple[Callable[[int], Case], float]] = {
    "worst first": (lambda seed: independent(seed, (200, 50, 5), (0.9, 0.5, 0.1)), 1.05),
    "dear and selective": (lambda seed: independent(seed, (200, 50, 5), (0.1, 0.5, 0.9)), 1.05),
    "drift": (drift, 1.10),
    "correlated": (correlated, 1.10),
    "shadowed": (shadowed, 1.08),
    "clustered": (clustered, 1.03),
    "written best": (lambda seed: independent(seed, (5, 50, 200), (0.1, 0.5, 0.9)), 1.02),
    "free": (lambda seed: independent(seed, (0.1, 0.1, 0.1), (0.9, 0.5, 0.1), 40_000), 1.10),
}
"""How to make each from a seed, and the most calls that the policy may make over those of the best order."""


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
    constant = 1.5 * (START * sum(case.costs) + 0.001) + DECISION_SECONDS
    assert Filtered(case, regret=regret).work <= (1 + regret) * case.written + constant


@pytest.mark.parametrize("name", CASES)
def test_calls_are_close_to_those_of_the_best_order(name: str) -> None:
    """Learning costs, selectivities and correlations, and their changes, costs a few percent of the work."""
    make, most = CASES[name]
    for seed in range(2):
        case = make(seed)
        assert Filtered(case).work <= most * case.best


def test_cheap_predicates_are_not_cut_to_pieces() -> None:
    """Where predicates cost next to nothing the eddy's own time stays below that of the order as written."""
    case = CASES["free"][0](0)
    filtered = Filtered(case)
    fixed = Filtered(case, "fixed")
    assert filtered.pieces < 50
    assert filtered.work + filtered.pieces * PIECE < fixed.work + fixed.pieces * PIECE


def test_many_predicates() -> None:
    """With more orders than can be compared one by one the greedy one is found."""
    case = independent(3, (20,) * 8, (0.95, 0.9, 0.8, 0.7, 0.5, 0.4, 0.3, 0.1))
    assert Filtered(case).work < 1.1 * case.static(range(7, -1, -1))


def test_exploring_is_paid_from_the_budget() -> None:
    """Of predicates that take a second, a handful of tuples is profiled; a larger share buys more."""
    dear = independent(0, (1e6, 1e6, 1e6), (0.1, 0.5, 0.9), 100)
    assert Filtered(dear).profiled == START
    case = independent(0, (5, 50, 200), (0.1, 0.5, 0.9))
    profiled = [Filtered(case, regret=r).profiled for r in (0.001, 0.01, 0.1)]
    assert profiled[0] < profiled[1] < profiled[2]


@pytest.mark.parametrize("seed", range(3))
def test_near_ties_do_not_thrash(seed: int) -> None:
    """Predicates within a few percent change places a few times at most, and equal ones for no loss."""
    case = independent(seed, (50, 50, 50), (0.5, 0.5, 0.5))
    assert Filtered(case).work < 1.02 * case.written
    near = Filtered(independent(seed, (50, 51, 49), (0.5, 0.51, 0.49)))
    (trace,) = near.figures.traces
    assert sum(one.order[:2] != two.order[:2] for one, two in pairwise(trace.changes)) <= 5


def test_an_accident_is_not_believed_and_a_lasting_change_is() -> None:
    """A call that takes a hundred times as long makes no predicate dear for good; twenty more do."""
    account = Account(1_000_000)
    meter = Meter(account)
    for calls, seconds, least, most in ((3, 1.0, 0.01, 0.01), (1, 100.0, 0.01, 0.01), (20, 100.0, 0.8, 1.0)):
        for _ in range(calls):
            account.update(100, 50, seconds)
            meter.read()
        assert least - 1e-9 <= meter.cost <= most + 1e-9


@LAWS
@given(st.integers(0, 1), st.integers(1, 1500), st.integers(0, 1 << 20))
def test_a_machine_that_stops_once_costs_a_few_tuples(predicate: int, call: int, seed: int) -> None:
    """Wherever it stops, what it did not come from is not paid for: neither by order nor by budget."""
    case = independent(seed, (1, 1), (0.9, 0.02), 2000)
    assert Filtered(case, batch=100, stop=(predicate, call)).calls[0] < 500


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


@pytest.mark.parametrize("regret", [0, -0.1, 1.5, float("nan"), "much", None, True])
def test_a_regret_that_is_no_share_is_refused(regret: object) -> None:
    with pytest.raises(OptionError, match=r"regret is "):
        Options(regret=regret)
