"""Errors of tasks on their way to the user: Spark passes them on as text, from which they are made again.

The text is the traceback, and behind it the class and the message (:mod:`millrace.spark.worker` keeps it
short). Whoever calls Spark gets one of several exceptions, with Spark's additions before and behind.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

from millrace import errors
from millrace.errors import MillraceError, ReadError, SetupError

_OURS = re.compile(
    rf"^{re.escape(errors.__name__)}\.(?P<kind>\w+): (?P<message>.*?)\s*"
    # What Spark puts behind: an SQLSTATE, frames of the JVM, headings.
    r"(?:^ ?SQLSTATE: \w{5}|^\s*at [\w.$/]+\(|^(?:JVM|Driver) stacktrace:|^Caused by: |\Z)",
    re.DOTALL | re.MULTILINE,
)

# What tasks need before they can tell of anything themselves.
_MISSING = re.compile(
    r"^ModuleNotFoundError: No module named '(millrace|numba|numpy|pandas|pyarrow)[.']", re.MULTILINE
)


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
