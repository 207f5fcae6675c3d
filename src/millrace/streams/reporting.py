"""What a join of streams is doing, or did, as a report; and its micro-batches, one by one as they end.

Spark calls a listener of the session's, in the process that started the queries, for classic sessions and
Spark Connect alike; each micro-batch is reported once, in order, a moment after its commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.streaming.listener import StreamingQueryListener

from millrace.errors import ExecutionError, InputError
from millrace.reports.micro_batch import MicroBatch, micro_batch
from millrace.reports.stream_report import StreamReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

_PATIENCE = 10.0
"""Seconds to wait, at the end, for what Spark has yet to tell of queries that have ended."""


def report(query: StreamingQuery) -> StreamReport:
    """Return what a streaming query does that joins streams by Millrace, while it runs or after.

    >>> query = df.writeStream.format("parquet").start("joined", checkpointLocation="c")  # doctest: +SKIP
    >>> print(millrace.streams.report(query))  # doctest: +SKIP

    It has rows, late rows and results, the lag behind the newest row, state by stream (tuples, memory,
    indexes, log), orders over time, and percentiles of what micro-batches took: as text, ``.to_dict()``,
    ``.to_json()``, and for each micro-batch in ``.batches``. These are as many as Spark remembers
    (``spark.sql.streaming.numRecentProgressUpdates``, 100); :func:`millrace.streams.log` keeps all.

    Raises:
        InputError: It is no streaming query.
        ExecutionError: Millrace has no part in it, or it has not ended a micro-batch yet.
    """
    if not hasattr(query, "recentProgress"):
        raise InputError(
            f"expected a streaming query, as df.writeStream.start() returns it, got a {type(query).__name__}"
        )
    batches = {batch.batch: batch for batch in map(micro_batch, query.recentProgress) if batch is not None}
    if not batches:
        raise ExecutionError(
            "this streaming query has told nothing of a join of Millrace's: it has not ended a micro-batch "
            "yet, or Spark runs it alone (query.explain() says so)"
        )
    return StreamReport(tuple(batches[number] for number in sorted(batches)), bool(query.isActive))


class StreamWatch(StreamingQueryListener, AbstractContextManager["StreamWatch"]):
    """Calls a function for each micro-batch; see :func:`watch`. The end of its ``with`` stops it.

    Calls come one at a time. ``over`` gets the run of each query that has ended, and what it failed with.
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
        with self._changed:  # events wait, so nothing is added that is known to have ended
            self._running |= self._active()

    def stop(self) -> None:
        """Listen no more, once queries that have ended are reported; once is enough.

        Raises:
            Exception: What the function raised first.
        """
        if not self._listens:
            return
        active = self._active()
        with self._changed:
            self._changed.wait_for(lambda: self._running <= active, _PATIENCE)
        self._spark.streams.removeListener(self)
        self._listens = False
        if self._error is not None:
            raise self._error

    def _active(self) -> set[str]:
        """Return the runs of the session's queries that have not ended."""
        return {str(query.runId) for query in self._spark.streams.active}

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What Spark calls; the names and arguments are Spark's.

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        with self._changed:
            self._running.add(str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        if (batch := self._guard(micro_batch, event.progress)) is not None:
            self._guard(self._call, batch)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        run = str(event.runId)
        if self._over is not None:
            self._guard(self._over, run, event.exception)
        with self._changed:
            self._running.discard(run)
            self._changed.notify_all()

    def _guard(self, call: Callable[..., T], *given: Any) -> T | None:
        """Call a function, and keep what it raises: it would be lost in Spark's log."""
        try:
            return call(*given)
        except Exception as error:  # noqa: BLE001
            self._error = self._error or error
            return None


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

    def append(batch: MicroBatch) -> None:
        line = f"{batch.to_json()}\n".encode()
        with target.open("ab", buffering=0) as file:
            written = file.write(line)
        if written != len(line):
            raise OSError(f"{target}: {written} of {len(line)} bytes were written")

    return StreamWatch(spark, append)
