"""A task's side of the limits: waiting for turns, claiming keys, telling and hearing answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count

from millrace.errors import ExecutionError
from millrace.limits.address import Address, Settings
from millrace.limits.answers import Answer, Claim
from millrace.limits.link import Link, RemoteLink
from millrace.limits.wire import Message

KEYS_A_MESSAGE = 4096


class TurnClient:
    """One task's turns to ask something; to be used in one event loop.

    Args:
        link: To the room, which is joined now.
        settings: The limits. Without any, turns come at once and without a message.
    """

    def __init__(self, link: Link, settings: Settings) -> None:
        self._link = link
        self._settings = settings
        self._tickets = count()
        self._turns: dict[int, asyncio.Future[float]] = {}
        self._lost: ExecutionError | None = None
        link.listen(self._receive, self._lose)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until one more call may start; leaving the block says that it is over.

        Raises:
            ExecutionError: The coordinator is gone.
        """
        if not self._settings.turns:
            yield
            return
        self._check()
        ticket = next(self._tickets)
        granted = self._turns[ticket] = asyncio.get_running_loop().create_future()
        self._send({"request": ticket})
        try:
            wait = await granted
            if wait > 0:
                await asyncio.sleep(wait)
            yield
        finally:
            self._turns.pop(ticket, None)
            self._send({"release": ticket})

    async def close(self) -> None:
        """Leave, giving back what is held."""
        await self._link.close()

    def _send(self, message: Message) -> None:
        if self._lost is None:
            self._link.send(message)

    def _receive(self, message: Message) -> None:
        granted = self._turns.get(message["turn"])
        if granted is not None and not granted.done():
            granted.set_result(message["wait"])

    def _lose(self, error: ExecutionError) -> None:
        """Wake everyone who waits: nothing will come any more."""
        self._lost = error
        for waiting in self._turns.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost


class Limits(TurnClient):
    """The limits of one predicate, as one task sees them; to be used in one event loop.

    Args:
        link: To the room, which is joined now.
        settings: The limits. Without any, turns come at once and without a message.
    """

    def __init__(self, link: Link, settings: Settings) -> None:
        self._claimed: asyncio.Future[Message] | None = None
        self._news: asyncio.Queue[Mapping[bytes, Answer | None] | None] = asyncio.Queue()
        super().__init__(link, settings)

    async def claim(self, keys: Sequence[bytes]) -> Claim:
        """Return which keys are to be asked here, which are answered and which others are asking.

        Every key to ask must be settled. One claim at a time.

        Raises:
            ExecutionError: The coordinator is gone.
        """
        claim = Claim()
        for low in range(0, len(keys), KEYS_A_MESSAGE):
            self._check()
            self._claimed = asyncio.get_running_loop().create_future()
            self._send({"claim": [key.hex() for key in keys[low : low + KEYS_A_MESSAGE]]})
            reply = await self._claimed
            claim.ask.extend(map(bytes.fromhex, reply["claim"]))
            claim.answered.update(
                {bytes.fromhex(key): Answer.of(each) for key, each in reply["answered"].items()}
            )
            claim.waiting.extend(map(bytes.fromhex, reply["waiting"]))
        return claim

    def settle(self, answers: Mapping[bytes, Answer | None]) -> None:
        """Tell what came of asking; None gives a key up, so that it can be asked again."""
        self._send({"settle": {key.hex(): answer and list(answer) for key, answer in answers.items()}})

    async def told(self) -> Mapping[bytes, Answer | None]:
        """Return the next news of keys that are waited for; None where a key is to be asked here now.

        Raises:
            ExecutionError: The coordinator is gone.
        """
        news = await self._news.get()
        self._check()
        return news or {}

    def _receive(self, message: Message) -> None:
        if "claim" in message:
            if self._claimed is not None and not self._claimed.done():
                self._claimed.set_result(message)
        elif "news" in message:
            news = message["news"].items()
            self._news.put_nowait({bytes.fromhex(key): each and Answer.of(each) for key, each in news})
        else:
            super()._receive(message)

    def _lose(self, error: ExecutionError) -> None:
        super()._lose(error)
        if self._claimed is not None and not self._claimed.done():
            self._claimed.set_exception(error)
        self._news.put_nowait(None)


class RemoteLimits(Limits):
    """Limits that a coordinator in another process keeps; made by :meth:`connect`."""

    @classmethod
    async def connect(cls, address: Address, namespace: str, settings: Settings) -> RemoteLimits:
        """Join the limits of one predicate of one job.

        Args:
            address: The coordinator.
            namespace: Names the run and the predicate; whoever gives the same one shares its limits.
            settings: The limits; the same for all of a namespace.

        Raises:
            ExecutionError: The coordinator cannot be reached or does not accept this client.
        """
        hello = {
            "namespace": namespace,
            "max_in_flight": settings.max_in_flight,
            "per_second": settings.per_second,
        }
        link, _ = await RemoteLink.dial(address, hello, "limits")
        return cls(link, settings)
