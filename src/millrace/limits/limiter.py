"""Who may call now: permits for calls under way, and evenly spaced moments to start them.

The invariant: at most ``max_in_flight`` permits are out, and the starts that were given out are at
least ``1 / per_second`` apart. A bucket of tokens would keep the rate on average only, and let a full
bucket through at once; the services behind a limit count those. Requests are served in the order in which
they came, whoever made them.

A start may be given out a little ahead of its time (``ahead``), so that whoever waits for it can
sleep until exactly then: a late timer on this side would otherwise lose a slot each time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from millrace.limits.budget import Spending
from millrace.limits.clock import Clock

FIRST_PROBE_PAUSE, LONGEST_PROBE_PAUSE = 1.0, 30.0
"""Seconds before a probe: doubling, from the first to the longest."""

MOST_PROBES = 8
"""Probes in a row that fail before the source is given up; two minutes, and the time that they take."""

CallKey = tuple[int, int]
"""A request, or its call: the owner, and the owner's ticket."""


class TokenRate:
    """The moments at which calls may start, so that all of them together take so many tokens a minute.

    A call is taken for the mean of those before until it is over, and the difference moves the next start. So
    over any time calls take no more than the rate gives, but for what those under way turn out larger.

    Attributes:
        next: No call is to start before, in seconds of the caller's clock.
    """

    def __init__(self, per_minute: float) -> None:
        self._seconds_a_token = 60.0 / per_minute
        self._total = 0
        self._calls = 0
        self._reserved: dict[CallKey, float] = {}
        self.next = float("-inf")

    @property
    def known(self) -> bool:
        """Whether some call has told what it took; until then they go one by one."""
        return self._calls > 0

    def begin(self, call: CallKey, start: float) -> None:
        """Count a call that starts at a time."""
        reserved = self._reserved[call] = self._total / self._calls if self._calls else 0.0
        self.next = max(start, self.next) + reserved * self._seconds_a_token

    def end(self, call: CallKey, tokens: int | None, now: float) -> None:
        """Count what a call took that is over; one that does not tell took what it was taken for."""
        reserved = self._reserved.pop(call, 0.0)
        if tokens is None:
            return
        self._total += tokens
        self._calls += 1
        first = self.next if self._calls > 1 else max(self.next, now)
        self.next = first + (tokens - reserved) * self._seconds_a_token


class Breaker:
    """A circuit breaker: a source that does not answer is left alone, and given up at last.

    After so many failures in a row, over all tasks, it opens: no request starts. After a pause it is half
    open: one request may start, the probe, when all others are back. If that is answered, all may start
    again; if not, the pause doubles. A source that has not answered the last probe is given up, which ends
    the query: the user wanted to do without rows of some keys, not of all.

    (Nygard, "Release It!", chapter "Stability Patterns".)

    Args:
        threshold: Failures in a row that open it; None for never.

    Attributes:
        until: When the next probe may start, in seconds of the caller's clock; None while it is closed.
        failures: Failures in a row, probes among them.
        why: What went wrong last.
    """

    def __init__(self, threshold: int | None = None) -> None:
        self._threshold = threshold
        self._probe: CallKey | None = None
        self._probes = 0
        self.until: float | None = None
        self.failures = 0
        self.why = ""

    @property
    def given_up(self) -> bool:
        """Whether the source is taken to be down for good."""
        return self._probes >= MOST_PROBES

    def start(self, call: CallKey) -> None:
        """Note a request that may start: while it is open, that is the probe."""
        if self.until is not None:
            self._probe = call

    def answer(self) -> None:
        """Note an answer, of whatever request, which closes it."""
        self.until = None
        self.failures = self._probes = 0

    def fail(self, call: CallKey, why: str, now: float) -> None:
        """Note a request that was not answered; those that began before it opened tell nothing new."""
        self.failures += 1
        self.why = why
        if self.until is not None:
            if call != self._probe:
                return
            self._probes += 1
        elif self._threshold is None or self.failures < self._threshold:
            return
        self._probe = None
        self.until = now + min(LONGEST_PROBE_PAUSE, FIRST_PROBE_PAUSE * 2**self._probes)

    def describe(self) -> str:
        """Return what is wrong, for people."""
        return f"{self.failures} requests in a row have failed (the last one by: {self.why})"


class Grant(NamedTuple):
    """A permit for one call.

    Attributes:
        ticket: The owner's own number for the request.
        start: The call may start at this time (seconds on the limiter's clock), not before.
    """

    owner: int
    ticket: int
    start: float


