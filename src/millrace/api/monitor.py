"""``millrace.monitor``: how far queries are while they run, and how runs differ."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millrace.api.progress import progress
from millrace.reports.comparison import compare
from millrace.spark.frames import query_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from millrace.api.live import live
    from millrace.limits.progress import LookupProgress

__all__ = ["compare", "failed_keys", "live", "lookups", "progress"]


def __getattr__(name: str) -> Any:
    """Load the page, and what draws it, when it is first used."""
    if name == "live":
        return import_module("millrace.api.live").live
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def lookups(df: DataFrame) -> list[LookupProgress]:
    """Return how far the lookups of a DataFrame are that Millrace returned; at any time, also while it runs.

    Raises:
        MillraceError: Neither :func:`millrace.sql` nor :func:`millrace.join` returned it or what it is
            derived from.
    """
    return query_of(df).lookups()


def failed_keys(df: DataFrame) -> pa.Table:
    """Return the keys that could not be looked up in the latest run of a DataFrame.

    Its columns are ``lookup``, ``key`` (the bind columns as JSON), ``error`` (what kind), ``message`` and
    ``attempts``.

    Raises:
        MillraceError: Neither :func:`millrace.sql` nor :func:`millrace.join` returned it or what it is
            derived from.
    """
    return query_of(df).failed_keys()
