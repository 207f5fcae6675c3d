"""The routing table: what a policy may answer, and how exactly it is followed."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from lab.figures.beyond import halves
from millrace.engine.eddy.decisions import RoutingTable
from millrace.engine.eddy.operator import Operator
from millrace.engine.eddy.statistics import Account
from millrace.engine.operators import content
from millrace.engine.operators.content import division
from millrace.engine.policies import Candidate, Decision, Policy, Shares
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import OptionError, RoutingError
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.blocks import run, star
from tests.engine.eddy.oracle import Case, block
from tests.engine.laws import examples
from tests.engine.operators import Probe

ARMS = {"x": [0, 1, 2], "y": [0, 1, 2], "z": [0, 1, 2]}
PROBES = [Probe(i) for i in range(6)]
FOUND = [Candidate(operator, "r", Account(10), 1.0) for operator in PROBES]


class Answering(Policy):
    """Gives the answer that a test wants, and counts how often it was asked."""

    asked = 0

    def __init__(self, answer: Callable[[Sequence[Candidate]], Shares], **how: Any) -> None:
        self.answer, self.how = answer, how

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        self.asked += 1
        return Decision(self.answer(candidates), **self.how)


def singletons(size: int, done: int = 0) -> TupleBatch:
    return TupleBatch(Signature(1, done), {0: np.arange(size, dtype=np.int32)}, {})


def route_all(routing: RoutingTable, batch: TupleBatch | None) -> list[tuple[Operator, TupleBatch]]:
    """Route a batch, and what the table leaves for later, until nothing is left."""
    pieces = []
    while batch is not None:
        some, batch = routing.route(batch)
        pieces += some
    return pieces


def table(policy: Policy, every: int = 1 << 60, legal: int = len(PROBES), **how: Any) -> RoutingTable:
    return RoutingTable(policy, lambda _: FOUND[:legal], every, **how)


@pytest.mark.parametrize(
    "shares", [(), (0.5,), (0.6, 0.6), (1.5, -0.5), (math.nan, 1.0), (math.inf, -math.inf)], ids=str
)
def test_shares_that_do_not_make_a_whole_are_refused(shares: tuple[float, ...]) -> None:
    """They sum to 1 and none is negative or not a number."""
    policy = Answering(lambda c: tuple((c[i].operator, share) for i, share in enumerate(shares)))
    with pytest.raises(RoutingError, match="do not sum to 1"):
        run(star(ARMS, dict.fromkeys(ARMS, (0, 1))), policy=policy, stream="u")


@examples(50)
@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=6).filter(any),
    st.lists(st.integers(1, 9), min_size=1, max_size=150),
    st.sampled_from([3, 10, 1 << 60]),
)
def test_shares_are_exact_over_time(weights: list[int], sizes: list[int], every: int) -> None:
    """However batches are cut, and however long decisions last: to a few tuples, always."""
    shares = [w / sum(weights) for w in weights]
    routing = table(Answering(lambda _: tuple(zip(PROBES, shares, strict=False))), every)
    given_: Counter[Operator] = Counter()
    routed = 0
    for size in sizes:
        pieces = route_all(routing, singletons(size))
        assert np.concatenate([p.rows[0] for _, p in pieces]).tolist() == list(range(size))
        for operator, piece in pieces:
            given_[operator] += piece.size
        routed += size
        for operator, share in zip(PROBES, shares, strict=False):
            assert abs(given_[operator] - share * routed) <= len(shares)


@pytest.mark.parametrize(
    ("shares", "every", "expected"),
    [
        ((0.5, 0.5), 10_000, [1024, 4096, 10_000, 10_000, 4880]),
        # Decisions that repeat grow faster; what splits nothing and is long holds to the batch's end.
        ((1.0,), 20_000, [1024, 16_384, 32_592]),
    ],
)
def test_first_decisions_are_short(shares: Sequence[float], every: int, expected: list[int]) -> None:
    """Knowledge grows fastest at first: a choice is renewed after 1024 tuples, then 4 times as many."""
    policy = Answering(lambda _: tuple(zip(PROBES, shares, strict=False)))
    routing, lengths, batch = table(policy, every), [], singletons(sum(expected))
    while batch is not None:
        pieces, batch = routing.route(batch)
        lengths.append(sum(piece.size for _, piece in pieces))
    assert lengths == expected and policy.asked == len(expected)
    route_all(routing, singletons(1, done=1))  # another signature is another decision
    assert policy.asked == len(expected) + 1


def test_a_single_operator_needs_no_policy() -> None:
    """Nothing is asked where there is nothing to choose; tuples without a operator leave."""
    policy = Answering(lambda _: ())
    assert [(d, p.size) for d, p in route_all(table(policy, legal=1), singletons(3))] == [(PROBES[0], 3)]
    assert table(policy, legal=0).route(singletons(3)) == ([], None)
    assert policy.asked == 0


def test_whole_batches_go_one_way_each() -> None:
    """However small a share is: it waits until it makes a batch, and is exact to a batch."""
    routing = table(Answering(lambda _: ((PROBES[0], 0.9), (PROBES[1], 0.1)), coarse=True, whole=True), 100)
    sizes: Counter[Operator] = Counter()
    for _ in range(200):
        ((operator, piece),) = route_all(routing, singletons(100))
        sizes[operator] += piece.size
        assert abs(sizes[PROBES[1]] - 0.1 * sizes.total()) <= 100
    assert sizes[PROBES[1]] == 2000


def test_a_decision_that_says_the_same_again_is_kept_while_deciding_is_dear() -> None:
    """Until no more than a hundredth of the time went into it, but not for long: changes are noticed."""
    clock = VirtualClock()
    policy = Answering(lambda c: clock.advance(1.0) or ((c[0].operator, 1.0),))
    routing = table(policy, 1000, clock=clock)
    for batches, asked in ((1, 1), (1, 2), (4, 2), (1, 3)):
        for _ in range(batches):
            routing.route(singletons(1000))
        assert policy.asked == asked
    clock.advance(100.0)
    routing.route(singletons(1000))
    assert policy.asked == 4


def test_decisions_about_functions_hold_longer_while_they_say_the_same() -> None:
    """Up to eight times as long, in seconds of work; one that says something else begins anew."""
    policy = Answering(lambda c: ((c[1 if 650 < done < 680 else 0].operator, 1.0),))
    routing, done, lengths = table(policy, busy=lambda: done / 1000), 0, []
    while done < 750:
        ((_, piece),), _ = routing.route(singletons(1000))
        lengths.append(piece.size)
        done += piece.size
    assert lengths == [16, 30, 45, 60, 75, 90, 105, 120, 120, 16, 30, 16, 30]


@pytest.mark.parametrize(("hold", "asked"), [(None, 1), (100, 10)])
def test_whole_batches_of_predicates_are_not_cut_at_first(hold: int | None, asked: int) -> None:
    """Unless the policy says for how many tuples its decision holds."""
    policy = Answering(lambda _: ((PROBES[0], 0.5), (PROBES[1], 0.5)), coarse=True, whole=True, hold=hold)
    route_all(table(policy, 10_000), singletons(1000))
    assert policy.asked == asked


class First:
    """Takes what is legal first; a policy need not inherit anything."""

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        return Decision.of(candidates[0])


@pytest.mark.parametrize("policy", [First(), First, f"{__name__}:First"], ids=["object", "class", "name"])
def test_a_policy_of_ones_own(policy: Any) -> None:
    """An object, a class, or where to find it; it also goes by pickles."""
    keys = [0, 1, 2] * 7
    case, options = star(ARMS, dict.fromkeys(ARMS, keys)), pickle.loads(pickle.dumps(Options(policy=policy)))
    rows, eddy = run(case, options, stream="u")
    assert rows == case.expected()
    assert dict(eddy.figures().orders)["u → x → y → z"] == 21


@pytest.mark.parametrize(
    ("policy", "error", "told"),
    [
        ("gready", OptionError, "greedy"),
        (3, OptionError, r"expected a name.*choose\(signature, candidates\) -> Decision"),
        ("nowhere:First", OptionError, "nowhere"),
        (f"{__name__}:Last", OptionError, "Last"),
        (f"{__name__}:Options", OptionError, "expected a method choose"),
        (Answering, OptionError, "missing 1 required positional argument"),
        # It cannot send tuples to a relation that they span, and is told what it could have done.
        (
            type("Wild", (), {"choose": lambda *_: Decision(((Probe(0), 1.0),))}),
            RoutingError,
            r"Wild sent .*; legal operators are .*probe SteM\(z\)",
        ),
        (
            type("Broken", (), {"__init__": lambda _: 1 / 0, "choose": lambda *_: ()}),
            OptionError,
            "none can be made: division by zero",
        ),
        (
            type("Never", (), {"choose": lambda _, signature, c: Decision(((c[0].operator, 1.0),), hold=-1)}),
            RoutingError,
            "at least 1",
        ),
    ],
    ids=str,
)
def test_a_policy_that_is_none_is_refused(policy: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        run(star(ARMS, dict.fromkeys(ARMS, (0, 1))), Options(policy=policy), stream="u")


@pytest.mark.parametrize("order", [("x", "y", "z"), ("Z", "x", "y"), ("u", "y", "z", "x"), ("z",)])
def test_a_fixed_order_is_followed_to_the_letter(order: tuple[str, ...]) -> None:
    """Every tuple of the streamed relation goes through the relations as named, then as written."""
    keys = [0, 1, 2] * 7
    _, eddy = run(star(ARMS, dict.fromkeys(ARMS, keys)), Options(policy="fixed", order=order), stream="u")
    named = [alias.lower() for alias in order if alias != "u"]
    steps = ["u", *named, *(alias for alias in ARMS if alias not in named)]
    assert [entry for entry in eddy.figures().orders if entry[0].startswith("u")] == [(" → ".join(steps), 21)]


# What learning policies are for: fewer intermediate tuples, whatever order the query is written in.


HELD = range(100)


def keys(hits: float, n: int, seed: int) -> list[int]:
    """Return keys of which the share ``hits`` is among those held; they repeat evenly."""
    draw = np.random.default_rng(seed)
    return np.where(draw.random(n) < hits, draw.integers(0, len(HELD), n), -1).tolist()


def intermediate(columns: dict[str, list[int]], policy: str, order: Sequence[str] = ()) -> int:
    """Return how many intermediate tuples are made of a star of which only the stream's keys are skewed."""
    options = Options(
        policy=policy, order=tuple(order), batch_size=256, reoptimize_every=1024, transfer=False
    )
    case = star(dict.fromkeys(columns, HELD), columns)
    return run(case, options, stream="u", chunk=1 << 20)[1].figures().intermediate_tuples