class Limiter:
    """The limits of one predicate in one job.

    Args:
        max_in_flight: Permits out at once; None sets no bound.
        per_second: Starts a second; None sets no bound.
        ahead: Seconds by which a start may be given out before its time.
        spending: Counts permits against a budget; None without one.
        tokens_per_minute: That calls take together; None sets no bound.

    Attributes:
        breakers: Of each owner's source; calls of an owner that is not in it are never held.
    """

    def __init__(
        self,
        clock: Clock,
        max_in_flight: int | None,
        per_second: float | None,
        ahead: float = 0.0,
        spending: Spending | None = None,
        tokens_per_minute: float | None = None,
    ) -> None:
        self._clock = clock
        self._tokens = None if tokens_per_minute is None else TokenRate(tokens_per_minute)
        self._spending = spending
        self._most = float("inf") if max_in_flight is None else max_in_flight
        self.breakers: dict[int, Breaker] = {}
        self._spacing = 0.0 if per_second is None else 1.0 / per_second
        self._ahead = ahead
        self._next_start = float("-inf")
        self._waiting: OrderedDict[CallKey, None] = OrderedDict()
        self._out: set[CallKey] = set()

    @property
    def _bound(self) -> float:
        if self._tokens is not None and not self._tokens.known:
            return 1
        return self._most

    @property
    def _next(self) -> float:
        return self._next_start if self._tokens is None else max(self._next_start, self._tokens.next)

    def _first(self, now: float) -> tuple[CallKey | None, float]:
        """Return the first request of those that may start soonest, and when; None where none may."""
        first, due = None, float("inf")
        soonest = max(self._next, now)
        busy: set[Breaker | None] | None = None
        for key in self._waiting:
            breaker = self.breakers.get(key[0])
            if breaker is None or breaker.until is None:
                return (key, soonest) if soonest < due else (first, due)
            if busy is None:
                busy = {self.breakers.get(owner) for owner, _ in self._out}
            if breaker not in busy and breaker.until < due:
                first, due = key, max(soonest, breaker.until)
        return first, due

    def out_of(self, owners: set[int]) -> int:
        """Return how many permits some owners have."""
        return sum(owner in owners for owner, _ in self._out)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def request(self, owner: int, ticket: int) -> None:
        """Put a request at the end of the queue.

        Raises:
            ValueError: The owner has a request or a permit of this number already.
        """
        key = (owner, ticket)
        if key in self._waiting or key in self._out:
            raise ValueError(f"ticket {ticket} is in use")
        self._waiting[key] = None

    def grants(self) -> list[Grant]:
        """Give out the permits that are due, in the order of the requests."""
        now = self._clock.now()
        given = []
        while self._waiting and len(self._out) < self._bound:
            key, due = self._first(now)
            if key is None or due > now + self._ahead:
                break
            if self._spending is not None and not self._spending.begin():
                break
            del self._waiting[key]
            self._out.add(key)
            if key[0] in self.breakers:
                self.breakers[key[0]].start(key)
            start = max(now, due)
            self._next_start = start + self._spacing
            if self._tokens is not None:
                self._tokens.begin(key, start)
            given.append(Grant(*key, start))
        return given

    def due(self) -> float | None:
        """Return when to ask for grants again if nothing else happens; None while nothing can be due."""
        if not self._waiting or len(self._out) >= self._bound:
            return None
        if self._spending is not None and not self._spending.may_begin:
            return None
        key, due = self._first(self._clock.now())
        return None if key is None else due - self._ahead

    def take_refused(self) -> list[CallKey]:
        """Take out and return the requests that the budget will never have a permit for."""
        if self._spending is None or not self._spending.is_over:
            return []
        refused = list(self._waiting)
        self._waiting.clear()
        return refused

    def release(self, owner: int, ticket: int, cost: float | None = None, tokens: int | None = None) -> bool:
        """Take a permit back (then returns True), or a request that waits still; none of both is no error."""
        key = (owner, ticket)
        self._waiting.pop(key, None)
        was_out = key in self._out
        self._out.discard(key)
        if was_out and self._spending is not None:
            self._spending.end(cost)
        if was_out and self._tokens is not None:
            self._tokens.end(key, tokens, self._clock.now())
        return was_out

    def pause(self, seconds: float) -> None:
        """Let no call start for so long: the service has asked for that, or is overloaded."""
        self._next_start = max(self._next_start, self._clock.now() + seconds)

    def drop(self, owner: int) -> None:
        """Take back all permits and requests of an owner that is gone."""
        self.withdraw(owner)
        for key in [key for key in self._out if key[0] == owner]:
            self.release(*key)

    def withdraw(self, owner: int) -> None:
        """Take an owner's requests out of the queue; it keeps its permits."""
        for key in [key for key in self._waiting if key[0] == owner]:
            del self._waiting[key]
