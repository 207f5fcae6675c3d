"""Accounts: exact totals for reports, a forgetting window for decisions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from millrace.engine.statistics import Account, Profile, Statistics, recall, share
from millrace.limits.clock import VirtualClock
from tests.engine.laws import examples
from tests.engine.policies.cases import outcomes_of

LAWS = examples(50)
calls = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 900), st.floats(0, 1)), max_size=40)


@LAWS
@given(calls, st.integers(1, 1000))
def test_totals_forget_nothing(booked: list[tuple[int, int, float]], window: int) -> None:
    """Whatever the window, totals are the sums of what was booked."""
    account = Account(window)
    for call in booked:
        account.update(*call)
    assert account.tuples_in == sum(c[0] for c in booked)
    assert account.tuples_out == sum(c[1] for c in booked)
    assert account.calls == len(booked)
    assert account.seconds == pytest.approx(sum(c[2] for c in booked))


@LAWS
@given(calls, st.integers(1, 1000))
def test_the_window_is_bounded_and_keeps_proportions(
    booked: list[tuple[int, int, float]], window: int
) -> None:
    """It never holds more than its size; what it says lies between the calls it has seen."""
    account = Account(window)
    for call in booked:
        account.update(*call)
        assert account.recent_in <= window
    told = [c for c in booked if c[0]]
    if told and all(c[0] for c in booked):
        assert (
            min(o / i for i, o, _ in told) - 1e-9
            <= account.selectivity
            <= max(o / i for i, o, _ in told) + 1e-9
        )
        assert min(s / i for i, _, s in told) - 1e-9 <= account.cost <= max(s / i for i, _, s in told) + 1e-9


def test_a_window_that_was_never_full_is_exact() -> None:
    """Before anything is forgotten, selectivity and cost are plain averages."""
    account = Account(1000)
    account.update(300, 30, 3.0)
    account.update(100, 70, 1.0)
    assert (account.selectivity, account.cost) == (0.25, 0.01)


def test_drift_is_followed_within_a_few_windows() -> None:
    """After the data changed, old tuples weigh ever less: half after one window, none after ten."""
    account = Account(100)
    for _ in range(50):
        account.update(10, 0, 0.0)
    weights = []
    for _ in range(100):
        account.update(10, 10, 0.0)
        weights.append(account.selectivity)
    assert weights == sorted(weights)
    assert weights[9] > 0.5
    assert weights[-1] > 0.99


def test_an_unused_account_claims_nothing() -> None:
    """No tuple yet: as many out as in, at no cost."""
    account = Account(10)
    assert (account.selectivity, account.cost) == (1.0, 0.0)
    account.update(0, 5, 1.0)
    assert (account.selectivity, account.cost) == (1.0, 0.0)


def test_a_resumed_probe_counts_its_tuples_once() -> None:
    """Later parts of one probe book matches without tuples: the ratio is that of the whole probe."""
    account = Account(1000)
    account.update(4, 10, 0.1)
    account.update(0, 10, 0.1)
    account.update(0, 4, 0.1)
    assert (account.tuples_in, account.tuples_out, account.calls) == (4, 24, 3)
    assert account.selectivity == 6.0


def test_accounts_appear_at_first_use_and_keep_their_order() -> None:
    """Any hashable key; the same account every time."""
    statistics = Statistics(64)
    statistics.update(("scan", 1), 5, 5, 0.5)
    assert statistics.get("output") is statistics.get("output")
    statistics.update(("scan", 1), 5, 0, 0.5)
    assert [(key, account.tuples_in) for key, account in statistics.items()] == [
        (("scan", 1), 10),
        ("output", 0),
    ]
    assert statistics.get("output").window == 64


def test_clocks_never_go_back() -> None:
    """The virtual clock moves only when told to."""
    clock = VirtualClock(2.0)
    assert clock.now() == clock.now() == 2.0
    clock.advance(0.5)
    assert clock.now() == 2.5
    with pytest.raises(ValueError, match="go back"):
        clock.advance(-1.0)


@LAWS
@given(
    st.lists(st.tuples(st.integers(1, 7), st.lists(st.integers(0, 7), max_size=9)), max_size=12),
    st.integers(0, 2),
    st.integers(0, 7),
    st.none() | st.integers(0, 40),
    st.sampled_from([0, 62, 197]),
)
def test_a_profile_counts_what_its_newest_tuples_passed(pieces, predicate, given_, newest, shift):
    """Whatever pieces came, the window holds the newest tuples, and conditions are counted on these.

    The predicates have numbers of any size, below and above the width of a machine word.
    """
    pieces = [(e << shift, [p << shift for p in passed]) for e, passed in pieces]
    predicate, given_ = predicate + shift, given_ << shift
    profile = Profile(16)
    everything = []
    for evaluated, passed in pieces:
        profile.add(outcomes_of(evaluated, passed))
        everything += [(evaluated, p & evaluated) for p in passed]
    seen = everything[-16:]
    assert profile.held == len(seen)
    seen = seen if newest is None else seen[max(0, len(seen) - newest) :]
    bit = 1 << predicate
    met = [p for e, p in seen if e & (bit | given_) == bit | given_ and p & given_ == given_]
    assert profile.passing(predicate, given_, newest) == (len(met), sum(p & bit != 0 for p in met))
    again = Profile(16)
    again.learn(json.loads(json.dumps(profile.export())))
    assert again.passing(predicate, given_) == profile.passing(predicate, given_)
    shorter = Profile(5)
    shorter.learn(profile.export())
    assert shorter.passing(predicate, given_) == profile.passing(predicate, given_, 5)
    profile.forget()
    assert profile.passing(predicate) == (0, 0)


def test_lessons_are_recent_knowledge_and_no_totals():
    """They pass through JSON; a new task decides by them and reports only what it did itself."""
    first = Statistics(100)
    first.update(("a", 1), 50, 10, 2.0)
    first.profile(1).add(outcomes_of(3, [1, 3]))
    second = Statistics(100)
    second.learn(json.loads(json.dumps(first.export())))
    account = second.get(("a", 1))
    assert (account.selectivity, account.cost, account.tuples_in) == (0.2, 0.04, 0)
    assert second.profile(1).passing(1) == (2, 1)
    assert second.get(("b", 1)).recent_in == 0


class Kept:
    """A warm start that is any text."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text

    def read(self) -> str | None:
        return self.text

    def write(self, text: str) -> None:
        self.text = text


