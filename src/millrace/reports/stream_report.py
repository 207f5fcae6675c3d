"""What a join of streams did: the figures of its micro-batches, added up and over time.

A report is plain data, as :class:`millrace.reports.run_report.RunReport` is.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from millrace.engine.figures import summed
from millrace.reports.micro_batch import MicroBatch, StreamFigures, iso
from millrace.reports.tables import Table, table
from millrace.reports.text import size

_SHOWN_CHANGES = 12

_CAME = ("rows", "late", "expired")
_SUMS = (*_CAME, "results", "restored", "rebuilt")


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
        came = {own.alias: {n: getattr(own, n) for n in (*_CAME, "newest")} for own in summed(figures)}
        streams = tuple(replace(now[alias], **sums) for alias, sums in came.items())
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
    def table(self) -> Table:
        """The streams as people see them, the same as text and on the live page."""
        rows = [{**vars(each), "name": each.alias} for each in self.streams]
        names = ("name", *_CAME, "tuples", "nbytes", "index_bytes", "log_bytes", "log_blocks")
        caption = f"Streams; what came and went did so in the last {len(self.batches)} micro-batches"
        shown = table(caption, rows, names, "tuples")
        assert shown is not None, "a join has streams"
        return shown

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
                    latest[stream] = order
                else:
                    latest[stream] = max(before, order, key=len)
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
        yield from (f"  {line}" for line in self.table.lines())
        changes = self.orders()
        for change in changes[:_SHOWN_CHANGES]:
            yield f"  from {change.batch} on, {change.stream}: {change.order} ({change.share:.0%})"
        if len(changes) > _SHOWN_CHANGES:
            yield f"  and {len(changes) - _SHOWN_CHANGES} more changes of order"


def _begins(order: str, other: str) -> bool:
    """Whether an order is the beginning of another, or the same."""
    return f"{other} → ".startswith(f"{order} → ")
