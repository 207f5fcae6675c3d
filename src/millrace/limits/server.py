"""A TCP server in a daemon thread of the process that plans queries, whose clients meet in sessions.

Spark's tasks cannot see each other, so what they share needs one place that all of them reach. It is
beside Spark's driver, or beside the client of Spark Connect, started when the first query needs it. A client
whose connection ends, or that says nonsense, is gone, and loses all that it held.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import threading
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from millrace.errors import ExecutionError, MillraceError, encodable
from millrace.limits import codec
from millrace.limits.event_loop import runner
from millrace.limits.messages import Bye, Hello, Lost, Message, Refusal
from millrace.limits.registration import Address
from millrace.limits.session import Session
from millrace.limits.shared import Shared
from millrace.limits.tls import address_of, secret_context, server_context

T = TypeVar("T")

_HELLO_SECONDS = 10.0
_LARGEST_HELLO = 4096
_LOOK_SECONDS = 5.0
_MOST_STRANGERS = 1024
"""Connections that have not said yet who they are; a task that finds no place among them dials again."""

_GOODBYE_SECONDS = 2.0

_FAILED = "the place where the job's {} are kept failed ({}: {}): run the query again"
_CLOSED = "the place where the job's {} are kept has been closed: has its process been stopped?"
_UNHEARD = "where the job's {} are kept, a message was not understood ({})"


class Server(Shared):
    """Serves until it is closed or the process ends; see :class:`Shared`.

    ``secret`` opens it to planning processes that have the same one; without one its token stays here.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None, *, secret: str | None = None
    ) -> None:
        if secret is None:
            self._context, certificate = server_context()
            self.address = Address(host, port, secrets.token_hex(16), certificate)
        else:
            self._context, _ = secret_context(secret)
            self.address = address_of(host, port, secret)
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._joined = 0  # connections that are somebody's
        self._stop = asyncio.Event()
        ready: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        self._thread = threading.Thread(
            target=self._run,
            args=(bind or host, port, ready),
            name=f"millrace {self.purpose}",
            daemon=True,
        )
        self._thread.start()
        try:
            self._loop, found = ready.result()
        except Exception as error:
            raise ExecutionError(
                f"cannot listen for the {self.purpose} of jobs on {bind or host!r}, port {port} ({error}): "
                "set `limits_host` to an address of this machine that executors reach, "
                "and where they reach it by another one, `limits_bind` to its own, or to '0.0.0.0'"
            ) from error
        self.address = replace(self.address, port=found)

    @abstractmethod
    def _scope(self, hello: Hello) -> str:
        """Return the scope that a client wants to get into."""

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def connected(self) -> bool:
        """Whether some client is connected now."""
        return bool(self._connections)

    def close(self) -> None:
        """End it; clients find their connections closed."""
        if self.running:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    @abstractmethod
    def _enter(self, hello: Hello) -> tuple[str, Session]:
        """Return the name and the session that a client with the right token wants to join.

        Raises:
            ValueError: It did not say which.
            MillraceError: The session cannot be had.
        """

    def _left(self, name: str) -> None:
        """Called when a client has left a session."""

    def _look(self) -> None:
        """Called every few seconds."""

    async def _end(self) -> None:
        """Called at the end, when all clients have gone."""

    def _within(self, function: Callable[[], T]) -> T:
        """Return what a function returns when called in the server's thread, where the sessions live."""

        async def call() -> T:
            return function()

        return self._finish(call())

    def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns when it runs in the server's thread."""
        if not self.running:
            work.close()
            raise ExecutionError(f"the server of {self.purpose} has been closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not future.done() and self.running:
            wait([future], _LOOK_SECONDS)
        if not future.done() or future.cancelled():
            raise ExecutionError(f"the server of {self.purpose} has been closed meanwhile")
        return future.result()

    def _run(self, host: str, port: int, ready: Future[tuple[asyncio.AbstractEventLoop, int]]) -> None:
        try:
            with runner() as running:
                running.run(self._until_stopped(host, port, ready))
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _until_stopped(
        self, host: str, port: int, ready: Future[tuple[asyncio.AbstractEventLoop, int]]
    ) -> None:
        server = await self._listen(host, port)
        ready.set_result((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
        while not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _LOOK_SECONDS)
            self._try(self._look)
        server.close()
        # All at once, so that none is told of what another one leaves behind.
        for task, writer in self._connections.items():
            self._try(partial(codec.write, writer, Lost(_CLOSED.format(self.purpose))))
            writer.transport.abort()
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))
        await self._end()

    def _try(self, function: Callable[[], object]) -> None:
        """Call a function; what goes wrong in it is logged, and is not the end for all the others."""
        try:
            function()
        except Exception as error:  # noqa: BLE001  # as in any callback of an event loop
            about = {"message": f"in the server of {self.purpose}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(about)

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        # One family, for each address that a name has would get a port of its own.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: asyncio.StreamReaderProtocol(codec.Reader(), self._serve, loop),
            host,
            port,
            family=family,
            ssl=self._context,
            ssl_handshake_timeout=_HELLO_SECONDS,
            ssl_shutdown_timeout=_GOODBYE_SECONDS,
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, codec.Reader)
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) - self._joined >= _MOST_STRANGERS:
            writer.transport.abort()
            return
        self._connections[task] = writer
        try:
            codec.watch(writer.get_extra_info("socket"))
            try:
                async with asyncio.timeout(_HELLO_SECONDS):
                    hello = await reader.receive(_LARGEST_HELLO)
            except ValueError as error:
                await self._refuse(writer, error)
                return
            try:
                name, session = self._enter(self._admit(hello))
                client = _join(session, writer)
            except Exception as error:  # noqa: BLE001  # whatever it is, the client is to hear it
                await self._refuse(writer, error)
            else:
                self._joined += 1
                try:
                    await self._stay(session, client, reader, writer)
                finally:
                    self._joined -= 1
                    self._try(partial(self._leave, name, session, client))
        except (OSError, EOFError):
            return  # it died; what it held is given back above
        except asyncio.CancelledError:
            return  # this server ends
        finally:
            del self._connections[task]
            writer.close()

    async def _refuse(self, writer: asyncio.StreamWriter, error: Exception) -> None:
        ours = isinstance(error, ValueError | MillraceError)
        why = f"{error}" if ours else f"{type(error).__name__}: {error}"
        self._try(partial(codec.write, writer, Refusal(encodable(why))))
        await writer.drain()

    async def _stay(
        self, session: Session, client: int, reader: codec.Reader, writer: asyncio.StreamWriter
    ) -> None:
        """Do what a client says until it has said goodbye."""

        def end(why: str) -> None:
            codec.write(writer, Lost(encodable(why)))
            reader.stop()

        def handle(message: Message) -> None:
            try:
                session.handle(client, message)
            except Exception as error:  # noqa: BLE001  # the client is to hear it, and nobody else
                end(_FAILED.format(self.purpose, type(error).__name__, error))

        def take(message: Message) -> bool:
            is_held_up = writer.transport.get_write_buffer_size() or not session.is_ready(client)
            if is_held_up or isinstance(message, Bye):
                return False
            handle(message)
            return True

        reader.take = take
        while not reader.stopped:
            if writer.transport.get_write_buffer_size():
                with suppress(OSError):  # it may have left; what it said before is here to be read
                    await writer.drain()
            await session.ready(client)
            try:
                message = await reader.receive()
            except ValueError as error:
                end(_UNHEARD.format(self.purpose, error))
                return
            if isinstance(message, Bye):
                await session.done(client)  # who hears of a job's end finds its figures whole
                codec.write(writer, message)
                return
            handle(message)

    def _leave(self, name: str, session: Session, client: int) -> None:
        try:
            session.leave(client)
        finally:
            self._left(name)

    def _admit(self, hello: Message) -> Hello:
        """Return what a client with the right token has said; ValueError if it has another one."""
        if not isinstance(hello, Hello):
            raise ValueError("it did not introduce itself")  # noqa: TRY004  # it came in a message
        scope = self._scope(hello)
        known = (self.address.token, self.address.of(scope).token)
        if not any(hmac.compare_digest(hello.token.encode(), each.encode()) for each in known):
            raise ValueError("wrong token: it is another run's, or the job was planned by another process")
        return hello


def _join(session: Session, writer: asyncio.StreamWriter) -> int:
    """Let a client into a session, and return its number there."""

    def deliver(message: Message) -> None:
        try:
            if not writer.is_closing():
                codec.write(writer, message)
        except Exception:  # noqa: BLE001  # whoever speaks to it has others to speak to
            writer.transport.abort()

    codec.write(writer, session.welcome())
    return session.join(deliver)
