"""Tells of micro-batches as they end: to a function, or as lines of a file.

Spark calls a listener of the session's, in the process that started the queries, for classic sessions and
Spark Connect alike; each micro-batch is reported once, in order, a moment after its commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql.streaming.listener import StreamingQueryListener

from millrace.errors import InputError
from millrace.reports.micro_batch import MicroBatch, micro_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 10.0
"""Seconds to wait, at the end, for what Spark has yet to tell of queries that have ended."""


class StreamWatch(StreamingQueryListener):
    """Calls a function for each micro-batch of a session's queries that Millrace has a part in.

    It is a context manager, which stops at its end. What the function raises reaches no query: :meth:`stop`
    raises it.

    Args:
        spark: The session.
        call: Gets the figures of each micro-batch; one call at a time.
        over: Gets the run of each query that has ended, and what it failed with, or None.
    """

    def __init__(
        self,
        spark: SparkSession,
        call: Callable[[MicroBatch], object],
        over: Callable[[str, str | None], object] | None = None,
    ) -> None:
        self._spark, self._call, self._over = spark, call, over
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._error: Exception | None = None
        self._listens = True
        spark.streams.addListener(self)

    def stop(self) -> None:
        """Listen no more, once queries that have ended are reported; once is enough.

        Raises:
            Exception: What the function raised first.
        """
        if not self._listens:
            return
        active = {str(query.runId) for query in self._spark.streams.active}
        with self._changed:
            self._changed.wait_for(lambda: self._running <= active, _PATIENCE)
        self._spark.streams.removeListener(self)
        self._listens = False
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What Spark calls; the names and arguments are Spark's.

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        with self._changed:
            self._running.add(str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._guard(lambda: self._tell(event.progress))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing has happened."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        run = str(event.runId)
        if (over := self._over) is not None:
            self._guard(lambda: over(run, event.exception))
        with self._changed:
            self._running.discard(run)
            self._changed.notify_all()

    def _tell(self, progress: Any) -> None:
        batch = micro_batch(progress)
        if batch is not None:
            self._call(batch)

    def _guard(self, call: Callable[[], object]) -> None:
        """Call a function, and keep what it raises: it would be lost in Spark's log."""
        try:
            call()
        except Exception as error:  # noqa: BLE001
            self._error = self._error or error


def watch(spark: SparkSession, call: Callable[[MicroBatch], object]) -> StreamWatch:
    """Call a function with the figures of each micro-batch of queries that join streams by Millrace.

    >>> with millrace.streams.watch(spark, lambda batch: print(batch.lag)):  # doctest: +SKIP
    ...     query.awaitTermination()

    It holds for all queries of the session until ``stop()`` of what is returned, or the end of ``with``. What
    the function raises is raised there, and stops no query.

    Args:
        spark: The session; of Spark Connect, too.
        call: Gets a micro-batch's figures, in a thread of Spark's, a moment after the micro-batch has ended.
    """
    return StreamWatch(spark, call)


def log(spark: SparkSession, path: str | Path) -> StreamWatch:
    """Append a line of JSON to a file for each micro-batch of queries that join streams by Millrace.

    A line is appended by one call, so that lines of several processes do not mix; and the file may be moved
    away while it is written. A micro-batch that is run again after a crash may have a line for each run. It
    goes on until ``stop()`` of what is returned, or the end of ``with``.

    Args:
        spark: The session; of Spark Connect, too.
        path: The file; on a local disk, of this process.

    Raises:
        InputError: The file cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.open("ab").close()
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}") from None
    return StreamWatch(spark, lambda batch: _append(target, batch.to_json()))


def _append(target: Path, line: str) -> None:
    data = f"{line}\n".encode()
    with target.open("ab", buffering=0) as file:
        written = file.write(data)
    if written != len(data):
        raise OSError(f"{target}: {written} of {len(data)} bytes were written")
