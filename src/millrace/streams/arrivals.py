"""Tuples of a stream as they come in a micro-batch: late ones left out, the others in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, joined

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
        ends = (np.flatnonzero(np.diff(self.times // width)) + 1).tolist()
        for start, end in pairwise([0, *ends, len(self.times)]):
            yield int(self.times[end - 1]), self.rows.slice(start, end - start)


def sort_arrivals(batches: list[pa.RecordBatch], time: str, watermark: int) -> Arrived:
    """Return what is in time of a micro-batch of at least one batch.

    ``time`` is the column of event times; a tuple without one meets nothing. The watermark is in
    microseconds: tuples that are not later are late, as they are to Spark's own joins.
    """
    whole = joined(batches)
    if whole.column(time).null_count:
        whole = whole.filter(whole.column(time).is_valid())
    times: Array = whole.column(time).cast(pa.int64()).to_numpy()
    kept = times > watermark
    late = len(times) - int(np.count_nonzero(kept))
    if late:
        whole, times = whole.filter(pa.array(kept)), times[kept]
    if (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        whole, times = whole.take(pa.array(order)), times[order]
    return Arrived(whole, times, late)
