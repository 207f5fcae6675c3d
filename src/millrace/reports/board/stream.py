"""One streaming query: its latest micro-batches, and sums over all that were told."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.reports.board.query import first_line

if TYPE_CHECKING:
    from millrace.reports.micro_batch import MicroBatch

MOST_BATCHES = 120
"""Micro-batches of a stream that are kept."""


@dataclass(frozen=True)
class StreamView:
    """A streaming query as it is shown.

    Attributes:
        number: Of the query, in this process.
        title: Its name, or Spark's id of it.
        state: ``"running"``, ``"done"`` or ``"failed"``.
        error: First line of what it failed with.
        seconds: Since it was first told of, until it ended.
        rows_in: Rows in time, over all micro-batches that were told.
        late: Rows that came too late.
        rows_out: Rows of the join.
        rate: Rows a second, over the micro-batches that are kept.
        batches: The latest micro-batches, the oldest first; at least one.
    """

    number: int
    title: str
    state: str
    error: str
    seconds: float
    rows_in: int
    late: int
    rows_out: int
    rate: float
    batches: tuple[MicroBatch, ...]


class StreamRunning:
    """One run of a streaming query, from its first micro-batch on, which was told at ``now``."""

    def __init__(self, number: int, now: float) -> None:
        self._number, self._began = number, now
        self._state, self._error = "running", ""
        self._ended: float | None = None
        self._batches: deque[tuple[float, MicroBatch]] = deque(maxlen=MOST_BATCHES)
        self._rows = self._late = self._results = 0

    @property
    def is_running(self) -> bool:
        return self._state == "running"

    def batch(self, batch: MicroBatch, now: float) -> None:
        self._batches.append((now, batch))
        self._rows += batch.rows
        self._late += batch.late
        self._results += batch.results

    def end(self, now: float, error: str | None) -> None:
        self._state = "done" if error is None else "failed"
        self._error = "" if error is None else first_line(error)
        self._ended = now

    def view(self, now: float) -> StreamView:
        batches = [batch for _, batch in self._batches]
        (first, begin), (last, _) = self._batches[0], self._batches[-1]
        span = last - first + begin.seconds
        return StreamView(
            self._number,
            batches[-1].name or batches[-1].query,
            self._state,
            self._error,
            (now if self._ended is None else self._ended) - self._began,
            self._rows,
            self._late,
            self._results,
            sum(batch.rows for batch in batches) / span if span > 0 else 0.0,
            tuple(batches),
        )
