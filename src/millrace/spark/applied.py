"""Which predicate a Column of PySpark is the call of.

A Column does not tell which Python function is behind it, and no public call of PySpark's does; so
``where(df, is_spam("text"))`` could not see what ``is_spam`` made by ``udf`` is. So calls of PySpark's
function objects are noted while :mod:`millrace.spark.patches` says so: their ``__call__`` also puts a note on
the Column it returns. Nothing else about them changes. A predicate that is given as ``(is_spam, "text")``
needs no note.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


def noting_calls(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``__call__`` of function objects that puts a note on the Column that it returns."""

    @functools.wraps(call)
    def noting(self: Any, *arguments: Any, **named: Any) -> Any:
        column = call(self, *arguments, **named)
        setattr(column, _NOTE, Noted(self, arguments, named))
        return column

    return noting
