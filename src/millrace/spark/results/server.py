"""Where tasks send their results: a server in the process that planned the query, and a stream a job.

=======================================  ==========================================================
task                                     session
=======================================  ==========================================================
``start`` = [partition, attempt]         ``wanted``: whether the partition's rows are needed still
``batch``; an Arrow IPC stream
``commit``                               ``committed``
(nothing)                                ``lost`` = why no rows are wanted any more
=======================================  ==========================================================

The welcome has the rows' schema. It is not the coordinator that serves, so that rows on their way do not hold
up whoever waits for a turn.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar, Self

import pyarrow as pa

from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.codec import Message
from millrace.limits.registration import Address
from millrace.limits.server import Server
from millrace.limits.session import Session
from millrace.spark.results.partition import Partition


class BatchQueue:
    """Batches between the server's thread, which puts them in, and the consumer's, which takes them out.

    It is full at ``most`` bytes. ``on_space`` is called in the consumer's thread when it no longer is.
    ``delivered`` counts the batches that the consumer took.
    """

    def __init__(self, most: int, on_space: Callable[[], None]) -> None:
        self._most = most
        self._on_space = on_space
        self._batches: deque[pa.RecordBatch] = deque()
        self._size = 0
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.delivered = 0

    @property
    def is_full(self) -> bool:
        """Whether whoever puts batches in should wait."""
        with self._changed:
            return self._size >= self._most and not self._ended

    @property
    def has_ended(self) -> bool:
        """Whether nothing more can be put in."""
        with self._changed:
            return self._ended

    def put(self, batch: pa.RecordBatch) -> None:
        """Add a batch, if the queue has not ended; does not wait."""
        with self._changed:
            if not self._ended:
                self._batches.append(batch)
                self._size += _size(batch)
                self._changed.notify()

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch, waiting for it; None at the end. Raises the error that it ended with."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._ended)
            if self._error is not None:
                raise self._error
            if not self._batches:
                return None
            batch = self._batches.popleft()
            self.delivered += 1
            was_full = self._size >= self._most
            self._size -= _size(batch)
            has_space = was_full and self._size < self._most
        if has_space:
            self._on_space()
        return batch

    def end(self, error: BaseException | None = None, *, drop: bool = False) -> bool:
        """End it after the batches that it has; returns whether it had not ended before.

        An error is raised to the consumer in their place. With ``drop`` they are of no use any more.
        """
        with self._changed:
            if self._ended:
                if drop:
                    self._batches.clear()
                return False
            self._ended, self._error = True, error
            if drop or error is not None:
                self._batches.clear()
            self._changed.notify_all()
            return True


def _size(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes) + 1


MOST_WAITING = 1 << 26
"""Bytes of batches that wait for the consumer before the tasks have to."""


class ResultSession(Session):
    """The tasks of one stream; lives in a loop. See :meth:`ResultsServer.open`."""

    def __init__(
        self, schema: pa.Schema, loop: asyncio.AbstractEventLoop, most_waiting: int, idle: float | None = None
    ) -> None:
        super().__init__()
        self._schema = schema
        self._loop = loop
        self._idle = idle
        self._has_space = asyncio.Event()
        self._partitions: dict[int, Partition] = {}
        self._tasks: dict[int, tuple[Partition, int]] = {}
        self.queue = BatchQueue(most_waiting, self._wake)

    def welcome(self) -> Message:
        """Return what a task hears first: the schema."""
        return {"welcome": True, "attachment": self._schema.serialize().to_pybytes()}

    async def ready(self, client: int) -> None:
        """Wait until the consumer has taken some of what waits for it."""
        while self.queue.is_full:
            self._has_space.clear()
            if self.queue.is_full:  # another thread may have emptied it in between
                await self._wait_for_space()

    async def _wait_for_space(self) -> None:
        """Wait for a consumer; end the stream if it takes nothing at all for too long."""
        delivered = self.queue.delivered
        try:
            async with asyncio.timeout(self._idle):
                await self._has_space.wait()
        except TimeoutError:
            if self.queue.delivered == delivered:
                self.end(
                    ExecutionError(
                        f"the reader of to_batches has taken no rows for {self._idle:g} s, so its "
                        "tasks were stopped: read on sooner, or set `idle_timeout` to more seconds, or None"
                    )
                )

    def leave(self, client: int) -> None:
        """Let a task go; what it sent stays delivered."""
        super().leave(client)
        self._tasks.pop(client, None)

    def handle(self, client: int, message: Message) -> None:
        """Do what a task's message says.

        Raises:
            ValueError: It says nothing that a task of ours would say.
        """
        if self.queue.has_ended:
            return
        match message, self._tasks.get(client):
            case {"start": [int(number), int(attempt)]}, None if number >= 0:
                partition = self._partitions.setdefault(number, Partition(number))
                self._tasks[client] = partition, attempt
                self._clients[client]({"wanted": not partition.committed})
            case {"batch": True, "attachment": bytes(payload)}, (Partition() as partition, _):
                self._accept(partition, client, payload)
            case {"commit": True}, (Partition() as partition, _):
                self._commit(partition, client)
            case _:
                raise ValueError(f"no such message: {list(message)[:3]}")

    def finish(self) -> None:
        """End the stream after what has come.

        An error to the consumer instead, if a task has started that never committed.
        """
        missing = sorted(number for number, partition in self._partitions.items() if not partition.committed)
        if missing:
            shown = ", ".join(map(str, missing[:10]))
            self.end(
                ExecutionError(f"the job is over, but these partitions were not sent to their end: {shown}")
            )
        else:
            self.end(None)

    def end(self, error: BaseException | None, *, drop: bool = False) -> None:
        """End the stream, and let tasks that send still stop."""
        self.queue.end(error, drop=drop)
        self._has_space.set()
        for partition in self._partitions.values():
            partition.close()
        reason = "it has ended" if error is None else f"it has failed ({type(error).__name__})"
        for deliver in self._clients.values():
            deliver({"lost": "the reader has closed it" if drop else reason})

    def _accept(self, partition: Partition, client: int, payload: bytes) -> None:
        try:
            batch = partition.accept(client, payload)
        except OSError as error:
            self.end(
                ExecutionError(
                    f"rows that a task may have to send again cannot be kept ({error}): make room in "
                    f"{tempfile.gettempdir()!r}, or set TMPDIR to a folder on another disk"
                )
            )
        else:
            if batch is not None:
                self.queue.put(batch)

    def _commit(self, partition: Partition, client: int) -> None:
        try:
            partition.commit(client)
        except ExecutionError as error:
            self.end(error)
        else:
            self._clients[client]({"committed": True})

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._has_space.set)
        except RuntimeError:
            return  # the server has ended; nobody waits


class Stream:
    """The rows of one job, in batches, in the order in which they come; made by ``ResultsServer.open``.

    Iterate over it in one thread. Whoever runs the job calls :meth:`finish` or :meth:`fail` from another.
    Its id and its server's address travel to the tasks; ``within`` calls a function where the session lives.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        schema: pa.Schema,
        session: ResultSession,
        within: Callable[[Callable[[], None]], None],
    ) -> None:
        self.id = name
        self.address = address
        self.schema = schema
        self._session = session
        self._within = within

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self._session.queue.take()
        if batch is None:
            raise StopIteration
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def finish(self) -> None:
        """Say that the job has succeeded: the iteration ends after the last batch.

        If a task has started that never committed, the iteration raises an ExecutionError instead.
        """
        self._within(self._session.finish)

    def fail(self, error: BaseException) -> None:
        """Say that the job has failed: the iteration raises the error now. No effect on a closed one."""
        self._within(lambda: self._session.end(error))

    def close(self) -> None:
        """Take no more rows: tasks that send still fail, at their next batch."""
        self._within(lambda: self._session.end(None, drop=True))


