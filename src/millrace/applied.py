"""Which predicate a Column of PySpark is the call of.

A Column does not tell which Python function is behind it, and no public call of PySpark's does; so
``where(df, is_spam("text"))`` could not see what ``is_spam`` made by ``udf`` is. So calls of PySpark's
function objects are noted, from the first use of Millrace's functions on: their ``__call__`` also puts a note
on the Column it returns. Nothing else about them changes. A predicate that is given as ``(is_spam, "text")``
needs no note.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

_CLASSIC, _CONNECT = "pyspark.sql.udf", "pyspark.sql.connect.udf"
_CLASS = "UserDefinedFunction"
_NOTE = "_millrace_call"


@dataclass(frozen=True)
class Noted:
    """A call of one of PySpark's function objects.

    Attributes:
        function: The function object.
        arguments: As they were given.
        named: Those given by name.
    """

    function: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]


def noted(column: object) -> Noted | None:
    """Return the call that a Column is, or None where it is something else."""
    note = getattr(column, "__dict__", {}).get(_NOTE)
    return note if isinstance(note, Noted) else None


def watch() -> None:
    """Note calls from now on; those on Spark Connect once a session there is about."""
    _wrap(import_module(_CLASSIC))
    if _CONNECT in sys.modules or "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        _wrap(import_module(_CONNECT))


def _wrap(module: ModuleType) -> None:
    kind = getattr(module, _CLASS)
    if hasattr(kind.__call__, _NOTE):
        return
    call: Callable[..., Any] = kind.__call__

    @functools.wraps(call)
    def noting(self: Any, *arguments: Any, **named: Any) -> Any:
        column = call(self, *arguments, **named)
        setattr(column, _NOTE, Noted(self, arguments, named))
        return column

    setattr(noting, _NOTE, True)
    kind.__call__ = noting
