"""Laws that every registered policy obeys, and what each of them is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from millrace.engine.migration import MIGRATION_POLICIES
from millrace.engine.policies import POLICIES, Candidate, Shares
from millrace.engine.policies.base import EXPLORED_SHARE
from millrace.engine.statistics import Account, Profile
from millrace.engine.tuples import Signature
from millrace.options import POLICY_NAMES, Options
from tests.engine.laws import examples
from tests.engine.operators import KINDS, Join, Probe, Profiling, Select
from tests.engine.policies.cases import outcomes_of
from tests.engine.policies.simulator import simulate

LAWS = examples(40)
SIGNATURE = Signature(1)


def candidate(
    target: int,
    guess: float = 1.0,
    measured: tuple[int, int, float] | None = None,
    action: Any = "probe",
    name: str | None = None,
    overall: tuple[int, int, float] | None = None,
    profile: Profile | None = None,
    cumulative: float | None = None,
) -> Candidate:
    """Return a candidate; ``measured`` and ``overall`` are (tuples in, tuples out, seconds)."""
    accounts = [Account(1 << 20), Account(1 << 20)]
    for account, seen in zip(accounts, (measured, overall), strict=True):
        if seen is not None:
            account.update(*seen)
    alone = action in ("build", "probe", "join")
    return Candidate(
        KINDS[action](target),
        name or f"r{target}",
        accounts[0],
        guess,
        None if alone else accounts[1],
        None if alone else profile or Profile(),
        cumulative,
    )


measurements = st.none() | st.tuples(st.integers(0, 5000), st.integers(0, 9000), st.floats(0, 10))
outcomes = st.lists(st.integers(0, 63), max_size=40)


@st.composite
def situations(draw: st.DrawFn) -> list[Candidate]:
    """Draw legal candidates: one that settles, or modules, with a profile where predicates are several."""
    if draw(st.integers(0, 9)) == 0:
        return [candidate(0, action="settle")]
    profile = Profile()
    profile.add(outcomes_of(63, draw(outcomes)))
    join = draw(st.sampled_from(["probe", "join"]))
    actions = draw(st.lists(st.sampled_from([join, "select"]), min_size=1, max_size=6))
    if draw(st.integers(0, 9)) == 0:
        actions = ["build", *(a for a in actions if a == "select")]
    if actions.count("select") > 1:
        actions.append("profile")
    return [
        candidate(
            0 if action == "profile" else target,
            draw(st.floats(0, 1e6)),
            draw(measurements),
            action,
            overall=draw(measurements),
            profile=profile,
            cumulative=draw(st.none() | st.floats(0, 1e6)) if action in ("probe", "join") else None,
        )
        for target, action in enumerate(actions)
    ]


def chosen(policy: str, rounds: list[list[Candidate]], **options: Any) -> list[Shares]:
    made = POLICIES[policy](Options(policy=policy, **options))
    return [made.choose(SIGNATURE, candidates) for candidates in rounds]


def favourite(shares: Shares) -> int:
    return max(shares, key=lambda pair: pair[1])[0].target


def test_every_policy_of_the_options_is_registered() -> None:
    """The names users may write are exactly the policies there are."""
    assert set(POLICIES) == set(POLICY_NAMES)


@pytest.mark.parametrize("registry", [POLICIES, MIGRATION_POLICIES])
def test_policies_cannot_be_replaced(registry: Any) -> None:
    """Tasks would not see the change, so it is an error where it is made."""
    for name in registry:
        with pytest.raises(TypeError):
            registry[name] = object


@pytest.mark.law
@pytest.mark.parametrize("policy", POLICIES)
def test_what_every_policy_obeys(policy: str) -> None:
    """Legal operators once each, in whole shares; by what was measured and the seed, and by nothing else.

    What a join is called where state is elsewhere than in SteMs makes no difference. Profiling costs the sum
    of all predicates, so only policies that learn from it choose it.
    """

    @examples(80)
    @given(st.lists(situations(), min_size=1, max_size=5), st.integers(0, 3), st.booleans())
    def law(rounds: list[list[Candidate]], seed: int, preferred: bool) -> None:
        options = Options(policy=policy, seed=seed, order=("r2", "r0"))
        probing, again, joining = (POLICIES[policy](options) for _ in range(3))
        signature = replace(SIGNATURE, preferred=preferred)
        for candidates in rounds:
            shares = probing.choose(signature, [renamed(c, "probe") for c in candidates])
            operators = [operator for operator, _ in shares]
            assert set(operators) <= {renamed(c, "probe").operator for c in candidates}
            assert len(set(operators)) == len(operators)
            assert sum(share for _, share in shares) == pytest.approx(1.0, abs=1e-12)
            assert all(share >= 0 for _, share in shares)
            assert shares == again.choose(signature, [renamed(c, "probe") for c in candidates])
            joined = joining.choose(signature, [renamed(c, "join") for c in candidates])
            assert [(d.target, share) for d, share in shares] == [(d.target, share) for d, share in joined]
            assert probing.hold == joining.hold
            if policy not in ("random", "a_greedy", "bounded"):
                assert not any(isinstance(operator, Profiling) for operator in operators)

    law()


def renamed(c: Candidate, name: Any) -> Candidate:
    """Return a candidate with its SteM, or its edge, as a target of that name."""
    if not isinstance(c.operator, Probe | Join):
        return c
    return replace(c, operator=KINDS[name](c.operator.target))


@pytest.mark.law
@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_the_order_the_same_tuples_are_kept(policy: str) -> None:
    """Every tuple that passes all predicates comes out once, no other does; and two runs are alike."""

    @examples(15)
    @given(
        st.integers(0, 1 << 20),
        st.lists(st.tuples(st.floats(1e-7, 0.1), st.floats(0, 1)), min_size=1, max_size=6),
        st.sampled_from([1, 7, 500]),
        st.integers(0, 700),
    )
    def law(seed: int, predicates: list[tuple[float, float]], batch: int, tuples: int) -> None:
        costs = tuple(cost for cost, _ in predicates)
        drawn = np.random.default_rng(seed).random((tuples, len(costs))) < [kept for _, kept in predicates]
        one, two = (simulate(drawn, costs, policy, batch) for _ in range(2))
        assert sorted(one.kept) == list(np.flatnonzero(drawn.all(axis=1)))
        assert one.decisions == two.decisions

    law()


@pytest.mark.parametrize("policy", ["greedy", "rank", "interactive", "a_greedy", "bounded"])
def test_joins_that_are_known_are_explored_in_large_pieces(policy: str) -> None:
    """Pieces are coarse where joins are known, and only there, whoever decides for a policy."""
    made = POLICIES[policy](Options(policy=policy))
    known = [candidate(i, measured=(100_000, 50_000, 1.0)) for i in range(2)]
    for candidates, is_coarse in ((known, True), ([known[0], candidate(2)], False), (known, True)):
        for _ in range(3):
            shares = made.choose(Signature(1), candidates)
        assert len(shares) == 2
        assert made.coarse == is_coarse


def test_random_routing_tries_everything() -> None:
    """Over many decisions every candidate gets a part, alone and shared with another."""
    answers = chosen("random", [[candidate(i) for i in range(4)]] * 200)
    assert {operator.target for shares in answers for operator, _ in shares} == {0, 1, 2, 3}
    assert {len(shares) for shares in answers} == {1, 2}


def test_a_fixed_order_puts_selections_first_then_names_then_the_rest() -> None:
    """Names are the user's, in any case; what is not named follows as written."""
    candidates = [
        candidate(0),
        candidate(1),
        candidate(2, name="Orders"),
        candidate(0, action="select", name="σ"),
    ]
    answers = []
    while candidates:
        ((operator, share),) = chosen("fixed", [candidates], order=("orders",))[0]
        assert share == 1.0
        answers.append(operator)
        candidates = [c for c in candidates if c.operator != operator]
    assert answers == [
        Select(0),
        Probe(2),
        Probe(0),
        Probe(1),
    ]


