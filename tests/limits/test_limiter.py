"""The limiter: never above the cap, evenly spaced, first come first served."""

from __future__ import annotations

import math
import random
from itertools import count, pairwise

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


def wait_until_due(limiter: Limiter, clock: VirtualClock, late: float = 1e-9) -> None:
    """Let time pass until more is due, and a little longer."""
    clock.advance(max(0.0, limiter.due() - clock.now()) + late)


def evenly_spaced(grants: list[Grant], rate: float) -> bool:
    return all(later.start - earlier.start >= (1 - 1e-9) / rate for earlier, later in pairwise(grants))


@LAWS
@given(caps, rates, st.sampled_from([0.0, 0.02]), steps)
def test_whatever_happens_the_limits_hold_and_nobody_starves(cap, rate, ahead, actions):
    """Permits stay within the cap, starts keep their distance, and every request is served in its turn."""
    clock = VirtualClock()
    limiter = Limiter(clock, cap, rate, ahead)
    queue: list[tuple[int, int]] = []
    out: list[tuple[int, int]] = []
    grants: list[Grant] = []

    def take() -> None:
        for grant in limiter.grants():
            assert (grant.owner, grant.ticket) == queue[0]
            assert clock.now() <= grant.start <= clock.now() + ahead
            out.append(queue.pop(0))
            grants.append(grant)
        assert limiter.in_flight == len(out) <= (cap or math.inf)
        assert limiter.waiting == len(queue)

    for ticket, (action, owner, seconds) in enumerate(actions):
        its = [key for key in out if key[0] == owner]
        if action == "request":
            limiter.request(owner, ticket)
            queue.append((owner, ticket))
        elif action == "release" and its:
            limiter.release(*its[0])
            out.remove(its[0])
        elif action == "drop":
            limiter.drop(owner)
            for keys in (queue, out):
                keys[:] = [key for key in keys if key[0] != owner]
        elif action == "advance":
            clock.advance(seconds)
        take()
    for _ in range(10 * len(actions)):  # everyone who waits is served, at the times it names
        if queue and limiter.due() is None:
            limiter.release(*out.pop(0))
        elif queue:
            wait_until_due(limiter, clock)
        take()
    assert not queue
    assert rate is None or evenly_spaced(grants, rate)


@pytest.mark.parametrize("rate", [1, 7.5, 50, 900])
def test_a_minute_of_load_keeps_the_rate_within_five_per_cent(rate):
    """With timers that fire late, no slot is lost and none gained; a quiet time before saves up no starts."""
    rng, tickets, clock = random.Random(7), count(), VirtualClock()
    limiter = Limiter(clock, None, rate, 0.02)
    limiter.request(0, next(tickets))
    grants = limiter.grants()
    clock.advance(3600)
    while clock.now() < 3660:
        grants += limiter.grants()
        while limiter.waiting < 3:
            limiter.request(rng.randrange(OWNERS), next(tickets))
        wait_until_due(limiter, clock, rng.uniform(0, 0.002))
    assert evenly_spaced(grants, rate)
    started = sum(grant.start < 3660 for grant in grants[1:])
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
            wait_until_due(limiter, clock)
            continue
        under_way.remove(ends)
        clock.advance(max(0.0, ends[0] - clock.now()))
        limiter.release(*(0, ends[1]), tokens=ends[2])
        spent += ends[2]
        most = max(tokens for tokens, _ in calls)
        assert spent <= 10 * clock.now() + (cap + 1) * most + 1e-6
    assert spent == sum(tokens for tokens, _ in calls)


def test_a_number_stands_for_one_request_at_a_time():
    """Released while it waits, it is withdrawn; releasing twice, or what never was, changes nothing."""
    limiter = Limiter(VirtualClock(), 1, None)
    for ticket in range(3):
        limiter.request(0, ticket)
    assert [grant.ticket for grant in limiter.grants()] == [0]
    for ticket in range(2):  # out, and waiting
        with pytest.raises(ValueError, match="in use"):
            limiter.request(0, ticket)
    for key in ((0, 1), (0, 1), (9, 9)):
        limiter.release(*key)
    assert limiter.grants() == []
    limiter.release(0, 0)
    assert [grant.ticket for grant in limiter.grants()] == [2]
