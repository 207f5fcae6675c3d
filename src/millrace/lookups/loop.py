"""An event loop in a thread of its own, beside an eddy that must not wait.

All lookups of a task share one: their requests are under way while the eddy does other things.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from millrace.limits.event_loop import runner

_Started = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class Loop:
    """Runs coroutines until it is closed; the thread starts with the first one."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started: Future[_Started] = Future()

    def start(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        """Run a coroutine function in the loop; it is cancelled when the loop is closed."""

        async def run() -> Any:
            return await function()

        return asyncio.run_coroutine_threadsafe(run(), self._running())

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop, soon."""
        self._running().call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Cancel what runs, let it clean up, and end the thread."""
        if self._thread is not None:
            if self._started.exception() is None:
                loop, stop = self._started.result()
                loop.call_soon_threadsafe(stop.set)
            self._thread.join()
            self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._thread is None:
                self._started = Future()
                thread = threading.Thread(target=self._run, name="millrace lookups", daemon=True)
                thread.start()  # an error is the caller's, and nothing is there to be closed
                self._thread = thread
        return self._started.result()[0]

    def _run(self) -> None:
        try:
            with runner() as running:
                running.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()  # asyncio.run cancels all other tasks then, and waits for them
