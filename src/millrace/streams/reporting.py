"""What a join of streams is doing, or did: the figures of its micro-batches, added up and over time.

Or one by one as they end, to a function or as lines of a file. Spark calls a listener of the session's, in
the process that started the queries, for classic sessions and Spark Connect alike; each micro-batch is
reported once, in order, a moment after its commit.
"""

from __future__ import annotations

import html
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pyspark.sql.streaming.listener import StreamingQueryListener

from millrace.engine.figures import summed
from millrace.errors import ExecutionError, InputError
from millrace.reports.micro_batch import MicroBatch, StreamFigures, iso, micro_batch
from millrace.reports.text import size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

_SHOWN_CHANGES = 12
_PATIENCE = 10.0
"""Seconds to wait, at the end, for what Spark has yet to tell of queries that have ended."""

_SUMS = ("rows", "late", "results", "expired", "restored", "rebuilt")


@dataclass(frozen=True)
class OrderChange:
    """The order that most tuples of a stream took from a micro-batch on.

    Attributes:
        batch: Number of the micro-batch.
        stream: Alias of the stream.
        order: The order, as ``"o → p → s"``.
        share: Of the stream's tuples that took it, or a beginning of it, in that micro-batch.
    """

    batch: int
    stream: str
    order: str
    share: float


@dataclass(frozen=True)
class StreamReport:
    """The figures of a streaming query that Millrace has a part in.

    Attributes:
        batches: Its micro-batches, as many as Spark remembers
            (``spark.sql.streaming.numRecentProgressUpdates``); at least one.
        active: Whether the query was running when it was asked.
    """

    batches: tuple[MicroBatch, ...]
    active: bool

    @property
    def latest(self) -> MicroBatch:
        """The latest micro-batch: what is held stands there."""
        return self.batches[-1]

    @cached_property
    def _whole(self) -> MicroBatch:
        """All micro-batches as one: what came and went added up, and what is held after the latest."""
        figures = [each for batch in self.batches for each in batch.streams]
        now = {each.alias: each for each in figures}
        streams = tuple(
            replace(now[own.alias], rows=own.rows, late=own.late, expired=own.expired, newest=own.newest)
            for own in summed(figures)
        )
        sums = {name: sum(getattr(each, name) for each in self.batches) for name in _SUMS}
        return replace(self.latest, streams=streams, **sums)

    @property
    def totals(self) -> dict[str, int]:
        """Rows in time and late, results, and tuples expired and restored, and cells rebuilt, added up."""
        return {name: getattr(self._whole, name) for name in _SUMS}

    @property
    def streams(self) -> tuple[StreamFigures, ...]:
        """State by stream after the latest micro-batch, with the sums of what came and went."""
        return self._whole.streams

    @property
    def lag(self) -> float | None:
        """Seconds of event time from the watermark to the newest row; None where one of them is missing."""
        return self._whole.lag

    def seconds(self, percentile: float) -> float:
        """Return how long that percentage of micro-batches took at most.

        Args:
            percentile: From 0 to 100.
        """
        return float(np.percentile([each.seconds for each in self.batches], percentile))

    def orders(self) -> tuple[OrderChange, ...]:
        """Return which orders most tuples of each stream took since when.

        A tuple that finds nothing takes the beginning of an order, so a beginning is no other order.
        """
        changes: list[OrderChange] = []
        latest: dict[str, str] = {}
        for batch in self.batches:
            for stream in (each.alias for each in batch.streams):
                taken = {order: n for order, n in batch.orders if _begins(stream, order)}
                if not taken:
                    continue
                order, before = next(iter(taken)), latest.get(stream)
                if before is None or not (_begins(before, order) or _begins(order, before)):
                    share = sum(n for other, n in taken.items() if _begins(other, order))
                    changes.append(OrderChange(batch.batch, stream, order, share / sum(taken.values())))
                elif len(order) <= len(before):
                    continue
                latest[stream] = order
        return tuple(changes)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON has."""
        whole = self._whole.to_dict()
        names = ("query", "run", "name", "held", "bytes", "log_bytes", "watermark", "lag", "streams")
        return {name: whole[name] for name in names} | {
            "active": self.active,
            "totals": self.totals,
            "batch_seconds": {"p50": self.seconds(50), "p95": self.seconds(95)},
            "orders": [vars(each) for each in self.orders()],
            "batches": [each.to_dict() for each in self.batches],
        }

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def __str__(self) -> str:
        """Return the report as text."""
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def _lines(self) -> Iterator[str]:
        first, latest, sums = self.batches[0], self.latest, self.totals
        kind = "running" if self.active else "ended"
        yield (
            f"{latest.name or latest.query}: {kind}, micro-batches {first.batch} to {latest.batch}, "
            f"p50 {self.seconds(50):.2f} s, p95 {self.seconds(95):.2f} s"
        )
        yield f"  {sums['rows']:,} rows in time, {sums['late']:,} late, {sums['results']:,} results"
        lag = "" if self.lag is None else f", {self.lag:,.1f} s behind the newest row"
        yield f"  watermark {iso(latest.watermark) or 'not there yet'}{lag}"
        yield (
            f"  state {latest.held:,} tuples, {size(latest.bytes)} in memory, {size(latest.log_bytes)} of "
            f"log; {sums['expired']:,} expired, {sums['restored']:,} read from the log, "
            f"{sums['rebuilt']:,} cells made anew"
        )
        for stream in self.streams:
            yield (
                f"  {stream.alias}: {stream.rows:,} rows, {stream.late:,} late, {stream.tuples:,} kept, "
                f"{size(stream.nbytes)} (indexes {size(stream.index_bytes)}), "
                f"log {size(stream.log_bytes)} in {stream.log_blocks:,} blocks, {stream.expired:,} expired"
            )
        changes = self.orders()
        for change in changes[:_SHOWN_CHANGES]:
            yield f"  from {change.batch} on, {change.stream}: {change.order} ({change.share:.0%})"
        if len(changes) > _SHOWN_CHANGES:
            yield f"  and {len(changes) - _SHOWN_CHANGES} more changes of order"


def _begins(order: str, other: str) -> bool:
    """Whether an order is the beginning of another, or the same."""
    return f"{other} → ".startswith(f"{order} → ")


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

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What Spark calls; the names and arguments are Spark's.

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        with self._changed:
            self._running.add(str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        if (batch := self._guard(micro_batch, event.progress)) is not None:
            self._guard(self._call, batch)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing has happened."""

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
