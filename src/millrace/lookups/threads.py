"""Blocking calls in threads, that nobody has to wait for.

The executor of the standard library is joined when the process ends, and a call that never returns keeps its
place in it. Here a new thread begins when all others are busy, and none keeps the process alive. Calls that
follow each other are done by the same thread: a generator may hold what is bound to it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from millrace.lookups.source import Refused

ABANDONED = 32
"""Calls that were given up and have not returned; with more, no further one is begun."""

_T = TypeVar("_T")
_Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


class Threads:
    """Runs calls in daemon threads; to be used in one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = self._idle = 0
        self._abandoned: set[asyncio.Future[Any]] = set()

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
        if self._idle:
            self._idle -= 1
        else:
            threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
            self._threads += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        answer.add_done_callback(self._returned)
        self._calls.put((function, loop, answer))
        try:
            result: _T = await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not answer.done():
                self._abandoned.add(answer)
            raise
        return result

    def close(self) -> None:
        """End the threads that have nothing to do, and the others once they have returned."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _returned(self, answer: asyncio.Future[Any]) -> None:
        self._idle += 1
        self._abandoned.discard(answer)
        answer.exception()  # it is known, also where nobody waits for it


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        function, loop, answer = call
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001  # whatever it is, the caller gets it
            error = raised
        try:
            loop.call_soon_threadsafe(_tell, answer, result, error)
        except RuntimeError:
            return  # the loop is closed: nobody wants to know
        del call, function, answer, result, error


def _tell(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if isinstance(error, StopIteration) or not isinstance(error, Exception | None):
        # Futures and event loops have other uses for these.
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def within(seconds: float, function: Callable[[], _T]) -> _T:
    """Return what a blocking function returns, called in a thread.

    Raises:
        TimeoutError: It has not returned in time; it goes on alone.
    """
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            done.put((function(), None))
        except BaseException as raised:  # noqa: BLE001  # whatever it is, the caller gets it
            done.put((None, raised))

    threading.Thread(target=work, daemon=True).start()
    try:
        result, error = done.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"not done within {seconds:g} s") from None
    if error is not None:
        raise error
    returned: _T = result
    return returned
