"""Every method of PySpark's that Millrace replaces, in one table, and how it gives them back.

``import millrace`` and ``millrace.sql`` replace none. What stands in a method's place does what the method
did, and more for whoever asked for it.

A Column does not tell which Python function is behind it, and no public call of PySpark's does; so
``where(df, is_spam("text"))`` could not see what ``is_spam`` made by ``udf`` is. So ``where`` has calls of
PySpark's function objects noted: their ``__call__`` also puts a note on the Column it returns. Nothing else
about them changes. A predicate that is given as ``(is_spam, "text")`` needs no note.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyspark.sql import Column

from millrace.spark import frames

_SAYING = frozenset(("explain", "write", "writeStream"))
ACTIONS = frames.ACTIONS["DataFrame"] - {"checkpoint", "localCheckpoint"} | _SAYING
"""Methods and properties of a DataFrame that run something, or say what would run.

Checkpoints are not among them: Columns that were taken of a DataFrame are columns of its checkpoint too.
"""

REPLACED = {
    "where": {("UserDefinedFunction", "__call__")},
    "enable": {
        ("SparkSession", "sql"),
        *(("DataFrame", name) for name in ACTIONS),
    },
}
"""The methods by who replaces them, as class and name; none has two owners.

``where`` stands for ``where``, ``filter``, ``predicate``, ``cascade``, ``estimate``, ``Session`` and the
accessor: from the first time that one of these is asked for until the process ends. ``enable`` replaces
``sql`` of its sessions alone, and what runs something of DataFrames while any session is enabled.
"""

_CLASSIC, _CONNECT = "pyspark.sql.udf", "pyspark.sql.connect.udf"
_NOTHING = object()
_NOTE = "_millrace_note"


@dataclass
class _Patch:
    """A method of ours, and what stood in its place before: ``_NOTHING`` where it was inherited."""

    owner: str
    holder: Any
    name: str
    ours: Any
    before: Any

    @property
    def stands(self) -> bool:
        """Whether nobody has replaced it since."""
        return vars(self.holder).get(self.name) is self.ours


_patches: dict[tuple[int, str], _Patch] = {}  # by the identity of their holders, which they hold
_lock = threading.RLock()


def replace(owner: str, holder: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Put what ``make`` makes of a method of a class or session in its place, once however often."""
    kind = holder if isinstance(holder, type) else type(holder)
    assert (kind.__name__, name) in REPLACED[owner], f"{kind.__name__}.{name} is not in the table"
    with _lock:
        patch = _patches.get((id(holder), name))
        if patch is None or not patch.stands:  # another library's stands there, which ours calls
            before = vars(holder).get(name, _NOTHING)
            patch = _Patch(owner, holder, name, make(getattr(holder, name)), before)
            setattr(holder, name, patch.ours)
            _patches[id(holder), name] = patch


def restore(owner: str, holder: Any = None) -> None:
    """Give back all methods that an owner has replaced, or those of a holder.

    Where another library has put a method of its own over ours, that one stays; ours, which it may call, then
    does what the method did.
    """
    with _lock:
        for key, patch in list(_patches.items()):
            if owner != patch.owner or (holder is not None and patch.holder is not holder):
                continue
            del _patches[key]
            if patch.stands and patch.before is _NOTHING:
                delattr(patch.holder, patch.name)
            elif patch.stands:
                setattr(patch.holder, patch.name, patch.before)


def watch() -> None:
    """Note calls of functions on Columns from now on; on Spark Connect once a session there is about."""
    names = [_CLASSIC]
    if _CONNECT in sys.modules or "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        names.append(_CONNECT)
    for name in names:
        replace("where", import_module(name).UserDefinedFunction, "__call__", _noting_calls)


@dataclass(frozen=True)
class Noted:
    """A call of one of PySpark's function objects."""

    function: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]


def noted(column: object) -> Noted | None:
    """Return the call that a Column is, or None where it is something else."""
    note: Noted | None = getattr(column, "__dict__", {}).get(_NOTE)
    return note


def _noting_calls(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what puts a note on the Column that a function's call returns."""

    @functools.wraps(plain)
    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        made = plain(self, *arguments, **named)
        if isinstance(made, Column):
            setattr(made, _NOTE, Noted(self, arguments, named))
        return made

    return called
