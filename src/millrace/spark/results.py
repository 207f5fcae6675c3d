"""Results on their way from tasks to the process that planned the query, while the job runs.

A server in that process has a stream for each job, and a sink in each task sends to it:

===========================  =================================================
task                         session
===========================  =================================================
``Start``                    ``Wanted``: whether the partition is needed still
``Batch``
``EarlyRows``, which nothing counts
``Commit``                   ``Committed``
(nothing)                    ``Preferred``: what is wanted first from now on
(nothing)                    ``Lost``: why no rows are wanted any more
===========================  =================================================

The welcome has the rows' schema. It is not the coordinator that serves, so that rows on their way do not hold
up whoever waits for a turn.

**Each row of a partition arrives exactly once, although its task may run more than once.** Spark runs a task
again when it was lost, and may run it twice at once (speculation). Every attempt has the same multiset of
rows, in any order. So the invariant: what has been delivered is, row by row, the maximum over all attempts of
how often each has sent the row. A row counts when it comes from whichever attempt is ahead; the others repeat
it. At a commit the attempt has sent everything, so nothing else may have been delivered.

With one attempt, which is nearly always, there is nothing to compare: its batches go into a file as
they came (in memory while they are few), to be counted if another attempt should send rows. From then
on rows are counted by their digests, in Python, some 150 bytes in memory a row.
"""

from __future__ import annotations

import asyncio
import pickle
import queue
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from io import BytesIO
from typing import IO, TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.types as pt

from millrace.engine.arrays import array_of
from millrace.engine.plan.expressions import Predicate
from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.chunk import digest, encoded
from millrace.limits.connection import CONNECT_SECONDS, lost, unreachable
from millrace.limits.messages import (
    EARLY,
    Batch,
    Commit,
    Committed,
    EarlyRows,
    Hello,
    JoinBoard,
    JoinStream,
    Lost,
    Message,
    Preferred,
    Start,
    Wanted,
    Welcome,
)
from millrace.limits.registration import Address
from millrace.limits.server import Server
from millrace.limits.session import Session
from millrace.limits.tls import dial

if TYPE_CHECKING:
    from millrace.reports.board.board import Board

IN_MEMORY = 1 << 20
"""Bytes of a partition that are kept in memory before the file is made."""

MOST_WAITING = 1 << 26
"""Bytes of batches that wait for the consumer before the tasks have to."""

_PURPOSE = "results"

# Rows of a partition


class Partition:
    """What has been delivered of one partition, and whether that is all of it: ``committed``."""

    def __init__(self, number: int) -> None:
        self.committed = False
        self._number = number
        self._only: int | None = None
        # Batches, one behind the other: in memory, and in a file without a name once they are many.
        self._kept: IO[bytes] = BytesIO()
        self._lengths: list[int] = []
        self._delivered: Counter[bytes] = Counter()
        self._sent: dict[int, Counter[bytes]] = {}

    def accept(self, attempt: int, payload: bytes) -> pa.RecordBatch | None:
        """Return the rows of a batch (an Arrow IPC stream) that no attempt has sent before; None for none.

        ValueError if it is no batch, OSError if the file cannot be written.
        """
        if self.committed:
            return None
        if not self._sent and self._only in (None, attempt):
            self._only = attempt
            batch = _unpack(payload)
            self._keep(payload)
            return batch
        if not self._sent:
            self._count()
        batch = _unpack(payload)
        new = self._new(self._sent.setdefault(attempt, Counter()), row_keys(batch))
        return batch.take(array_of(new, pa.int64())) if new else None

    def commit(self, attempt: int) -> None:
        """Note that an attempt has sent all its rows; ExecutionError if another one had sent others."""
        if self.committed:
            return
        if self._only not in (None, attempt) and not self._sent:
            self._count()
        if self._sent and self._delivered != self._sent.get(attempt, Counter()):
            raise ExecutionError(
                f"partition {self._number} ran more than once, with other rows each time: its rows depend on "
                "more than its input (a random value, the time, a source that changed). Collect the "
                "result without streaming it, or make what it depends on the same in every attempt"
            )
        self.committed = True
        self.close()

    def close(self) -> None:
        self._delivered, self._sent, self._lengths = Counter(), {}, []
        with suppress(OSError):  # what could not be written is of no use any more
            self._kept.close()

    def _keep(self, payload: bytes) -> None:
        if isinstance(self._kept, BytesIO) and self._kept.tell() + len(payload) > IN_MEMORY:
            in_memory, self._kept = self._kept, tempfile.TemporaryFile()  # noqa: SIM115  # closed above
            self._kept.write(in_memory.getbuffer())
        self._kept.write(payload)
        self._kept.flush()  # so that what does not fit fails here
        self._lengths.append(len(payload))

    def _count(self) -> None:
        assert self._only is not None
        sent: Counter[bytes] = Counter()
        self._kept.seek(0)
        for payload in map(self._kept.read, self._lengths):
            sent.update(row_keys(_unpack(payload)))
        self.close()
        self._delivered, self._sent = sent.copy(), {self._only: sent}

    def _new(self, sent: Counter[bytes], keys: list[bytes]) -> list[int]:
        """Count what an attempt has sent; returns the positions of rows that were not delivered yet."""
        new = []
        for position, key in enumerate(keys):
            sent[key] += 1
            if sent[key] > self._delivered[key]:
                self._delivered[key] = sent[key]
                new.append(position)
        return new


