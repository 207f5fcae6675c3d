"""Accounts: exact totals for reports, a forgetting window for decisions."""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from millrace.engine import peak
from millrace.engine.eddy.statistics import Account, Profile, Statistics, recall, share
from millrace.engine.peak import begin_peak, peak_memory
from millrace.engine.stairs import fanout as fanouts
from millrace.engine.stairs.fanout import KeySample, fanout
from tests.engine.laws import examples, same_examples
from tests.engine.operators import outcomes_of
from tests.gate import sampled

LAWS = examples(50)
calls = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 900), st.floats(0, 1)), max_size=40)


@LAWS
@given(calls, st.integers(1, 1000))
def test_totals_forget_nothing_and_the_window_is_bounded(booked, window):
    """It never holds more than its size; what it says lies between the calls it has seen.

    Before anything is forgotten it is plain averages, and of no tuple as many out as in, at no cost.
    """
    account = Account(window)
    for call in booked:
        account.update(*call)
        assert account.recent_in <= window
    assert account.tuples_in == sum(c[0] for c in booked)
    assert account.tuples_out == sum(c[1] for c in booked)
    assert account.calls == len(booked)
    assert account.seconds == pytest.approx(sum(c[2] for c in booked))
    if (n := account.tuples_in) <= window:
        averages = (account.tuples_out / n, account.seconds / n) if n else (1.0, 0.0)
        assert (account.selectivity, account.cost) == pytest.approx(averages)
    if booked and all(c[0] for c in booked):
        passing, costs = [o / i for i, o, _ in booked], [s / i for i, _, s in booked]
        assert min(passing) - 1e-9 <= account.selectivity <= max(passing) + 1e-9
        assert min(costs) - 1e-9 <= account.cost <= max(costs) + 1e-9


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


def recalled(text: str) -> Statistics:
    """Return what a new task knows from a text."""
    statistics = Statistics(100)
    recall(SimpleNamespace(read=lambda: text), statistics)
    return statistics


def test_what_one_task_shares_another_recalls():
    """Accounts and profiles, by way of a text; recent knowledge and no totals."""
    learned, texts = Statistics(100), []
    learned.update(("a", 1), 50, 10, 2.0)
    learned.profile(1).add(outcomes_of(3, [1, 3]))
    share(SimpleNamespace(write=texts.append), learned)
    statistics = recalled(*texts)
    account = statistics.get(("a", 1))
    assert (account.selectivity, account.cost, account.tuples_in) == (0.2, 0.04, 0)
    assert statistics.profile(1).passing(1) == (2, 1)
    assert statistics.get(("b", 1)).recent_in == 0


LEARNED = '{"format": 1, "learned": [[["(\'a\', 1)", 50, 10, %s]], %s]}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", "3", "[[[\"('a', 1)\", 50, 10, 2.0]], []]", '{"format": 1}'),
        '{"format": 0, "learned": [[["(\'a\', 1)", 50, 10, 2.0]], []]}',
        '{"format": 1, "learned": [[["(\'a\', 1)", 50, 10]], []]}',
        *(LEARNED % (seconds, "[]") for seconds in ("-2.0", "NaN")),
        *(
            LEARNED % (2.0, f"[[1, {profile}]]")
            for profile in ("[[1, 0], [1]]", "[[1, 7], [1, 1]]", "[[-1], [-1]]", "5")
        ),
    ],
)
def test_a_warm_start_that_cannot_be_read_is_none(text):
    """A text of another version, or a damaged one, teaches nothing, not even the part that could be read."""
    statistics = recalled(text)
    assert statistics.get(("a", 1)).recent_in == statistics.profile(1).held == 0
    assert recalled(LEARNED % (2.0, "[]")).get(("a", 1)).recent_in == 50, "as it is when it is whole"


# Fan-outs from samples of keys: exact for few keys, within a few percent for many, whatever the skew.


SAME = same_examples(40)
SEEDS = range(3)
DISTINCT, ROWS = 100_000, 300_000


def sample(codes: np.ndarray, batch: int = 65_536, *, keys: int = 2048, window: int = 131_072) -> KeySample:
    made = KeySample(keys, window)
    for first in range(0, len(codes), batch):
        made.add(np.asarray(codes[first : first + batch], np.int64))
    return made


def support(probing: KeySample, held: KeySample, *, recent: bool) -> int:
    """Return on how many keys of the probing relation an estimate rests; 0 is a guess."""
    return int(probing.meet(held, np.empty(0, np.int64), recent=recent)[0])


def matches(probing: np.ndarray, held: np.ndarray) -> float:
    """Return matches per probing row, by counting."""
    one, two = Counter(np.asarray(probing).tolist()), Counter(np.asarray(held).tolist())
    return sum(rows * two[key] for key, rows in one.items()) / len(probing)


def zipf(random: np.random.Generator) -> np.ndarray:
    """Return rows of keys 0 to DISTINCT - 1 whose frequencies fall with their rank."""
    weights = 1 / np.arange(1, DISTINCT + 1)
    return random.permutation(DISTINCT)[random.choice(DISTINCT, ROWS, p=weights / weights.sum())]


def half(random: np.random.Generator) -> np.ndarray:
    return random.permutation(DISTINCT)[: DISTINCT // 2]


keys = st.lists(st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1), max_size=80)


