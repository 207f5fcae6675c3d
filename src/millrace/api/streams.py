"""Beside joins of streams: made-up streams to try them with, and what running queries are doing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from millrace.api.session import session_of
from millrace.reports.micro_batch import MicroBatch
from millrace.streams.feeds.source import feed as made
from millrace.streams.report import StreamReport, reported
from millrace.streams.watching import StreamWatch, logged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@overload
def feed(spark: SparkSession | None = None) -> None: ...
@overload
def feed(spark: SparkSession | None, stream: str, **settings: Any) -> DataFrame: ...
def feed(spark: SparkSession | None = None, stream: str | None = None, **settings: Any) -> DataFrame | None:
    """Return a made-up stream of orders, payments or shipments, to try joins of streams with.

    >>> orders = millrace.feed(spark, "orders", rate=5000, disorder=2)  # doctest: +SKIP
    >>> spark.readStream.format("millrace_feed").option("stream", "payments").load()  # doctest: +SKIP

    Each row is computed from the seed and its number, so a restart, or another run, gets the same rows.
    Columns are ``order_id bigint``, ``t timestamp``, the event time, and two more. A payment or shipment is
    never earlier than its order and at most ``within + 2 * disorder + 1 + 2 / rate`` seconds later, late rows
    apart.

    Args:
        spark: The session; by default the active one, or a new one. The format is registered in it.
        stream: ``"orders"``, ``"payments"`` or ``"shipments"``; None only registers the format, whose options
            have the names below.
        settings: ``rate``: rows a second (1000). ``disorder``: seconds by which rows are out of order (2);
            the stream has a watermark of that delay, which the format alone does not set. ``within``: seconds
            between an order and what follows it (20). ``match``: share of rows that are of an order
            (payments 0.9, shipments 0.2), and ``match_after`` that after the drift (the two change hands).
            ``skew``, ``skew_after``: share of rows that are of one order of each second (0). ``drift_at``:
            seconds from the beginning (never). ``late``: share of rows that come later than the watermark
            allows (0). ``seed`` (0). ``start``: the first event time (2025). ``backlog``: rows that are
            there from the beginning (0). ``rows_in_all``: rows after which the stream ends (never).
            ``max_rows``: of a micro-batch (any number). ``tasks``: that read a micro-batch, at most (2).

    Raises:
        OptionError: A stream or setting has an unknown name or is out of range.
    """
    return made(session_of(spark, {}), stream, settings)


def stream_report(query: StreamingQuery) -> StreamReport:
    """Return what a streaming query does that joins streams by Millrace, while it runs or after.

    >>> query = df.writeStream.format("parquet").start("joined", checkpointLocation="c")  # doctest: +SKIP
    >>> print(millrace.stream_report(query))  # doctest: +SKIP

    It has rows, late rows and results, the lag behind the newest row, state by stream (tuples, memory,
    indexes, log), orders over time, and percentiles of what micro-batches took: as text, ``.to_dict()``,
    ``.to_json()``, and for each micro-batch in ``.batches``. These are as many as Spark remembers
    (``spark.sql.streaming.numRecentProgressUpdates``, 100); :func:`stream_log` keeps all.

    Raises:
        InputError: It is no streaming query.
        ExecutionError: Millrace has no part in it, or it has not ended a micro-batch yet.
    """
    return reported(query)


def watch_streams(spark: SparkSession, call: Callable[[MicroBatch], object]) -> StreamWatch:
    """Call a function with the figures of each micro-batch of queries that join streams by Millrace.

    >>> with millrace.watch_streams(spark, lambda batch: print(batch.batch, batch.lag)):  # doctest: +SKIP
    ...     query.awaitTermination()

    It holds for all queries of the session until ``stop()`` of what is returned, or the end of ``with``. What
    the function raises is raised there, and stops no query.

    Args:
        spark: The session; of Spark Connect, too.
        call: Gets a micro-batch's figures, in a thread of Spark's, a moment after the micro-batch has ended.
    """
    return StreamWatch(spark, call)


def stream_log(spark: SparkSession, path: str | Path) -> StreamWatch:
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
    return logged(spark, path)
