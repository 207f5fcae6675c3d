"""The routing table: what a policy may answer, and how exactly it is followed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from millrace.engine.operator import Operator
from millrace.engine.policies import POLICIES, Candidate, Policy, Shares
from millrace.engine.router.routing_table import DecisionLifetime, RoutingTable
from millrace.engine.statistics import Account
from millrace.engine.tuples import Signature, TupleBatch
from millrace.errors import RoutingError
from millrace.options import Options
from tests.engine.eddy.blocks import run, star
from tests.engine.laws import examples
from tests.engine.operators import Probe

LAWS = examples(50)
ARMS = {"x": [0, 1, 2], "y": [0, 1, 2], "z": [0, 1, 2]}
PROBES = [Probe(i) for i in range(6)]


class Answering(Policy):
    """Gives the answer that a test wants, and counts how often it was asked."""

    def __init__(self, answer: Callable[[Sequence[Candidate]], Shares]) -> None:
        self.answer = answer
        self.asked = 0

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        self.asked += 1
        return self.answer(candidates)


def alike(keys: list[int]) -> dict[str, list[int]]:
    """Return the columns of a stream that meets every relation alike."""
    return dict.fromkeys(ARMS, keys)


def singletons(size: int, done: int = 0) -> TupleBatch:
    return TupleBatch(Signature(1, done), {0: np.arange(size, dtype=np.int32)}, {})


def route_all(routing: RoutingTable, batch: TupleBatch | None) -> list[tuple[Operator, TupleBatch]]:
    """Route a batch, and what the table leaves for later, until nothing is left."""
    pieces = []
    while batch is not None:
        some, batch = routing.route(batch)
        pieces += some
    return pieces


def table(policy: Policy, every: int = 1 << 60, legal: int = len(PROBES)) -> RoutingTable:
    found = [Candidate(operator, "r", Account(10), 1.0) for operator in PROBES[:legal]]
    return RoutingTable(policy, lambda _: found, DecisionLifetime(every, None).lasting, every)


def test_an_illegal_operator_is_refused() -> None:
    """A policy cannot send tuples to a relation that they span, and is told what it could have done."""
    policy = Answering(lambda _: ((Probe(0), 1.0),))
    case = star(ARMS, alike([0, 1]))
    with pytest.raises(RoutingError, match=r"Answering sent .*; legal operators are .*probe SteM\(z\)"):
        run(case, policy=policy, stream="u")


@pytest.mark.parametrize(
    "shares", [(), (0.5,), (0.6, 0.6), (1.5, -0.5), (math.nan, 1.0), (math.inf, -math.inf)], ids=str
)
def test_shares_that_do_not_make_a_whole_are_refused(shares: tuple[float, ...]) -> None:
    """They sum to 1 and none is negative or not a number."""
    policy = Answering(lambda c: tuple((c[i].operator, share) for i, share in enumerate(shares)))
    with pytest.raises(RoutingError, match="do not sum to 1"):
        run(star(ARMS, alike([0, 1])), policy=policy, stream="u")


@LAWS
@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=6).filter(any),
    st.lists(st.integers(1, 9), min_size=1, max_size=150),
)
def test_shares_are_exact_over_time(weights: list[int], sizes: list[int]) -> None:
    """However batches are cut: each operator is within a few tuples of its share, always."""
    shares = [w / sum(weights) for w in weights]
    routing = table(Answering(lambda _: tuple(zip(PROBES, shares, strict=False))))
    given_: Counter[Operator] = Counter()
    routed = 0
    for size in sizes:
        pieces = route_all(routing, singletons(size))
        assert np.concatenate([p.rows[0] for _, p in pieces]).tolist() == list(range(size))
        given_.update({operator: piece.size for operator, piece in pieces})
        routed += size
        for operator, share in zip(PROBES, shares, strict=False):
            assert abs(given_[operator] - share * routed) <= len(shares)


def test_single_tuples_split_exactly() -> None:
    """With batches of one tuple, a share of an eighth gets every eighth tuple."""
    routing = table(Answering(lambda _: ((PROBES[0], 0.875), (PROBES[1], 0.125))))
    went = [operator for _ in range(800) for operator, _ in route_all(routing, singletons(1))]
    assert Counter(went) == {PROBES[0]: 700, PROBES[1]: 100}
    places = [i for i, operator in enumerate(went) if operator == PROBES[1]]
    assert set(np.diff(places)) == {8}


def test_the_smallest_shares_wait_longest() -> None:
    """The first tuple of a decision goes to its largest share, however the policy listed them."""
    for order in ((0.4, 0.35, 0.25), (0.25, 0.4, 0.35)):
        routing = table(Answering(lambda _, order=order: tuple(zip(PROBES, order, strict=False))))
        assert [d for d, _ in route_all(routing, singletons(1))] == [PROBES[order.index(0.4)]]


def test_decisions_are_lazy_and_kept_for_a_while() -> None:
    """A policy is asked at a signature's first tuple and again after so many tuples of it."""
    policy = Answering(lambda c: ((c[0].operator, 1.0),))
    routing = table(policy, every=10)
    asked = []
    for _ in range(6):
        route_all(routing, singletons(4))
        asked.append(policy.asked)
    assert asked == [1, 1, 1, 2, 2, 2]
    route_all(routing, singletons(1, done=1))
    assert policy.asked == 3


