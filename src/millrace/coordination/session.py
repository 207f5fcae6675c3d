"""What clients of a server share: a session that they join, speak to and leave.

A session lives in one event loop, and is the same whether its clients sit in other processes
(:mod:`millrace.coordination.server`) or in this one.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count

from millrace.budget import Spending
from millrace.clock import Clock, WallClock
from millrace.coordination.breaker import Breaker
from millrace.coordination.codec import Message
from millrace.coordination.limiter import Limiter
from millrace.coordination.registration import Settings

_AHEAD = 0.02
"""Seconds by which permits are given out early: more than a timer is late, and than a message takes."""

LEASE_SECONDS = 30.0
"""Who holds permits or keys, and says nothing for so long, holds them no more."""

ALIVE_SECONDS = 10.0
"""A client says at least this often that it is there."""

LONGEST_PAUSE = 86_400.0
"""Seconds for which one message can make all tasks wait before they ask a service again."""

_LONGEST_OUTCOME = 100

Deliver = Callable[[Message], None]


class Session(ABC):
    """Clients by number, and how messages reach them."""

    def __init__(self) -> None:
        self._clients: dict[int, Deliver] = {}
        self._numbers = count()

    @property
    def empty(self) -> bool:
        """Whether there is no client."""
        return not self._clients

    def join(self, deliver: Deliver) -> int:
        """Let a client in, and return its number; messages for it go to ``deliver``."""
        number = next(self._numbers)
        self._clients[number] = deliver
        return number

    def leave(self, client: int) -> None:
        """Let a client go."""
        del self._clients[client]

    @abstractmethod
    def handle(self, client: int, message: Message) -> None:
        """Do what a client's message says.

        Raises:
            ValueError: It says nothing that a client of ours would say.
        """

    def welcome(self) -> Message:
        """Return what a client hears first."""
        return {"welcome": True}

    async def ready(self, client: int) -> None:  # noqa: B027  # most can always
        """Wait until the session can take the client's next message; meanwhile the client has to wait."""


class PermitSession(Session):
    """A session whose clients wait for permits to ask something.

    =======================================  ==========================================================
    client                                   session
    =======================================  ==========================================================
    ``request``, ``id``                      ``permit`` = id, ``wait``: start after so many seconds
    ``release``, ``id``, ``cost``,           ``spent`` = id, ``why``: the budget has no permit for it
    ``outcome``: ``""`` for an answer, or
    why there was none; both may be missing
    ``pause`` = seconds                      no permit starts before they are over
    ``alive``                                every :data:`ALIVE_SECONDS`
    =======================================  ==========================================================

    Whoever is not heard of for :data:`LEASE_SECONDS` loses what it holds. If it was only busy, its
    requests are in the queue again as soon as it is heard.

    Args:
        settings: The limits.
        clock: Tells seconds; the system's clock by default.
        circuit_breaker: Failures in a row after which calls pause; None for never.
        spending: Of the settings' budget, where others have spent of it before.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        circuit_breaker: int | None = None,
        spending: Spending | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self._clock = clock or WallClock()
        self._heard: dict[int, float] = {}
        self._lapsed: dict[int, list[int]] = {}
        self.spending = spending or Spending(settings.budget)
        counted = self.spending if settings.budget else None
        self._limiter = Limiter(self._clock, settings.max_in_flight, settings.per_second, _AHEAD, counted)
        self._breaker = Breaker(circuit_breaker)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """How many permits are out."""
        return self._limiter.in_flight

    def join(self, deliver: Deliver) -> int:
        """Let a client in, and return its number; messages for it go to ``deliver``."""
        number = super().join(deliver)
        self._heard[number] = self._clock.now()
        return number

    def leave(self, client: int) -> None:
        """Take back all that a client has."""
        super().leave(client)
        self._heard.pop(client, None)
        self._lapsed.pop(client, None)
        self._limiter.drop(client)
        self._grant()

    def expire(self) -> None:
        """Take back what clients hold that have not been heard for too long."""
        latest = self._clock.now() - LEASE_SECONDS
        gone = [client for client, heard in self._heard.items() if heard < latest]
        for client in gone:
            self._reclaim(client)
        if gone:
            self._grant()

    def _reclaim(self, client: int) -> None:
        self._lapsed[client] = self._lapsed.get(client, []) + self._limiter.drop(client)

    def _hear(self, client: int) -> None:
        self._heard[client] = self._clock.now()
        for ticket in self._lapsed.pop(client, ()):
            self._limiter.request(client, ticket)

    def handle(self, client: int, message: Message) -> None:
        """Do what a client's message about permits says.

        Raises:
            ValueError: It says nothing that a client of ours would say.
        """
        self._hear(client)
        match message:
            case {"request": int(ticket)}:
                self._limiter.request(client, ticket)
                self._grant()
            case {"release": int(ticket), **rest}:
                cost = rest.get("cost")
                if cost is not None and not (isinstance(cost, int | float) and 0 <= cost < math.inf):
                    raise ValueError(f"a cost of {cost!r}")
                if self._limiter.release(client, ticket, cost):
                    self._judge(client, ticket, rest.get("outcome"))
                self._grant()
            case {"alive": True}:
                self._grant()
            case {"pause": int() | float() as seconds} if 0 <= seconds <= LONGEST_PAUSE:
                self._limiter.pause(seconds)
                self._grant()
            case _:
                raise ValueError(f"no such message: {list(message)[:3]}")

    def _judge(self, client: int, ticket: int, outcome: object) -> None:
        """Let the breaker know what came of a call."""
        if outcome == "":
            if self._breaker.answered():
                self._limiter.resume()
        elif isinstance(outcome, str):
            pause = self._breaker.failed((client, ticket), outcome[:_LONGEST_OUTCOME])
            if pause is not None:
                self._limiter.hold(pause)
            if self._breaker.given_up:
                self._give_up()

    def _give_up(self) -> None:  # sessions that tell outcomes know what to do
        """Called when the source is taken to be down."""

    def _grant(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for grant in self._limiter.grants():
            self._breaker.started((grant.owner, grant.ticket))
            wait = max(0.0, grant.start - self._clock.now())
            self._clients[grant.owner]({"permit": grant.ticket, "wait": wait})
        for owner, ticket in self._limiter.refused():
            self._clients[owner]({"spent": ticket, "why": str(self.spending)})
        due = self._limiter.due()
        if due is not None:
            delay = max(0.0, due - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._grant)