@SAME
@given(keys, keys, st.integers(1, 30))
@example([-(2**63), 2**63 - 1], [2**63 - 1, -(2**63), -(2**63)], 1)
@example([1], [], 1)
def test_few_keys_are_exact(one: list[int], two: list[int], batch: int) -> None:
    """A handful of tuples, negative and extreme codes: as counted, whatever batches."""
    probing, held = sample(np.array(one), batch), sample(np.array(two), batch)
    assert probing.rows() == probing.rows(recent=True) == len(one)
    assert probing.distinct == len(set(one))
    for recent in (False, True):
        assert support(probing, held, recent=recent) == len(set(one))
        if not two:
            assert fanout(probing, held, recent=recent) == 1.0
        elif one:
            expected = matches(np.array(one), np.array(two))
            assert fanout(probing, held, recent=recent) == pytest.approx(expected)
        else:  # a guess: all keys that will come are there
            assert fanout(probing, held, recent=recent) == pytest.approx(len(two) / len(set(two)))


CASES = {
    "a half of the keys": (lambda r: r.integers(0, DISTINCT, ROWS), half, 0.08),
    "uniform": (lambda r: r.integers(0, DISTINCT, ROWS), lambda r: r.integers(50_000, 150_000, ROWS), 0.08),
    "skewed, a half of the keys": (zipf, half, 0.5),
    "skewed and uniform": (zipf, lambda r: r.integers(0, DISTINCT, 200_000), 0.5),
    "regular": (lambda r: np.arange(ROWS) * 32, lambda r: np.arange(0, ROWS, 3) * 32, 0.15),
    "nothing": (lambda r: np.arange(50_000), lambda r: np.arange(50_000, 100_000), 0),
    # Every tuple has one match, however skewed, and a key as many as there are rows for each.
    "a foreign key": (zipf, lambda r: r.permutation(DISTINCT), 1e-6),
    "a key": (lambda r: r.permutation(DISTINCT), zipf, 1e-6),
}


@pytest.mark.parametrize("seed", sampled(SEEDS, 3))
@pytest.mark.parametrize("case", CASES)
def test_many_keys_are_estimated(case: str, seed: int) -> None:
    """Bounds are some four standard errors; with skew, one sampled key may stand for many rows."""
    random = np.random.default_rng(seed)
    make_one, make_two, error = CASES[case]
    one, two = make_one(random), make_two(random)
    estimate = fanout(sample(one), sample(two), recent=False)
    assert estimate == pytest.approx(matches(one, two), rel=error)
    assert support(sample(one), sample(two), recent=False) > 100


def joint_skew(seed: int) -> float:
    """Return an estimate over the truth where the same few keys make up most matches."""
    random = np.random.default_rng(seed)
    one = zipf(random)
    two = random.permutation(one)[:DISTINCT]
    return fanout(sample(one), sample(two), recent=False) / matches(one, two)


@pytest.mark.broken_rule
def test_without_frequent_keys_that_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most frequent key makes more than half of the matches: the sample of rows is what sees it."""
    assert all(0.7 < joint_skew(seed) < 1.3 for seed in SEEDS)
    monkeypatch.setattr(fanouts, "_FREQUENT", 1 << 30)
    assert not all(0.7 < joint_skew(seed) < 1.3 for seed in SEEDS)


@pytest.mark.parametrize("seed", sampled(SEEDS, 3))
def test_distinct_keys_are_estimated_and_memory_is_bounded(seed: int) -> None:
    """However many keys come, no more than so many are held."""
    random = np.random.default_rng(seed)
    made = sample(random.permutation(DISTINCT) - DISTINCT // 2, keys=1024)
    assert made.distinct == pytest.approx(DISTINCT, rel=0.2)
    assert 256 <= len(made._taken) <= 1024


@pytest.mark.parametrize("batch", [100, 65_536])
def test_the_window_follows_a_change(batch: int) -> None:
    """Recent tuples count soon and old ones no more; all of them are still known."""
    held = sample(np.arange(1000))
    probing = sample(np.full(10_000, 5), batch, window=4000)
    assert fanout(probing, held) == 1.0
    for codes in np.split(np.full(4000, -5), 4000 // 100):
        probing.add(codes)
    assert fanout(probing, held) == 0.0
    assert fanout(probing, held, recent=False) == pytest.approx(10_000 / 14_000)
    assert 2000 <= probing.rows(recent=True) <= 4000


# The peak of memory: of a task where the system can tell, in bytes everywhere.


SIZE = 200 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets an earlier peak")
def test_a_peak_before_the_beginning_does_not_count() -> None:
    """What an earlier task of the same worker took is not this one's."""
    held = np.ones(SIZE, np.uint8)
    before = peak_memory()
    assert before >= held.nbytes
    del held
    assert peak_memory() >= SIZE
    assert begin_peak()
    assert peak_memory() <= before - SIZE // 2


@pytest.mark.parametrize(
    ("platform", "expected"), [("darwin", 5000), ("freebsd14", 5000 * 1024), ("win32", 7000)]
)
def test_a_peak_is_in_bytes_everywhere(monkeypatch, tmp_path, platform, expected) -> None:
    """macOS counts bytes where others count kilobytes, and Windows has a counter of its own.

    There are no files of Linux there, so nothing is forgotten.
    """
    monkeypatch.setattr(peak, "_STATUS", str(tmp_path / "status"))
    monkeypatch.setattr(peak, "_CLEAR", tmp_path / "nowhere" / "clear_refs")
    monkeypatch.setattr(sys, "platform", platform)
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=7000))
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(Process=lambda: process))
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=5000))
    if platform == "win32":
        monkeypatch.setitem(sys.modules, "resource", None)
    assert not begin_peak()
    assert peak_memory() == expected
