"""Actions on DataFrames of Millrace's, told to whoever wants to know when they begin and end.

A DataFrame carries the names of the runs that it is made of, and so does what is derived from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from millrace.spark.own_work import at_own_work

_RUNS = "_millrace_runs"

_FRAME = frozenset(
    {
        "collect", "count", "take", "first", "head", "tail", "show", "isEmpty", "toPandas", "toArrow",
        "toLocalIterator", "foreach", "foreachPartition", "checkpoint", "localCheckpoint",
    }
)  # fmt: skip
_WRITER = frozenset(
    {"save", "saveAsTable", "insertInto", "parquet", "json", "csv", "text", "orc", "xml", "jdbc"}
)
_TABLE = frozenset({"create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions"})
ACTIONS = {
    "DataFrame": _FRAME,
    "DataFrameWriter": _WRITER,
    "DataFrameWriterV2": _TABLE,
    "MergeIntoWriter": frozenset({"merge"}),
}
"""Methods that run something, by the class that has them."""

End = Callable[[BaseException | None], None]
"""Takes what an action failed with, or None."""

Watcher = Callable[[str, Any, frozenset[str]], End | None]
"""Takes an action's name, the DataFrame or writer, and its runs; returns what wants to know of its end."""

_watchers: list[Watcher] = []


class _Within(threading.local):
    """Whether this thread is within an action."""

    action = False


_within = _Within()


def watch(watcher: Watcher) -> None:
    """Tell a watcher of actions from now on; once is enough."""
    if watcher not in _watchers:
        _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Tell it no more."""
    if watcher in _watchers:
        _watchers.remove(watcher)


def carry(made: Any, runs: frozenset[str]) -> None:
    """Let a DataFrame, or what leads to one, carry the names of runs."""
    if runs:
        made.__dict__[_RUNS] = runs


def carried(*given: Any) -> frozenset[str]:
    """Return the names of the runs that arguments carry."""
    found: frozenset[str] = frozenset()
    for each in given:
        found |= getattr(each, "__dict__", {}).get(_RUNS, frozenset())
    return found


class Action:
    """An action; the ones that it does itself on the way are part of it.

    Args:
        name: The method.
        frame: The DataFrame or writer.
        nests: Whether what runs in this thread until its end is part of it.
    """

    def __init__(self, name: str, frame: Any, *, nests: bool = True) -> None:
        self._ends: list[End] = []
        self._nests = nests and bool(_watchers)
        if not _watchers or at_own_work() or _within.action:
            self._nests = False
            return
        runs = carried(frame)
        if runs:
            self._ends = [end for each in list(_watchers) if (end := each(name, frame, runs)) is not None]
        if self._nests:
            _within.action = True

    def end(self, error: BaseException | None = None) -> None:
        """Tell its end; once."""
        if self._nests:
            _within.action = False
        ends, self._ends = self._ends, []
        for end in ends:
            end(error)
