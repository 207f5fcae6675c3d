"""What clients of a server share: a session that they join, speak to and leave.

A session lives in one event loop, and is the same whether its clients sit in other processes
(:mod:`millrace.coordination.server`) or in this one.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count

from millrace.clock import WallClock
from millrace.coordination.codec import Message
from millrace.coordination.limiter import Limiter
from millrace.coordination.registration import Settings

_AHEAD = 0.02
"""Seconds by which permits are given out early: more than a timer is late, and than a message takes."""

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
    ``release``, ``id``
    =======================================  ==========================================================

    Args:
        settings: The limits.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self._clock = WallClock()
        self._limiter = Limiter(self._clock, settings.max_in_flight, settings.per_second, _AHEAD)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """How many permits are out."""
        return self._limiter.in_flight

    def leave(self, client: int) -> None:
        """Take back all that a client has."""
        super().leave(client)
        self._limiter.drop(client)
        self._grant()

    def handle(self, client: int, message: Message) -> None:
        """Do what a client's message about permits says.

        Raises:
            ValueError: It says nothing that a client of ours would say.
        """
        match message:
            case {"request": int(ticket)}:
                self._limiter.request(client, ticket)
                self._grant()
            case {"release": int(ticket)}:
                self._limiter.release(client, ticket)
                self._grant()
            case _:
                raise ValueError(f"no such message: {list(message)[:3]}")

    def _grant(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for grant in self._limiter.grants():
            wait = max(0.0, grant.start - self._clock.now())
            self._clients[grant.owner]({"permit": grant.ticket, "wait": wait})
        due = self._limiter.due()
        if due is not None:
            delay = max(0.0, due - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._grant)
