"""Spark's log of what it raises, kept quiet while Millrace asks it.

Spark's Python side logs every error of its analyser as a record of some kilobytes, beside raising it. Who
plans a query may ask Spark several times before the error goes to the user, who would see all these records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_quiet: ContextVar[bool] = ContextVar("millrace_unlogged", default=False)


class _Filter(logging.Filter):
    """Drops records of threads that are within :func:`unlogged`."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _quiet.get()


_filter = _Filter()


@contextmanager
def unlogged() -> Iterator[None]:
    """Let Spark raise without logging, in this thread, while the body runs."""
    from pyspark.logger import (
        PySparkLogger,
    )  # makes loggers of its own class, which ours must not come before

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_filter)  # once, however often
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)
