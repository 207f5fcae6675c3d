"""How a client speaks with its session: over TCP, or directly where both are in one event loop.

A connection that breaks is the end: what the client held goes to others, and its task fails. Spark runs it
again, and it finds every answer that has arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from millrace.errors import ExecutionError, PriceError
from millrace.limits import codec
from millrace.limits.messages import Bye, Join, Lost, Message, Welcome
from millrace.limits.registration import Address
from millrace.limits.session import Session
from millrace.limits.tls import check_welcome, context_of

CONNECT_SECONDS = 10.0
BYE_SECONDS = 10.0
_SHUTDOWN_SECONDS = 2.0
_DIALS = 3
_TOGETHER = 1 << 14
"""Bytes of messages from which on they are written at once."""

_MOMENT = 0.05
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0

Receive = Callable[[Message], None]


class Lose(Protocol):
    """Hears why nothing is to be had any more; where the connection is broken, others have what was held."""

    def __call__(self, error: ExecutionError, *, is_broken: bool = False) -> None: ...


class RemoteConnection:
    """A connection over TCP; made by :meth:`dial`."""

    def __init__(
        self, address: Address, purpose: str, reader: codec.Reader, writer: asyncio.StreamWriter
    ) -> None:
        self._address = address
        self._purpose = purpose
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._writer = writer
        self._unsent = bytearray()
        self._flushing = False
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def dial(cls, address: Address, hello: Join, purpose: str) -> tuple[RemoteConnection, Welcome]:
        """Connect, and introduce a client; returns the link, and the server's welcome.

        ``purpose`` is what the server keeps, in errors.

        Raises:
            ExecutionError: The server cannot be reached or does not accept this client.
        """
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((OSError, EOFError)),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
            stop=stop_after_attempt(_DIALS),
            reraise=True,
        )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await retrying(cls._open, address, hello, purpose)
        except (OSError, EOFError, ValueError) as error:
            raise unreachable(address, purpose, error) from error

    @classmethod
    async def _open(cls, address: Address, hello: Join, purpose: str) -> tuple[RemoteConnection, Welcome]:
        loop, reader = asyncio.get_running_loop(), codec.Reader()
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(
            lambda: protocol,
            address.host,
            address.port,
            ssl=context_of(address),
            ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            codec.watch(writer.get_extra_info("socket"))
            codec.write(writer, hello)
            welcome = check_welcome(address, purpose, await reader.receive())
        except BaseException:
            writer.transport.abort()
            raise
        return cls(address, purpose, reader, writer), welcome

    def listen(self, receive: Receive, lose: Lose) -> None:
        """Hand messages of the session to ``receive`` from now on; ``lose`` hears if it ends by itself.

        First the session may end, which hears what calls cost still; then the connection.
        """
        self._listening = self._loop.create_task(self._listen(receive, lose))

    def send(self, message: Message, *, soon: bool = True) -> None:
        """Send a message; does not wait.

        What nobody waits for (not ``soon``) goes with whatever is sent next, or after a moment.
        """
        is_first = not self._unsent
        codec.frame(message, self._unsent)
        if len(self._unsent) > _TOGETHER:
            self._flush()
        elif soon and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        elif is_first and not soon:
            self._loop.call_later(_MOMENT, self._flush)

    def _flush(self) -> None:
        """Write what was sent in this turn of the event loop, small messages together."""
        unsent, self._unsent, self._flushing = self._unsent, bytearray(), False
        if unsent and not self._writer.is_closing():
            self._writer.write(unsent)

    async def drain(self) -> None:
        """Wait until most of what was sent is on its way."""
        self._flush()
        try:
            await self._writer.drain()
        except OSError:
            return  # whoever listens says what happened

    async def close(self) -> None:
        """Leave, giving back what is held; returns when the server has read all that was sent, or is gone."""
        listening = self._listening
        try:
            if listening is not None and not listening.done():
                self.send(Bye())
                await asyncio.wait([listening], timeout=BYE_SECONDS)
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.wait([listening])
            self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the other side went first

    async def _listen(self, receive: Receive, lose: Lose) -> None:
        """Hand messages on until the conversation is over."""

        def take(message: Message) -> bool:
            if isinstance(message, Lost):
                lose(explain_end(message))
            elif not isinstance(message, Bye):
                receive(message)
            return not isinstance(message, Bye)

        self._reader.take = take
        try:
            while take(await self._reader.receive()):
                pass
        except Exception as error:  # noqa: BLE001  # whoever waits for an answer is to hear it
            self._writer.transport.abort()
            lose(lost(self._address, self._purpose, error), is_broken=True)


class LocalConnection:
    """A client of a session in the same event loop, which others may share; ``closes`` hears that it left."""

    def __init__(self, session: Session, closes: Callable[[], None] | None = None) -> None:
        self._session = session
        self._closes = closes
        self._number: int | None = None

    def listen(self, receive: Receive, lose: Lose) -> None:
        def deliver(message: Message) -> None:
            if isinstance(message, Lost):
                lose(explain_end(message))
            else:
                receive(message)

        self._number = self._session.join(deliver)

    def send(self, message: Message, *, soon: bool = True) -> None:
        if self._number is not None:
            self._session.handle(self._number, message)

    async def drain(self) -> None:
        """Nothing is ever under way."""

    async def close(self) -> None:
        if self._number is not None:
            self._session.leave(self._number)
            self._number = None
            if self._closes is not None:
                self._closes()


Connection = RemoteConnection | LocalConnection
"""A client's connection to its session."""


def explain_end(message: Lost) -> ExecutionError:
    """Return the error with why a session has ended: nothing is to be had there any more."""
    return (PriceError if message.unpriced else ExecutionError)(message.why)


def unreachable(address: Address, purpose: str, error: Exception) -> ExecutionError:
    """Return the error that says what to do."""
    return ExecutionError(
        f"the tasks cannot reach {_where(address, purpose)} ({type(error).__name__}: {error}): "
        "set the option `limits_host`, or `coordinator`, to an address there that the executors can reach"
    )


def lost(address: Address, purpose: str, error: Exception) -> ExecutionError:
    """Return the error of a connection that was there."""
    return ExecutionError(
        f"the connection to {_where(address, purpose)} was lost ({type(error).__name__}): has the process "
        "there been stopped, or does the network break? This task fails; run again, by Spark or by you, it "
        "finds what has arrived there"
    )


def _where(address: Address, purpose: str) -> str:
    return f"{address.host}:{address.port}, where the job's {purpose} are kept,"
