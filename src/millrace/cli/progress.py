"""A progress bar of finished tasks, on classic Spark and on Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from millrace.spark.stages import repeatedly, tasks_shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.limits.progress import LookupProgress


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

        with tasks_shown(spark, show), _lookups(bar, lookups):
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

    with repeatedly(look):
        yield
