"""The made-up streams as a data source of Spark: ``spark.readStream.format("millrace_feed")``.

An offset is a number of rows, and the moment that the feed began at, which the checkpoint so keeps: what is
there grows with time, also while the query is stopped, and what a row is depends on its number alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millrace.errors import OptionError
from millrace.spark.session import session_of
from millrace.spark.types import spark_schema
from millrace.streams.feeds.rows import Feed, parsed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "millrace_feed"
_BATCH = 10_000
"""Rows of an Arrow batch."""

_PART = 50_000
"""Rows of a task, at least: a smaller micro-batch is one task's."""


@dataclass(frozen=True)
class Supply(Feed):
    """A made-up stream, and when its rows are there.

    Attributes:
        backlog: Rows that are there from the beginning; the others come at the feed's rate.
        rows_in_all: Rows after which the feed ends; None for never.
        max_rows: Rows of a micro-batch at most; None for all that are there.
        tasks: Tasks that a micro-batch is read by, at most.
    """

    backlog: int = 0
    rows_in_all: int | None = None
    max_rows: int | None = None
    tasks: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("backlog", 0), ("rows_in_all", 0), ("max_rows", 1), ("tasks", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise OptionError(f"option {name} is {value}: expected a number, {least} or more")

    def there(self, seconds: float) -> int:
        """Return how many rows are there so long after the beginning."""
        rows = self.backlog + int(max(0.0, seconds) * self.rate)
        return rows if self.rows_in_all is None else min(rows, self.rows_in_all)


_WHOLE = ("seed", "backlog", "rows_in_all", "max_rows", "tasks")
_PARSERS: Mapping[str, Any] = {
    each.name: int if each.name in _WHOLE else float
    for each in fields(Supply)
    if each.name not in ("stream", "start")
}


@overload
def feed(spark: SparkSession | None = None) -> None: ...
@overload
def feed(spark: SparkSession | None, stream: str, **settings: Any) -> DataFrame: ...
def feed(spark: SparkSession | None = None, stream: str | None = None, **settings: Any) -> DataFrame | None:
    """Return a made-up stream of orders, payments or shipments, to try joins of streams with.

    >>> orders = millrace.streams.feed(spark, "orders", rate=5000, disorder=2)  # doctest: +SKIP
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
    spark = session_of(spark, {})
    spark.dataSource.register(FeedSource)
    if stream is None:
        if settings:
            raise OptionError(
                f"option {next(iter(settings))} is of one stream: name it, feed(spark, 'orders')"
            )
        return None
    options = {name: str(value) for name, value in settings.items() if value is not None}
    supply = _supply({"stream": stream, **options})
    frame = spark.readStream.format(NAME).options(stream=stream, **options).load()
    return frame.withWatermark("t", f"{round(supply.disorder * 1000)} milliseconds")


def _supply(options: Mapping[str, str]) -> Supply:
    supply: Supply = parsed({"stream": "orders", **options}, Supply, _PARSERS)
    return supply


class FeedSource(DataSource):
    """Makes up the stream that its options name."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format()`` is told."""
        return NAME

    def schema(self) -> StructType:
        return spark_schema(_supply(dict(self.options)).schema)

    def streamReader(self, schema: StructType) -> FeedReader:  # noqa: N802  # Spark's name
        return FeedReader(_supply(dict(self.options)))


class _Rows(InputPartition):
    """Rows by number, ``first`` included and ``last`` not."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))
        self.first, self.last = first, last


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches."""

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._until: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        """Return the offset of a feed that begins now."""
        return {"row": 0, "began": int(time.time() * 1000)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._supply.max_rows is None else ReadMaxRows(self._supply.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let nothing come after this moment."""
        self._until = time.time()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next micro-batch goes."""
        now = time.time() if self._until is None else self._until
        end = self._supply.there(now - start["began"] / 1000)
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["row"] + limit.max_rows)
        return {**start, "row": max(start["row"], end)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[_Rows]:
        first, last = start["row"], end["row"]
        tasks = max(1, min(self._supply.tasks, (last - first) // _PART))
        cuts = [first + (last - first) * n // tasks for n in range(tasks + 1)]
        return [_Rows(a, b) for a, b in pairwise(cuts) if a < b]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        for first in range(partition.first, partition.last, _BATCH):
            yield self._supply.rows(first, min(first + _BATCH, partition.last))
