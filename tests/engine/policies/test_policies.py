"""Laws that every registered policy obeys, and what each of them is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from lab.queues import Backpressure
from millrace.engine.eddy.operator import Kind
from millrace.engine.eddy.run import Run
from millrace.engine.eddy.statistics import Account, Profile
from millrace.engine.plan.expressions import Call, Column, ColumnRef
from millrace.engine.plan.spec import JoinSpec, Window
from millrace.engine.policies import POLICIES, Candidate, Decision, Greedy, Shares
from millrace.engine.policies.base import EXPLORED_SHARE
from millrace.engine.policies.cumulative import MARGIN
from millrace.engine.policies.laws import check_policy, decide, draw_candidates
from millrace.engine.policies.lottery import LEAST_SHARE
from millrace.engine.spill.run_of import run_of
from millrace.engine.stairs.choice import architecture_of, policy_of
from millrace.engine.tuples.batch import Signature
from millrace.errors import InputError, OptionError, RoutingError
from millrace.options import ARCHITECTURES, Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.oracle import block
from tests.engine.laws import examples, same_examples
from tests.engine.operators import KINDS, Join, Probe

SIGNATURE = Signature(1)


def candidate(target, guess=1.0, measured=None, action="probe", overall=None, profile=None, cumulative=None):
    """Return a candidate; ``measured`` and ``overall`` are (tuples in, tuples out, seconds)."""
    mine, whole = Account(1 << 20), Account(1 << 20)
    for account, seen in ((mine, measured), (whole, overall)):
        if seen is not None:
            account.update(*seen)
    known = (None, None) if action in ("build", "probe", "join") else (whole, profile or Profile())
    return Candidate(KINDS[action](target), f"r{target}", mine, guess, *known, cumulative)


def chosen(policy: str, rounds: list[list[Candidate]], **options: Any) -> list[Shares]:
    made = POLICIES[policy](Options(policy=policy, **options))
    return [made.choose(SIGNATURE, candidates).shares for candidates in rounds]


def favourite(shares: Shares) -> int:
    return max(shares, key=lambda pair: pair[1])[0].target


@pytest.mark.parametrize("policy", POLICIES)
@examples(80)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(0, 3), st.integers(0, 1))
def test_what_every_policy_obeys(policy, draw, rounds, seed, preferred) -> None:
    """Legal operators once each, in whole shares; by what was measured and the seed, and by nothing else.

    What a join is called where state is elsewhere than in SteMs makes no difference. Profiling costs the sum
    of all predicates, so only policies that learn from it choose it.
    """
    options = Options(policy=policy, seed=seed, order=("r2", "r0"))
    drawn = [draw_candidates(draw) for _ in range(rounds)]
    probing, joining = (
        decide(policy, [[renamed(c, name) for c in each] for each in drawn], options, preferred=preferred)
        for name in ("probe", "join")
    )
    for decision, joined in zip(probing, joining, strict=True):
        shares = decision.shares
        assert sum(share for _, share in shares) == pytest.approx(1.0, abs=1e-12)
        assert [(d.target, share) for d, share in shares] == [(d.target, s) for d, s in joined.shares]
        assert (decision.hold, decision.coarse) == (joined.hold, joined.coarse)
        if policy not in ("random", "a_greedy", "bounded"):
            assert not any(operator.kind is Kind.PROFILE for operator, _ in shares)


def renamed(c: Candidate, name: Any) -> Candidate:
    """Return a candidate with its SteM, or its edge, as a target of that name."""
    if c.operator.kind.value not in ("probe", "join"):
        return c
    return replace(c, operator=KINDS[name](c.operator.target))


class Breaking:
    """Takes what is legal first, and breaks a law."""

    def __init__(self, law: str) -> None:
        self.law, self.copied = law, 0

    def __deepcopy__(self, memo: dict) -> Breaking:
        self.copied += 1
        made = Breaking(self.law)
        made.copied = self.copied
        return made

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Any:
        first = candidates[0].operator
        broken = {
            "legal": Decision(((Probe(9), 1.0),)),
            "once": Decision(((first, 0.5),) * 2),
            "whole": Decision(((first, 0.9),)),
            "alike": Decision(((candidates[self.copied % 2 % len(candidates)].operator, 1.0),)),
            "none": None,
        }
        return broken.get(self.law, Decision.of(candidates[0]))


@pytest.mark.parametrize(
    ("law", "told"),
    [
        ("legal", "legal operators"),
        ("once", "each operator once"),
        ("whole", "sum to 1"),
        ("alike", "a copy of it"),
        ("none", "expected a Decision"),
    ],
)
def test_a_policy_that_breaks_a_law_is_told_which(law: str, told: str) -> None:
    """And one that breaks none passes."""
    with pytest.raises((RoutingError, AssertionError), match=told):
        check_policy(Breaking(law))
    check_policy(Breaking(""))


@pytest.mark.parametrize("policy", ["greedy", "rank", "interactive"])
def test_attached_predicates_come_first_and_are_not_explored(policy: str) -> None:
    rows = [
        candidate(0, measured=(1000, 1, 1e-6)),
        candidate(1, action="select"),
        candidate(2, action="select", overall=(5, 4, 1e-3)),
        candidate(3, action="select", overall=(5, 1, 1e-3)),
        candidate(4, action="select", overall=(5, 0, 1e-3)),
    ]
    for each in rows[1:4]:
        each.operator.is_attached = True
    assert chosen(policy, [rows]) == [((rows[3].operator, 1.0),)]


@pytest.mark.parametrize("policy", ["greedy", "rank", "interactive", "a_greedy", "bounded"])
def test_joins_that_are_known_are_explored_in_large_pieces(policy: str) -> None:
    """Pieces are coarse where joins are known, and only there, whoever decides for a policy."""
    made = POLICIES[policy](Options(policy=policy))
    known = [candidate(i, measured=(100_000, 50_000, 1.0)) for i in range(2)]
    for candidates, is_coarse in ((known, True), ([known[0], candidate(2)], False), (known, True)):
        for _ in range(3):
            decision = made.choose(SIGNATURE, candidates)
            assert len(decision.shares) == 2 and decision.coarse == is_coarse


@pytest.mark.parametrize(
    ("policy", "measured", "first"),
    [
        # At equal cost the lowest selectivity wins, whatever was guessed.
        ("greedy", [(4096, 3900, 1.0), (4096, 100, 1.0)], 1),
        ("rank", [(4096, 3900, 1.0), (4096, 100, 1.0)], 1),
        # A dear module that drops most is first by tuples and last by time.
        ("greedy", [(4096, 400, 40.0), (4096, 2000, 0.04)], 0),
        ("rank", [(4096, 400, 40.0), (4096, 2000, 0.04)], 1),
    ],
)
def test_greedy_counts_tuples_and_rank_counts_time(policy, measured, first) -> None:
    """What was measured decides, and the rest gets a small share."""
    shares = chosen(policy, [[candidate(i, 0.1 + 4.9 * i, seen) for i, seen in enumerate(measured)]])[0]
    assert favourite(shares) == first
    assert 0 < min(share for _, share in shares) <= EXPLORED_SHARE


@pytest.mark.parametrize("policy", ["lottery", "windowed_lottery"])
def test_tickets_of_a_dear_module_buy_less(policy: str) -> None:
    """As full queues would have it: with equal tickets, shares are as the modules' speeds."""
    cheap, dear = (candidate(i, measured=(4096, 2048, cost)) for i, cost in enumerate((1.0, 9.0)))
    shares = dict(chosen(policy, [[cheap, dear]])[0])
    assert shares[cheap.operator] == pytest.approx(LEAST_SHARE + (1 - 2 * LEAST_SHARE) * 0.9)


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


