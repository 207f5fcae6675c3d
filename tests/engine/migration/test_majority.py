"""Where a span's tuples belong: with most of them, and not to and fro."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from millrace.engine.migration.majority import Majority
from millrace.engine.tuples import Signature
from tests.engine.laws import same_examples

LAWS = same_examples(60)
SPAN = 0b11


def signature(done: int) -> Signature:
    return Signature(SPAN, done=done)


class Routed:
    """A span whose tuples are routed by signature; counts how often it is said to belong elsewhere."""

    def __init__(self, window: int = 100) -> None:
        self.majority = Majority(window)
        self.place: int | None = None
        self.changes = 0

    def route(self, done: int, place: int, tuples: int) -> None:
        found = self.majority.decide(signature(done), place, self.place)
        self.changes += self.place is not None and found != self.place
        self.place = found
        self.majority.count(signature(done), tuples)


@LAWS
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000)), min_size=1, max_size=30))
def test_one_signature_alone_is_followed_at_once(decisions: list[tuple[int, int]]) -> None:
    """Whatever its tuples were, where they go is where they belong."""
    routed = Routed()
    for place, tuples in decisions:
        routed.route(0, place, tuples)
        assert routed.place == place


@LAWS
@given(st.integers(0, 1 << 30), st.integers(2, 4), st.sampled_from([1, 64, 5000]), st.floats(0.05, 0.95))
def test_signatures_that_differ_for_good_do_not_move_state_for_ever(
    seed: int, signatures: int, batch: int, share: float
) -> None:
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


@LAWS
@given(st.integers(1, 20), st.integers(1, 2000))
def test_the_larger_part_decides(factor: int, tuples: int) -> None:
    """Many more tuples of one signature than of another: they belong where those go, whoever was first."""
    routed = Routed(10_000)
    routed.route(0, 0, tuples)
    routed.route(1, 1, (factor + 3) * tuples + 5)
    routed.route(0, 0, tuples)
    assert routed.place == 1


def test_a_signature_that_does_not_come_any_more_is_outvoted() -> None:
    """Its last decision stands, but what came since weighs more and more."""
    routed = Routed()
    for _ in range(100):
        routed.route(0, 0, 100)
    late = 0
    while routed.place == 0:
        routed.route(1, 1, 100)
        late += 1
    assert late < 40
    assert routed.changes == 1


def test_what_was_decided_for_another_tree_counts_no_more() -> None:
    """Numbers of edges mean other joins there."""
    routed = Routed()
    routed.route(0, 0, 1000)
    routed.majority.forget()
    routed.place = None
    routed.route(1, 5, 1)
    assert routed.place == 5
