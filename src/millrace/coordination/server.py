"""A TCP server in a daemon thread of the process that plans queries, whose clients meet in sessions.

Spark's tasks cannot see each other, so what they share needs one place that all of them reach. It is
beside Spark's driver, or beside the client of Spark Connect, started when the first query needs it. A client
that dies loses its connection, and with that all that it held.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import ClassVar, Self, TypeVar

from millrace.coordination import codec
from millrace.coordination.registration import Address
from millrace.coordination.session import Session
from millrace.errors import ExecutionError, MillraceError

T = TypeVar("T")

_HELLO_SECONDS = 10.0
_LARGEST_HELLO = 4096
_LOOK_SECONDS = 5.0

_shared: dict[tuple[type, int, str], Server] = {}
_sharing = threading.Lock()


def _after_fork() -> None:
    # Another thread may have held it; the servers themselves are told apart by process.
    global _sharing
    _sharing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Server(ABC):
    """Serves until it is closed or the process ends.

    Args:
        host: What the clients shall connect to. A loopback address keeps it to this machine. It listens on
            just this address if that is one of this machine's, and on all otherwise (a driver behind
            an address translation).

    Attributes:
        address: Where the clients find it.

    Raises:
        ExecutionError: It cannot listen.
    """

    purpose: ClassVar[str]
    """What it listens for, in errors."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._token = secrets.token_hex(16)
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._stop = asyncio.Event()
        ready: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(host, ready)), name=f"millrace {self.purpose}", daemon=True
        )
        self._thread.start()
        try:
            self._loop, port = ready.result()
        except OSError as error:
            raise ExecutionError(
                f"cannot listen for the {self.purpose} of jobs ({error}): set the option `limits_host` to an "
                "address of this machine that the executors can reach"
            ) from error
        self.address = Address(host, port, self._token)

    @classmethod
    def started(cls, host: str = "127.0.0.1") -> Self:
        """Return this process's server for a host, starting it if need be.

        A forked child gets one of its own: threads do not live on in it.

        Args:
            host: An address of this machine that the tasks can reach.

        Raises:
            ExecutionError: It cannot listen.
        """
        with _sharing:
            key = (cls, os.getpid(), host)
            server = _shared.get(key)
            if not isinstance(server, cls) or not server.running:
                server = _shared[key] = cls(host)
            return server

    @classmethod
    def shared(cls, host: str = "127.0.0.1") -> Address:
        """Return the address of what :meth:`started` returns."""
        return cls.started(host).address

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End it; clients find their connections closed."""
        if self.running:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    @abstractmethod
    def _enter(self, hello: codec.Message) -> tuple[str, Session]:
        """Return the name and the session that a client with the right token wants to join.

        Raises:
            ValueError: It did not say which.
            MillraceError: The session cannot be had.
        """

    def _left(self, name: str) -> None:  # noqa: B027  # most need nothing
        """Called when a client has left a session."""

    def _look(self) -> None:  # noqa: B027  # likewise
        """Called every few seconds."""

    def _end(self) -> None:  # noqa: B027  # likewise
        """Called at the end, when all clients have gone."""

    def _within(self, function: Callable[[], T]) -> T:
        """Return what a function returns when called in the server's thread, where the sessions live."""

        async def call() -> T:
            return function()

        if not self.running:
            raise ExecutionError(f"the server of {self.purpose} has been closed")
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    async def _run(self, host: str, ready: Future[tuple[asyncio.AbstractEventLoop, int]]) -> None:
        try:
            server = await self._listen(host)
        except OSError as error:
            ready.set_exception(error)
            return
        ready.set_result((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
        while not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _LOOK_SECONDS)
            self._look()
        server.close()
        # All at once, so that none is told of what another one leaves behind.
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))
        self._end()

    async def _listen(self, host: str) -> asyncio.Server:
        # One family, for each address that a name has would get a port of its own.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return await asyncio.start_server(self._serve, host, 0, family=family, limit=codec.BUFFER)
        except OSError:
            if _loopback(host):
                raise
            return await asyncio.start_server(self._serve, None, 0, family=family, limit=codec.BUFFER)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            codec.watch(writer.get_extra_info("socket"))
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = await codec.read(reader, _LARGEST_HELLO)
            try:
                name, session = self._welcome(hello)
            except (ValueError, MillraceError) as error:
                codec.write(writer, {"error": str(error)})
                await writer.drain()
            else:
                await self._stay(name, session, reader, writer)
        except (OSError, EOFError, ValueError):
            return  # it died, or is no client of ours; what it held is given back above
        except asyncio.CancelledError:
            return  # this server ends
        finally:
            del self._connections[task]
            writer.close()

    async def _stay(
        self, name: str, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        client = session.join(lambda message: codec.write(writer, message))
        try:
            codec.write(writer, session.welcome())
            while True:
                await writer.drain()
                await session.ready(client)
                session.handle(client, await codec.read(reader))
        finally:
            session.leave(client)
            self._left(name)

    def _welcome(self, hello: codec.Message) -> tuple[str, Session]:
        token = hello.get("token")
        if not isinstance(token, str):
            raise ValueError("it did not introduce itself")  # noqa: TRY004  # it came in a message
        if not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            raise ValueError("wrong token: the job was planned by another process")
        return self._enter(hello)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
