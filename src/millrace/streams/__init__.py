"""Continuous queries: joins of streams, run by eddies whose state lives from one micro-batch to the next.

The invariant: the log of base tuples in Spark's checkpoint is the state. Hash tables and intermediate tuples
are a cache in the worker, made anew from the log. The door loads neither PySpark nor sqlglot.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.streams.reporting import log, report, watch

__all__ = ["log", "report", "watch"]


def __getattr__(name: str) -> Any:
    """Load what needs Spark when it is first used."""
    if name in __all__:
        return getattr(import_module("millrace.streams.reporting"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
