"""How much memory a join takes: by what is known of its inputs before it begins, and as it runs.

A SteM holds its tuples' Arrow buffers, a code for each key, and an index for each combination of
classes that it is probed by. The first gathering of its columns merges its chunks, which takes their
size once more for a moment. A relation that is streamed takes no state. What intermediate tuples take is
known only as the join runs (:mod:`millrace.engine.spill.guard`).
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.engine.spill.chunks import Extent
from millrace.engine.tuples import KeyLayout

_CODE = 8
_LINKS = 12
"""Bytes a row of an index's keys and chain links."""

_STATE_SHARE = 0.7
_WRITE_SHARE = 1 / 16
_FLIGHT_SHARE = 1 / 8
_RELEASED = 1 << 20
"""Joins smaller than this leave nothing behind that is worth a collection of garbage."""


@dataclass(frozen=True)
class Budget:
    """How a memory budget is used.

    Attributes:
        total: The budget in bytes.
    """

    total: int

    @property
    def state(self) -> int:
        """Bytes that state modules may take by :func:`state_bytes`, which leaves out what comes and goes."""
        return max(1, int(self.total * _STATE_SHARE))

    @property
    def buffer(self) -> int:
        """Bytes of tuples that wait to be written or arranged; they are copied while they are."""
        return max(1, int(self.total * _WRITE_SHARE))

    def batch(self, wanted: int, row_bytes: float, steps: int) -> int:
        """Return how many tuples a batch may have, at most ``wanted``.

        Args:
            wanted: ``Options.batch_size``.
            row_bytes: Of a result row; results are gathered, collected and joined up a batch at a time.
            steps: Modules on a tuple's way. At each there are a batch that probes and one of what it found,
                of four bytes a component, and how far each chain has been followed.
        """
        flying = 2 * steps * (4 * steps + 8)
        return max(1, min(wanted, int(self.total * _FLIGHT_SHARE / (4 * (row_bytes + 16) + flying))))


class Memory:
    """Bytes that a run holds at present, and has held at most.

    Attributes:
        peak: The most so far.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._waiting = 0
        self._joining = 0

    def wait(self, size: int) -> None:
        """So many bytes of tuples have come to wait outside of a join; or have gone, if negative."""
        self._waiting += size
        self.peak = max(self.peak, self._waiting + self._joining)

    def join(self, size: int) -> int:
        """The present join holds so many bytes; return how many it held before."""
        before, self._joining = self._joining, size
        self.wait(0)
        return before


def index_bytes(rows: int, low: int, high: int) -> int:
    """Return the size of an index over so many rows whose codes lie from ``low`` to ``high``.

    Small indexes are taken to grow with their rows; in truth each takes some hundred kilobytes at least.
    """
    spread = high - low + 1
    if spread <= max(16 * rows, 1 << 16):
        return _LINKS * rows + min(5 * spread, 80 * rows)
    return _LINKS * rows + min(8 << (2 * rows).bit_length(), 32 * rows)


def footprint(layout: KeyLayout, extent: Extent) -> int:
    """Return the bytes that a SteM with these tuples takes, an index on each of its classes included."""
    if not extent.rows:
        return 0
    indexes = sum(
        index_bytes(extent.rows, extent.lows[key], extent.highs[key]) for key in layout.of_class.values()
    )
    return extent.bytes + _CODE * len(layout.keys) * extent.rows + indexes


def state_bytes(layouts: Sequence[KeyLayout], extents: Mapping[int, Extent], streamed: int | None) -> int:
    """Return the bytes that a join's state takes, intermediate tuples left out.

    Args:
        layouts: The keys of every relation, by its number.
        extents: What there is of each relation.
        streamed: The relation that is left unbuilt.
    """
    built = [(footprint(layouts[r], e), e.bytes) for r, e in extents.items() if r != streamed]
    return sum(size for size, _ in built) + max((size for _, size in built), default=0)


def release(size: int) -> None:
    """Give memory back to the system after a join that held about ``size`` bytes.

    An eddy's parts refer to each other, so without a collection its state would stay for a while.
    """
    if size >= _RELEASED:
        gc.collect()
        pa.default_memory_pool().release_unused()
