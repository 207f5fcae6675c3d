"""When calls may begin: at their rate, at that of their tokens, and of a source that is down now and then."""

from __future__ import annotations

import asyncio
import math
import random
from itertools import count, pairwise

import pytest
from hypothesis import Phase, given, settings, strategies as st

from millrace.limits.clock import VirtualClock
from millrace.limits.limiter import Breaker, Grant, Limiter
from millrace.limits.lookup_session import LookupSession
from millrace.limits.messages import Granted, Lost, Permit, Request
from millrace.limits.registration import Registration

LAWS = settings(max_examples=50, deadline=None, derandomize=True)


def wait_until_due(limiter: Limiter, clock: VirtualClock, late: float = 1e-9) -> None:
    """Let time pass until more is due, and a little longer."""
    clock.advance(max(0.0, limiter.due() - clock.now()) + late)


def evenly_spaced(grants: list[Grant], rate: float) -> bool:
    return all(later.start - earlier.start >= (1 - 1e-9) / rate for earlier, later in pairwise(grants))


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
            limiter.request(rng.randrange(4), next(tickets))
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


THRESHOLD, CALLS = 5, 3
DOWN = "HTTP 502"


class Service:
    """A session with a breaker, whose client always has more to ask, on a clock that a test moves."""

    def __init__(self) -> None:
        self.clock = VirtualClock(100.0)
        registration = Registration("prices", max_in_flight=CALLS, circuit_breaker=THRESHOLD)
        self.session = LookupSession(registration, clock=self.clock)
        self.inbox: list = []
        self.client = self.session.join(self.inbox.append)
        self.asked = self.granted = 0
        self.out: list[int] = []
        self.lost = ""

    def ask(self) -> None:
        """Ask for as many permits as there may be, and take those that are given."""
        while self.asked - self.granted < 2 * CALLS:
            self.session.handle(self.client, Request(self.asked))
            self.asked += 1
        self.session.permits.grant()
        for message in self.inbox:
            if isinstance(message, Lost):
                self.lost = message.why
            elif isinstance(message, Granted):
                self.out.append(message.ticket)
                self.granted += 1
        self.inbox.clear()

    def end(self, place: int, outcome: str | None) -> None:
        ticket = self.out.pop(place % len(self.out))
        self.session.handle(self.client, Permit(ticket, outcome=outcome))


async def test_a_source_that_does_not_come_back_ends_the_query_with_what_to_do():
    """After tries for two minutes, thirty seconds apart in the end; everyone hears what went wrong."""
    service, tries = Service(), 0
    service.ask()
    while not service.lost:
        if service.out:
            service.end(0, DOWN)
            tries += 1
        else:
            service.clock.advance(1)
        service.ask()
    pauses = [1, 2, 4, 8, 16, 30, 30, 30]
    assert (tries, service.clock.now()) == (THRESHOLD + CALLS - 1 + len(pauses), 100 + sum(pauses))
    assert "source of lookup 'prices' does not answer" in service.lost
    assert DOWN in service.lost and "circuit_breaker=None" in service.lost
    late: list = []
    service.session.join(late.append)
    assert Lost(service.lost) in late
    service.session.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from([DOWN, DOWN, DOWN, "", None]), st.integers(0, CALLS - 1), st.sampled_from([0, 1, 15])
    ),
    min_size=20,
    max_size=80,
)


def follow(steps) -> None:
    """Open means that one request begins, after a pause; that doubles with each such one that fails."""

    async def play() -> None:
        service, row, opened, tries, probe, due = Service(), 0, False, 0, None, 0.0
        for outcome, place, seconds in steps:
            before = set(service.out)
            service.ask()
            if service.lost:
                break
            begun = set(service.out) - before
            assert bool(service.session.progress().problem) == opened
            if opened:
                assert len(begun) == (not before and service.clock.now() >= due)
                probe = next(iter(begun), probe)
            else:
                assert len(service.out) == CALLS
            if service.out:
                ended = service.out[place % len(service.out)]
                service.end(place, outcome)
                row = 0 if outcome == "" else row + (outcome == DOWN)
                if outcome == DOWN and (ended == probe if opened else row >= THRESHOLD):
                    tries = tries + 1 if opened else 0
                    opened, due = True, service.clock.now() + min(2**tries, 30)
                opened = opened and outcome != ""
            service.clock.advance(float(seconds))
        service.session.close()

    asyncio.run(play())


@LAWS
@given(STEPS)
def test_an_open_breaker_lets_one_request_through_and_a_closed_one_all(steps):
    """A law over any order of answers, failures and calls that tell nothing."""
    follow(steps)


@pytest.mark.broken_rule
@pytest.mark.parametrize(
    ("rule", "broken"),
    [("fail", lambda breaker, call, why, now: None), ("answer", lambda breaker: None)],
)
def test_the_law_notices_a_broken_rule(monkeypatch, rule, broken):
    """One that never opens, and one that never closes."""
    monkeypatch.setattr(Breaker, rule, broken)
    law = settings(LAWS, phases=[Phase.generate], report_multiple_bugs=False)(given(STEPS)(follow))
    with pytest.raises(AssertionError):
        law()
