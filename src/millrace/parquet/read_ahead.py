"""Reading ahead: threads read a scan's next row groups before it is asked for them.

A store takes its time over every request. While one scan waits, an eddy can join what other scans have:
so a scan that has nothing at present says so, which is query scrambling's premise (Urhan, Franklin & Amsaleg
1998). It also asks for several row groups at once, for then it waits for all of them together.

Batches come in the order of the row groups, whichever is read first. What a read raises is raised in the
place of its batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import pyarrow as pa

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Read = tuple[int, Callable[[], pa.RecordBatch]]
"""The bytes that a batch is expected to take, and what reads it."""

_AT_ONCE = 4
"""Row groups of a store that a scan has waiting or asked for: more would wait for the eddy."""

_BYTES = 1 << 27
"""Bytes that may wait in a task without a memory budget."""

_SMALL = 1 << 23
"""Bytes that a store sends in about the time that it takes to answer at all."""

_BUDGET_SHARE = 8
"""Of a memory budget, an eighth: as much as for the other tuples that wait."""


class ReadAhead:
    """Reads ahead for the scans of one task; its threads end when it is left.

    Args:
        scans: How many scans share it.
        budget: The task's memory budget, a share of which is for what waits. Without one each scan may read
            one row group ahead, however large that is.

    Attributes:
        bytes: What may wait of all scans together.
        share: What may wait of each of them.
        is_strict: Whether a row group that is larger than that is read when it is asked for, not before.
    """

    def __init__(self, scans: int, budget: int | None = None) -> None:
        self.bytes = _BYTES if budget is None else budget // _BUDGET_SHARE
        self.share = self.bytes // max(1, scans)
        self.is_strict = budget is not None
        self._threads = _AT_ONCE * max(1, scans)
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def batches(self, reads: Sequence[Read], *, waits: bool) -> AheadBatches:
        """Return the batches of one scan, which has several reads under way.

        A scan that ``waits`` waits for its next batch where another has None.
        """
        return AheadBatches(self, reads, waits=waits)

    def begin(self, read: Callable[[], pa.RecordBatch]) -> Future[pa.RecordBatch]:
        """Let a thread read."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # here, for most tasks read disks

            self._pool = ThreadPoolExecutor(self._threads, "read-ahead")
        return self._pool.submit(read)


class AheadBatches(Iterator[pa.RecordBatch | None]):
    """The batches of one scan, in order; None while the next one is being read.

    A scan that is small begins when it is made, a larger one when it is first asked. By then others may have
    ended, whose keys tell which of its row groups need not be read.
    """

    def __init__(self, ahead: ReadAhead, reads: Sequence[Read], *, waits: bool) -> None:
        self._ahead, self._waits = ahead, waits
        self._reads = deque(reads)
        self._begun: deque[tuple[int, Future[pa.RecordBatch]]] = deque()
        if sum(size for size, _ in reads) <= min(_SMALL, ahead.share):
            self._go_on()

    def __next__(self) -> pa.RecordBatch | None:
        if not self._begun:
            self._go_on(is_asked=True)
        if not self._begun:
            raise StopIteration
        first = self._begun[0][1]
        if not (self._waits or first.done()):
            return None
        self._begun.popleft()
        batch = first.result()
        self._go_on()
        return batch

    def _go_on(self, *, is_asked: bool = False) -> None:
        """Begin as many reads as may be under way or wait, and one that is asked for in any case."""
        while self._reads and len(self._begun) < _AT_ONCE:
            held = sum(future.result().nbytes if _is_read(future) else size for size, future in self._begun)
            is_due = not self._begun and (is_asked or not self._ahead.is_strict)
            if not is_due and held + self._reads[0][0] > self._ahead.share:
                return
            size, read = self._reads.popleft()
            self._begun.append((size, self._ahead.begin(read)))


def _is_read(future: Future[pa.RecordBatch]) -> bool:
    return future.done() and future.exception() is None