# Which policy and which join state an eddy has when none is asked for.


ODD = Call(PredicateSpec("odd", lambda k: k % 2 == 1, "row"), (Column(ColumnRef("a", "k")),))


def joined(aliases: str, *calls: Call, **changes: object) -> JoinSpec:
    """Return a chain of relations of which nothing is known, the last of them with these changes."""
    tables = dict.fromkeys(aliases, pa.schema([("k", pa.int64())]).empty_table())
    spec = block(tables, [f"{a}.k = {b}.k" for a, b in pairwise(aliases)], count_only=True).spec
    *others, last = (replace(each, rows=None) for each in spec.relations)
    return replace(spec, relations=(*others, replace(last, **changes)), residuals=calls)


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "static"])
def test_policies_by_default(architecture: str) -> None:
    """What measures best, for each architecture that has a policy."""
    expected = "greedy" if architecture == "stems" else "cumulative"
    for spec, policy in (
        (joined("ab"), expected),
        (joined("ab", ODD), "rank"),
        (joined("a", ODD), "bounded"),
    ):
        assert policy_of(spec, Options(architecture=architecture)) == policy


@pytest.mark.parametrize(
    ("spec", "settings", "given", "expected"),
    [
        (joined("abc"), {}, {}, "stems"),
        (joined("abc"), {"online": True}, {}, "stairs"),
        (joined("abc"), {"online": True, "architecture": "joins"}, {}, "joins"),
        (joined("abc"), {"online": True}, {"side_by_side": False}, "stems"),
        (joined("abc"), {}, {"side_by_side": True}, "stairs"),
        (joined("abc"), {"online": True}, {"looked_up": True}, "stems"),
        (joined("abc", same_as="a"), {"online": True}, {}, "stems"),
        (joined("abc", window=Window("k", 3)), {"online": True}, {}, "stems"),
        (joined("abc"), {"architecture": "static"}, {}, "static"),
        (joined("a", ODD), {"architecture": "static"}, {}, "stems"),
        (joined("ab"), {"online": True}, {}, "stems"),
        (joined("ab", ODD), {"online": True}, {}, "stems"),
    ],
)
def test_join_state_by_default(spec: JoinSpec, settings: dict, given: dict, expected: str) -> None:
    """STAIRs for joins that arrive side by side, SteMs for all else, and what is asked for."""
    choice = architecture_of(spec, Options(**settings), **given)
    assert choice.name == expected
    assert choice.because


