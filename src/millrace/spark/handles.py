"""What is known of the DataFrames that Millrace returned, and of those derived from them.

A handle lives as long as its DataFrame. One that is derived knows nothing of it; but its plan names the tasks
that it runs, by their functions, and so the runs that it is made of. The latest handles are kept for that.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from millrace.errors import InputError
from millrace.options import Options
from millrace.reports.planned import Explanation
from millrace.reports.run_report import RunReport
from millrace.spark import live
from millrace.spark.actions import Carried, carry
from millrace.spark.plans import Mode, explained
from millrace.spark.reports import task_name
from millrace.spark.telling import telling

if TYPE_CHECKING:
    from millrace.limits.progress import LookupProgress


class Handle(Protocol):
    """A DataFrame's own account."""

    @property
    def options(self) -> Options:
        """Settings of its runs."""

    @property
    def tasks(self) -> Mapping[str, int]:
        """How many tasks its runs have at most, by their names, where that is known."""

    def explain(self, mode: Mode = "simple") -> Explanation:
        """Return what runs, as text, with a plan of Spark's."""

    def report(self, executed: DataFrame | None = None) -> RunReport:
        """Return the figures of the latest run, of a derived DataFrame where one is given."""

    def beside(self) -> RunReport:
        """Return what is known beside figures, at any time: the plan, lookups, budgets."""


class QueryHandle(Handle, Protocol):
    """The account of a query's DataFrame."""

    def to_batches(self, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
        """Run it and yield its rows as they come."""

    def lookups(self) -> list[LookupProgress]:
        """Return how far its lookups are."""

    def failed_keys(self) -> pa.Table:
        """Return the keys that could not be looked up."""


_HANDLE = "_millrace_handle"
_LEFT = "_millrace_left"
_INSTEAD = "_millrace_instead"
_RUN = re.compile(r"millrace_([0-9a-f]{32})")
_runs: WeakValueDictionary[str, Handle] = WeakValueDictionary()
_latest: deque[Handle] = deque(maxlen=16)
_log = logging.getLogger("millrace")


def remember(
    frame: DataFrame, handle: Handle, runs: Mapping[str, str] | None = None, title: str = ""
) -> DataFrame:
    """Put a handle on its DataFrame, and make it tell errors of its tasks; returns the DataFrame.

    Args:
        frame: The DataFrame.
        handle: What is known of it.
        runs: The runs that it is made of, with the names of their blocks and filters.
        title: What people know it by.
    """
    setattr(frame, _HANDLE, handle)
    runs = runs or {}
    for run in runs:
        _runs[task_name(run)] = handle
    live.known(handle, runs, title)
    carry(frame, Carried(frozenset(runs), not handle.options.progress, frame.sparkSession))
    _latest.append(handle)
    return telling(frame)


def same_handle(frame: DataFrame, other: DataFrame) -> None:
    """Let a DataFrame be known by the handle of another, which has the same rows."""
    setattr(frame, _HANDLE, getattr(other, _HANDLE))


def runs_instead(frame: Any, find: Callable[[Any], Any]) -> None:
    """Let a function say which DataFrame runs in the place of one, when it is asked: None if that does."""
    setattr(frame, _INSTEAD, find)


def running(frame: DataFrame) -> DataFrame:
    """Return the DataFrame that runs in the place of one, which may be itself."""
    find = getattr(frame, "__dict__", {}).get(_INSTEAD)
    found: DataFrame | None = None if find is None else find(frame)
    return frame if found is None else found


def left_to_spark(frame: Any, why: str) -> None:
    """Note why Millrace has no part in a DataFrame of an enabled session; whoever logs is told."""
    if vars(frame).get(_LEFT) != why:  # other attributes of DataFrames are columns
        setattr(frame, _LEFT, why)
        _log.info("left to Spark: %s", why)


def handle_of(frame: DataFrame) -> Handle:
    """Return the handle of a DataFrame, or of the one that it is derived from.

    Raises:
        InputError: Millrace returned neither, or it is derived from several.
    """
    own: Handle | None = getattr(frame, "__dict__", {}).get(_HANDLE)
    if own is not None:
        return own
    instead = running(frame)
    if instead is not frame:
        return handle_of(instead)
    if not hasattr(frame, "sparkSession"):
        raise InputError(f"expected a DataFrame that Millrace returned, got a {type(frame).__name__}")
    try:
        named = {match[0] for match in _RUN.finditer(explained(frame))}
    except PySparkException:
        named = set()
    found = list({id(handle): handle for name in named if (handle := _runs.get(name)) is not None}.values())
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"this DataFrame is derived from {len(found)} that Millrace returned: ask for each of those"
        )
    why = getattr(frame, "__dict__", {}).get(_LEFT)
    if why is not None:
        raise InputError(f"Millrace has no part in this DataFrame: {why}")
    raise InputError(
        "nothing is known of this DataFrame: expected one that millrace.where, millrace.sql or millrace.join "
        "returned, or one derived from it"
    )


def tasks_of(runs: Iterable[str]) -> int:
    """Return how many tasks runs have together, at most, as far as that is known."""
    handles = {run: _runs.get(task_name(run)) for run in runs}
    return sum(handle.tasks.get(run, 0) for run, handle in handles.items() if handle is not None)


def latest() -> list[Handle]:
    """Return the handles of the DataFrames that were made last, older ones first."""
    return list(_latest)


def known_query(frame: DataFrame) -> QueryHandle | None:
    """Return the handle of the very DataFrame of a query, None for any other DataFrame."""
    found: QueryHandle | None = getattr(frame, "__dict__", {}).get(_HANDLE)
    return found if hasattr(found, "failed_keys") else None


def query_of(frame: DataFrame) -> QueryHandle:
    """Return the handle of a query's DataFrame, or of the one that a DataFrame is derived from.

    Raises:
        InputError: Neither ``millrace.sql`` nor ``millrace.join`` returned it.
    """
    found = handle_of(frame)
    if not hasattr(found, "failed_keys"):
        raise InputError(
            "nothing is known of lookups of this DataFrame: expected one that millrace.sql or millrace.join "
            "returned, or one derived from it"
        )
    return found  # type: ignore[return-value]