def shared() -> Kept:
    """Return what a task leaves that has used an account, and profiled tuples."""
    learned, kept = Statistics(100), Kept()
    learned.update(("a", 1), 50, 10, 2.0)
    learned.profile(1).add(outcomes_of(3, [1, 3]))
    share(kept, learned)
    return kept


def is_empty(statistics: Statistics) -> bool:
    """Whether nothing was learned."""
    return statistics.get(("a", 1)).recent_in == 0 and statistics.profile(1).held == 0


def test_what_one_task_shares_another_recalls():
    """Accounts and profiles, by way of a text."""
    statistics = Statistics(100)
    recall(shared(), statistics)
    assert statistics.get(("a", 1)).selectivity == 0.2
    assert statistics.profile(1).passing(1) == (2, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        "[[[\"('a', 1)\", 50, 10, 2.0]], []]",
        "[[[\"('a', 1)\", 50, 10, 2.0]], [[1, [3, 3], [1, 3]]]]",
        '{"format": 0, "learned": [[["(\'a\', 1)", 50, 10, 2.0]], []]}',
        '{"format": 1}',
        '{"format": 1, "learned": [[["(\'a\', 1)", 50, 10]], []]}',
        '{"format": 1, "learned": [[["(\'a\', 1)", 50, 10, -2.0]], []]}',
        '{"format": 1, "learned": [[["(\'a\', 1)", 50, 10, NaN]], []]}',
        '{"format": 1, "learned": [[["(\'a\', 1)", 50, 10, 2.0]], [[1, [[1, 0], [1]]]]]}',
        '{"format": 1, "learned": [[["(\'a\', 1)", 50, 10, 2.0]], [[1, [[1, 7], [1, 1]]]]]}',
        '{"format": 1, "learned": [[["(\'a\', 1)", 50, 10, 2.0]], [[1, [[-1], [-1]]]]]}',
        '{"format": 1, "learned": [[["(\'a\', 1)", 50, 10, 2.0]], [[1, 5]]]}',
    ],
)
def test_a_warm_start_that_cannot_be_read_is_none(text):
    """A text of another version, or a damaged one, teaches nothing, not even the part that could be read."""
    statistics = Statistics(100)
    recall(Kept(text), statistics)
    assert is_empty(statistics)


def test_a_torn_warm_start_is_none():
    """Wherever the text breaks off."""
    text = shared().text
    assert text is not None
    for end in range(len(text)):
        statistics = Statistics(100)
        recall(Kept(text[:end]), statistics)
        assert is_empty(statistics)
