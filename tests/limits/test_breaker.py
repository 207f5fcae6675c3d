"""A source that does not answer is left alone, tried once in a while, and given up; on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import Phase, given, settings, strategies as st

from millrace.limits.breaker import Breaker
from millrace.limits.clock import VirtualClock
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration

LAWS = settings(max_examples=60, deadline=None, derandomize=True)
THRESHOLD, CALLS = 5, 3
DOWN = "HTTP 502"


class Service:
    """A session with a breaker, whose client always has more to ask, on a clock that a test moves."""

    def __init__(self, threshold: int | None = THRESHOLD) -> None:
        self.clock = VirtualClock(100.0)
        registration = Registration("prices", max_in_flight=CALLS, circuit_breaker=threshold)
        self.session = LookupSession(registration, clock=self.clock)
        self.inbox: list = []
        self.client = self.session.join(self.inbox.append)
        self.asked = self.granted = 0
        self.out: list[int] = []
        self.lost = ""

    def ask(self) -> None:
        """Ask for as many permits as there may be, and take those that are given."""
        while self.asked - self.granted < 2 * CALLS:
            self.session.handle(self.client, {"request": self.asked})
            self.asked += 1
        self.session.handle(self.client, {"alive": True})
        for message in self.inbox:
            self.lost = message.get("lost", self.lost)
            if "permit" in message:
                self.out.append(message["permit"])
                self.granted += 1
        self.inbox.clear()

    def end(self, place: int, outcome: str | None) -> None:
        """Give a permit back."""
        ticket = self.out.pop(place % len(self.out))
        told = {} if outcome is None else {"outcome": outcome}
        self.session.handle(self.client, {"release": ticket, **told})


async def test_after_failures_in_a_row_one_request_tries_and_all_go_on_when_it_is_answered():
    """The pauses between tries double; failures with an answer between them are not in a row."""
    service = Service()
    for outcome in [DOWN] * 4 + [""] + [DOWN] * 4:
        service.ask()
        assert len(service.out) == CALLS
        service.end(0, outcome)
    service.ask()
    service.end(0, DOWN)  # the fifth
    assert "5 requests in a row" in service.session.progress().problem
    service.end(0, None)
    service.end(0, DOWN)  # began before: tells nothing new
    for pause in (1, 2, 4):
        service.clock.advance(pause - 0.5)
        service.ask()
        assert service.out == []
        service.clock.advance(0.5)
        service.ask()
        assert len(service.out) == 1
        service.end(0, DOWN)
    service.clock.advance(8)
    service.ask()
    service.end(0, "")
    service.ask()
    assert len(service.out) == CALLS and service.session.progress().problem == ""
    service.session.close()


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
    assert {"lost": service.lost} in late
    service.session.close()


STEPS = st.lists(
    st.tuples(st.sampled_from([DOWN, DOWN, DOWN, "", None]), st.integers(0, CALLS - 1), st.integers(0, 3)),
    min_size=20,
    max_size=80,
)


def follow(steps) -> None:
    """Whatever ends in whatever order: open means that one request at most begins, and never too early."""

    async def play() -> None:
        service, row, opened = Service(), 0, False
        for outcome, place, seconds in steps:
            before = set(service.out)
            service.ask()
            begun = set(service.out) - before
            assert len(service.out) <= CALLS
            if opened:
                assert len(begun) <= 1 and (not begun or not before)
            elif not service.lost:
                assert len(service.out) == CALLS
            if service.out:
                service.end(place, outcome)
                row = 0 if outcome == "" else row + (outcome == DOWN)
                opened = outcome != "" and (opened or row >= THRESHOLD)
            service.clock.advance(10.0 * seconds)
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
    [("failed", lambda breaker, permit, why: None), ("answered", lambda breaker: False)],
)
def test_the_law_notices_a_broken_rule(monkeypatch, rule, broken):
    """One that never opens, and one that never closes."""
    monkeypatch.setattr(Breaker, rule, broken)
    law = settings(LAWS, phases=[Phase.generate], report_multiple_bugs=False)(given(STEPS)(follow))
    with pytest.raises(AssertionError):
        law()