def _unpack(payload: bytes) -> pa.RecordBatch:
    """Return the batch in an Arrow IPC stream, without copying it; ValueError if there is none."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            return reader.read_next_batch()
    except (StopIteration, OSError) as error:
        raise ValueError(f"no batch: {error}") from error


def row_keys(batch: pa.RecordBatch) -> list[bytes]:
    """Return a digest of each row.

    Two rows have the same one exactly if all their values are the same: null only equals null, every NaN is
    the same NaN, 0.0 and -0.0 differ, nested values are compared likewise.
    """
    if batch.num_columns == 0:
        return [digest(())] * batch.num_rows
    columns = [column.cast(_plain_type(column.type)).to_pylist() for column in batch.columns]
    return [digest(row) for row in zip(*columns, strict=True)]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type whose values Python can all hold: times beyond its years become integers."""
    if pt.is_date32(kind) or pt.is_time32(kind):
        return pa.int32()
    if pt.is_temporal(kind) and not pt.is_interval(kind):
        return pa.int64()
    if pt.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


# The process that wants rows


class Stream(Session, AbstractContextManager["Stream"]):
    """The rows of one job, in batches, in the order in which they come; made by ``DriverServer.open``.

    Each client is an attempt of a task; what they say is handled in the server's loop. Iterate over it in one
    other thread. Whoever runs the job calls :meth:`finish` or :meth:`fail`, from any. Its id and its server's
    address travel to the tasks.
    """

    def __init__(
        self, server: DriverServer, schema: pa.Schema, most_waiting: int, idle: float | None
    ) -> None:
        super().__init__()
        self.id = secrets.token_hex(8)
        self.address = server.address_of(self.id)
        self.has_ended = False
        self._server = server
        self._schema = schema
        self._most_waiting = most_waiting
        self._idle = idle
        self._batches: queue.SimpleQueue[pa.RecordBatch | None] = queue.SimpleQueue()
        # In bytes. Only the server's loop adds to the first, and only the consumer to the second.
        self._arrived = self._taken = 0
        self._error: BaseException | None = None
        self._is_dropped = False
        self._has_space = asyncio.Event()
        self._partitions: dict[int, Partition] = {}
        self._tasks: dict[int, Partition] = {}
        self._preferred: Preferred | None = None

    @property
    def is_full(self) -> bool:
        """Whether tasks have to wait until the consumer has taken some."""
        return self._arrived - self._taken >= self._most_waiting and not self.has_ended

    def welcome(self) -> Welcome:
        return Welcome(schema=self._schema.serialize().to_pybytes())

    def is_ready(self, client: int) -> bool:
        return not self.is_full

    async def ready(self, client: int) -> None:
        """Wait until the consumer has taken some; end the stream if it takes nothing at all for too long."""
        while self.is_full:
            self._has_space.clear()
            taken = self._taken
            try:
                async with asyncio.timeout(self._idle):
                    if self.is_full:  # the consumer looks at the event behind what it has taken
                        await self._has_space.wait()
            except TimeoutError:
                if self._taken == taken:
                    self.end(
                        ExecutionError(
                            f"the reader of to_batches has taken no rows for {self._idle:g} s, so its tasks "
                            "were stopped: read on sooner, or set `idle_timeout` to more seconds, or None"
                        )
                    )

    def leave(self, client: int) -> None:
        """Let a task go; what it sent stays delivered."""
        super().leave(client)
        self._tasks.pop(client, None)

    def handle(self, client: int, message: Message) -> None:
        """Do what a task's message says; ValueError if no task of ours would say that."""
        if self.has_ended:
            return
        match message, self._tasks.get(client):
            case Start(partition=number), None:
                partition = self._partitions.setdefault(number, Partition(number))
                self._tasks[client] = partition
                if self._preferred is not None:
                    self._clients[client](self._preferred)
                self._clients[client](Wanted(not partition.committed))
            case Batch(rows=payload), Partition() as partition:
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
                        self._arrived += batch.nbytes + 1
                        self._batches.put(batch)
            case EarlyRows(rows=payload), Partition() as partition:
                if not partition.committed:
                    batch = _unpack(payload)
                    self._arrived += batch.nbytes + 1
                    self._batches.put(batch.replace_schema_metadata({EARLY: b""}))
            case Commit(), Partition() as partition:
                try:
                    partition.commit(client)
                except ExecutionError as error:
                    self.end(error)
                else:
                    self._clients[client](Committed())
            case _:
                raise ValueError(f"{type(message).__name__} is not to be said now")

    def end(self, error: BaseException | None, *, drop: bool = False) -> None:
        """End it after what has come, and let tasks that send still stop; the first end counts.

        An error is raised to the consumer in the place of what waits; ``drop`` says that it wants none of it.
        """
        if not self.has_ended:
            self.has_ended, self._error, self._is_dropped = True, error, error is not None
        self._is_dropped |= drop
        self._batches.put(None)
        self._has_space.set()
        for partition in self._partitions.values():
            partition.close()
        reason = "it has ended" if error is None else f"it has failed ({type(error).__name__})"
        for deliver in self._clients.values():
            deliver(Lost("the reader has closed it" if drop else reason))

    def _end_complete(self) -> None:
        missing = sorted(number for number, partition in self._partitions.items() if not partition.committed)
        shown = ", ".join(map(str, missing[:10]))
        why = f"the job is over, but these partitions were not sent to their end: {shown}"
        self.end(ExecutionError(why) if missing else None)

    # Whatever follows is called outside of the server's loop.

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self._batches.get()
        if batch is None or self._is_dropped:
            self._batches.put(None)  # for whoever asks again
            raise StopIteration() if self._error is None else self._error
        self._taken += batch.nbytes + 1
        if not self._has_space.is_set() and not self.is_full:
            self._server.wake(self._has_space)
        return batch

    def __exit__(self, *_: object) -> None:
        self.close()

    def finish(self) -> None:
        """Say that the job has succeeded: the iteration ends after the last batch.

        If a task has started that never committed, the iteration raises an ExecutionError instead.
        """
        self._server.act(self, self._end_complete)

    def fail(self, error: BaseException) -> None:
        """Say that the job has failed: the iteration raises the error now. No effect on a closed one."""
        self._server.act(self, lambda: self.end(error))

    def prefer(self, wanted: Sequence[Predicate]) -> None:
        """Tell all tasks what is wanted first from now on, also those that start later."""
        message = Preferred(pickle.dumps(tuple(wanted), -1))

        def tell() -> None:
            self._preferred = message
            for client in self._tasks:
                self._clients[client](message)

        self._server.act(self, tell)

    def close(self) -> None:
        """Take no more rows: tasks that send still fail, at their next batch."""
        self._server.act(self, lambda: self.end(None, drop=True))


