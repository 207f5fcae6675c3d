"""A progress bar of finished tasks, on classic Spark and on Spark Connect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from millrace.spark.parallelism import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.coordination import LookupProgress

_EVERY = 0.1
Show = Callable[[int, int], None]
"""Takes the number of tasks known so far, and of those that are finished."""


@contextmanager
def task_bar(
    spark: SparkSession, stderr: Console, lookups: Callable[[], list[LookupProgress]] | None = None
) -> Iterator[None]:
    """Show a bar of finished Spark tasks on ``stderr`` while the body runs, if it is a terminal.

    ``lookups`` returns how far the query's lookups are; each has a line of its own.
    """
    if not stderr.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        line = bar.add_task("Spark tasks", total=None)

        def show(total: int, finished: int) -> None:
            bar.update(line, total=total or None, completed=finished)

        with _connect(spark, show) if is_connect(spark) else _classic(spark, show), _lookups(bar, lookups):
            yield


def lookup_line(one: LookupProgress) -> str:
    """Return how far a lookup is, in words."""
    text = f"{one.name}: {one.done:,} of {one.keys:,} keys"
    parts = ((one.cached, "cached"), (one.failed, "failed"), (one.in_flight, "in flight"))
    text += "".join(f", {count:,} {what}" for count, what in parts if count)
    return text + (f", {one.rate:,.0f} a second" if one.rate else "")


@contextmanager
def _lookups(bar: Progress, lookups: Callable[[], list[LookupProgress]] | None) -> Iterator[None]:
    """Keep a line for each lookup up to date."""
    if lookups is None:
        yield
        return
    lines: list[TaskID] = []

    def look() -> None:
        for place, one in enumerate(lookups()):
            if place == len(lines):
                lines.append(bar.add_task("", total=None))
            bar.update(
                lines[place],
                description=lookup_line(one),
                total=one.keys or None,
                completed=one.done + one.failed,
            )

    with _repeatedly(look):
        yield


@contextmanager
def _repeatedly(look: Callable[[], None]) -> Iterator[None]:
    """Call a function every now and then while the body runs."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_EVERY):
            look()

    thread = threading.Thread(target=watch, name="millrace-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _classic(spark: SparkSession, show: Show) -> Iterator[None]:
    tracker = spark.sparkContext.statusTracker()
    stages: dict[int, tuple[int, int]] = {}

    def look() -> None:
        active = set(tracker.getActiveStageIds())
        for stage in active | set(stages):
            if info := tracker.getStageInfo(stage):
                stages[stage] = (info.numTasks, info.numCompletedTasks)
        show(sum(total for total, _ in stages.values()), sum(done for _, done in stages.values()))

    with _repeatedly(look):
        yield


@contextmanager
def _connect(spark: SparkSession, show: Show) -> Iterator[None]:
    known: dict[tuple[str | None, int], tuple[int, int]] = {}

    # Spark calls handlers by keyword; the names are Spark's. Any callable will do, whatever its
    # annotation says.
    def look(stages: Iterable[Any] | None, operation_id: str | None, **_: Any) -> None:
        for stage in stages or ():
            known[operation_id, stage.stage_id] = (stage.num_tasks, stage.num_completed_tasks)
        show(sum(total for total, _ in known.values()), sum(done for _, done in known.values()))

    handler = cast(Any, look)
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
