"""Blocking calls in threads, that nobody has to wait for.

The executor of the standard library is joined when the process ends, and a call that never returns keeps its
place in it. Here a new thread begins when all others are busy, and none keeps the process alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from millrace.lookups.source import Refused

ABANDONED = 32
"""Calls that were given up and have not returned; with more, no further one is begun."""

_T = TypeVar("_T")
_Calls = SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]


class Threads:
    """Runs calls in daemon threads; to be used in one event loop.

    The thread that was the last to become free does the next call. So calls that follow each other, with none
    beside them, are done by one thread: a generator may hold what is bound to it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: list[_Calls] = []
        self._free: list[_Calls] = []
        self._abandoned: set[Future[Any]] = set()

    async def run(self, function: Callable[[], _T]) -> _T:
        """Return what the function returns, called in a thread that does nothing else meanwhile.

        If the caller is cancelled, the call goes on, and its result is dropped.

        Raises:
            Refused: Too many calls were given up before and have not returned.
        """
        if len(self._abandoned) >= ABANDONED:
            raise Refused(
                "stuck", f"{len(self._abandoned)} earlier calls of {self._name} have not returned", again=True
            )
        free = self._free.pop() if self._free else None
        calls = free if free is not None and free in self._threads else self._start()
        answer: Future[_T] = Future()
        answer.set_running_or_notify_cancel()  # whoever stops waiting does not stop the call
        calls.put((function, answer))
        waited = asyncio.wrap_future(answer)
        waited.add_done_callback(lambda each: each.cancelled() or each.exception())  # it is known
        try:
            return await waited
        except asyncio.CancelledError:
            self._abandoned.add(answer)
            answer.add_done_callback(self._abandoned.discard)
            raise

    def close(self) -> None:
        """End the threads that have nothing to do, and the others once they have returned."""
        for calls in self._threads:
            calls.put(None)
        self._threads.clear()

    def _start(self) -> _Calls:
        calls: _Calls = SimpleQueue()
        self._threads.append(calls)
        threading.Thread(target=self._work, args=(calls,), name=self._name, daemon=True).start()
        return calls

    def _work(self, calls: _Calls) -> None:
        while (call := calls.get()) is not None:
            tell = _call(*call)
            self._free.append(calls)  # first: whoever hears of it may have the next call
            tell()
            del call, tell


def _call(function: Callable[[], _T], answer: Future[_T]) -> Callable[[], None]:
    """Call a function; return what tells whoever waits for its answer."""
    try:
        return partial(answer.set_result, function())
    except BaseException as error:  # noqa: BLE001  # whatever it is, the caller gets it
        if isinstance(error, StopIteration | CancelledError) or not isinstance(error, Exception):
            # Futures and event loops have other uses for these.
            return partial(answer.set_exception, RuntimeError(f"{type(error).__name__}: {error}"))
        return partial(answer.set_exception, error)


def within(seconds: float, function: Callable[[], _T]) -> _T:
    """Return what a blocking function returns, called in a thread.

    Raises:
        TimeoutError: It has not returned in time; it goes on alone.
    """
    answer: Future[_T] = Future()
    threading.Thread(target=lambda: _call(function, answer)(), daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():
            raise
        raise TimeoutError(f"not done within {seconds:g} s") from None
