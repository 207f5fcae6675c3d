"""Millrace's DataFrames: PySpark's own, with methods that do a little more.

What Millrace returns is of a class derived from its own, and so is whatever is derived from it: DataFrames,
groups, writers. Their methods

- raise what a task raised, so that ``except MillraceError`` is enough: Spark passes errors on as its own;
- tell watchers when an action begins and ends: the line of progress, the live page, the limits of a run.

A DataFrame has a handle, which explains it and has its figures, and carries the names of the runs that it is
made of. What is derived from it carries them too, but not across a view. So the handle of a derived one is
found by Spark's plan, which names the tasks of all its runs. Where the plan has none, what it carries counts.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from pyspark.errors import PySparkException

from millrace.errors import InputError
from millrace.spark.overwriting import Overwriting
from millrace.spark.session import explained, internal_query, is_connect, is_internal_query
from millrace.spark.worker import translated

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millrace.limits.progress import LookupProgress
    from millrace.options import Options
    from millrace.reports.run_report import RunReport
    from millrace.spark.block import ParquetInput

T = TypeVar("T")


# PySpark's methods


ACTIONS: dict[str, frozenset[str]] = {
    "DataFrame": frozenset((
        "collect", "count", "take", "first", "head", "tail", "show", "isEmpty", "toPandas", "toArrow",
        "toLocalIterator", "foreach", "foreachPartition", "checkpoint", "localCheckpoint",
    )),
    "GroupedData": frozenset(),
    "DataFrameWriter": frozenset((
        "save", "saveAsTable", "insertInto", "parquet", "json", "csv", "text", "orc", "xml", "jdbc",
    )),
    "DataFrameWriterV2": frozenset((
        "create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions",
    )),
    "MergeIntoWriter": frozenset(("merge",)),
    "DataFrameNaFunctions": frozenset(),
    "DataFrameStatFunctions": frozenset(),
}  # fmt: skip
"""Methods that run something, of the classes of PySpark that are a DataFrame or lead to one."""

_PROPERTIES = ("write", "writeStream", "na", "stat")
"""Properties of Spark's own DataFrame that write it, or whose methods are derived from it."""
_SAVING = frozenset(("save", "saveAsTable", "insertInto"))
_LAZY = "toLocalIterator"
"""The action that begins with the first row that is asked for."""
_SUBCLASS, _RAN, _PARTS = "_millrace_subclass", "_millrace_ran", "_millrace_parts"
_WRITING = "_millrace_writing"
_chooser: Callable[[Any], Any] | None = None


def running(frame: DataFrame) -> DataFrame:
    """Return the DataFrame that runs in the place of one, which may be itself."""
    if is_internal_query():
        return frame
    chosen: DataFrame | None = chosen_in_place(frame)
    return frame if chosen is None else chosen


def latest_run(frame: DataFrame) -> DataFrame:
    """Return the DataFrame that ran last in the place of one, or else would run."""
    return vars(frame).get(_RAN) or running(frame)


def choose_by(chooser: Callable[[Any], Any] | None) -> None:
    """Ask for what runs in the place of DataFrames; None ends that."""
    global _chooser
    _chooser = chooser


def chosen_in_place(frame: Any) -> Any:
    """Return what runs in the place of a DataFrame of Spark's own, None where that runs itself.

    The latest that ran is kept, for its figures.
    """
    chooser = _chooser  # another thread may end that
    if chooser is None or carried(frame).runs or is_left_for_good(frame):
        return None
    chosen = chooser(frame)
    if chosen is not None:
        ran_in_place(frame, chosen)
    return chosen


def ran_in_place(frame: Any, chosen: Any) -> None:
    """Note what ran in the place of a DataFrame."""
    setattr(frame, _RAN, chosen)


def _extend(value: T) -> T:
    kind: Any = type(value)
    if not hasattr(kind, _SUBCLASS):
        value.__class__ = subclass_of(kind)
    return value


@functools.cache
def subclass_of(kind: type[Any]) -> type[Any]:
    """Return a class whose methods do more, and which shows itself as its base."""
    own: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__, _SUBCLASS: True}
    for name in dir(kind):
        member = getattr(kind, name)
        if name in _PROPERTIES and isinstance(member, property):
            own[name] = property(_method(kind, name), doc=member.__doc__)
        elif callable(member) and (not name.startswith("_") or name == "__getitem__"):
            own[name] = _method(kind, name)
    return type(kind.__name__, (kind,), own)


