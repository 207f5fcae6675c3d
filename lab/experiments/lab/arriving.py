"""Tuples in the order in which they arrive: at rates of their own, after delays of their own.

When a tuple arrives does not depend on how fast anybody works, as in Deshpande & Hellerstein 2004, section
5.1, where a module in front of the eddy controls rates and delays: every side of a comparison is given the
same tuples in the same order, a thousand at a time, and what is compared is what it works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.arrivals.schedule import STALLED, Schedule, Source, Stalled

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Stream:
    """A relation on its way.

    Attributes:
        table: Its tuples in the order of arrival.
        rate: Tuples a second.
        delay: Seconds before the first one.
        passing: Which of them pass the scan's predicates, ``bool``; only these reach whoever joins them. None
            for all.
    """

    table: pa.Table
    rate: float = 1.0
    delay: float = 0.0
    passing: Array | None = None

    def batches(self, size: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield for each batch the tuples read, and those that pass."""
        for low in range(0, self.table.num_rows, size):
            (rows,) = self.table.slice(low, size).combine_chunks().to_batches()
            passed = rows if self.passing is None else rows.filter(pa.array(self.passing[low : low + size]))
            yield rows.num_rows, passed


class Arriving:
    """Streams that are read side by side.

    Args:
        streams: By alias, in the order of the block's relations.
        batch: Tuples that are read together; the last ones of a stream are fewer.

    Attributes:
        order: The alias of each batch, by the time when its last tuple has come.
        schedule: For a run that reads them so.
        read: Tuples read so far by alias, those among them that do not pass.
    """

    def __init__(self, streams: Mapping[str, Stream], batch: int) -> None:
        self._batches = {alias: list(stream.batches(batch)) for alias, stream in streams.items()}
        times = [
            (stream.delay + min(stream.table.num_rows, (number + 1) * batch) / stream.rate, place, alias)
            for place, (alias, stream) in enumerate(streams.items())
            for number in range(len(self._batches[alias]))
        ]
        self.order = [alias for _, _, alias in sorted(times)]
        # With weights, batches of which nothing has passed arrive too; the sources know whose turn it is.
        places = tuple(range(len(streams)))
        self.schedule = Schedule(None, interleaved=True, order=places, weights=(1.0,) * len(places))

    def sources(self) -> dict[str, Source]:
        """Return the streams from the beginning, for one run."""
        self.read, self._next = dict.fromkeys(self._batches, 0), 0
        return {alias: self._source(alias) for alias in self._batches}

    def _source(self, alias: str) -> Iterator[pa.RecordBatch | Stalled]:
        """Yield a relation's batches, each when it is next of all."""
        for rows, batch in self._batches[alias]:
            while self.order[self._next] != alias:
                yield STALLED
            self._next += 1
            self.read[alias] += rows
            yield batch
