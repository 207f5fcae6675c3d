"""Policies for joins: lowest cumulative selectivity, and a budget for exploring."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from millrace.engine.operator import Operator
from millrace.engine.policies import POLICIES, Candidate, bounded_exploration
from millrace.engine.policies.bounded_exploration import TRIAL
from millrace.engine.policies.cumulative import MARGIN
from millrace.engine.router.routing_table import DecisionLifetime, RoutingTable
from millrace.engine.statistics import Statistics
from millrace.engine.tuples import Signature, TupleBatch
from millrace.options import Options
from tests.engine.laws import same_examples
from tests.engine.operators import Join, Probe
from tests.engine.policies.test_policies import SIGNATURE, candidate, chosen, favourite

LAWS = same_examples(30)
LONGEST = 131_072
KNOWN = 128
"""Tuples after which a policy believes what it measured."""


def joins(*cumulative: float | None, guess: float = 1.0) -> list[Candidate]:
    return [candidate(i, guess, action="join", cumulative=c) for i, c in enumerate(cumulative)]


# cumulative


@LAWS
@given(st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=30))
def test_staying_never_loses_more_than_the_margin(rounds: list[list[float]]) -> None:
    """Whatever the estimates do, the work of the join that is kept is within the margin of the best."""
    for fanouts, shares in zip(rounds, chosen("cumulative", [joins(*r) for r in rounds]), strict=True):
        assert 1 + fanouts[favourite(shares)] <= MARGIN * (1 + min(fanouts)) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        # A join that drops most at first loses if what lies behind it multiplies.
        (
            [
                candidate(0, 0.1, (5000, 500, 0.001), "join", cumulative=7.0),
                candidate(1, 2.0, (5000, 10_000, 0.001), "join", cumulative=0.5),
            ],
            Join(1),
        ),
        # Where nothing tells cumulative selectivities, selectivities are what there is.
        ([candidate(0, 3.0, action="probe"), candidate(1, 2.0, (5000, 500, 0.001), "probe")], Probe(1)),
    ],
    ids=["cumulative", "of the join alone"],
)
def test_the_lowest_selectivity_wins_and_nothing_is_explored(candidates, expected) -> None:
    """Tuples sent elsewhere would become state there."""
    assert chosen("cumulative", [candidates] * 50) == [((expected, 1.0),)] * 50


@pytest.mark.parametrize("level", [0.05, 1.0, 20.0])
def test_noise_does_not_upset_a_tie(level: float) -> None:
    """Estimates of equal joins that vary by 5 % change places a few times in a thousand decisions at most."""
    for seed in range(5):
        noise = np.random.default_rng(seed).normal(1, 0.05, (1000, 3))
        answers = chosen("cumulative", [joins(*(level * n)) for n in noise])
        assert sum(favourite(one) != favourite(two) for one, two in pairwise(answers)) <= 6


@LAWS
@given(st.floats(1e-9, 1e-3), st.floats(0, 1), st.floats(0, 20), st.floats(1e-8, 1e-5))
def test_predicates_come_where_they_cost_less(cost, passes, made, join_cost) -> None:
    """Both orders are priced; the dearer one is never taken."""
    predicate = candidate(0, action="select", overall=(100_000, round(100_000 * passes), 100_000 * cost))
    join = candidate(1, 1.0, (100_000, 100_000, 100_000 * join_cost), "join", cumulative=made)
    joining = join_cost + made * 50e-9
    assert predicate.overall is not None
    passes = predicate.overall.selectivity
    before, behind = cost + passes * joining, joining + made * cost
    first = chosen("cumulative", [[join, predicate]])[0][0][0].action
    if abs(before - behind) > 1e-9 * (before + behind):
        assert first == ("select" if before < behind else "join")


def test_a_predicate_that_was_never_called_is_called_first() -> None:
    """Nothing else would tell what it costs; and of several, the one that drops most per second is first."""
    new, dear = (
        candidate(i, action="select", overall=known) for i, known in enumerate((None, (1000, 500, 10.0)))
    )
    assert favourite(chosen("cumulative", [[dear, new, *joins(0.5)]])[0]) == 0
    assert favourite(chosen("cumulative", [[dear, candidate(2, action="join", cumulative=0.5)]])[0]) == 2


# bounded


class Joins:
    """Tuples of one signature, sent to joins of known fan-outs; decisions hold as long as in the eddy.

    What is lost are matches of tuples not sent to the best join the policy knew, beyond that join's.
    """

    def __init__(self, fanouts: list[float], guesses: list[float], tuples: int, **options: object):
        self.sent = np.zeros(len(fanouts), np.int64)
        self.lost, best = 0.0, 0
        statistics = Statistics(2 * LONGEST)
        names = [Probe(i) for i in range(len(fanouts))]

        def candidates(signature: Signature) -> list[Candidate]:
            return [
                Candidate(d, f"r{d.target}", statistics.get((signature, d)), guess)
                for d, guess in zip(names, guesses, strict=True)
            ]

        def decided(signature: Signature, shares: list[tuple[Operator, float]]) -> None:
            nonlocal best
            best = max(shares, key=lambda pair: pair[1])[0].target

        made = POLICIES["bounded"](Options(policy="bounded", **options))
        table = RoutingTable(made, candidates, DecisionLifetime(LONGEST, None).lasting, LONGEST, decided)
        for _ in range(tuples // 8192):
            rest: TupleBatch | None = TupleBatch(SIGNATURE, {0: np.arange(8192)}, {})
            while rest is not None:
                pieces, rest = table.route(rest)
                for operator, piece in pieces:
                    i = operator.target
                    matches = round(piece.size * fanouts[i])
                    statistics.update((SIGNATURE, operator), piece.size, matches, piece.size * 1e-7)
                    self.sent[i] += piece.size
                    self.lost += piece.size * max(0.0, fanouts[i] - fanouts[best])


fanouts_drawn = st.lists(st.floats(0, 3) | st.floats(0, 300), min_size=2, max_size=5)


def overspent(fanouts: list[float], guesses: list[float], regret: float, tuples: int = 1 << 19) -> float:
    """Return how far the loss is above the share and what cannot be known before it was tried."""
    surprise = (KNOWN + TRIAL) * sum(fanouts)
    return Joins(fanouts, guesses, tuples, regret=regret).lost - 1.1 * regret * tuples - surprise


@settings(LAWS, max_examples=40)
@given(st.data(), fanouts_drawn, st.sampled_from([0.001, 0.01, 0.1]))
def test_exploring_joins_is_within_the_budget(data, fanouts, regret) -> None:
    """Whatever joins multiply tuples by, however wrong the guesses: the share, and a few surprises."""
    guesses = data.draw(st.lists(st.floats(0, 3), min_size=len(fanouts), max_size=len(fanouts)))
    assert overspent(fanouts, guesses, regret) <= 0


@pytest.mark.broken_rule
def test_without_the_rate_that_would_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the usual share for exploring, whatever it loses, the budget would be exceeded."""
    case = ([0.01, 0.95], [0.01, 0.95], 0.001)
    assert overspent(*case) <= 0
    broken = bounded_exploration.BoundedExploration
    monkeypatch.setattr(broken, "affordable", lambda *_: 1 / 128)
    monkeypatch.setattr(broken, "_regret", 1.0, raising=False)
    new = bounded_exploration._RegretBudget
    monkeypatch.setattr(broken, "_settle", lambda self, s, _: self._budgets.setdefault(s, new()))
    assert overspent(*case) > 0


def test_a_surprise_is_met_with_few_tuples() -> None:
    """A join that was expected to drop tuples and multiplies them by a thousand is left alone at once."""
    believed, tried = (Joins([0.5, 1000.0], guesses, 1 << 17) for guesses in ([0.6, 0.4], [0.4, 0.6]))
    assert tried.sent[1] <= 2 * TRIAL
    assert believed.sent[1] <= 2048  # its first decision believed the guess
