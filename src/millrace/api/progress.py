"""``millrace.monitor.progress``, and the line that is shown by default while an action runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO, cast

from millrace.api.line import EVERY, Watch, is_notebook, is_seen, room, writer
from millrace.spark import actions
from millrace.spark.handles import tasks_of
from millrace.spark.session import alive, session_of
from millrace.spark.stages import repeatedly, tasks_shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.spark.actions import Carried, End

_SOME = frozenset({"take", "first", "head", "tail", "show", "isEmpty"})
"""Actions for which Spark runs as few tasks as will do."""

_READ = ("toLocalIterator", "to_batches")
"""Actions whose rows are read one by one: a reader who prints them sees how far they are."""

__all__ = ["Watch", "by_default", "progress"]


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
    with room():  # also without a line of its own, so that none is shown by default either
        write = None if shown is False else writer(anywhere=shown is True)
        if write is None:
            yield
            return
        watch = Watch()

        def begun(name: str, carried: Carried) -> None:
            watch.expect(_planned(name, carried))

        with tasks_shown(alive(session_of(spark, {})), watch.tasks):
            actions.watch(begun)
            try:
                with repeatedly(lambda: write(watch.line(), False), EVERY):
                    yield
            finally:
                actions.unwatch(begun)
                write(watch.line(), True)


def by_default() -> None:
    """Show a line for each action from now on that takes a while, where somebody sees it."""
    actions.watch(_begun)


def _begun(name: str, carried: Carried) -> End | None:
    if carried.quiet or name in _READ or not is_seen():
        return None
    return _Line(carried.spark, prints=name == "show", tasks=_planned(name, carried)).end


def _planned(name: str, carried: Carried) -> int:
    """Return how many tasks an action has, as far as that is known before Spark begins them."""
    return 0 if name in _SOME else tasks_of(carried.runs)


class _Line:
    """The line of one action, once that has taken a while; it is gone when the action is over.

    Args:
        spark: The action's session, None where it is not known.
        prints: Whether the action prints something, which must not stand behind the line.
        tasks: That are known to come.
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
        """Show nothing more."""
        self._stop()
        if self._stdout is not None and sys.stdout is cast("TextIO", self._stdout):
            sys.stdout = self._stdout.base

    def _stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        if self._over.wait(EVERY):
            return
        with room() as free:
            if not free or self._has_bar():
                return
            watch = Watch(before=EVERY)
            watch.expect(self._tasks)
            with nullcontext() if self._spark is None else tasks_shown(self._spark, watch.tasks):
                if not self._over.wait(EVERY):
                    self._lines(watch)

    def _lines(self, watch: Watch) -> None:
        write = writer(anywhere=True)
        assert write is not None
        write(watch.line(), False)
        while not self._over.wait(EVERY):
            write(watch.line(), False)
        write("", False)

    def _has_bar(self) -> bool:
        """Whether Spark shows a bar of its own."""
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