class ResultsServer(Server):
    """Takes the results of any number of jobs until it is closed or the process ends.

    Args:
        host: What the clients shall connect to. A loopback address keeps it to this machine.
        port: TCP port to listen on; 0 takes a free one.
        bind: Address to listen on; None for the host.

    Attributes:
        address: Where the clients find it.

    Raises:
        ExecutionError: It cannot listen.
    """

    purpose: ClassVar[str] = "results"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> None:
        self._streams: dict[str, ResultSession] = {}
        super().__init__(host, port, bind)

    def open(self, schema: pa.Schema, most_waiting: int = MOST_WAITING, idle: float | None = None) -> Stream:
        """Return a new stream.

        Args:
            schema: Of its rows.
            most_waiting: Bytes of batches that wait for the consumer before the tasks have to.
            idle: Seconds for which tasks wait for a consumer that takes nothing; None for ever.

        Raises:
            ExecutionError: The server has been closed.
        """
        name = secrets.token_hex(8)

        def make() -> ResultSession:
            session = self._streams[name] = ResultSession(schema, self._loop, most_waiting, idle)
            return session

        def within(action: Callable[[], None]) -> None:
            def act() -> None:
                action()
                if session.queue.has_ended:
                    self._streams.pop(name, None)

            if self.running:
                self._within(act)

        session = self._within(make)
        return Stream(name, self.address_of(name), schema, session, within)

    def _scope(self, hello: codec.Message) -> str:
        return str(hello.get("results"))

    def _enter(self, hello: codec.Message) -> tuple[str, Session]:
        match hello:
            case {"results": str(name)}:
                session = self._streams.get(name)
            case _:
                raise ValueError("it did not introduce itself")
        if session is None or session.queue.has_ended:
            raise ValueError(f"stream {name!r} has ended, or the reader has closed it")
        return name, session

    async def _end(self) -> None:
        for session in self._streams.values():
            session.end(ExecutionError("the server of results has been closed"))
