"""The limiter: never above the cap, evenly spaced, first come first served."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from millrace.limits.clock import VirtualClock
from millrace.limits.limiter import Grant, Limiter

LAWS = settings(max_examples=50, deadline=None, derandomize=True)
OWNERS = 4
caps = st.none() | st.integers(1, 6)
rates = st.none() | st.floats(0.5, 2000)
steps = st.lists(
    st.tuples(
        st.sampled_from(["request", "request", "release", "drop", "advance"]),
        st.integers(0, OWNERS - 1),
        st.floats(0, 0.5),
    ),
    max_size=120,
)


class Play:
    """A limiter with a model of what is out and what waits."""

    def __init__(self, cap: int | None, rate: float | None, ahead: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.limiter = Limiter(self.clock, cap, rate, ahead)
        self.queue: list[tuple[int, int]] = []
        self.out: list[tuple[int, int]] = []
        self.grants: list[Grant] = []
        self.tickets = 0

    def step(self, action: str, owner: int, seconds: float) -> None:
        if action == "request":
            self.tickets += 1
            self.limiter.request(owner, self.tickets)
            self.queue.append((owner, self.tickets))
        elif action == "release" and any(key[0] == owner for key in self.out):
            key = next(key for key in self.out if key[0] == owner)
            self.out.remove(key)
            self.limiter.release(*key)
        elif action == "drop":
            self.limiter.drop(owner)
            self.out = [key for key in self.out if key[0] != owner]
            self.queue = [key for key in self.queue if key[0] != owner]
        elif action == "advance":
            self.clock.advance(seconds)

    def take(self) -> list[Grant]:
        """Take the grants that are due; they are the longest waiting, in their order."""
        given_out = self.limiter.grants()
        for grant in given_out:
            assert (grant.owner, grant.ticket) == self.queue.pop(0)
            self.out.append((grant.owner, grant.ticket))
        self.grants += given_out
        return given_out

    def finish(self) -> None:
        """Serve everyone who waits, with nothing but releases and the times it names."""
        for _ in range(10 * self.tickets + 10):
            self.take()
            if not self.queue:
                return
            due = self.limiter.due()
            if due is None:
                self.step("release", self.out[0][0], 0)
            else:
                self.clock.advance(max(0.0, due - self.clock.now()) + 1e-9)
        raise AssertionError(f"{len(self.queue)} requests starve")


@LAWS
@given(caps, rates, st.sampled_from([0.0, 0.02]), steps)
def test_whatever_happens_the_limits_hold_and_nobody_starves(cap, rate, ahead, actions):
    """Permits stay within the cap, starts keep their distance, and every request is served in its turn."""
    play = Play(cap, rate, ahead)
    for action in actions:
        play.step(*action)
        for grant in play.take():
            assert play.clock.now() <= grant.start <= play.clock.now() + ahead
        assert play.limiter.in_flight == len(play.out) <= (cap or math.inf)
        assert play.limiter.waiting == len(play.queue)
    play.finish()
    if rate is not None:
        starts = [grant.start for grant in play.grants]
        assert all(later - earlier >= (1 - 1e-9) / rate for earlier, later in pairwise(starts))


@pytest.mark.parametrize("rate", [1, 7.5, 50, 900])
def test_a_minute_of_load_keeps_the_rate_within_five_per_cent(rate):
    """With tasks that always have more to ask and timers that fire late, no slot is lost and none gained."""
    rng = random.Random(7)
    play = Play(None, rate, ahead=0.02)
    while play.clock.now() < 60:
        while len(play.queue) < 3:
            play.step("request", rng.randrange(OWNERS), 0)
        play.take()
        while len(play.queue) < 3:
            play.step("request", rng.randrange(OWNERS), 0)
        due = play.limiter.due()
        assert due is not None
        play.clock.advance(max(0.0, due - play.clock.now()) + rng.uniform(0, 0.002))
    started = sum(grant.start < 60 for grant in play.grants)
    assert rate * 60 * 0.95 <= started <= rate * 60 * 1.05 + 1


@LAWS
@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 3)), min_size=3, max_size=40),
)
def test_tokens_keep_their_rate_whatever_calls_take(cap, calls):
    """Until any moment calls that are over took no more than the rate gives, but for those under way."""
    clock = VirtualClock()
    limiter = Limiter(clock, cap, None, tokens_per_minute=600)  # ten a second
    left, under_way, spent = list(calls), [], 0
    for number in range(len(calls)):
        limiter.request(0, number)
    while left or under_way:
        for grant in limiter.grants():
            tokens, seconds = left.pop(0)
            under_way.append((max(clock.now(), grant.start) + seconds, grant.ticket, tokens))
        assert len(under_way) <= (cap if spent else 1)
        due = limiter.due()
        ends = min(under_way, default=(math.inf, 0, 0))
        if due is not None and due < ends[0]:
            clock.advance(max(0.0, due - clock.now()) + 1e-9)
            continue
        under_way.remove(ends)
        clock.advance(max(0.0, ends[0] - clock.now()))
        limiter.release(*(0, ends[1]), tokens=ends[2])
        spent += ends[2]
        most = max(tokens for tokens, _ in calls)
        assert spent <= 10 * clock.now() + (cap + 1) * most + 1e-6
    assert spent == sum(tokens for tokens, _ in calls)


def test_a_quiet_time_saves_up_no_starts():
    """After an hour without calls the next two are as far apart as ever."""
    play = Play(None, 10)
    play.step("advance", 0, 3600)
    for _ in range(2):
        play.step("request", 0, 0)
    assert [grant.start for grant in play.take()] == [3600]
    assert play.limiter.due() == pytest.approx(3600.1)


def test_a_request_that_is_released_while_it_waits_is_withdrawn():
    """The place in the queue goes to the next; releasing twice, or what never was, changes nothing."""
    limiter = Limiter(VirtualClock(), 1, None)
    for ticket in range(3):
        limiter.request(0, ticket)
    assert [grant.ticket for grant in limiter.grants()] == [0]
    limiter.release(0, 1)
    limiter.release(0, 1)
    limiter.release(9, 9)
    assert limiter.grants() == []
    limiter.release(0, 0)
    assert [grant.ticket for grant in limiter.grants()] == [2]


def test_a_ticket_in_use_is_refused():
    """A number can stand for one request at a time."""
    limiter = Limiter(VirtualClock(), 1, None)
    limiter.request(0, 5)
    with pytest.raises(ValueError, match="in use"):
        limiter.request(0, 5)
    limiter.grants()
    with pytest.raises(ValueError, match="in use"):
        limiter.request(0, 5)


def test_a_source_that_is_held_gets_its_turn_beside_a_busy_one():
    """One call of it starts when its pause is over, in the order of the queue, and no second one with it."""
    clock = VirtualClock(100.0)
    limiter = Limiter(clock, 1, None)
    limiter.sources.update({1: "dead", 2: "well"})
    limiter.hold(5.0, "dead")
    for ticket in range(3):
        limiter.request(1, ticket)
    started = []
    for ticket in range(10):
        limiter.request(2, ticket)
        (grant,) = limiter.grants()
        started.append(grant.owner)
        limiter.release(grant.owner, grant.ticket)
        clock.advance(1.0)
        if grant.owner == 1:
            limiter.hold(5.0, "dead")  # the probe has failed
    assert started == [2, 2, 2, 2, 2, 1, 2, 2, 2, 2]
    limiter.resume("dead")
    assert limiter.grants()[0].owner == 1