def test_first_decisions_are_short() -> None:
    """Knowledge grows fastest at first: a choice is renewed after 1024 tuples, then 4 times as many."""
    policy = Answering(lambda c: ((c[0].operator, 0.5), (c[1].operator, 0.5)))
    routing = table(policy, every=10_000)
    lengths = []
    batch: TupleBatch | None = singletons(30_000)
    while batch is not None:
        pieces, batch = routing.route(batch)
        lengths.append(sum(piece.size for _, piece in pieces))
    assert lengths == [1024, 4096, 10_000, 10_000, 4880]
    assert policy.asked == 5


def test_rounding_outlives_a_decision() -> None:
    """A small share is served in the long run, also where decisions are shorter than its turn."""
    routing = table(Answering(lambda _: ((PROBES[0], 0.99), (PROBES[1], 0.01))), every=10)
    went = Counter(d for _ in range(1000) for d, _ in route_all(routing, singletons(1)))
    assert went == {PROBES[0]: 990, PROBES[1]: 10}


def test_a_single_operator_needs_no_policy() -> None:
    """Nothing is asked where there is nothing to choose; tuples without a operator leave."""
    policy = Answering(lambda _: ())
    assert [(d, p.size) for d, p in route_all(table(policy, legal=1), singletons(3))] == [(PROBES[0], 3)]
    assert table(policy, legal=0).route(singletons(3)) == ([], None)
    assert policy.asked == 0


@pytest.mark.parametrize("order", [("x", "y", "z"), ("Z", "x", "y"), ("u", "y", "z", "x"), ("z",)])
def test_a_fixed_order_is_followed_to_the_letter(order: tuple[str, ...]) -> None:
    """Every tuple of the streamed relation goes through the relations as named, then as written."""
    keys = [0, 1, 2] * 7
    _, eddy = run(star(ARMS, alike(keys)), Options(policy="fixed", order=order), stream="u")
    named = [alias.lower() for alias in order if alias != "u"]
    steps = ["u", *named, *(alias for alias in ARMS if alias not in named)]
    assert [entry for entry in eddy.figures().orders if entry[0].startswith("u")] == [(" → ".join(steps), 21)]


@pytest.mark.parametrize("policy", POLICIES)
def test_batches_of_one_route_tuple_by_tuple(policy: str) -> None:
    """With batch size 1, every module is called once for each tuple that it gets."""
    options = Options(policy=policy, batch_size=1, reoptimize_every=3)
    rows, eddy = run(star(ARMS, alike([0, 1, 2, 3] * 5)), options, stream="u")
    assert rows == Counter({(15,): 1})
    figures = eddy.figures()
    visits = [m for m in figures.modules if m.action in ("build", "probe")]
    assert all(m.calls == m.tuples_in for m in visits)
    assert figures.tuples_routed == sum(m.calls for m in visits)


def test_batch_size_one_decides_for_each_tuple_alone() -> None:
    """A policy that alternates sends neighbouring tuples different ways."""
    turns = iter(range(10**6))
    policy = Answering(lambda c: ((c[next(turns) % len(c)].operator, 1.0),))
    options = Options(batch_size=1, reoptimize_every=1)
    _, eddy = run(star(ARMS, alike([0, 1] * 30)), options, stream="u", policy=policy)
    orders = [entry for entry in eddy.figures().orders if entry[0].startswith("u")]
    assert len(orders) > 2
    assert sum(count for _, count in orders) == 60
