"""How many tasks a session has begun and finished, on classic Spark and on Spark Connect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from millrace.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY = 0.1
Show = Callable[[int, int], None]
"""Takes the number of tasks known so far, and of those that are finished."""


@contextmanager
def tasks_shown(spark: SparkSession, show: Show) -> Iterator[None]:
    """Call a function with the counts of tasks while the body runs."""
    with _connect(spark, show) if is_connect(spark) else _classic(spark, show):
        yield


@contextmanager
def repeatedly(look: Callable[[], None], every: float = _EVERY) -> Iterator[None]:
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

    with repeatedly(look):
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

    handler = cast("Any", look)
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
