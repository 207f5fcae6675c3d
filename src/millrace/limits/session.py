"""What clients of a server share: a session that they join, speak to and leave.

A session lives in one event loop, and is the same whether its clients sit in other processes
(:mod:`millrace.limits.server`) or in this one. Work of some goes to a thread, in order: what a job does
there belongs to the thread; what is to be said and counted belongs to the event loop, and is done there, in
the same order, once the job is done.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar

from millrace.errors import ExecutionError
from millrace.limits.messages import Message, Welcome

Deliver = Callable[[Message], None]
Job = Callable[[], object]


class Session(ABC):
    """Clients by number, and how messages reach them."""

    def __init__(self) -> None:
        self._clients: dict[int, Deliver] = {}
        self._numbers = count()

    @property
    def empty(self) -> bool:
        return not self._clients

    def join(self, deliver: Deliver) -> int:
        """Let a client in, and return its number; messages for it go to ``deliver``."""
        number = next(self._numbers)
        self._clients[number] = deliver
        return number

    def leave(self, client: int) -> None:
        del self._clients[client]

    @abstractmethod
    def handle(self, client: int, message: Message) -> None:
        """Do what a client's message says.

        Raises:
            ValueError: It says nothing that a client of ours would say.
        """

    def welcome(self) -> Welcome:
        """Return what a client hears first."""
        return Welcome()

    def is_ready(self, client: int) -> bool:
        """Return whether the session can take the client's next message; meanwhile the client has to wait."""
        return True  # most can always

    async def ready(self, client: int) -> None:  # noqa: B027  # likewise
        """Wait until it can."""

    async def done(self, client: int) -> None:  # noqa: B027  # likewise
        """Wait until all that the client has said is done."""


T = TypeVar("T")

_MOST_QUEUED = 1 << 24
"""Bytes of a client's messages that wait for the disk, from which on it has to wait itself."""

_BYTES_A_JOB = 1 << 10
"""That a message takes beside its attachment, roughly."""


class OrderedSession(Session):
    """Does jobs in the order in which they were given, in a daemon thread or at once.

    What is to be done in the event loop once they have run (telling clients, counting) follows in that order
    too. Jobs that came while others ran are reported together, so the loop is woken once for many.

    Args:
        loop: The event loop that the session lives in, if jobs are to be done in a thread, which starts with
            the first one. Without one they are done where they come up, for clients that have nobody beside
            them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__()
        self._loop = loop
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = asyncio.Event()
        self._effects: list[Job] = []
        self._queued: Counter[int] = Counter()
        self._progressed = asyncio.Event()

    def is_ready(self, client: int) -> bool:
        """Return whether most of what the client has said before is done."""
        return self._queued.get(client, 0) <= _MOST_QUEUED

    async def ready(self, client: int) -> None:
        """Wait until it is."""
        await self._until(client, _MOST_QUEUED)

    async def done(self, client: int) -> None:
        """Wait until all that the client has said is done, and counted."""
        await self._until(client, 0)

    async def _until(self, client: int, queued: int) -> None:
        while self._queued[client] > queued:
            self._progressed.clear()
            await self._progressed.wait()

    async def wait_closed(self) -> None:
        """Wait until all has been written and removed."""
        await self._ended.wait()

    def _end_thread(self) -> None:
        """End the thread when its jobs are done; does not wait."""
        if self._thread is None:
            self._ended.set()
        else:
            self._jobs.put(None)

    @abstractmethod
    def _broke(self, error: Exception) -> None:
        """Let everyone hear that this is over: a job, or what was to be done after one, has raised."""

    def _do(self, job: Job) -> None:
        """Do something, and then its effects. If it raises, the session is over: nobody knows what it did."""
        if self._loop is not None:
            try:
                if self._thread is None:
                    thread = threading.Thread(target=self._work, name="millrace disk", daemon=True)
                    thread.start()
                    self._thread = thread
                self._jobs.put(job)
                return
            except Exception as error:  # noqa: BLE001  # no thread: a job that is never done has failed
                self._broke(error)
        self._try(job)
        self._have(self._taken_effects())

    def _work(self) -> None:
        """Do jobs until the last one is done, in the thread."""
        assert self._loop is not None
        open_ = True
        while open_:
            jobs = [self._jobs.get()]
            with suppress(queue.Empty):
                while True:
                    jobs.append(self._jobs.get_nowait())
            for job in jobs:
                if job is None:
                    open_ = False
                    self._later(self._ended.set)
                else:
                    self._try(job)
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._have, self._taken_effects())

    def _try(self, job: Job) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001  # whatever it is, somebody may wait for it
            self._later(self._broke, error)

    def _result(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Return what a function will have returned that is called when its turn comes, where jobs are done.

        It is lined up at once, so that it is done though the session is closed meanwhile.

        Raises:
            ExecutionError: When it is waited for: it has raised.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def work() -> None:
            try:
                self._later(tell, future.set_result, function())
            except Exception as error:  # noqa: BLE001  # the caller's
                self._later(tell, future.set_exception, ExecutionError(f"{type(error).__name__}: {error}"))

        def tell(how: Callable[[Any], None], what: object) -> None:
            if not future.done():
                how(what)

        self._do(work)
        return future

    def _taken_effects(self) -> list[Job]:
        taken, self._effects = self._effects, []
        return taken

    def _have(self, effects: list[Job]) -> None:
        for effect in effects:
            try:
                effect()
            except Exception as error:  # noqa: BLE001  # the others are for others
                self._broke(error)

    def _later(self, effect: Callable[..., None], *values: Any) -> None:
        """Have something done in the event loop."""
        self._effects.append(partial(effect, *values))

    def _say(self, client: int, message: Message) -> None:
        """Tell a client something, unless it has left by then."""

        def deliver() -> None:
            if client in self._clients:
                self._clients[client](message)

        self._effects.append(deliver)

    def _do_for(self, client: int, job: Job, attached: int = 0) -> None:
        """Do what a client has said, with rows and keys of so many bytes."""
        size = _BYTES_A_JOB + attached
        self._queued[client] += size

        def work() -> None:
            try:
                job()
            finally:
                self._later(self._done, client, size)

        self._do(work)

    def _done(self, client: int, size: int) -> None:
        self._queued[client] -= size
        if not self._queued[client]:
            del self._queued[client]
        self._progressed.set()