class DriverServer(Server):
    """Takes results of any number of jobs, and figures of their tasks while they work; see :class:`Server`.

    Attributes:
        board: What figures are told to; of all servers of this process. Without one nobody may tell them.
    """

    purpose: ClassVar[str] = _PURPOSE
    board: ClassVar[Board | None] = None

    def __init__(self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> None:
        self._streams: dict[str, Stream] = {}
        super().__init__(host, port, bind)

    def open(self, schema: pa.Schema, most_waiting: int = MOST_WAITING, idle: float | None = None) -> Stream:
        """Return a new stream of rows.

        So many bytes of batches wait for the consumer before the tasks have to; tasks wait so many ``idle``
        seconds for a consumer that takes nothing, None for ever. ExecutionError if the server is closed.
        """
        stream = Stream(self, schema, most_waiting, idle)
        self._within(lambda: self._streams.update({stream.id: stream}))
        return stream

    def act(self, stream: Stream, action: Callable[[], None]) -> None:
        """Do something to a stream, in the server's loop, which forgets it when it has ended."""

        def run() -> None:
            action()
            if stream.has_ended:
                self._streams.pop(stream.id, None)

        if self.running:
            self._within(run)

    def wake(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the server has ended; nobody waits
            self._loop.call_soon_threadsafe(event.set)

    def _scope(self, hello: Hello) -> str:
        if isinstance(hello, JoinBoard):
            return hello.run
        return hello.stream if isinstance(hello, JoinStream) else ""

    def _enter(self, hello: Hello) -> tuple[str, Session]:
        if isinstance(hello, JoinBoard):
            from millrace.reports.board.board import TaskFigures  # what tasks do not need

            return hello.run, TaskFigures(self.board, hello)
        if not isinstance(hello, JoinStream):
            raise ValueError("it wants no results")  # noqa: TRY004  # it came in a message
        name, session = hello.stream, self._streams.get(hello.stream)
        if session is None or session.has_ended:
            raise ValueError(f"stream {name!r} has ended, or the reader has closed it")
        return name, session

    async def _end(self) -> None:
        for session in self._streams.values():
            session.end(ExecutionError("the server of results has been closed"))


# Tasks


class ResultsSink(AbstractContextManager["ResultsSink"]):
    """One attempt to send one partition of a stream; every sink is an attempt of its own.

    ``wanted`` is False if another attempt has sent all rows of this partition, so that these need not be
    computed; sending them all the same has no effect. ``preferred`` is what the reader has said it wants
    first, None before it has said so; it may be asked between batches. ExecutionError if the server cannot be
    reached, the stream has ended or was closed, or the server is gone.
    """

    def __init__(self, address: Address, stream: str, partition: int, attempt: int) -> None:
        self._address = address
        self._preferred: tuple[Predicate, ...] | None = None
        try:
            hello = JoinStream(address.token, stream)
            self._connection, welcome = dial(address, hello, _PURPOSE, CONNECT_SECONDS, may_stall=True)
        except (OSError, EOFError, ValueError) as error:
            raise unreachable(address, _PURPOSE, error) from error
        with ExitStack() as on_failure:
            on_failure.enter_context(self._connection)
            self._connection.settimeout(None)
            self._schema = pa.ipc.read_schema(pa.py_buffer(welcome.schema))
            self._send(Start(partition, attempt))
            answer = self._answer()
            self.wanted = isinstance(answer, Wanted) and answer.wanted
            on_failure.pop_all()

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, batch: pa.RecordBatch, message: type[Batch | EarlyRows] = Batch) -> None:
        """Send rows; waits while the consumer has enough of them.

        ExecutionError also if the batch has another schema than the stream, or a single row is too large.
        """
        batch = self._as_agreed(batch)
        rows = max(1, int(batch.num_rows * codec.USUAL_ATTACHMENT / max(batch.nbytes, 1)))
        for low in range(0, batch.num_rows, rows):
            self._send_rows(batch.slice(low, rows), message)

    def _send_rows(self, batch: pa.RecordBatch, message: type[Batch | EarlyRows]) -> None:
        """Send rows in one message, in more where some are much larger than others."""
        self._check_open()
        payload = encoded(batch)
        if len(payload) <= codec.LARGEST_ATTACHMENT:
            self._send(message(payload))
        elif batch.num_rows > 1:
            half = batch.num_rows // 2
            self._send_rows(batch.slice(0, half), message)
            self._send_rows(batch.slice(half), message)
        else:
            raise ExecutionError(
                f"a row of the result takes {len(payload)} bytes, expected at most "
                f"{codec.LARGEST_ATTACHMENT}: collect the result without streaming it"
            )

    @property
    def preferred(self) -> tuple[Predicate, ...] | None:
        self._check_open()
        return self._preferred

    def commit(self) -> None:
        """Say that these were all rows; returns when they have arrived."""
        self._send(Commit())
        self._answer()

    def close(self) -> None:
        """Leave; without a commit before, another attempt will have to send the rows."""
        self._connection.close()

    def _as_agreed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with exactly the stream's schema; columns may be nullable or not."""
        if batch.schema.equals(self._schema):
            return batch
        if (batch.schema.names, batch.schema.types) != (self._schema.names, self._schema.types):
            own, agreed = (
                ", ".join(f"{field.name} {field.type}" for field in schema)
                for schema in (batch.schema, self._schema)
            )
            raise ExecutionError(f"a task's rows have the columns {own}, expected {agreed}")
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _send(self, message: Message) -> None:
        try:
            codec.send(self._connection, message)
        except OSError as error:
            self._check_open()  # it may have said why
            raise lost(self._address, _PURPOSE, error) from error

    def _receive(self) -> Message:
        try:
            message = codec.receive(self._connection)
        except (OSError, EOFError, ValueError) as error:
            raise lost(self._address, _PURPOSE, error) from error
        if isinstance(message, Lost):
            raise ExecutionError(f"the stream of results takes no more rows: {message.why}")
        return message

    def _answer(self) -> Message:
        """Return what the server answers; what it has said before is noted."""
        while isinstance(message := self._receive(), Preferred):
            self._note(message)
        return message

    def _note(self, message: Message) -> None:
        if isinstance(
            message, Preferred
        ):  # of the process that made this task's function, as TLS has checked
            self._preferred = pickle.loads(message.predicates)  # noqa: S301

    def _check_open(self) -> None:
        """Note what the server has said; raise if that is that the stream is closed."""
        while codec.has_spoken(self._connection):
            self._note(self._receive())
