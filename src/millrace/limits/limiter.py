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
from dataclasses import dataclass

from millrace.limits.budget import Spending
from millrace.limits.clock import Clock

Key = tuple[int, int]


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
        self._reserved: dict[Key, float] = {}
        self.next = float("-inf")

    @property
    def known(self) -> bool:
        """Whether some call has told what it took; until then they go one by one."""
        return self._calls > 0

    def begin(self, call: Key, start: float) -> None:
        """Count a call that starts at a time."""
        reserved = self._reserved[call] = self._total / self._calls if self._calls else 0.0
        self.next = max(start, self.next) + reserved * self._seconds_a_token

    def end(self, call: Key, tokens: int | None, now: float) -> None:
        """Count what a call took that is over; one that does not tell took what it was taken for."""
        reserved = self._reserved.pop(call, 0.0)
        if tokens is None:
            return
        self._total += tokens
        self._calls += 1
        first = self.next if self._calls > 1 else max(self.next, now)
        self.next = first + (tokens - reserved) * self._seconds_a_token


_Key = tuple[int, int]


@dataclass(frozen=True)
class Grant:
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
        sources: What each owner's calls ask; calls of an owner that is not in it are never held.
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
        self._held: dict[str, float] = {}
        self.sources: dict[int, str] = {}
        self._spacing = 0.0 if per_second is None else 1.0 / per_second
        self._ahead = ahead
        self._next_start = float("-inf")
        self._waiting: OrderedDict[_Key, None] = OrderedDict()
        self._out: set[_Key] = set()

    @property
    def _bound(self) -> float:
        if self._tokens is not None and not self._tokens.known:
            return 1
        return self._most

    @property
    def _next(self) -> float:
        return self._next_start if self._tokens is None else max(self._next_start, self._tokens.next)

    def _first(self) -> tuple[_Key | None, float]:
        """Return the first request of those that may start soonest, and when; None where none may."""
        first, due = None, float("inf")
        soonest = max(self._next, self._clock.now())
        busy = {self.sources.get(owner) for owner, _ in self._out} if self._held else set()
        for key in self._waiting:
            source = self.sources.get(key[0])
            if source not in self._held:
                return (key, soonest) if soonest < due else (first, due)
            if source not in busy and self._held[source] < due:
                first, due = key, max(soonest, self._held[source])
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
            key, due = self._first()
            if key is None or due > now + self._ahead:
                break
            if self._spending is not None and not self._spending.begin():
                break
            del self._waiting[key]
            self._out.add(key)
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
        key, due = self._first()
        return None if key is None else due - self._ahead

    def refused(self) -> list[_Key]:
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

    def hold(self, seconds: float, source: str) -> None:
        """Let no call of a source start for so long, and after that one at a time, until :meth:`resume`."""
        self._held[source] = self._clock.now() + seconds

    def resume(self, source: str) -> None:
        """Let as many calls of a source start as before."""
        self._held.pop(source, None)

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
