"""A task's side of the limits: waiting for turns, claiming keys, telling and hearing answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count

from millrace.errors import ExecutionError
from millrace.limits import wire
from millrace.limits.address import Address, Settings
from millrace.limits.answers import Answer, Claim
from millrace.limits.wire import Message

CONNECT_SECONDS = 10.0

_KEYS_A_MESSAGE = 4096


class Limits(ABC):
    """The limits of one predicate, as one task sees them; to be used in one event loop.

    Args:
        settings: The limits. Without any, turns come at once and without a message.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tickets = count()
        self._turns: dict[int, asyncio.Future[float]] = {}
        self._claimed: asyncio.Future[Message] | None = None
        self._news: asyncio.Queue[Mapping[bytes, Answer | None] | None] = asyncio.Queue()
        self._lost: ExecutionError | None = None

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

    async def claim(self, keys: Sequence[bytes]) -> Claim:
        """Return which keys are to be asked here, which are answered and which others are asking.

        Every key to ask must be settled. One claim at a time.

        Raises:
            ExecutionError: The coordinator is gone.
        """
        claim = Claim()
        for low in range(0, len(keys), _KEYS_A_MESSAGE):
            self._check()
            self._claimed = asyncio.get_running_loop().create_future()
            self._send({"claim": [key.hex() for key in keys[low : low + _KEYS_A_MESSAGE]]})
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

    @abstractmethod
    async def close(self) -> None:
        """Leave, giving back what is held."""

    @abstractmethod
    def _send(self, message: Message) -> None: ...

    def _receive(self, message: Message) -> None:
        if "turn" in message:
            granted = self._turns.get(message["turn"])
            if granted is not None and not granted.done():
                granted.set_result(message["wait"])
        elif "claim" in message:
            if self._claimed is not None and not self._claimed.done():
                self._claimed.set_result(message)
        else:
            news = message["news"].items()
            self._news.put_nowait({bytes.fromhex(key): each and Answer.of(each) for key, each in news})

    def _lose(self, error: ExecutionError) -> None:
        """Wake everyone who waits: nothing will come any more."""
        self._lost = error
        for waiting in (*self._turns.values(), self._claimed):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
        self._news.put_nowait(None)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost


class RemoteLimits(Limits):
    """Limits that a coordinator in another process keeps; made by :meth:`connect`."""

    def __init__(
        self, address: Address, settings: Settings, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(settings)
        self._address = address
        self._writer = writer
        self._listening = asyncio.get_running_loop().create_task(self._listen(reader))

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
        where = f"{address.host}:{address.port}"
        hello = {
            "token": address.token,
            "namespace": namespace,
            "max_in_flight": settings.max_in_flight,
            "per_second": settings.per_second,
        }
        writer = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(address.host, address.port)
                wire.watch(writer)
                wire.write(writer, hello)
                reply = await wire.read(reader)
        except (OSError, EOFError, ValueError) as error:
            if writer is not None:
                writer.close()
            raise ExecutionError(
                f"the tasks cannot reach the driver at {where}, where the limits of predicates are kept "
                f"({type(error).__name__}: {error}): set the option `limits_host` to an address of the "
                "driver that the executors can reach"
            ) from error
        if "error" in reply:
            writer.close()
            raise ExecutionError(f"the driver at {where} refused to share limits: {reply['error']}")
        return cls(address, settings, reader, writer)

    async def close(self) -> None:
        """Leave, giving back what is held."""
        self._listening.cancel()
        await asyncio.wait([self._listening])
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the other side went first

    def _send(self, message: Message) -> None:
        if self._lost is None:
            wire.write(self._writer, message)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                self._receive(await wire.read(reader))
        except (OSError, EOFError, ValueError, KeyError) as error:
            where = f"{self._address.host}:{self._address.port}"
            lost = ExecutionError(
                f"the connection to the driver at {where}, where the limits of predicates are kept, was lost "
                f"({type(error).__name__}): has the driver been stopped?"
            )
            self._lose(lost)
