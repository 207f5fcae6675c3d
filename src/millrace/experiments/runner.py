"""Running experiments: on the virtual clock side by side in processes, on the wall clock one at a time.

An experiment draws all its random numbers from its own seed, so what it finds does not depend on which
process runs it, nor on what runs beside it. Those that measure real time wait until all others have ended.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from millrace.errors import ExecutionError, MillraceError
from millrace.experiments.result import Result, Task

_STEP = 0.01
"""Shares of progress smaller than this are not reported."""

_PATIENCE = 1.0
"""Seconds to wait for the last words of the processes."""


class Watch(Protocol):
    """Is told how far runs are."""

    def began(self, name: str) -> None:
        """An experiment begins."""

    def reached(self, name: str, share: float) -> None:
        """So much of it is done, 0 to 1."""

    def ended(self, name: str) -> None:
        """It has come to its end."""


class Silence(Watch):
    """Tells nobody."""


def cores() -> int:
    """Return how many processes are worth having."""
    return os.cpu_count() or 1


def run(tasks: Sequence[Task], jobs: int, watch: Watch) -> Iterator[Result]:
    """Yield results as runs come to their ends, which with several jobs is in any order.

    A run that fails for a reason that its message explains becomes a result like any other. Closing the
    iterator, or an exception such as KeyboardInterrupt, ends the processes.

    Args:
        tasks: The runs.
        jobs: At most so many processes at a time.
        watch: Is told how far they are.

    Raises:
        ExecutionError: A process died.
    """
    virtual = [task for task in tasks if not task.experiment.wall]
    if jobs > 1 and len(virtual) > 1:
        yield from _beside(virtual, min(jobs, len(virtual)), watch)
    else:
        yield from (_here(task, watch) for task in virtual)
    yield from (_here(task, watch) for task in tasks if task.experiment.wall)


def _here(task: Task, watch: Watch) -> Result:
    name = task.experiment.id
    watch.began(name)
    try:
        return _finished(task, lambda share: watch.reached(name, share))
    finally:
        watch.ended(name)


def _finished(task: Task, progress: Callable[[float], None]) -> Result:
    """Run a task; what our errors explain is part of the result, other errors are not."""
    began = time.perf_counter()
    outcome, error = None, ""
    try:
        outcome = task.experiment.run(replace(task.settings, progress=progress))
    except MillraceError as raised:
        error = str(raised)
    return Result(task, outcome, error, time.perf_counter() - began)


def _beside(tasks: Sequence[Task], jobs: int, watch: Watch) -> Iterator[Result]:
    """Run tasks in processes of their own, started afresh so that they share nothing."""
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    with _listening(messages, watch), _ended(ProcessPoolExecutor(jobs, context, _begin, (messages,))) as pool:
        futures = [pool.submit(_work, task) for task in tasks]
        for future in as_completed(futures):
            yield _result(future)


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise ExecutionError(
            "a process that ran experiments ended all of a sudden, maybe for want of memory; --jobs 1 runs "
            "them one at a time"
        ) from error


@contextmanager
def _ended(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """Give a pool, and end its processes whatever happens: also those in the middle of a run."""
    others = set(multiprocessing.active_children())
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        children = set(multiprocessing.active_children()) - others
        for child in children:
            child.terminate()
        for child in children:
            child.join(_PATIENCE)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:  # started while the others were ended
            child.kill()
            child.join()


@contextmanager
def _listening(messages: Any, watch: Watch) -> Iterator[None]:
    """Pass on what the processes say while the body runs."""

    def listen() -> None:
        while (message := messages.get()) is not None:
            kind, *rest = message
            getattr(watch, kind)(*rest)

    thread = threading.Thread(target=listen, name="millrace-experiments", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # A process that was ended while it wrote has locked the queue for ever: nothing here waits for that.
        messages.put(None)
        thread.join(_PATIENCE)
        messages.cancel_join_thread()
        messages.close()


_said: Any = None
"""Where this process says how far it is."""


def _begin(messages: Any) -> None:
    """Make a new process ready: Ctrl-C is the parent's to answer."""
    global _said
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _said = messages


def _work(task: Task) -> Result:
    """Run a task in a process of a pool."""
    name = task.experiment.id
    last = 0.0

    def progress(share: float) -> None:
        nonlocal last
        if share - last >= _STEP:
            last = share
            _said.put(("reached", name, share))

    _said.put(("began", name))
    try:
        result = _finished(task, progress)
    finally:
        _said.put(("ended", name))
    # What reports progress lives in this process alone.
    return replace(result, task=task)
