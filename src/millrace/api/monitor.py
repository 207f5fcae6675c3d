"""``millrace.monitor``: how far queries are while they run, and how runs differ.

A line of progress is shown by default while an action runs that takes a while. It tells of the tasks that a
session has begun and finished, of rows and of the orders in use. There is one line only, so who shows one
has it alone.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO, cast

from millrace.errors import MillraceError
from millrace.reports.comparison import compare
from millrace.reports.pages.files import is_notebook
from millrace.spark.frames import Carried, End, latest, query_of, tasks_of, unwatch, watch
from millrace.spark.session import alive, is_connect, session_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millrace.api.live import live
    from millrace.limits.progress import LookupProgress
    from millrace.reports.run_report import RunReport

__all__ = ["compare", "failed_keys", "live", "lookups", "progress"]

EVERY = 0.5
"""Seconds between two lines."""

_LONGEST = 60
"""Letters of an order."""

_SOON = 0.25
"""Of the tasks: what has to be done before the rest is guessed from it."""

_SOME = frozenset({"take", "first", "head", "tail", "show", "isEmpty"})
"""Actions for which Spark runs as few tasks as will do."""

_READ = ("toLocalIterator", "to_batches")
"""Actions whose rows are read one by one: a reader who prints them sees how far they are."""


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
        MillraceError: As for :func:`lookups`.
    """
    return query_of(df).failed_keys()


@contextmanager
def progress(spark: SparkSession | None = None, *, shown: bool | None = None) -> Iterator[None]:
    """Show a line of progress while the body runs: tasks, rows and their rate, the orders in use.

    >>> with millrace.monitor.progress():  # doctest: +SKIP
    ...     kept.write.parquet("kept")

    It stands on standard error where that is a terminal, below the cell in a notebook, and nowhere else. Rows
    are those of tasks that have ended; Spark Connect tells of tasks only.

    Args:
        spark: The session; by default the active one.
        shown: False for no line, True for one also where there is no terminal.
    """
    with display_lock():  # also without a line of its own, so that none is shown by default either
        if shown is False or not (shown or is_seen()):
            yield
            return
        line, write = Watch(), writer()

        def on_action(name: str, carried: Carried) -> None:
            line.expect(_planned(name, carried))

        with tasks_shown(alive(session_of(spark, {})), line.tasks):
            watch(on_action)
            try:
                with repeatedly(lambda: write(line.line(), False), EVERY):
                    yield
            finally:
                unwatch(on_action)
                write(line.line(), True)


def by_default() -> None:
    """Show a line for each action from now on that takes a while, where somebody sees it."""
    watch(_on_action)


def _on_action(name: str, carried: Carried) -> End | None:
    if carried.quiet or name in _READ or not is_seen():
        return None
    return _Line(carried.spark, prints=name == "show", tasks=_planned(name, carried)).end


def _planned(name: str, carried: Carried) -> int:
    """Return how many tasks an action has, as far as that is known before Spark begins them."""
    return 0 if name in _SOME else tasks_of(carried.runs)


class _Line:
    """The line of one action, once that has taken a while; it is gone when the action is over.

    With ``prints`` the action prints something, which must not stand behind the line.
    """

    def __init__(self, spark: SparkSession | None, *, prints: bool, tasks: int = 0) -> None:
        self._spark, self._tasks = spark, tasks
        self._over = threading.Event()
        self._stdout: _Clearing | None = None
        if prints and sys.stdout.isatty():
            self._stdout = _Clearing(sys.stdout, self._stop)
            sys.stdout = cast("TextIO", self._stdout)
        self._thread = threading.Thread(target=self._show, name="millrace-progress", daemon=True)
        self._thread.start()

    def end(self, _error: BaseException | None) -> None:
        self._stop()
        if self._stdout is not None and sys.stdout is cast("TextIO", self._stdout):
            sys.stdout = self._stdout.base

    def _stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        if self._over.wait(EVERY):
            return
        with display_lock() as is_free:
            if not is_free or self._has_bar():
                return
            watch = Watch(before=EVERY)
            watch.expect(self._tasks)
            with nullcontext() if self._spark is None else tasks_shown(self._spark, watch.tasks):
                if self._over.wait(EVERY):
                    return
                write = writer()
                write(watch.line(), False)
                while not self._over.wait(EVERY):
                    write(watch.line(), False)
                write("", False)

    def _has_bar(self) -> bool:
        if self._spark is None or is_notebook():
            return False
        return str(self._spark.conf.get("spark.ui.showConsoleProgress", "false")) == "true"


class _Clearing:
    """Standard output that takes the line away before something is printed."""

    def __init__(self, base: TextIO, clear: Any) -> None:
        self.base, self._clear, self._thread = base, clear, threading.get_ident()

    def write(self, text: str) -> int:
        """Write, without the line if this is the action's own thread."""
        if threading.get_ident() == self._thread:
            self._clear()
        return self.base.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)


# What stands in the line, and who shows it

_displaying = threading.Lock()

