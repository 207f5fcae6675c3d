"""The Python worker that a task runs in: what small tasks would wait for there, and how errors leave it.

**Input.** Spark's JVM writes the beginning of a task's input in small pieces. Nagle's algorithm sends each
when the one before has been acknowledged, and Linux takes 40 ms to acknowledge what it has no answer to. So a
task lets the kernel acknowledge at once. (Unix domain sockets, which Spark uses where
``spark.python.unix.domain.socket.enabled`` is on, have no such delay.)

**Garbage.** Behind every task a worker that is used again looks through all of its objects for cycles. Those
of the modules that a task needs are hundreds of thousands, which takes 80 ms. They stay as long as the
worker, so it need not look at them.

**Memory.** The peak that a task reports is its own, not that of a task before it in the same worker.

**Errors.** Spark passes an exception on as text, with its traceback. That of a MillraceError has nothing to
tell: the message says what failed and where, with the lines of the user's function if it was that which
raised. So it leaves its task without the frames that it came through.
"""

from __future__ import annotations

import functools
import gc
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from millrace.engine.peak import begin_peak
from millrace.errors import MillraceError, encodable

P = ParamSpec("P")
T = TypeVar("T")

_OPEN = "/proc/self/fd"
_LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")

_modules = 0


def worker_task(task: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Let a task have its input at once, the next one begin soon, memory be measured, and errors be short."""

    @functools.wraps(task)
    def run(*args: P.args, **named: P.kwargs) -> Iterator[T]:
        acknowledge()
        keep_modules()
        begin_peak()
        try:
            yield from task(*args, **named)
        except MillraceError as error:
            short = error.with_traceback(None)
            short.args = (encodable(str(error)),)  # over half of a character a worker of Spark's hangs
            raise short from None

    return run


def partition_number() -> int:
    """Return which of its stage's partitions this task is for, 0 where there is no task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def acknowledge() -> int:
    """Acknowledge at once what comes from processes of this machine; returns from how many of them.

    Only Linux has to be asked; elsewhere nothing happens.
    """
    if not hasattr(socket, "TCP_QUICKACK"):
        return 0
    acknowledged = 0
    for name in os.listdir(_OPEN):  # noqa: PTH208  # numbers, many times a query
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as own:
                if own.family not in (socket.AF_INET, socket.AF_INET6) or own.getpeername()[0] not in _LOCAL:
                    continue
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                acknowledged += 1
        except OSError:
            continue  # closed meanwhile, or it listens
    return acknowledged


def look_again() -> None:
    """Have what was kept looked at for garbage behind this task, because something large was let go."""
    global _modules  # of the process
    _modules = 0
    gc.unfreeze()


def keep_modules() -> bool:
    """Keep what there is from being looked at for garbage, if modules were imported since the last time.

    A task asks before it reads, when hardly anything else is there; returns whether it was done.
    """
    global _modules  # of the process
    if len(sys.modules) == _modules:
        return False
    _modules = len(sys.modules)
    gc.freeze()
    return True
