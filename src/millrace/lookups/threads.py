"""Blocking calls in threads, that nobody has to wait for.

The executor of the standard library is joined when the process ends, and a call that never returns keeps its
place in it. Here a call that is not wanted any more gives its place to a new thread, and no thread keeps the
process alive.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from millrace.lookups.source import Refused

ABANDONED = 32
"""Calls that were given up and have not returned; with more, no further one is begun."""

_T = TypeVar("_T")


@dataclass
class _Call:
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class Threads:
    """Runs calls in daemon threads; to be used in one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[queue.SimpleQueue[_Call | None]] = []
        self._busy: set[queue.SimpleQueue[_Call | None]] = set()
        self._abandoned = 0
        self._closed = False

    async def run(self, function: Callable[[], _T]) -> _T:
        """Return what the function returns, called in a thread that does nothing else meanwhile.

        If the caller is cancelled, the call goes on, and its result is dropped.

        Raises:
            Refused: Too many calls were given up before and have not returned.
        """
        if self._abandoned >= ABANDONED:
            raise Refused(
                "stuck", f"{self._abandoned} earlier calls of {self._name} have not returned", again=True
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        calls = self._idle.pop() if self._idle else self._started()
        calls.put(_Call(function, loop, answer))
        self._busy.add(calls)
        try:
            result: _T = await asyncio.shield(answer)
        except asyncio.CancelledError:
            if answer.done():
                self._release(calls, answer)
            else:
                self._abandoned += 1
                answer.add_done_callback(lambda done: self._returned(calls, done))
            raise
        except BaseException:
            self._rest(calls)
            raise
        self._rest(calls)
        return result

    def close(self) -> None:
        """End the threads that have nothing to do, and the others once they have returned."""
        self._closed = True
        # Those that are busy too: when they return, the event loop that heard of it may be closed.
        for calls in (*self._idle, *self._busy):
            calls.put(None)
        self._idle.clear()

    def _started(self) -> queue.SimpleQueue[_Call | None]:
        calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(calls,), name=self._name, daemon=True).start()
        return calls

    def _rest(self, calls: queue.SimpleQueue[_Call | None]) -> None:
        self._busy.discard(calls)
        if not self._closed:
            self._idle.append(calls)

    def _returned(self, calls: queue.SimpleQueue[_Call | None], answer: asyncio.Future[Any]) -> None:
        self._abandoned -= 1
        self._release(calls, answer)

    def _release(self, calls: queue.SimpleQueue[_Call | None], answer: asyncio.Future[Any]) -> None:
        self._busy.discard(calls)
        calls.put(None)
        if not answer.cancelled():
            answer.exception()  # it is known, and nobody's


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        result, error = None, None
        try:
            result = call.function()
        except BaseException as raised:  # noqa: BLE001  # whatever it is, the caller gets it
            error = raised
        try:
            call.loop.call_soon_threadsafe(_tell, call.answer, result, error)
        except RuntimeError:
            return  # the loop is closed: nobody wants to know
        del call, result, error


def _tell(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
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
