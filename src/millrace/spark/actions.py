"""Actions on DataFrames of Millrace's, told to whoever wants to know when they begin and end.

A DataFrame carries the names of the runs that it is made of, and so does what is derived from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.spark.session import is_internal_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CARRIED = "_millrace_carried"

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
"""Takes what an action failed with, or None; GeneratorExit where whoever reads its rows has enough."""

Watcher = Callable[[str, "Carried"], End | None]
"""Takes an action's name and what its DataFrame or writer carries; returns what hears of the end."""

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


class Carried(NamedTuple):
    """What a DataFrame carries, and what writes it.

    Attributes:
        runs: Names of its runs.
        quiet: Whether no line shall show its progress.
        spark: Its session, which writers have none of that is public.
    """

    runs: frozenset[str] = frozenset()
    quiet: bool = False
    spark: SparkSession | None = None


def carry(made: Any, carried: Carried) -> None:
    """Let a DataFrame, or what leads to one, carry something."""
    if carried.runs:
        made.__dict__[_CARRIED] = carried


def carried(*given: Any) -> Carried:
    """Return what arguments carry, together."""
    found = [each for one in given if (each := getattr(one, "__dict__", {}).get(_CARRIED)) is not None]
    if len(found) < 2:
        return found[0] if found else Carried()
    runs = frozenset().union(*(each.runs for each in found))
    return Carried(runs, any(each.quiet for each in found), found[0].spark)


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
        if not _watchers or is_internal_query() or _within.action:
            self._nests = False
            return
        found = carried(frame)
        if found.runs:
            self._ends = [end for each in list(_watchers) if (end := each(name, found)) is not None]
        if self._nests:
            _within.action = True

    def end(self, error: BaseException | None = None) -> None:
        """Tell its end; once."""
        if self._nests:
            _within.action = False
        ends, self._ends = self._ends, []
        for end in ends:
            end(error)


def acted(name: str, frame: Any, rows: Iterator[Any]) -> Iterator[Any]:
    """Yield what an action gives out, as it is asked for; the action lasts that long."""
    action, failed = Action(name, frame, nests=False), None
    try:
        yield from rows
    except BaseException as error:
        failed = error
        raise
    finally:
        action.end(failed)
