"""A thread for work on disk, beside an event loop that must never wait for a disk or a lock on a file.

Jobs run one after the other, in the order in which they were given; what is to be done in the event loop
once they have run (telling clients, counting) follows in that order too. Jobs that came while others ran
are reported together, so the loop is woken once for many.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

Job = Callable[[], None]
Effects = Callable[[], list[Job]]


class DiskThread:
    """Runs jobs in a daemon thread, which starts with the first one.

    Args:
        loop: Where effects run.
        effects: Called in the thread after some jobs; returns what they want done in the event loop.
        upkeep: Called in the thread now and then while there are jobs, and after them as long as it returns
            true; takes a fraction of a second.
        every: Seconds between two calls of it.

    Jobs, effects and upkeep catch what goes wrong in them: nobody else could tell who waits for them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        effects: Effects,
        upkeep: Callable[[], bool],
        every: float,
    ) -> None:
        self._loop = loop
        self._effects = effects
        self._upkeep = upkeep
        self._every = every
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = asyncio.Event()

    def put(self, job: Job) -> None:
        """Have a job done; does not wait.

        Raises:
            RuntimeError, OSError, MemoryError: There is no thread for it.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="millrace disk", daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread when all jobs have been done; does not wait."""
        if self._thread is None:
            self._ended.set()
        else:
            self._jobs.put(None)

    async def wait_closed(self) -> None:
        await self._ended.wait()

    def _work(self) -> None:
        due = float("inf")
        open_ = True
        while open_:
            for job in self._next(due - time.monotonic()):
                if job is None:
                    open_ = False
                else:
                    job()
                    due = min(due, time.monotonic() + self._every)
            if open_ and time.monotonic() >= due:
                due = time.monotonic() + self._every if self._upkeep() else float("inf")
            self._report([*self._effects()] if open_ else [*self._effects(), self._ended.set])

    def _next(self, seconds: float) -> list[Job | None]:
        """Return the jobs that have come, waiting for one until upkeep is due."""
        jobs: list[Job | None] = []
        with suppress(queue.Empty):
            jobs.append(self._jobs.get(timeout=None if seconds == float("inf") else max(0.0, seconds)))
            while True:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _report(self, effects: list[Job]) -> None:
        if effects:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(_do, effects)


def _do(effects: list[Job]) -> None:
    for effect in effects:
        effect()
