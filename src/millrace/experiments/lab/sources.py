"""Sources: batches as fast as they are read, or at a rate, after a delay, with a stall.

When a tuple of a :class:`Stream` arrives does not depend on how fast anybody works: what has arrived while
the eddy was busy is there when it looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pyarrow as pa

from millrace.arrivals.access_modules import State
from millrace.clock import Clock


def batches(table: pa.Table, size: int) -> list[pa.RecordBatch]:
    """Cut a table into batches of so many rows."""
    return [batch for batch in table.combine_chunks().to_batches(max_chunksize=size) if batch.num_rows]


def watched(
    table: pa.Table, size: int, note: Callable[[int], None], step: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yield a table's batches as fast as they are read.

    Args:
        table: The tuples.
        size: Of a batch.
        note: Told how many tuples were read, before each batch that is the first after ``step`` more.
        step: In tuples.
    """
    read = told = 0
    for batch in batches(table, size):
        if read - told >= step:
            told = read
            note(read)
        yield batch
        read += batch.num_rows
    note(read)


class Stream:
    """A scan access module whose tuples arrive by themselves.

    Args:
        name: For reports and errors.
        table: The tuples in the order of their arrival.
        size: Of a batch; it has arrived when its last tuple has.
        clock: What time goes by.
        rate: Tuples a second; infinite for all at once.
        delay: Seconds before the first tuples come.
        stall: ``(after, seconds)``: a pause once so many tuples have come; infinite seconds for one that
            never ends.
    """

    def __init__(
        self,
        name: str,
        table: pa.Table,
        size: int,
        clock: Clock,
        rate: float = math.inf,
        delay: float = 0.0,
        stall: tuple[int, float] | None = None,
    ) -> None:
        self.name = name
        self.state: State = "open"
        self._batches = iter(batches(table, size))
        self._clock = clock
        self._start = clock.now() + delay
        self._rate = rate
        self._stall = stall
        self._come = 0
        self._next: pa.RecordBatch | None = None
        self._advance()

    def poll(self) -> pa.RecordBatch | None:
        """Return the next batch if it has arrived."""
        if self._clock.now() < self.due():
            return None
        batch = self._next
        if batch is None:
            self.state = "complete"
            return None
        self._advance()
        return batch

    def due(self) -> float:
        """Return when the next batch arrives, or the end of all."""
        if self.state != "open":
            return math.inf
        stalled = self._stall is not None and self._come > self._stall[0]
        pause = self._stall[1] if stalled and self._stall is not None else 0.0
        return self._start + self._come / self._rate + pause

    def close(self) -> None:
        """Return nothing more."""
        self._next = None
        self._batches = iter(())

    def _advance(self) -> None:
        self._next = next(self._batches, None)
        self._come += 0 if self._next is None else self._next.num_rows