@pytest.mark.parametrize(("hits", "n"), [((0.05, 0.9), 20_000), ((0.9, 0.5, 0.02), 80_000)], ids=str)
def test_greedy_finds_the_better_order(hits: tuple[float, ...], n: int) -> None:
    """Whatever is written first: after learning, it is about as good as the best static order.

    Learning is over by the last quarter of the stream. It takes the longer, the more relations share
    the tuples for exploration and the better the one is that is tried first.
    """
    columns = {name: keys(share, n, i) for i, (name, share) in enumerate(zip("xyz", hits, strict=False))}
    early = {name: values[: n * 3 // 4] for name, values in columns.items()}

    def late(policy: str, order: Sequence[str] = ()) -> int:
        return intermediate(columns, policy, order) - intermediate(early, policy, order)

    order = [name for _, name in sorted(zip(hits, "xyz", strict=False))]
    best, worst = late("fixed", order), late("fixed", order[::-1])
    assert worst > 10 * best
    assert late("greedy") < best + 0.05 * (worst - best)


def test_greedy_follows_drift() -> None:
    """Where each static order is wrong for half of the stream, it is better than the best of them."""
    half = 30_000
    # x drops most in the first half of the stream, y in the second.
    x = keys(0.02, half, 1) + keys(1.0, half, 2)
    y = keys(1.0, half, 3) + keys(0.02, half, 4)
    columns = {"x": x, "y": y}
    static = min(intermediate(columns, "fixed", order) for order in ("xy", "yx"))
    assert intermediate(columns, "greedy") < 0.3 * static


def test_a_relation_that_multiplies_comes_last() -> None:
    """Its size tells before anything is measured, so that it is not even tried first."""
    case = star({"x": [*HELD] * 20, "y": HELD}, {"x": keys(1.0, 2000, 1), "y": keys(0.5, 2000, 2)})
    _, eddy = run(case, Options(batch_size=64, reoptimize_every=256), stream="u", chunk=500)
    ways = [order for order, _ in eddy.figures().orders]
    assert ways and all(way.startswith("u → y") for way in ways)


# Content-sensitive routing: tuples take routes by the value of an attribute; results stay what they are.


ROWS = 16_000


def parts(values: list[Any]) -> Case:
    """Return a block whose streamed relation has two parts, told apart by which half of the values it has."""
    tables, half = halves(ROWS, 0, known=True), len(values) // 2
    is_right = tables["S"]["part"].to_numpy() == "right"
    shown = is_right * half + np.random.default_rng(0).integers(0, half, ROWS)
    tables["S"] = tables["S"].select(["a", "b"]).append_column("value", pa.array([values[i] for i in shown]))
    return block(tables, ["S.a = R.a", "S.b = T.b"], count_only=True)


OPTIONS = {"transfer": False, "batch_size": 500, "reoptimize_every": 1000}

VALUES: dict[str, list[Any]] = {
    "text": ["a", "b", "c", "d"],
    "boolean": [False, True],
    "integer": list(range(1000)),
    "float": [i / 7 - 50 for i in range(1000)],
    "infinite": [-np.inf, *range(998), np.inf],
    "date": [dt.date(2020, 1, 1) + dt.timedelta(i) for i in range(1000)],
    "timestamp": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=i) for i in range(1000)],
}


