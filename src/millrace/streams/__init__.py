"""Joins of streams, run by eddies whose state lives from one micro-batch to the next.

Base tuples are the durable state, an append-only log in Spark's state store; hash tables are a cache of it.
The functions here say what running queries do, and make up streams to try joins with.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.streams.feeds.source import feed
    from millrace.streams.reporting import report
    from millrace.streams.watching import log, watch

__all__ = ["feed", "log", "report", "watch"]

_MODULES = {
    "feed": "millrace.streams.feeds.source",
    "log": "millrace.streams.watching",
    "report": "millrace.streams.reporting",
    "watch": "millrace.streams.watching",
}


def __getattr__(name: str) -> Any:
    """Load what needs Spark when it is first used."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
