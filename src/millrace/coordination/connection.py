"""How a client speaks with its session: over TCP, or directly where both are in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from millrace.coordination import codec
from millrace.coordination.registration import Address
from millrace.coordination.session import ALIVE_SECONDS, Session
from millrace.coordination.tls import context_of
from millrace.errors import ExecutionError

CONNECT_SECONDS = 10.0
_GOODBYE_SECONDS = 2.0

Receive = Callable[[codec.Message], None]
Lose = Callable[[ExecutionError], None]


class Connection(Protocol):
    """A client's connection to its session."""

    def listen(self, receive: Receive, lose: Lose) -> None:
        """Hand messages of the session to ``receive`` from now on; ``lose`` hears if it ends by itself."""
        ...

    def send(self, message: codec.Message) -> None:
        """Send a message; does not wait."""
        ...

    async def drain(self) -> None:
        """Wait until most of what was sent is on its way."""
        ...

    async def close(self) -> None:
        """Leave, giving back what is held."""
        ...


class RemoteConnection:
    """A TCP connection; made by :meth:`dial`."""

    def __init__(
        self, address: Address, purpose: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._address = address
        self._purpose = purpose
        self._reader = reader
        self._writer = writer
        self._listening: asyncio.Task[None] | None = None
        self._alive: asyncio.TimerHandle | None = None

    @classmethod
    async def dial(
        cls, address: Address, hello: codec.Message, purpose: str
    ) -> tuple[RemoteConnection, codec.Message]:
        """Connect, and introduce a client.

        Args:
            address: The server.
            hello: What the client says of itself, beside the token.
            purpose: What the server keeps, in errors.

        Returns:
            The link, and the server's welcome.

        Raises:
            ExecutionError: The server cannot be reached or does not accept this client.
        """
        writer = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    address.host,
                    address.port,
                    limit=codec.BUFFER,
                    ssl=context_of(address),
                    ssl_shutdown_timeout=_GOODBYE_SECONDS,
                )
                codec.watch(writer.get_extra_info("socket"))
                codec.write(writer, {"token": address.token, **hello})
                reply = await codec.read(reader)
        except (OSError, EOFError, ValueError) as error:
            if writer is not None:
                writer.transport.abort()
            raise unreachable(address, purpose, error) from error
        if "error" in reply:
            writer.transport.abort()
            raise refused(address, purpose, reply)
        return cls(address, purpose, reader, writer), reply

    def listen(self, receive: Receive, lose: Lose) -> None:
        """Hand messages of the session to ``receive`` from now on; ``lose`` hears if this ends."""
        loop = asyncio.get_running_loop()
        self._listening = loop.create_task(self._listen(receive, lose))
        self._alive = loop.call_later(ALIVE_SECONDS, self._say_alive)

    def send(self, message: codec.Message) -> None:
        """Send a message; does not wait."""
        codec.write(self._writer, message)

    async def drain(self) -> None:
        """Wait until most of what was sent is on its way."""
        try:
            await self._writer.drain()
        except OSError:
            return  # whoever listens says what happened

    async def close(self) -> None:
        """Leave, giving back what is held."""
        if self._alive is not None:
            self._alive.cancel()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the other side went first

    def _say_alive(self) -> None:
        if not self._writer.is_closing():
            self.send({"alive": True})
            self._alive = asyncio.get_running_loop().call_later(ALIVE_SECONDS, self._say_alive)

    async def _listen(self, receive: Receive, lose: Lose) -> None:
        try:
            while True:
                message = await codec.read(self._reader)
                if "lost" in message:
                    return lose(ExecutionError(str(message["lost"])))
                receive(message)
        except (OSError, EOFError, ValueError, KeyError) as error:
            lose(lost(self._address, self._purpose, error))


class LocalConnection:
    """A client of a session in the same event loop.

    Args:
        session: The session; other clients may share it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._number: int | None = None

    def listen(self, receive: Receive, lose: Lose) -> None:
        """Join the session."""

        def deliver(message: codec.Message) -> None:
            if "lost" in message:
                lose(ExecutionError(str(message["lost"])))
            else:
                receive(message)

        self._number = self._session.join(deliver)

    def send(self, message: codec.Message) -> None:
        """Let the session do what the message says."""
        if self._number is not None:
            self._session.handle(self._number, message)

    async def drain(self) -> None:
        """Nothing is ever under way."""

    async def close(self) -> None:
        """Leave, giving back what is held."""
        if self._number is not None:
            self._session.leave(self._number)
            self._number = None


def unreachable(address: Address, purpose: str, error: Exception) -> ExecutionError:
    """Return the error that says what to do."""
    return ExecutionError(
        f"the tasks cannot reach the driver at {_where(address, purpose)} ({type(error).__name__}: {error}): "
        "set the option `limits_host` to an address of the driver that the executors can reach"
    )


def refused(address: Address, purpose: str, reply: codec.Message) -> ExecutionError:
    """Return the error with the server's reason."""
    where = f"{address.host}:{address.port}"
    return ExecutionError(f"the driver at {where} refused to share {purpose}: {reply['error']}")


def lost(address: Address, purpose: str, error: Exception) -> ExecutionError:
    """Return the error of a connection that was there."""
    return ExecutionError(
        f"the connection to the driver at {_where(address, purpose)} was lost ({type(error).__name__}): "
        "has the driver been stopped?"
    )


def _where(address: Address, purpose: str) -> str:
    return f"{address.host}:{address.port}, where the job's {purpose} are kept,"