@pytest.mark.parametrize("given", [{"policy": Greedy()}, {"eddy": Backpressure()}])
def test_a_static_plan_is_not_given_what_it_would_not_use(given: dict) -> None:
    """Neither by options nor beside them; a block of one relation has an eddy, whose policy it is."""
    options = Options(architecture="static", order=("b", "a"))
    for both in ({"policy": "rank"}, {"policy": Greedy}, {"policy": Greedy(), "memory_budget": 1 << 20}):
        with pytest.raises(OptionError, match=r"'(rank|Greedy)'.* nobody would ask it"):
            options.updated(both)
    with pytest.raises(InputError, match=r"a (policy|eddy)"):
        Run(joined("ab"), dict.fromkeys("ab", ()), options, **given)
    Run(joined("a", ODD), {"a": ()}, options, **given)


@pytest.mark.parametrize(("online", "action"), [(False, "probe"), (True, "join")])
def test_an_eddy_has_the_join_state_that_was_chosen(online: bool, action: str) -> None:
    """And so has one under a memory budget."""
    batches = {alias: [pa.record_batch({"k": [1, 2, 3]})] for alias in "abc"}
    for budget in (None, 1 << 26):
        run = run_of(joined("abc"), batches, Options(online=online, memory_budget=budget))
        assert sum(batch.column(0)[0].as_py() for batch in run.run()) == 3
        assert {each.action for each in run.figures().modules} & {"probe", "join"} == {action}


# Policies for joins: lowest cumulative selectivity.


SAME = same_examples(30)


def joins(*cumulative: float) -> list[Candidate]:
    return [candidate(i, action="join", cumulative=c) for i, c in enumerate(cumulative)]


@SAME
@given(st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=30))
def test_staying_never_loses_more_than_the_margin(rounds: list[list[float]]) -> None:
    """Whatever the estimates do, the work of the join that is kept is within the margin of the best."""
    for fanouts, shares in zip(rounds, chosen("cumulative", [joins(*r) for r in rounds]), strict=True):
        assert 1 + fanouts[favourite(shares)] <= MARGIN * (1 + min(fanouts)) * (1 + 1e-12)


def test_the_lowest_selectivity_wins_and_nothing_is_explored() -> None:
    """Tuples sent elsewhere would become state there."""
    # A join that drops most at first loses if what lies behind it multiplies.
    known = [
        candidate(0, 0.1, (5000, 500, 0.001), "join", cumulative=7.0),
        candidate(1, 2.0, (5000, 10_000, 0.001), "join", cumulative=0.5),
    ]
    # Where nothing tells cumulative selectivities, selectivities are what there is.
    unknown = [candidate(0, 3.0), candidate(1, 2.0, (5000, 500, 0.001))]
    for candidates, best in ((known, Join(1)), (unknown, Probe(1))):
        assert chosen("cumulative", [candidates] * 50) == [((best, 1.0),)] * 50


@pytest.mark.parametrize("level", [0.05, 1.0, 20.0])
def test_noise_does_not_upset_a_tie(level: float) -> None:
    """Estimates of equal joins that vary by 5 % change places a few times in a thousand decisions at most."""
    for seed in range(5):
        noise = np.random.default_rng(seed).normal(1, 0.05, (1000, 3))
        answers = chosen("cumulative", [joins(*(level * n)) for n in noise])
        assert sum(favourite(one) != favourite(two) for one, two in pairwise(answers)) <= 6


@SAME
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