def divided(values: list[Any], **changes: Any) -> tuple[Any, list[str]]:
    """Run the block over these values; return the eddy, and what divides tuples."""
    case = parts(values)
    rows, eddy = run(case, Options(**{**OPTIONS, **changes}), chunk=500)
    assert rows == case.expected()
    return eddy, [m.name for m in eddy.figures().modules if m.action == "divide"]


@pytest.mark.parametrize("kind", VALUES)
def test_an_attribute_is_found_and_saves_work(kind: str) -> None:
    """Few values are told apart each by itself, many in ranges."""
    eddy, found = divided(VALUES[kind])
    without, none = divided(VALUES[kind], by_content=False)
    assert found == ["Divide(S.value)"] and not none
    assert eddy.figures().intermediate_tuples < 0.6 * without.figures().intermediate_tuples


@pytest.mark.parametrize(
    ("values", "changes", "is_sampled"),
    [
        # Keys and values say nothing, so a sample is all that it costs.
        (["same", "same"], {}, True),
        ([1.0, 1.0], {}, True),
        # An order that was asked for is kept; state of STAIRs follows signatures.
        (VALUES["text"], {"policy": "fixed", "order": ("S", "R", "T")}, False),
        (VALUES["text"], {"architecture": "stairs"}, False),
    ],
)
def test_what_has_a_route_of_its_own_or_tells_nothing_is_not_divided(values, changes, is_sampled):
    """Where dividing cannot help, tuples stay together."""
    eddy, found = divided(values, **changes)
    assert not found and (0 < eddy.dataflow.sampled <= ROWS) == is_sampled


@pytest.mark.broken_rule
def test_that_orders_are_proved_on_other_tuples_is_what_keeps_noise_out(monkeypatch) -> None:
    """With as many buckets as tuples some order fits each of them by chance, and none fits the next ones."""
    random = np.random.default_rng(5)
    counts = random.integers(0, 3, (2000, 2))
    monkeypatch.setattr(content, "_LEAST_OF_BUCKET", 1)
    monkeypatch.setattr(content, "BUCKETS", 500)
    noise = {"noise": pa.array(random.integers(0, 500, 2000))}
    assert division(noise, counts) is None
    told = {"told": pa.array(np.sign(counts[:, 0] - counts[:, 1]))}
    found = division({**noise, **told}, counts)
    assert found is not None and found.column == "told"
    doubled = {name: values.take(np.repeat(np.arange(1000), 2)) for name, values in noise.items()}
    assert division(doubled, np.repeat(counts[:1000], 2, axis=0)) is not None  # the same tuples prove nothing