def _method(kind: type[Any], name: str) -> Callable[..., Any]:
    is_property = isinstance(getattr(kind, name), property)
    action = name if name in ACTIONS.get(kind.__name__, ()) else None

    def current() -> Callable[..., Any]:  # another may stand there by now
        member = getattr(kind, name)
        return member.fget if is_property else member  # type: ignore[no-any-return]

    @functools.wraps(current())
    def called(self: Any, /, *args: Any, **named: Any) -> Any:
        if kind.__name__ == "DataFrameWriter":
            _refuse_own_input(self, current(), args, named)
        with acting(None if action == _LAZY else action, self):
            result = current()(self, *args, **named)
        if name == "write":
            result = refuse_overwriting(self, result)
        if type(result).__name__ in ACTIONS and type(result).__module__.startswith("pyspark.sql."):
            carry(_extend(result), carried(result, self, *args, *named.values()))
        return rows_of_action(action, self, result) if isinstance(result, Iterator) else result

    return called


def refuse_overwriting(frame: DataFrame, writer: Any) -> Any:
    """Have a writer refuse to replace files that tasks of Millrace read for a DataFrame; returns it."""
    vars(writer)[_WRITING] = frame, Overwriting()
    return _extend(writer)


def _refuse_own_input(writer: Any, method: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Note a call of a writer; refuse an action that would replace files which tasks have yet to read."""
    frame, overwriting = vars(writer)[_WRITING]
    given = overwriting.note(method, args, named)
    # On Spark Connect the others call save.
    actions = _SAVING if is_connect(frame.sparkSession) else ACTIONS["DataFrameWriter"]
    if method.__name__ in actions and overwriting.overwrites:
        replaces = functools.partial(overwriting.replaces, frame.sparkSession, method.__name__, given)
        _refuse(replaces, lambda: explained(frame), carried(frame).scans)


def refuse_statement(spark: SparkSession, text: str, explain: Callable[[], str]) -> None:
    """Refuse a text that would replace files which tasks of Millrace read for it."""
    if (statement := Overwriting.of_statement(text)) is not None:
        overwriting, given = statement
        _refuse(functools.partial(overwriting.replaces, spark, "insertInto", given), explain, {})


def _refuse(replaces: Callable[[set[str]], bool], explain: Callable[[], str], kept: Scans) -> None:
    """Refuse what replaces files that tasks read, as a plan tells that has their functions."""
    try:
        if not kept and not any(handle.scans for handle in _runs.values()):
            return  # there is no plan to look for
        with internal_query():
            files = _files_read(explain(), kept)
            refused = bool(files) and replaces(files)
    except Exception as error:  # noqa: BLE001  # of whichever catalog; Spark's writer fails in its own words
        _log.debug("nothing is known of what a writer replaces", exc_info=error)
        return
    if refused:
        raise InputError(
            "what is written would replace files that the query reads: write to another place, and put that "
            "in the old one's place when it is complete"
        )


def _files_read(plan: str, kept: Scans) -> set[str]:
    """Return the files that tasks in a plan of Spark's read themselves, as far as that is known."""
    from millrace.parquet.tables import splits  # tasks need no tables

    files = set[str]()
    for match in _RUN.finditer(plan):
        handle = _runs.get(match[0])
        scans = kept.get(match[0]) or (() if handle is None else handle.scans.get(match[0], ()))
        files.update(split.path for scan in scans for split in splits(scan.table, scan.filters, scan.columns))
    return files


# Actions


Scans = Mapping[str, tuple["ParquetInput", ...]]
"""What tasks read of files themselves, by the names of their functions in Spark's plans."""


class Carried(NamedTuple):
    """What a DataFrame carries, and what writes it."""

    runs: frozenset[str] = frozenset()
    quiet: bool = False  # whether no line shall show its progress
    spark: SparkSession | None = None  # its session, which writers have none of that is public
    scans: Scans = MappingProxyType({})


End = Callable[[BaseException | None], None]
"""Takes what an action failed with, or None; GeneratorExit where whoever reads its rows has enough."""

Watcher = Callable[[str, Carried], End | None]
"""Takes an action's name and what its DataFrame or writer carries; returns what is called at the end."""

_CARRIED = "_millrace_carried"
_watchers: list[Watcher] = []


class Within(threading.local):
    """Whether this thread is within an action: the ones that it does itself on the way are part of it."""

    action = False


_within = Within()


def watch(watcher: Watcher) -> None:
    """Tell a watcher of actions from now on; once is enough."""
    if watcher not in _watchers:
        _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Call it no more."""
    if watcher in _watchers:
        _watchers.remove(watcher)


def carry(carrier: Any, what: Carried) -> None:
    """Let a DataFrame, or what leads to one, carry something."""
    if what.runs:
        carrier.__dict__[_CARRIED] = what


def carried(*arguments: Any) -> Carried:
    """Return what arguments carry, together."""
    attributes = [getattr(argument, "__dict__", {}) for argument in arguments]
    parts = [what for own in attributes if (what := own.get(_CARRIED)) is not None]
    if len(parts) < 2:
        return parts[0] if parts else Carried()
    runs = frozenset().union(*(what.runs for what in parts))
    scans = {run: found for what in parts for run, found in what.scans.items()}
    return Carried(runs, any(what.quiet for what in parts), parts[0].spark, scans)


@contextmanager
def acting(action: str | None, frame: Any, *, nests: bool = True) -> Iterator[None]:
    """Raise what a task raised in the body, and tell watchers of an action while it runs, if it is one.

    With ``nests`` what this thread runs meanwhile is part of the action.
    """
    watchers = [] if action is None or is_internal_query() or _within.action else list(_watchers)
    what = carried(frame)
    ends = [end for watcher in watchers if what.runs and (end := watcher(str(action), what)) is not None]
    nests = nests and bool(watchers)
    _within.action |= nests
    failed: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failed = translated(error) if isinstance(error, Exception) else error
        if failed is error:
            raise
        raise failed from None  # what Spark raised is its context, which a traceback need not show
    finally:
        if nests:
            _within.action = False
        for end in ends:
            end(failed)


def rows_of_action(action: str | None, frame: Any, rows: Iterator[T]) -> Generator[T]:
    """Yield what an action gives out, as it is asked for; the action lasts that long."""
    with acting(action, frame, nests=False):
        yield from rows


# Handles


class Handle(Protocol):
    """A DataFrame's own account."""

    @property
    def df(self) -> DataFrame: ...

    @property
    def options(self) -> Options: ...

    @property
    def tasks(self) -> Mapping[str, int]:
        """How many tasks its runs have at most, by their names, where that is known."""

    @property
    def scans(self) -> Scans:
        """What tasks read of files themselves, by the functions of its runs."""

    def explain_lines(self) -> list[str]:
        """Return what runs, without Spark's own plan."""

    def report(self, executed: DataFrame | None = None) -> RunReport:
        """Return the figures of the latest run, of a derived DataFrame where one is given."""

    def status(self) -> RunReport:
        """Return what is known at any time, without figures: the plan, lookups, budgets."""


@runtime_checkable
class QueryHandle(Handle, Protocol):
    def lookups(self) -> list[LookupProgress]: ...

    def failed_keys(self) -> pa.Table: ...


Planned = tuple["weakref.ref[Any]", str, Mapping[str, str]]
"""A query that was planned: its handle, its title, and its runs with the names of blocks and filters."""

_HANDLE, _LEFT, _FOR_GOOD = "_millrace_handle", "_millrace_left", "_millrace_left_for_good"
_RUN = re.compile(r"millrace_([0-9a-f]{32})")
_runs: weakref.WeakValueDictionary[str, Handle] = weakref.WeakValueDictionary()
_latest: deque[Handle] = deque(maxlen=16)
_planned: deque[Planned] = deque(maxlen=64)
_planning: Callable[[Planned], None] | None = None
_log = logging.getLogger("millrace")


def task_name(run: str) -> str:
    """Return what a task's function is called in Spark's plans, of a run ``millrace-`` and 32 hex digits."""
    return run.replace("-", "_")


def remember(
    frame: DataFrame, handle: Handle, runs: Mapping[str, str] | None = None, title: str = ""
) -> DataFrame:
    """Put a handle on its DataFrame, whose methods then do more; returns the DataFrame.

    ``runs`` are those of its own blocks and filters, with their names; ``title`` is what people know it by.
    """
    setattr(frame, _HANDLE, handle)
    if runs:
        _runs.update(dict.fromkeys(map(task_name, runs), handle))
        planned = (weakref.ref(handle), title, runs)
        _planned.append(planned)
        watcher = _planning  # another thread may end that
        if watcher is not None:
            watcher(planned)
    below, quiet = carried(frame), not handle.options.progress
    scans = {**below.scans, **handle.scans}
    carry(frame, Carried(below.runs.union(runs or ()), quiet, frame.sparkSession, scans))
    _latest.append(handle)
    return _extend(frame)


def watch_planning(watcher: Callable[[Planned], None] | None) -> None:
    """Tell one watcher of the latest queries, and of those that are planned from now on; None ends that."""
    global _planning
    _planning = watcher
    if watcher is not None:
        for each in list(_planned):
            watcher(each)


def left_to_spark(frame: Any, why: str, *, for_good: bool = False) -> None:
    """Note why Millrace has no part in a DataFrame of an enabled session; the log says it.

    With ``for_good`` it is not planned again when it runs, for that would say so again.
    """
    vars(frame).pop(_RAN, None)
    if for_good:
        vars(frame)[_FOR_GOOD] = True
    if vars(frame).get(_LEFT) != why:
        setattr(frame, _LEFT, why)
        _log.info("left to Spark: %s", why)


def is_left_for_good(frame: Any) -> bool:
    """Tell whether a DataFrame that was left to Spark is not to be planned when it runs."""
    return _FOR_GOOD in vars(frame)


def why_left(frame: Any) -> str:
    """Return why Millrace has no part in a DataFrame, as noted; empty where nothing is."""
    return str(vars(frame).get(_LEFT, ""))


def carry_parts(frame: DataFrame, why: str, *parts: DataFrame) -> DataFrame:
    """Let a DataFrame do what those of Millrace do that are parts of it; ``why`` says why it is not whole."""
    frame = _extend(frame)
    carry(frame, carried(*parts))
    vars(frame)[_PARTS] = parts  # what they have at coordinators lasts as long as they do
    setattr(frame, _LEFT, why)
    return frame


def handles_of(frame: DataFrame) -> list[Handle]:
    """Return the handles of what a DataFrame is derived from, at least one; InputError if there is none."""
    own = own_handle(frame)
    if own is not None:
        return [own]
    if not hasattr(frame, "sparkSession"):
        raise InputError(f"expected a DataFrame that Millrace returned, got a {type(frame).__name__}")
    actual = latest_run(frame)
    if actual is not frame:
        return handles_of(actual)
    try:
        handles = _handles(match[0] for match in _RUN.finditer(explained(frame)))
    except PySparkException:
        handles = []
    handles = handles or _handles(map(task_name, carried(frame).runs))  # a checkpoint's plan has no tasks
    if handles:
        return handles
    if why := why_left(frame):
        raise InputError(f"Millrace has no part in this DataFrame: {why}")
    raise InputError(
        "nothing is known of this DataFrame: expected one that millrace.where, millrace.sql or millrace.join "
        "returned, or one derived from it"
    )


def own_handle(frame: DataFrame) -> Handle | None:
    """Return the handle of the very DataFrame, None where it is derived, or Spark's."""
    return getattr(frame, "__dict__", {}).get(_HANDLE)


def _handles(names: Iterable[str]) -> list[Handle]:
    return list({id(handle): handle for name in names if (handle := _runs.get(name)) is not None}.values())


def tasks_of(runs: Iterable[str]) -> int:
    """Return how many tasks runs have together, at most, as far as that is known."""
    handles = {run: _runs.get(task_name(run)) for run in runs}
    return sum(handle.tasks.get(run, 0) for run, handle in handles.items() if handle is not None)


def latest() -> list[Handle]:
    """Return the handles of the DataFrames that were made last, older ones first."""
    return list(_latest)


def query_of(frame: DataFrame) -> QueryHandle:
    """Return the handle of a query's DataFrame, or of the one that a DataFrame is derived from.

    InputError if neither ``millrace.sql`` nor ``millrace.join`` returned it, or it is derived from several.
    """
    handle, *others = handles_of(frame)
    if others:
        raise InputError(
            f"this DataFrame is derived from {1 + len(others)} that Millrace returned: ask for each of those"
        )
    if not isinstance(handle, QueryHandle):
        raise InputError(
            "nothing is known of lookups of this DataFrame: expected one that millrace.sql or millrace.join "
            "returned, or one derived from it"
        )
    return handle
