"""Whatever clients do and in whatever order: keys are asked once, limits hold, nobody waits in vain.

Two lookups share the permits of a group. Clients claim and answer keys, make calls and die; runs end, are
killed, and begin again. A model says what each client may receive after each step.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.limits import messages as m
from millrace.limits.answers import Claims
from millrace.limits.budget import Budget, Spending
from millrace.limits.chunk import Chunk, Claimed, Failure
from millrace.limits.clock import VirtualClock
from millrace.limits.codec import frame
from millrace.limits.ledger import LastingSpending
from millrace.limits.limiter import Limiter
from millrace.limits.lookup_session import LookupSession
from millrace.limits.permits import _AHEAD, Permits
from millrace.limits.registration import Registration, Settings

CLIENTS, KEYS, DEAREST = 4, 4, 8
LAW = settings(max_examples=50, stateful_step_count=40, derandomize=True, suppress_health_check=HealthCheck)

places = st.integers(0, CLIENTS - 1)
some_keys = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=KEYS, unique=True).map(
    lambda numbers: [number.to_bytes(16, "big") for number in numbers]
)


def rows_of(keys: list[bytes]) -> Chunk:
    """As many rows as the key's number, each naming its key."""
    counts = [each[-1] for each in keys]
    values = [each[-1] for each in keys for _ in range(each[-1])]
    return Chunk.of(keys, counts, pa.table({"key": pa.array(values, pa.int64())}))


def settling(chunk: Chunk) -> m.Settle:
    return m.Settle(chunk.keys, chunk.counts, chunk.rows)


def check_rows(claimed: Claimed) -> set[bytes]:
    """Return the keys that were found, with exactly their rows."""
    found = [each for chunk in claimed.found for each in chunk.keys]
    assert len(found) == len(set(found))
    for chunk in claimed.found:
        expected = rows_of(chunk.keys)
        assert chunk.counts == expected.counts and chunk.table() == expected.table()
    return set(found)


@dataclass(eq=False)
class Lookup:
    """A session, and a model of who asks, who waits (the longest first) and what has been settled."""

    session: LookupSession
    asking: dict[bytes, Client] = field(default_factory=dict)
    waiting: dict[bytes, list[Client]] = field(default_factory=dict)
    settled: dict[bytes, str] = field(default_factory=dict)


@dataclass(eq=False)
class Client:
    lookup: Lookup
    number: int = 0


