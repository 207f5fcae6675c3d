"""What a cell tells of a micro-batch beside its sums: its streams one by one, and the orders of tuples.

It travels as one line of JSON in a column of the stateful operator's output, and Spark's observed metrics put
the lines of all cells together. A line has a few hundred bytes, however many tuples there were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from millrace.engine.figures import Sums

SEPARATOR = "\n"
"""Between the lines of cells; JSON in one line has none."""

MOST_ORDERS = 8
"""Orders that a cell tells of in each micro-batch: those that most tuples took."""


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

    def __add__(self, other: StreamFigures) -> StreamFigures:
        """Return the figures of two cells together, under the name of the first."""
        times = [each.newest for each in (self, other) if each.newest is not None]
        sums = Sums.__add__(replace(self, newest=None), other)
        return replace(sums, newest=max(times, default=None))


Orders = tuple[tuple[str, int], ...]
"""Orders of operators, each with the number of tuples that took it."""


def told(streams: Iterable[StreamFigures], orders: Orders) -> str:
    """Return the line of a cell."""
    line = {"streams": [astuple(each) for each in streams], "orders": orders[:MOST_ORDERS]}
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False)


def heard(lines: str) -> tuple[tuple[StreamFigures, ...], Orders]:
    """Return what the lines of all cells say together: streams as the query has them, and orders by use."""
    streams: dict[str, StreamFigures] = {}
    orders: dict[str, int] = {}
    for line in _parsed(lines):
        for fields in line["streams"]:
            one = StreamFigures(*fields)
            streams[one.alias] = streams[one.alias] + one if one.alias in streams else one
        for order, tuples in line["orders"]:
            orders[order] = orders.get(order, 0) + tuples
    return tuple(streams.values()), tuple(sorted(orders.items(), key=lambda item: -item[1]))


def _parsed(lines: str) -> Iterator[dict[str, Any]]:
    for line in lines.split(SEPARATOR):
        if line:
            yield json.loads(line)