@pytest.mark.parametrize("policy", ["greedy", "rank"])
def test_learning_policies_prefer_what_was_measured_to_drop_more(policy: str) -> None:
    """At equal cost the lowest selectivity wins, whatever was guessed; the rest gets a small share."""
    good = candidate(1, 5.0, (4096, 100, 1.0))
    bad = candidate(0, 0.1, (4096, 3900, 1.0))
    shares = dict(chosen(policy, [[bad, good]])[0])
    assert shares == {good.operator: 1 - EXPLORED_SHARE, bad.operator: EXPLORED_SHARE}


def test_greedy_counts_tuples_and_rank_counts_time() -> None:
    """A dear module that drops most comes first for one and last for the other."""
    dear = candidate(0, 1.0, (4096, 400, 40.0))
    cheap = candidate(1, 1.0, (4096, 2000, 0.04))
    assert favourite(chosen("greedy", [[dear, cheap]])[0]) == 0
    assert favourite(chosen("rank", [[dear, cheap]])[0]) == 1


def test_a_guess_gives_way_to_measurements() -> None:
    """A few tuples hardly move an expectation; a thousand replace it."""
    assert candidate(0, 0.5, (1, 10, 0.0)).selectivity < 0.6
    assert candidate(0, 0.5, (2048, 8192, 0.0)).selectivity == 4.0


@pytest.mark.parametrize("policy", ["greedy", "rank"])
def test_exploration_goes_to_the_least_known_and_never_to_what_multiplies(policy: str) -> None:
    """What is expected to multiply tuples is not tried at all while something better is there."""
    best = candidate(0, 0.1, (5000, 500, 0.0001))
    known = candidate(1, 0.9, (5000, 4500, 0.0001))
    unknown = candidate(2, 0.9)
    explosive = candidate(3, 50.0)
    shares = dict(chosen(policy, [[best, known, unknown, explosive]])[0])
    assert set(shares) == {best.operator, unknown.operator}
    assert dict(chosen(policy, [[best, explosive]])[0]) == {best.operator: 1.0}
