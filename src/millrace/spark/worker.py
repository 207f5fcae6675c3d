"""The Python worker that a task runs in: what small tasks would wait for there, and how errors come back.

**Input.** Spark's JVM writes the beginning of a task's input in small pieces. Nagle's algorithm sends each
when the one before has been acknowledged, and Linux takes 40 ms to acknowledge what it has no answer to. So a
task lets the kernel acknowledge at once. (Unix domain sockets, which Spark uses where
``spark.python.unix.domain.socket.enabled`` is on, have no such delay.)

**Garbage.** Behind every task a worker that is used again looks through all of its objects for cycles. Those
of the modules that a task needs are hundreds of thousands, which takes 80 ms. They stay as long as the
worker, so it need not look at them.

**Memory and start-up.** A task reports its own, not those of a task before it in the same worker.

**Errors.** Spark passes an exception on as text, with its traceback. That of a MillraceError has nothing to
tell: the message says what failed and where, with the lines of the user's function if it was that which
raised. So it leaves its task without the frames that it came through. Whoever calls Spark gets one of several
exceptions, whose text has Spark's additions before and behind; from that text the error is made again.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from millrace import errors
from millrace.engine.peak import begin_peak
from millrace.engine.start_up import begin_task
from millrace.errors import MillraceError, ReadError, SetupError, encodable

P = ParamSpec("P")
T = TypeVar("T")

_OPEN = "/proc/self/fd"
_LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")

_OURS = re.compile(
    rf"^{re.escape(errors.__name__)}\.(?P<kind>\w+): (?P<message>.*?)\s*"
    # What Spark puts behind: an SQLSTATE, frames of the JVM, headings.
    r"(?:^ ?SQLSTATE: \w{5}|^\s*at [\w.$/]+\(|^(?:JVM|Driver) stacktrace:|^Caused by: |\Z)",
    re.DOTALL | re.MULTILINE,
)

# What tasks need before they can tell of anything themselves.
_MISSING = re.compile(
    # A part of ours, or a private one of theirs, tells of another version; any other of a user's mistake.
    r"^ModuleNotFoundError: No module named '(millrace(?=[.'])|(?:numba|numpy|pandas|pyarrow)(?='|\._))",
    re.MULTILINE,
)

_modules = 0


def worker_task(task: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Let a task have its input at once, the next one begin soon, memory be measured, and errors be short."""

    @functools.wraps(task)
    def run(*args: P.args, **named: P.kwargs) -> Iterator[T]:
        acknowledge()
        keep_modules()
        begin_peak()
        begin_task()
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


# Errors


def translated(error: Exception) -> Exception:
    """Return the error that a task raised, for what Spark raised because of it; other errors as they are.

    It has the message that the task's had, and is caused by ``error``. Its class is the task's, and also that
    which Spark's API has for it, so that code that knows nothing of Millrace catches it.
    """
    ours = raised_by_task(str(error)) if is_sparks(error) else None
    if ours is None:
        return error
    kinds: tuple[Any, Any] = type(ours), type(error)
    both = _both(*kinds)(str(ours))
    vars(both).update(vars(error), _sparks=error)
    both.__cause__ = error
    return both


@functools.cache
def _both(ours: type[MillraceError], sparks: type[Exception]) -> type[MillraceError]:
    """Return a class of errors that looks like ours, and is also what Spark's API would raise."""
    from py4j.protocol import Py4JJavaError
    from pyspark import errors as api

    theirs = [kind for kind in sparks.__mro__ if getattr(api, kind.__name__, None) is kind][:1]
    if issubclass(sparks, Py4JJavaError) or issubclass(ours, ReadError):  # which classic Spark has for files
        theirs.append(Py4JJavaError)
    own: dict[str, Any] = {
        "__module__": ours.__module__,
        "__doc__": ours.__doc__,
        "__str__": Exception.__str__,
        "__reduce__": lambda self: (ours, self.args),  # another process may have no Spark
        "java_exception": None,
    }
    for name, method in vars(api.PySparkException).items():
        if not name.startswith("_") and callable(method):
            own[name] = _of_sparks(name, method)
    return type(ours.__name__, (ours, *theirs), own)


def _of_sparks(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that asks the error that Spark raised: for its condition, for example."""

    @functools.wraps(method)
    def called(self: Any) -> Any:
        own = getattr(self._sparks, name, None)
        return None if own is None else own()

    return called


def raised_by_task(text: str) -> MillraceError | None:
    """Return the error of Millrace's that a message of Spark's tells of, None if it tells of none."""
    missing = _MISSING.search(text)
    if missing is not None or "PYTHON_VERSION_MISMATCH" in text:
        lacks = f"has no package {missing[1]!r}" if missing else "is of another version"
        return SetupError(
            f"the Python of Spark's workers {lacks}: it is not the one that runs this, {sys.executable}. Set "
            "the environment variable PYSPARK_PYTHON to that before the session is made; on a cluster, send "
            "the environment to the executors, as docs/guides/clusters.md tells. `millrace doctor` shows more"
        )
    match = _OURS.search(text)
    kind = getattr(errors, match["kind"], None) if match else None
    if match is None or not isinstance(kind, type) or not issubclass(kind, MillraceError):
        return None
    return kind(match["message"])


def is_sparks(error: BaseException) -> bool:
    """Tell whether Spark or its gateway raised the error; importing neither to find out."""
    return any(kind.__module__.split(".")[0] in ("pyspark", "py4j") for kind in type(error).__mro__)
