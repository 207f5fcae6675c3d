"""What Millrace itself asks Spark while it plans, told apart from what the user asks.

Spark's Python side logs every error of its analyser as a record of some kilobytes, beside raising it. Who
plans a query may ask Spark several times before the error goes to the user, who would see all these records.
And a session that is enabled for Millrace must not send Millrace's own questions through Millrace.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_within: ContextVar[bool] = ContextVar("millrace_own_work", default=False)


class _Filter(logging.Filter):
    """Drops records of threads that are within :func:`own_work`."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _within.get()


_filter = _Filter()


def at_own_work() -> bool:
    """Return whether this thread is within :func:`own_work`."""
    return _within.get()


@contextmanager
def own_work() -> Iterator[None]:
    """Ask Spark without its log, and as it is, in this thread, while the body runs."""
    from pyspark.logger import PySparkLogger  # makes loggers of its own class, before ours does

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_filter)  # once, however often
    before = _within.set(True)
    try:
        yield
    finally:
        _within.reset(before)
