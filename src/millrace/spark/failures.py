"""Errors of tasks on their way to the user: short when they leave the task, and Millrace's own in the end.

Spark passes an exception of a Python worker on as text: the traceback, and behind it the class and the
message. The traceback of a MillraceError has nothing to tell: the message says what failed and where, with
the lines of the user's function if it was that which raised. So it leaves its task without the frames that it
came through. Whoever calls Spark gets one of several exceptions, whose text has Spark's additions before and
behind; from that text the error is made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

from millrace import errors
from millrace.errors import MillraceError

T = TypeVar("T")

_OURS = re.compile(
    rf"^{re.escape(errors.__name__)}\.(?P<kind>\w+): (?P<message>.*?)\s*"
    # What Spark puts behind: an SQLSTATE, frames of the JVM, headings.
    r"(?:^ ?SQLSTATE: \w{5}|^\s*at [\w.$/]+\(|^(?:JVM|Driver) stacktrace:|^Caused by: |\Z)",
    re.DOTALL | re.MULTILINE,
)


def shortened(results: Iterator[T]) -> Iterator[T]:
    """Yield what a task yields; an error of Millrace's leaves it without the frames that it came through."""
    try:
        yield from results
    except MillraceError as error:
        short = error.with_traceback(None)
        raise short from None


def translated(error: Exception) -> Exception:
    """Return the error that a task raised, for what Spark raised because of it.

    Args:
        error: What an action raised, on classic Spark or Spark Connect.

    Returns:
        A new error of the class and with the message that the task's had, caused by ``error``; other errors
        as they are.
    """
    if not _of_spark(error):
        return error
    found = _OURS.search(str(error))
    kind = getattr(errors, found["kind"], None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, MillraceError):
        return error
    ours = kind(found["message"])
    ours.__cause__ = error
    return ours


def _of_spark(error: Exception) -> bool:
    """Return whether PySpark or its gateway raised the error."""
    return any(each.__module__.split(".")[0] in ("pyspark", "py4j") for each in type(error).__mro__)