Write = Callable[[str, bool], None]
"""Shows a line in the place of the one before; the last one is marked."""


class Watch:
    """What has been done since it was made, and ``before`` seconds earlier."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, before: float = 0.0) -> None:
        self._clock = clock
        self._began = clock() - before
        self._before = {id(handle): _seen(report) for handle, report in _reports()}
        self._tasks = (0, 0)
        self._planned = 0
        self._lock = threading.Lock()

    def tasks(self, total: int, finished: int) -> None:
        """Note the counts of tasks, which never fall."""
        with self._lock:
            self._tasks = max(total, self._tasks[0]), max(finished, self._tasks[1])

    def expect(self, tasks: int) -> None:
        """Note that an action has so many tasks; Spark tells of them when their stage begins."""
        with self._lock:
            self._planned += tasks

    def line(self) -> str:
        seconds = max(self._clock() - self._began, 1e-3)
        total, finished = max(self._tasks[0], self._planned), self._tasks[1]
        parts = [f"{finished:,} of {total:,} tasks"] if total else []
        if total == self._planned and _SOON * total <= finished < total:  # no more are to come
            parts.append(f"about {seconds * (total - finished) / finished:,.0f} s left")
        reports = [report for handle, report in _reports() if self._before.get(id(handle)) != _seen(report)]
        if reports:
            rows = sum(report.totals.output_tuples for report in reports)
            parts.append(f"{rows:,} rows, {rows / seconds:,.0f} a second")
            orders = reports[-1].orders()
            if orders:
                best = max(orders, key=lambda order: order.tuples)
                shown = best.order if len(best.order) <= _LONGEST else best.order[: _LONGEST - 1] + "…"
                parts.append(f"{shown} ({best.share:.0%})")
        for handle in latest()[-1:]:
            with suppress(MillraceError):  # who knew has ended, and the line says the rest
                parts += [lookup_line(one) for one in getattr(handle, "lookups", list)() if one.in_flight]
        return " · ".join([f"{seconds:.1f} s", *parts])


def lookup_line(lookup: LookupProgress) -> str:
    """Return how far a lookup is, in words."""
    text = f"{lookup.name}: {lookup.done:,} of {lookup.keys:,} keys"
    parts = ((lookup.cached, "cached"), (lookup.failed, "failed"), (lookup.in_flight, "in flight"))
    text += "".join(f", {count:,} {what}" for count, what in parts if count)
    return text + (f", {lookup.rate:,.0f} a second" if lookup.rate else "")


def _reports() -> Iterator[tuple[Any, RunReport]]:
    for handle in latest():
        try:
            yield handle, handle.report()
        except MillraceError:  # nothing has run yet
            continue


def _seen(report: RunReport) -> tuple[int, int, float]:
    sums = report.totals
    return sums.cells, sums.output_tuples, sums.worker_seconds


@contextmanager
def display_lock() -> Iterator[bool]:
    """Tell the body whether it may show a line, or something else in its place; nobody else does then."""
    is_free = _displaying.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            _displaying.release()


def is_seen() -> bool:
    """Whether somebody would see a line."""
    return is_notebook() or sys.stderr.isatty()


def writer() -> Write:
    """Return what shows lines here."""
    return _notebook() if is_notebook() else _terminal


def _terminal(line: str, last: bool) -> None:  # noqa: FBT001  # one of two kinds of line
    sys.stderr.write(f"\r{line}\x1b[K" + ("\n" if last else ""))
    sys.stderr.flush()


def _notebook() -> Write:
    display: Any = import_module("IPython.display").display
    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda line, _last: handle.update({"text/plain": line}, raw=True)


# Tasks, on classic Spark and on Spark Connect


@contextmanager
def tasks_shown(spark: SparkSession, show: Callable[[int, int], None]) -> Iterator[None]:
    """Call a function with the counts of tasks, known and finished, while the body runs."""
    counts: dict[Any, tuple[int, int]] = {}

    def tell() -> None:
        known = list(counts.values())  # on Connect each action counts in its own thread
        show(sum(total for total, _ in known), sum(done for _, done in known))

    if not is_connect(spark):
        tracker = spark.sparkContext.statusTracker()

        def look() -> None:
            for stage in {*tracker.getActiveStageIds(), *counts}:
                if info := tracker.getStageInfo(stage):
                    counts[stage] = (info.numTasks, info.numCompletedTasks)
            tell()

        with repeatedly(look):
            yield
        return

    # Spark calls handlers by keyword; the names are Spark's. Any callable will do, whatever its annotation
    # says.
    def note(stages: Iterable[Any] | None, operation_id: str | None, **_: Any) -> None:
        for stage in stages or ():
            counts[operation_id, stage.stage_id] = (stage.num_tasks, stage.num_completed_tasks)
        tell()

    handler = cast("Any", note)
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


@contextmanager
def repeatedly(look: Callable[[], None], every: float = 0.1) -> Iterator[None]:
    """Call a function every so many seconds while the body runs."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(every):
            look()

    thread = threading.Thread(target=watch, name="millrace-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
