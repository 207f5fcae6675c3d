"""The demo of streams: orders, payments and shipments that are made up, joined live, and what that takes."""

from __future__ import annotations

import datetime as dt
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

import millrace
from millrace.cli.fitting import Column, Fitted
from millrace.errors import ExecutionError
from millrace.reports.micro_batch import MicroBatch
from millrace.reports.text import size
from millrace.spark.session import default_parallelism
from millrace.streams.feeds.rows import STREAMS, Feed
from millrace.streams.reporting import StreamReport, favourites

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_MOST_CELLS = 4
"""Micro-batches are small, and each cell takes time in every one."""

_REMEMBERED = 10_000
"""Micro-batches, some hours of them, that the table and the report are made of."""

_LATELY = 5
"""Micro-batches that orders are told of."""

_EVERY = 0.25
_TEXT = """
    SELECT o.order_id, o.t AS ordered, p.t AS paid_at, s.t AS sent_at, p.method, s.carrier, o.total, p.paid
    FROM orders o JOIN payments p ON p.order_id = o.order_id JOIN shipments s ON s.order_id = o.order_id
    WHERE p.t BETWEEN o.t AND o.t + INTERVAL {reach} SECONDS
      AND s.t BETWEEN o.t AND o.t + INTERVAL {reach} SECONDS
"""


def run(spark: SparkSession, console: Console, seconds: float, rate: float) -> StreamReport:
    """Join the feed for a while, and show what that takes: as a live table, or as lines where no terminal is.

    Ctrl-C ends it earlier. Half-way, payments and shipments change places in selectivity.

    Args:
        spark: A session with :data:`millrace.streams.plan.SETTINGS`.
        console: Where to print.
        seconds: That it runs, from the end of the first micro-batch on.
        rate: Rows a second of each stream.

    Returns:
        The figures.

    Raises:
        ExecutionError: Ctrl-C came before the end of the first micro-batch.
        pyspark.errors.StreamingQueryException: The query failed.
    """
    spark.conf.set("spark.sql.shuffle.partitions", str(min(_MOST_CELLS, default_parallelism(spark))))
    joined = _joined(spark, seconds, rate)
    console.print(
        f"{rate:,g} orders, payments and shipments a second, joined for {seconds:g} s; Ctrl-C ends it. "
        f"{seconds / 2:g} s after the first row, payments mostly are of no order, and no longer shipments.",
        soft_wrap=True,
    )
    batches: deque[MicroBatch] = deque(maxlen=_REMEMBERED)
    with ExitStack() as stack:
        checkpoint = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-stream-"))
        screen = stack.enter_context(_Screen(console, batches)) if console.is_terminal else None
        watch = stack.enter_context(
            millrace.streams.watch(spark, batches.append if screen else _lines(console, batches))
        )
        query = (
            joined.writeStream.queryName("orders, payments, shipments")
            .format("noop")
            .option("checkpointLocation", checkpoint)
            .start()
        )
        try:
            _wait(query, seconds, batches, screen)
        except KeyboardInterrupt:
            pass  # that is how it is ended
        else:
            if (error := query.exception()) is not None:
                raise error
        finally:
            query.stop()
            watch.stop()
            if screen is not None:
                screen.show()
    if not batches:
        raise ExecutionError("it was stopped before a micro-batch had ended, so there is nothing to tell")
    report = StreamReport(tuple(batches), active=False)
    console.print(Text(str(report)), soft_wrap=True)
    return report


def _joined(spark: SparkSession, seconds: float, rate: float) -> DataFrame:
    start = dt.datetime.now(dt.UTC).isoformat()
    settings = {"rate": rate, "drift_at": seconds / 2, "late": 0.002, "start": start}
    tables = {stream: millrace.streams.feed(spark, stream, **settings) for stream in STREAMS}
    reach = int(Feed("payments", rate).reach) + 1
    return millrace.sql(_TEXT.format(reach=reach), spark=spark, tables=tables)


def _wait(query: StreamingQuery, seconds: float, batches: deque[MicroBatch], screen: _Screen | None) -> None:
    """Wait until the time is over, which begins with the first micro-batch's end, or the query has failed."""
    never = threading.Event()
    left = round(seconds / _EVERY)
    while left > 0 and query.isActive:
        never.wait(_EVERY)
        if batches:
            left -= 1
        if screen is not None:
            screen.show()


class _Screen(Live):
    """A live table of what has been done.

    Args:
        console: A terminal.
        batches: The micro-batches so far.
    """

    def __init__(self, console: Console, batches: deque[MicroBatch]) -> None:
        super().__init__(
            Text("waiting for the first micro-batch", style="dim"), console=console, auto_refresh=False
        )
        self._batches = batches

    def show(self) -> None:
        """Draw the table anew."""
        if batches := tuple(self._batches):
            self.update(table(StreamReport(batches, active=True)), refresh=True)


def table(report: StreamReport) -> Group:
    """Return the table of a running stream: what came of the join, state by stream, and orders now."""
    sums, latest = report.totals, report.latest
    columns = [
        Column("stream", rank=0),
        Column("rows", number=True, rank=0),
        Column("late", number=True, rank=1),
        Column("kept", number=True, rank=0),
        Column("memory", number=True, rank=1),
        Column("indexes", number=True, rank=2),
        Column("log", number=True, rank=1),
        Column("expired", number=True, rank=1),
    ]
    rows = [
        (
            one.alias,
            f"{one.rows:,}",
            f"{one.late:,}",
            f"{one.tuples:,}",
            size(one.nbytes),
            size(one.index_bytes),
            size(one.log_bytes),
            f"{one.expired:,}",
        )
        for one in report.streams
    ]
    lag = "no watermark yet" if report.lag is None else f"watermark {report.lag:,.1f} s behind the newest row"
    head = (
        f"micro-batch {latest.batch}, p50 {report.seconds(50):.2f} s, p95 {report.seconds(95):.2f} s; "
        f"{sums['results']:,} results; {lag}; state {size(latest.bytes)}, log {size(latest.log_bytes)}"
    )
    # A micro-batch may have had nothing of a stream.
    now = {each.stream: each for batch in report.batches[-_LATELY:] for each in favourites(batch)}
    orders = [Text(f"most of {each.stream}: {each.order} ({each.share:.0%})") for each in now.values()]
    return Group(Text(head, style="bold"), Fitted(columns, rows), *orders)


def _lines(console: Console, batches: deque[MicroBatch]) -> Callable[[MicroBatch], None]:
    """Return what prints a line for each micro-batch."""

    def told(batch: MicroBatch) -> None:
        batches.append(batch)
        console.print(line(batch), soft_wrap=True, highlight=False)

    return told


def line(batch: MicroBatch) -> str:
    """Return a micro-batch's figures as a line."""
    lag = "no watermark" if batch.lag is None else f"watermark {batch.lag:,.1f} s behind"
    parts = [
        f"micro-batch {batch.batch}: {batch.seconds:.2f} s",
        f"{batch.rows:,} rows",
        f"{batch.late:,} late",
        f"{batch.results:,} results",
        lag,
        f"{batch.held:,} tuples kept ({', '.join(f'{one.alias} {one.tuples:,}' for one in batch.streams)})",
        f"{size(batch.bytes)} in memory",
        f"{size(batch.log_bytes)} of log",
        *(each.order for each in favourites(batch)),
    ]
    return "; ".join(parts)
