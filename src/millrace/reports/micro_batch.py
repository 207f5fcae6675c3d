"""The figures of one micro-batch of a join of streams, read from what Spark says of its progress.

A cell tells of itself, of its streams one by one and of the orders of tuples. That travels as one line of
JSON in a column of the stateful operator's output, and Spark's observed metrics put the lines of all cells
together. A line has a few hundred bytes, however many tuples there were.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from millrace.engine.figures import Sums, summed

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

SEPARATOR = "\n"
"""Between the lines of cells; JSON in one line has none."""

MOST_ORDERS = 8
"""Orders that a cell tells of in each micro-batch: those that most tuples took."""

PREFIX = "continuous_"
"""The names of joins of streams, in Spark's observed metrics, begin with this."""

Orders = tuple[tuple[str, int], ...]
"""Orders of operators, each with the number of tuples that took it."""


@dataclass(frozen=True)
class StreamFigures(Sums):
    """One stream in a micro-batch, in one cell or, added up, in all of them.

    Attributes:
        alias: Its name in the query.
        rows: Rows that came in time.
        late: Rows that came too late.
        expired: Tuples that were let go; a copy in each cell that had one.
        tuples: Tuples that are kept, copies included.
        nbytes: Memory of these, with their indexes.
        index_bytes: The indexes' part of that.
        log_bytes: Of the blocks that the checkpoint has of them.
        log_blocks: How many these are.
        newest: The latest event time that came in time, microseconds; None if nothing came.
    """

    alias: str
    rows: int
    late: int
    expired: int
    tuples: int
    nbytes: int
    index_bytes: int
    log_bytes: int
    log_blocks: int
    newest: int | None

    @property
    def kind(self) -> tuple[str]:
        """The stream."""
        return (self.alias,)

    def __add__(self, other: StreamFigures) -> StreamFigures:
        """Return the figures of two cells together, under the name of the first."""
        times = [each.newest for each in (self, other) if each.newest is not None]
        sums = Sums.__add__(replace(self, newest=None), other)
        return replace(sums, newest=max(times, default=None))


_OF_STREAMS = {"rows": "rows", "late": "late", "expired": "expired", "held": "tuples"}
"""Figures of a micro-batch that are the sums of a figure of its streams."""


def encode_cell(streams: Iterable[StreamFigures], orders: Orders, **sums: float) -> str:
    """Return the line of a cell; ``sums`` are its own figures, by their names in :class:`MicroBatch`."""
    line = {"sums": sums, "streams": [astuple(each) for each in streams], "orders": orders[:MOST_ORDERS]}
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False)


def decode_cells(lines: Sequence[str]) -> dict[str, Any]:
    """Return what cells say together, by name: streams as the query has them, and orders by use."""
    cells = [json.loads(line) for line in lines]
    orders: Counter[str] = Counter()
    for cell in cells:
        orders.update(dict(cell["orders"]))
    streams = summed(StreamFigures(*each) for cell in cells for each in cell["streams"])
    sums = {name: sum(cell["sums"][name] for cell in cells) for name in cells[0]["sums"]}
    sums |= {name: sum(getattr(each, own) for each in streams) for name, own in _OF_STREAMS.items()}
    return {**sums, "streams": streams, "orders": tuple(orders.most_common())}


@dataclass(frozen=True)
class MicroBatch:
    """What the joins of a streaming query did in a micro-batch; mostly there is one.

    Attributes:
        query: Spark's id of the query, which restarts keep.
        run: Spark's id of this run of it.
        name: The query's name; None if it has none.
        batch: The micro-batch's number.
        timestamp: When it began, ISO 8601.
        seconds: That it took, from trigger to commit.
        rows: Rows that came in time.
        late: Rows that came too late, and were left out.
        results: Rows of the join.
        expired: Tuples that were let go, copies included.
        held: Tuples that are kept, copies included.
        bytes: Memory of state in cells, intermediate tuples of STAIRs included.
        restored: Tuples that were read from the log.
        rebuilt: Cells that were made anew, because no process had them in its memory.
        worked: Seconds that cells worked, added up.
        watermark: Microseconds since 1970; None while there is none.
        streams: The streams one by one; those of one name in several joins together.
        orders: Orders of operators by the number of tuples that took them; they begin with the stream.
    """

    query: str
    run: str
    name: str | None
    batch: int
    timestamp: str
    seconds: float
    rows: int
    late: int
    results: int
    expired: int
    held: int
    bytes: int
    restored: int
    rebuilt: int
    worked: float
    watermark: int | None
    streams: tuple[StreamFigures, ...]
    orders: Orders

    @property
    def newest(self) -> int | None:
        """The latest event time that came, microseconds since 1970; None if nothing came."""
        return max((each.newest for each in self.streams if each.newest is not None), default=None)

    @property
    def lag(self) -> float | None:
        """Seconds of event time from the watermark to the newest row; None where one of them is missing."""
        if self.watermark is None or self.newest is None:
            return None
        return (self.newest - self.watermark) / 1e6

    @property
    def log_bytes(self) -> int:
        """Bytes of the log's blocks in the checkpoint."""
        return sum(each.log_bytes for each in self.streams)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON has; times as ISO 8601."""
        streams = [asdict(each) | {"newest": iso(each.newest)} for each in self.streams]
        return asdict(self) | {
            "watermark": iso(self.watermark),
            "lag": self.lag,
            "log_bytes": self.log_bytes,
            "streams": streams,
            "orders": [{"order": order, "tuples": tuples} for order, tuples in self.orders],
        }

    def to_json(self) -> str:
        """Return :meth:`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False)


def micro_batch(progress: StreamingQueryProgress) -> MicroBatch | None:
    """Return the figures of a micro-batch; None if no join of Millrace's took part in it.

    Progress is Spark's, of a classic session or of Spark Connect.
    """
    # Between micro-batches Spark tells of progress too; nothing was added then.
    if "addBatch" not in progress.durationMs:
        return None
    joins = [row.asDict() for name, row in progress.observedMetrics.items() if name.startswith(PREFIX)]
    lines = [line for each in joins for line in (_named(each).get("cells") or "").split(SEPARATOR) if line]
    if not lines:
        return None
    return MicroBatch(
        query=str(progress.id),
        run=str(progress.runId),
        name=progress.name,
        batch=progress.batchId,
        timestamp=progress.timestamp,
        seconds=progress.durationMs["triggerExecution"] / 1000,
        watermark=_watermark(progress.eventTime.get("watermark")),
        **decode_cells(lines),
    )


def _named(figures: dict[str, Any]) -> dict[str, Any]:
    """Return figures by name: Spark Connect gives the values and the schema that has the names."""
    schema = figures.get("schema")
    if "values" not in figures or schema is None:
        return figures
    given: Mapping[str, Any] = json.loads(schema) if isinstance(schema, str) else schema
    return dict(zip((field["name"] for field in given["fields"]), figures["values"], strict=True))


def _watermark(text: str | None) -> int | None:
    """Return a watermark in microseconds; Spark writes 1970 where there is none."""
    if text is None:
        return None
    return int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64)) or None


def iso(microseconds: int | None) -> str | None:
    """Return a time as text, ISO 8601 in UTC."""
    if microseconds is None:
        return None
    return f"{np.datetime64(microseconds, 'us')}+00:00"  # also beyond the year 9999
