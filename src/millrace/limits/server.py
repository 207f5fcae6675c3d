"""The coordinator: where all tasks of a job agree on their limits, in the process that plans queries.

Spark's tasks cannot see each other, so a limit for the whole job needs one place that all of them
reach. It is a TCP server in a daemon thread beside Spark's driver, or beside the client of Spark
Connect, started when the first query with limits comes. A client that dies loses its connection, and
with that all that it held.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import secrets
import socket
import threading
from collections import OrderedDict
from concurrent.futures import Future

from millrace.errors import ExecutionError
from millrace.limits import wire
from millrace.limits.address import Address, Settings
from millrace.limits.room import Room

_HELLO_SECONDS = 10.0
_LARGEST_HELLO = 4096
_MOST_EMPTY_ROOMS = 16

_shared: dict[tuple[int, str], Coordinator] = {}
_sharing = threading.Lock()


def _after_fork() -> None:
    # Another thread may have held it; the coordinators themselves are told apart by process.
    global _sharing
    _sharing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Coordinator:
    """Serves the limits of any number of jobs until it is closed or the process ends.

    Args:
        host: What the clients shall connect to. A loopback address keeps it to this machine. It listens on
            just this address if that is one of this machine's, and on all otherwise (a driver behind
            an address translation).

    Attributes:
        address: Where the clients find it.

    Raises:
        ExecutionError: It cannot listen.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._token = secrets.token_hex(16)
        self._rooms: OrderedDict[str, Room] = OrderedDict()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._stop = asyncio.Event()
        ready: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(host, ready)), name="millrace limits", daemon=True
        )
        self._thread.start()
        try:
            self._loop, port = ready.result()
        except OSError as error:
            raise ExecutionError(
                f"cannot listen for the limits of predicates ({error}): set the option `limits_host` to an "
                "address of this machine that the executors can reach"
            ) from error
        self.address = Address(host, port, self._token)

    @classmethod
    def shared(cls, host: str = "127.0.0.1") -> Address:
        """Return the address of this process's coordinator for a host, starting it if need be.

        A forked child gets one of its own: threads do not live on in it.

        Args:
            host: An address of this machine that the tasks can reach.

        Raises:
            ExecutionError: It cannot listen.
        """
        with _sharing:
            key = (os.getpid(), host)
            if key not in _shared or not _shared[key].running:
                _shared[key] = cls(host)
            return _shared[key].address

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End it; clients find their connections closed."""
        if self.running:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def in_flight(self, namespace: str) -> int:
        """Return how many permits of a namespace are out now."""

        async def count() -> int:
            room = self._rooms.get(namespace)
            return 0 if room is None else room.in_flight

        return asyncio.run_coroutine_threadsafe(count(), self._loop).result()

    async def _run(self, host: str, ready: Future[tuple[asyncio.AbstractEventLoop, int]]) -> None:
        try:
            server = await self._listen(host)
        except OSError as error:
            ready.set_exception(error)
            return
        ready.set_result((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
        await self._stop.wait()
        server.close()
        # All at once, so that none is told of what another one leaves behind.
        for writer in self._connections.values():
            writer.transport.abort()
        if self._connections:
            await asyncio.wait(list(self._connections))

    async def _listen(self, host: str) -> asyncio.Server:
        # One family, for each address that a name has would get a port of its own.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return await asyncio.start_server(self._serve, host, 0, family=family)
        except OSError:
            if _loopback(host):
                raise
            return await asyncio.start_server(self._serve, None, 0, family=family)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            wire.watch(writer)
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = await wire.read(reader, _LARGEST_HELLO)
            try:
                namespace, room = self._welcome(hello)
            except ValueError as error:
                wire.write(writer, {"error": str(error)})
                await writer.drain()
            else:
                await self._stay(namespace, room, reader, writer)
        except (OSError, EOFError, ValueError):
            return  # it died, or is no client of ours; what it held is given back above
        finally:
            del self._connections[task]
            writer.close()

    async def _stay(
        self, namespace: str, room: Room, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        client = room.join(lambda message: wire.write(writer, message))
        try:
            wire.write(writer, {"welcome": True})
            while True:
                await writer.drain()
                room.handle(client, await wire.read(reader))
        finally:
            room.leave(client)
            self._forget(namespace)

    def _welcome(self, hello: wire.Message) -> tuple[str, Room]:
        match hello:
            case {
                "token": str(token),
                "namespace": str(namespace),
                "max_in_flight": int() | None as cap,
                "per_second": float() | int() | None as rate,
            } if (cap is None or cap > 0) and (rate is None or rate > 0):
                settings = Settings(cap, rate)
            case _:
                raise ValueError("it did not introduce itself")
        if not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            raise ValueError("wrong token: the job was planned by another process")
        room = self._rooms.setdefault(namespace, Room(settings))
        if room.settings != settings:
            raise ValueError(f"{namespace} has {room.settings}, got {settings}")
        return namespace, room

    def _forget(self, namespace: str) -> None:
        """Keep the rooms that were left last, for jobs with pauses between their tasks."""
        self._rooms.move_to_end(namespace)
        empty = [name for name, room in self._rooms.items() if room.empty]
        for name in empty[:-_MOST_EMPTY_ROOMS]:
            del self._rooms[name]


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
