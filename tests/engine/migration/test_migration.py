"""Migration policies: what each moves, and what that costs over moving nothing or everything at once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from millrace.engine.stairs import MIGRATION_POLICIES, Change, policies
from millrace.engine.stairs.migration import DominantRoute
from millrace.engine.tuples.batch import Signature
from tests.engine.laws import examples, same_examples

# A model of one relation's state beside two joins, in plain arithmetic.


@dataclass(frozen=True)
class Phase:
    """For so many source tuples: matches per arriving tuple if all the state were at side 0, or at side 1."""

    tuples: int
    matches: tuple[float, float]


class Done(NamedTuple):
    """Tuples that came, that they met, and what moving others has cost; and how many were moved, or not."""

    work: float
    moved: int
    left: int


def run(name: str, phases: list[Phase], *, batch: int = 2000, foresight: float = 1.0) -> Done:
    """Run phases under a policy, and check that it moves no more than is misplaced.

    Between two points of stasis so many source tuples come, and half of them become state. The policy is told
    ``foresight`` times the tuples that are really to come.
    """
    policy = MIGRATION_POLICIES[name]()
    whole = sum(phase.tuples for phase in phases)
    sides = [0.0, 0.0]
    worked = spent = 0.0
    arrived, decision, good, moved, left = 0, 0, None, 0, 0
    for phase in phases:
        better = int(phase.matches[1] < phase.matches[0])
        for first in range(0, phase.tuples, batch):
            n = min(batch, phase.tuples - first)
            arrived += n
            worked += n + n * sum(m * s / (whole / 2) for m, s in zip(phase.matches, sides, strict=True))
            good = better if good is None else good
            sides[good] += n / 2
            if good != better:  # noticed after a batch
                good, decision = better, decision + 1
            misplaced = int(sides[1 - good])
            if not misplaced:
                continue
            remaining = foresight * (whole - arrived)
            saving = 2 * (phase.matches[1 - good] - phase.matches[good]) / whole * remaining
            cost = 1 + min(phase.matches) * arrived / whole
            worth = (misplaced, misplaced * cost, misplaced * saving)
            change = Change(*worth, arrived, remaining, decision, worked=worked, spent=spent)
            allowed = policy.allowance(change)
            assert 0 <= allowed <= misplaced
            moved += allowed
            spent += allowed * cost
            sides[good] += allowed
            sides[1 - good] -= allowed
            left += int(sides[1 - good])
    return Done(worked + spent, moved, left)


LAWS = examples(40)
TUPLES = 400_000


def two_phases(share: float, matches: float) -> list[Phase]:
    first = round(share * TUPLES)
    return [Phase(first, (0.2, matches)), Phase(TUPLES - first, (matches, 0.2))]


def fluctuating(period: int, matches: float) -> list[Phase]:
    return [Phase(period, (matches, 0.2) if turn % 2 else (0.2, matches)) for turn in range(TUPLES // period)]


phases = st.lists(
    st.builds(Phase, st.integers(1, 30_000), st.tuples(st.floats(0, 50), st.floats(0, 50))), max_size=8
)


@pytest.mark.parametrize("name", MIGRATION_POLICIES)
@LAWS
@given(drawn=phases, foresight=st.sampled_from([0.0, 0.3, 1.0, 5.0]), batch=st.sampled_from([500, 5000]))
def test_no_more_is_moved_than_is_misplaced_and_always_the_same(name, drawn, foresight, batch) -> None:
    """Whatever comes, and however wrong the forecast is; two runs are alike.

    EddyJoins move nothing, and the paper's greedy policy all that is misplaced, whatever it costs.
    """
    one, two = (run(name, drawn, foresight=foresight, batch=batch) for _ in range(2))
    assert one == two
    assert name != "never" or not one.moved
    assert name != "eager" or not one.left


@pytest.mark.parametrize(("share", "matches"), [(0.3, 5.0), (0.55, 5.0), (0.3, 50.0), (0.1, 20.0)])
def test_a_single_right_change_is_followed(share: float, matches: float) -> None:
    """Where one migration is what is needed, the work is nearly that of doing it at once."""
    drawn = two_phases(share, matches)
    assert run("backoff", drawn).work <= 1.05 * run("eager", drawn).work
    assert run("backoff", drawn).work < 0.75 * run("never", drawn).work


@pytest.mark.parametrize("matches", [2.0, 50.0])
@pytest.mark.parametrize("period", [2000, 10_000, 100_000])
def test_fluctuations_do_not_make_it_thrash(matches: float, period: int) -> None:
    """However fast selectivities change hands, it is at most a quarter more work than moving nothing."""
    drawn = fluctuating(period, matches)
    assert run("backoff", drawn).work <= 1.25 * run("never", drawn).work


@pytest.mark.broken_rule
def test_without_patience_and_horizon_it_would_thrash(monkeypatch: pytest.MonkeyPatch) -> None:
    """To weigh alone, as if every change were for ever, is not enough."""
    monkeypatch.setattr(policies, "_MOST", policies._LEAST)
    monkeypatch.setattr(policies, "max", lambda *_: 1e18, raising=False)
    drawn = fluctuating(4000, 50.0)
    assert run("backoff", drawn).work > 1.25 * run("never", drawn).work


# Where a span's tuples belong: with most of them, and not to and fro.


SAME = same_examples(60)


class Routed:
    """A span whose tuples are routed by signature; counts how often it is said to belong elsewhere."""

    def __init__(self) -> None:
        self.dominant = DominantRoute(100)
        self.place: int | None = None
        self.changes = 0

    def route(self, done: int, place: int, tuples: int) -> None:
        signature = Signature(0b11, done=done)
        found = self.dominant.decide(signature, place, self.place)
        self.changes += self.place is not None and found != self.place
        self.place = found
        self.dominant.count(signature, tuples)


@SAME
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000)), min_size=1, max_size=30))
def test_one_signature_alone_is_followed_at_once(decisions: list[tuple[int, int]]) -> None:
    """Whatever its tuples were, where they go is where they belong."""
    routed = Routed()
    for place, tuples in decisions:
        routed.route(0, place, tuples)
        assert routed.place == place


@SAME
@given(st.integers(0, 1 << 30), st.integers(2, 4), st.sampled_from([1, 64, 5000]), st.floats(0.05, 0.95))
def test_signatures_that_differ_for_good_do_not_move_state_for_ever(seed, signatures, batch, share):
    """Each goes to a join of its own, one with a share of the tuples: soon nothing changes any more."""
    draw = random.Random(seed)
    routed = Routed()
    late = 0
    for turn in range(600):
        one = 0 if draw.random() < share else draw.randrange(1, signatures)
        before = routed.changes
        routed.route(one, one, draw.randint(1, batch))
        late += turn >= 300 and routed.changes > before
    assert routed.changes <= 20
    assert late <= 1


def test_a_signature_without_tuples_any_more_is_outvoted():
    """What its tuples were long ago holds no state: here a fifth as many are enough."""
    routed = Routed()
    for _ in range(100):
        routed.route(0, 1, 100)
    for _ in range(20):
        routed.route(1, 2, 100)
    routed.route(1, 2, 100)
    assert routed.place == 2
