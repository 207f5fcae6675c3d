"""What clients of a server share: a session that they join, speak to and leave.

A session lives in one event loop, and is the same whether its clients sit in other processes
(:mod:`millrace.coordination.server`) or in this one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count

from millrace.coordination.codec import Message

ALIVE_SECONDS = 10.0
"""A client says at least this often that it is there."""

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

    async def done(self, client: int) -> None:  # noqa: B027  # likewise
        """Wait until all that the client has said is done."""
