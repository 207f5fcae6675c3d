"""Tuples of a stream as they come in a micro-batch: late ones left out, the others in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array

_SLICES = 4
"""A micro-batch that spans the time for which tuples are kept is cut in so many blocks, and never in more."""


@dataclass(frozen=True, eq=False)
class Arrived:
    """Tuples of one stream that are in time, in order of time.

    Attributes:
        times: Their event times, microseconds.
        late: How many were left out because the watermark had passed them.
    """

    rows: pa.RecordBatch
    times: Array
    late: int

    def blocks(self, keeps: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the tuples in blocks of about the same time, each with the time of its newest tuple.

        Tuples are kept for ``keeps`` microseconds.
        """
        width = max(keeps // _SLICES, (int(self.times[-1]) - int(self.times[0])) // _SLICES, 1)
        buckets = self.times // width
        ends = [*(np.flatnonzero(np.diff(buckets)) + 1).tolist(), len(buckets)]
        start = 0
        for end in ends:
            yield int(self.times[end - 1]), self.rows.slice(start, end - start)
            start = end


def arrived(batches: list[pa.RecordBatch], time: str, watermark: int) -> Arrived | None:
    """Return what is in time of a micro-batch of at least one batch; None if nothing is.

    ``time`` is the column of event times; a tuple without one meets nothing. The watermark is in
    microseconds: tuples that are not later are late, as they are to Spark's own joins.
    """
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    column = whole.column(time)
    if column.null_count:
        whole = whole.filter(column.is_valid())
        column = whole.column(time)
    times: Array = column.cast(pa.int64()).to_numpy()
    late = 0
    if len(times) and int(times.min()) <= watermark:
        kept = times > watermark
        late = len(times) - int(np.count_nonzero(kept))
        whole, times = whole.filter(pa.array(kept)), times[kept]
    if not len(times):
        return Arrived(whole, times, late) if late else None
    if len(times) > 1 and (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        whole, times = whole.take(pa.array(order)), times[order]
    return Arrived(whole, times, late)
