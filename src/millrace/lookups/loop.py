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


class Loop:
    """Runs coroutines until it is closed; the thread starts with the first one."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

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
        if self._thread is None:
            return
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._thread is None:
                ready = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(ready,), name="millrace lookups", daemon=True
                )
                self._thread.start()
                ready.wait()
        assert self._loop is not None
        return self._loop

    def _run(self, ready: threading.Event) -> None:
        with runner() as running:
            running.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        ready.set()
        await self._stop.wait()  # asyncio.run cancels all other tasks then, and waits for them