class Conduct(RuleBasedStateMachine):
    """The steps, and what holds after each."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock(100.0)
        self.folder = TemporaryDirectory()
        self.tickets = count()
        self.prices: Counter[float] = Counter()
        self.made = self.killed = 0
        self.log: list[tuple[Client, m.Message]] = []
        self.replies: list[tuple[Client, m.Message]] = []
        self.heirs: list[tuple[Client, bytes]] = []
        self.lookups: list[Lookup] = []

    @initialize(
        cap=st.sampled_from([1, 1, 2, 8]),
        rate=st.none() | st.none() | st.sampled_from([0.4, 70.0]),
        requests=st.none() | st.none() | st.integers(1, 20),
        most=st.none() | st.none() | st.integers(1, 40),
        price=st.none() | st.just(3.0),
    )
    def open(self, cap, rate, requests, most, price) -> None:
        self.limits = Settings(cap, rate, budget=Budget(requests, most, None if most is None else price))
        self.begin()

    def begin(self) -> None:
        """Begin a run that goes on with what was spent before."""
        budget = self.limits.budget
        kept = LastingSpending(budget, Path(self.folder.name) / "answers.sqlite", "stream")
        self.spending = kept if budget else Spending(budget)
        self.permits = Permits(self.limits, self.clock, self.spending)
        registration = Registration("prices", self.limits.max_in_flight, budget=budget)
        sessions = [LookupSession(registration, None, self.clock, self.permits) for _ in range(2)]
        self.lookups = [Lookup(each) for each in sessions]
        self.queue: list[tuple[Client, int]] = []
        self.out: list[tuple[Client, int]] = []
        self.paused, self.next_start = 0.0, -math.inf
        self.clients = [self.enter(self.lookups[place // 3]) for place in range(CLIENTS)]
        self.read_messages()

    def enter(self, lookup: Lookup) -> Client:
        client = Client(lookup)
        client.number = lookup.session.join(lambda message: self.log.append((client, message)))
        return client

    def do(self, act: Any, *given: Any) -> None:
        """Do something in the event loop, let whoever may begin a call have its permit, and read it all."""

        async def work() -> None:
            act(*given)
            self.permits.grant()

        self.loop.run_until_complete(work())
        self.read_messages()

    def say(self, client: Client, message: m.Message) -> None:
        self.do(client.lookup.session.handle, client.number, message)

    @rule(place=places, keys=some_keys, most=st.none() | st.none() | st.integers(0, 2))
    def claim(self, place: int, keys: list[bytes], most: int | None) -> None:
        """Claim keys, of which so many at most are to be asked, and compare what comes with the model."""
        client = self.clients[place]
        lookup = client.lookup
        self.say(client, m.Claim(1, keys, most))
        to, reply = self.replies.pop()
        claimed = Claimed()
        assert to is client and reply.add_to(claimed) == []
        known = {key: how for key, how in lookup.settled.items() if key in keys}
        assert check_rows(claimed) == {key for key, how in known.items() if how == "settle"}
        assert set(claimed.failed) == {key for key, how in known.items() if how == "fail"}
        asked = [key for key in keys if lookup.asking.get(key) is client]
        others = [key for key in keys if key in lookup.asking and key not in asked]
        free = [key for key in keys if key not in lookup.asking and key not in known]
        assert claimed.ask == asked + (free if most is None else free[:most])
        assert claimed.waiting == others
        assert claimed.left(keys) == ([] if most is None else free[most:])
        lookup.asking.update(dict.fromkeys(claimed.ask, client))
        for key in others:
            if client not in lookup.waiting.setdefault(key, []):
                lookup.waiting[key].append(client)

    @rule(place=places, keys=some_keys, how=st.sampled_from(["settle", "settle", "fail", "give up"]))
    def answer(self, place: int, keys: list[bytes], how: str) -> None:
        """Settle, fail or give keys up; those that are not this client's are passed over."""
        client = self.clients[place]
        lookup = client.lookup
        if how == "give up":
            self.lose_keys(client, keys)
        for key in keys:
            if lookup.asking.get(key) is client and how != "give up":
                del lookup.asking[key]
                assert lookup.settled.setdefault(key, how) == how
        if how == "settle":
            self.say(client, settling(rows_of(keys)))
        elif how == "fail":
            self.say(client, m.Fail(7, dict.fromkeys(keys, Failure("HTTP 503", "busy", 2, "[1]"))))
            assert self.replies.pop() == (client, m.Noted(7))
        else:
            self.say(client, m.GiveUp(keys))

    @rule(place=places, calls=st.integers(1, 4))
    def request(self, place: int, calls: int) -> None:
        client = self.clients[place]
        for ticket in islice(self.tickets, calls):
            self.queue.append((client, ticket))
            self.say(client, m.Request(ticket))

    @rule(place=st.integers(0, 9), cost=st.none() | st.integers(0, DEAREST))
    def end_call(self, place: int, cost: int | None) -> None:
        """End one of the calls under way; some do not tell what they cost."""
        if self.out:
            client, ticket = self.out.pop(place % len(self.out))
            if cost is not None:
                self.prices[cost] += 1
            self.say(client, m.Permit(ticket, cost))

    @rule(place=st.integers(0, 9))
    def withdraw(self, place: int) -> None:
        """Stop to wait for a permit; to give back what is none any more changes nothing."""
        if self.queue:
            client, ticket = self.queue.pop(place % len(self.queue))
            self.say(client, m.Permit(ticket))
            self.say(client, m.Permit(ticket))

    @rule(seconds=st.sampled_from([1.0, 15.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.do(self.permits.grant)

    def lose_permits(self, client: Client) -> None:
        self.out = [each for each in self.out if each[0] is not client]
        self.queue = [each for each in self.queue if each[0] is not client]

    def lose_keys(self, client: Client, given_up: list[bytes] | None = None) -> None:
        """Hand keys, or all, to those who wait longest."""
        lookup = client.lookup
        for key in [key for key, other in lookup.asking.items() if other is client]:
            if given_up is not None and key not in given_up:
                continue
            if waiters := lookup.waiting.get(key):
                lookup.asking[key] = waiters.pop(0)
                self.heirs.append((lookup.asking[key], key))
            else:
                del lookup.asking[key]

    @rule(place=places, seconds=st.integers(1, 40))
    def pause(self, place: int, seconds: int) -> None:
        """Have all clients wait, as a service asks for."""
        self.paused = max(self.paused, self.clock.now() + seconds)
        self.say(self.clients[place], m.Pause(float(seconds)))

    @rule(place=places)
    def die(self, place: int) -> None:
        """Leave without a word, and have another one come."""
        client = self.clients[place]
        self.leaves(client)
        self.clients[place] = self.enter(client.lookup)
        self.read_messages()

    def leaves(self, client: Client) -> None:
        self.lose_permits(client)
        self.lose_keys(client)
        for waiters in client.lookup.waiting.values():
            if client in waiters:
                waiters.remove(client)
        self.do(client.lookup.session.leave, client.number)

    @rule(how=st.sampled_from(["goes on", "goes on", "ends", "is killed"]))
    def run_again(self, how: str) -> None:
        """End the run, in order or not, and begin another one with the same budget."""
        if how == "goes on":
            return
        before, is_killed = self.spending, how == "is killed"
        if is_killed:
            self.killed += 1
        else:
            for client in self.clients:
                self.leaves(client)
            if isinstance(before, LastingSpending):
                before.settle()
        self.close()
        self.begin()
        if self.limits.budget:
            assert self.spending.cost >= before.cost
            if self.limits.budget.max_requests is not None:
                assert self.spending.requests >= before.requests
            if not is_killed:
                assert (self.spending.requests, self.spending.cost) == (before.requests, before.cost)

    def read_messages(self) -> None:
        while self.log and self.lookups:
            client, message = self.log.pop(0)
            match message:
                case m.ClaimReply() | m.Noted():
                    self.replies.append((client, message))
                case m.Granted(ticket, wait):
                    assert self.queue.pop(0) == (client, ticket), "first come, first served"
                    start, rate = self.clock.now() + wait, self.limits.per_second
                    assert self.clock.now() >= self.paused and start >= self.next_start - 1e-9
                    self.next_start = start + (1 / rate if rate else 0.0)
                    self.out.append((client, ticket))
                    self.made += 1
                case m.BudgetSpent(ticket):
                    self.queue.remove((client, ticket))
                    self.check_refusal()
                case m.News(settled, handed):
                    self.read_news(client, settled, handed)
                case _:
                    raise AssertionError(f"nobody expects {message}")
        assert not self.heirs, "somebody does not know what it is to ask"

    def read_news(self, client: Client, settled: list[bytes], handed: list[bytes]) -> None:
        """News of keys that this client waits for: settled ones, and those that it inherits."""
        lookup = client.lookup
        for key in settled:
            lookup.waiting[key].remove(client)
            assert key in lookup.settled
        for key in handed:
            self.heirs.remove((client, key))
        if settled:
            self.claim(self.clients.index(client), settled, None)

    def check_refusal(self) -> None:
        """A call is refused when all of the budget is spent, but for what somebody lost who was killed."""
        assert self.spending.is_over and not self.out
        requests = self.limits.budget.max_requests
        if requests is not None and self.limits.budget.max_cost is None:
            assert self.made >= requests - self.killed * (requests // 64 + 1)

    @invariant()
    def limits_hold(self) -> None:
        """Calls under way, requests in all, and what they cost."""
        budget, cap = self.limits.budget, self.limits.max_in_flight
        assert sum(each.session.in_flight for each in self.lookups) == len(self.out) <= cap
        assert self.made <= (budget.max_requests or self.made)
        if budget.max_cost is not None:
            known = sum(price * times for price, times in self.prices.items())
            if budget.price is None:
                assert known <= budget.max_cost + cap * DEAREST and self.spending.cost >= known
                assert self.prices or len(self.out) <= 1, "one call alone tells the price"
            else:
                assert self.made * budget.price <= budget.max_cost

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        """Whoever waits for a key waits for somebody; for a permit, because there is none to give yet."""
        for lookup in self.lookups:
            assert {key for key, waiters in lookup.waiting.items() if waiters} <= set(lookup.asking)
        may_start = max(self.paused, self.next_start - _AHEAD) <= self.clock.now()
        if self.queue and len(self.out) < self.limits.max_in_flight and may_start:
            assert not self.spending.may_begin and self.out

    def teardown(self) -> None:
        """Everybody settles what it asks: then nobody waits, and the figures are those of the model."""
        try:
            for lookup in self.lookups:
                for key, client in list(lookup.asking.items()):
                    self.answer(self.clients.index(client), [key], "settle")
                assert not lookup.asking and not any(lookup.waiting.values())
                progress = lookup.session.progress()
                assert progress.keys == progress.done + progress.failed == len(lookup.settled)
                assert progress.failed == list(lookup.settled.values()).count("fail")
        finally:
            self.close()
            self.loop.close()
            self.folder.cleanup()

    def close(self) -> None:
        """End the run; nobody is there to read."""
        lookups, self.lookups = self.lookups, []
        self.heirs.clear()
        for lookup in lookups:
            self.do(lookup.session.close)
        if lookups and self.permits._timer is not None:
            self.permits._timer.cancel()
        self.log.clear()


TestConduct = Conduct.TestCase
TestConduct.settings = LAW


def nothing_is_handed_over(self, owner, keys):
    for each in self.own(owner, keys):
        del self._owners[each]
    return {}


def anybody_may_settle(self, owner, keys):
    return [each for each in keys if each in self._owners]


def waiters_are_not_notified(self, keys):
    for each in keys:
        del self._owners[each]
    return {}


def play(limits: dict[str, Any], steps: list[tuple[Any, ...]]) -> None:
    """Take some steps, with all that holds after each."""
    machine = Conduct()
    try:
        machine.open(**{"cap": 1, "rate": None, "requests": None, "most": None, "price": None, **limits})
        for name, *given in steps:
            getattr(machine, name)(*given)
            machine.limits_hold()
            machine.nobody_waits_in_vain()
    finally:
        machine.teardown()


ALL = [number.to_bytes(16, "big") for number in range(KEYS)]
TWO_CLAIM = [("claim", 0, ALL, None), ("claim", 1, ALL, None)]
THREE_CLAIM = [*TWO_CLAIM, ("claim", 2, ALL, None)]
BROKEN = {
    "keys of the dead are not inherited": (Claims, "give_up", nothing_is_handed_over),
    "a key has several askers": (Claims, "owner", lambda self, key: None),
    "waiters are not notified": (Claims, "settle", waiters_are_not_notified),
    "strangers settle keys": (Claims, "own", anybody_may_settle),
    "a budget reserves nothing": (Spending, "may_begin", property(lambda self: self.cost < 4)),
    "a budget begins anew": (LastingSpending, "_read", lambda self, base: None),
    "pauses are not kept": (Limiter, "pause", lambda self, seconds: None),
}
STEPS = {
    "keys of the dead are not inherited": [*THREE_CLAIM, ("die", 2), *THREE_CLAIM, ("die", 0)],
    "a key has several askers": TWO_CLAIM,
    "waiters are not notified": [*TWO_CLAIM, ("answer", 0, ALL, "settle")],
    "strangers settle keys": [*TWO_CLAIM, ("answer", 1, ALL, "settle")],
    "a budget reserves nothing": [("request", 0, 2), ("end_call", 0, None)],
    "a budget begins anew": [("request", 0, 2), ("run_again", "ends")],
    "pauses are not kept": [("pause", 0, 20), ("request", 1, 1)],
}
LIMITS = {
    "a budget reserves nothing": {"cap": 2, "most": 4, "price": 3.0},
    "a budget begins anew": {"requests": 5},
}


@pytest.mark.broken_rule
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_noticed(monkeypatch, name):
    """Each rule is needed; with all of them the same steps are well."""
    play(LIMITS.get(name, {}), STEPS[name])
    monkeypatch.setattr(*BROKEN[name])
    with pytest.raises((AssertionError, KeyError)):
        play(LIMITS.get(name, {}), STEPS[name])


FEW, MANY = 300, 20_000


@pytest.mark.parametrize(
    ("count", "at_once", "wanted", "bytes_at_most", "cut"),
    [
        (MANY, MANY, range(7000, 7003), 200_000, 1),
        (MANY, MANY, range(MANY - 1, -1, -1), None, 0),
        (FEW, 20, range(0, FEW, 7), None, 1),
        (FEW, 20, [*range(0, 200, 2), *range(200, FEW)], None, 1),
    ],
)
def test_rows_are_those_of_the_keys_that_are_wanted(count, at_once, wanted, bytes_at_most, cut):
    """Whole chunks come as they were settled; what is wanted of others is cut out, and comes together."""
    keys = [number.to_bytes(15, "big") + bytes([number % 4]) for number in range(count)]
    with LookupSession(Registration("prices")) as session:
        inbox = []
        client = session.join(inbox.append)
        session.handle(client, m.Claim(0, keys))
        for low in range(0, count, at_once):
            session.handle(client, settling(rows_of(keys[low : low + at_once])))
        inbox.clear()
        some = [keys[place] for place in wanted]
        session.handle(client, m.Claim(1, some))
        claimed = Claimed()
        assert inbox[0].add_to(claimed) == []
    assert check_rows(claimed) == set(some)
    assert sum(len(chunk.keys) not in (0, at_once) for chunk in claimed.found) == cut
    assert bytes_at_most is None or len(frame(inbox[0])) < bytes_at_most
