"""What a join of streams is doing, or did: the figures of its micro-batches, added up and over time."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from millrace.errors import ExecutionError, InputError
from millrace.reports.micro_batch import MicroBatch, StreamFigures, iso, micro_batch
from millrace.reports.text import size

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_SHOWN_CHANGES = 12
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
        sums: dict[str, StreamFigures] = {}
        now: dict[str, StreamFigures] = {}
        for batch in self.batches:
            for figures in batch.streams:
                sums[figures.alias] = sums[figures.alias] + figures if figures.alias in sums else figures
                now[figures.alias] = figures
        streams = tuple(
            replace(now[alias], rows=whole.rows, late=whole.late, expired=whole.expired, newest=whole.newest)
            for alias, whole in sums.items()
        )
        whole = {name: sum(getattr(each, name) for each in self.batches) for name in _SUMS}
        return replace(self.latest, streams=streams, **whole)

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
            for change in favourites(batch):
                before = latest.get(change.stream)
                if before is None or not (_begins(before, change.order) or _begins(change.order, before)):
                    changes.append(change)
                elif len(change.order) <= len(before):
                    continue
                latest[change.stream] = change.order
        return tuple(changes)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON has."""
        latest, whole = self.latest.to_dict(), self._whole.to_dict()
        names = ("query", "run", "name", "held", "bytes", "log_bytes", "watermark")
        return {name: latest[name] for name in names} | {
            "active": self.active,
            "totals": self.totals,
            "lag": self.lag,
            "batch_seconds": {"p50": self.seconds(50), "p95": self.seconds(95)},
            "streams": whole["streams"],
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


def favourites(batch: MicroBatch) -> Iterator[OrderChange]:
    """Yield for each stream the order that most of its tuples took."""
    for stream in batch.streams:
        taken = [(order, n) for order, n in batch.orders if order.split(" → ")[0] == stream.alias]
        if taken:
            order = taken[0][0]
            share = sum(n for other, n in taken if _begins(other, order)) / sum(n for _, n in taken)
            yield OrderChange(batch.batch, stream.alias, order, share)


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
