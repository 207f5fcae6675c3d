"""One stream of results: the tasks that send, and the queue to the consumer.

=======================================  ==========================================================
task                                     session
=======================================  ==========================================================
``start`` = [partition, attempt]         ``wanted``: whether the partition's rows are needed still
``batch``; an Arrow IPC stream
``commit``                               ``committed``
(nothing)                                ``lost`` = why no rows are wanted any more
=======================================  ==========================================================

The welcome has the rows' schema.
"""

from __future__ import annotations

import asyncio
import tempfile

import pyarrow as pa

from millrace.errors import ExecutionError
from millrace.limits.codec import Message
from millrace.limits.session import Session
from millrace.spark.results.partition import Partition
from millrace.spark.results.waiting import Waiting

MOST_WAITING = 1 << 26
"""Bytes of batches that wait for the consumer before the tasks have to."""


class ResultSession(Session):
    """The tasks of one stream.

    Args:
        schema: Of the rows.
        loop: Where the session lives.
        most_waiting: Bytes of batches that wait for the consumer before the tasks have to.
        idle: Seconds for which tasks wait for a consumer that takes nothing; None for ever.
    """

    def __init__(
        self, schema: pa.Schema, loop: asyncio.AbstractEventLoop, most_waiting: int, idle: float | None = None
    ) -> None:
        super().__init__()
        self._schema = schema
        self._loop = loop
        self._idle = idle
        self._room = asyncio.Event()
        self._partitions: dict[int, Partition] = {}
        self._tasks: dict[int, tuple[Partition, int]] = {}
        self.waiting = Waiting(most_waiting, self._wake)

    def welcome(self) -> Message:
        """Return what a task hears first: the schema."""
        return {"welcome": True, "attachment": self._schema.serialize().to_pybytes()}

    async def ready(self, client: int) -> None:
        """Wait until the consumer has taken some of what waits for it."""
        while self.waiting.full:
            self._room.clear()
            if self.waiting.full:  # it may have been emptied in between, by another thread
                await self._emptier()

    async def _emptier(self) -> None:
        """Wait until there is room; end the stream if nothing at all is taken for too long."""
        taken = self.waiting.taken
        try:
            async with asyncio.timeout(self._idle):
                await self._room.wait()
        except TimeoutError:
            if self.waiting.taken == taken:
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
        if self.waiting.ended:
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
        missing = sorted(number for number, each in self._partitions.items() if not each.committed)
        if missing:
            shown = ", ".join(map(str, missing[:10]))
            self.end(
                ExecutionError(f"the job is over, but these partitions were not sent to their end: {shown}")
            )
        else:
            self.end(None)

    def end(self, error: BaseException | None, *, drop: bool = False) -> None:
        """End the stream, and let tasks that send still stop."""
        self.waiting.end(error, drop=drop)
        self._room.set()
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
                self.waiting.put(batch)

    def _commit(self, partition: Partition, client: int) -> None:
        try:
            partition.commit(client)
        except ExecutionError as error:
            self.end(error)
        else:
            self._clients[client]({"committed": True})

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._room.set)
        except RuntimeError:
            return  # the server has ended; nobody waits
