"""Batches between the server's thread, which puts them in, and the consumer's, which takes them out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import pyarrow as pa


class Waiting:
    """A queue that tells when it is full and ends once.

    Args:
        most: Bytes at which it is full.
        when_room: Called, in the consumer's thread, when it is not full any more.

    Attributes:
        taken: Batches that were taken.
    """

    def __init__(self, most: int, when_room: Callable[[], None]) -> None:
        self._most = most
        self._when_room = when_room
        self._batches: deque[pa.RecordBatch] = deque()
        self._size = 0
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.taken = 0

    @property
    def full(self) -> bool:
        """Whether whoever puts batches in should wait."""
        with self._changed:
            return self._size >= self._most and not self._ended

    @property
    def ended(self) -> bool:
        """Whether nothing more can be put in."""
        with self._changed:
            return self._ended

    def put(self, batch: pa.RecordBatch) -> None:
        """Add a batch, if the queue has not ended; does not wait."""
        with self._changed:
            if not self._ended:
                self._batches.append(batch)
                self._size += _size(batch)
                self._changed.notify()

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch, waiting for it; None at the end. Raises the error that it ended with."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._ended)
            if self._error is not None:
                raise self._error
            if not self._batches:
                return None
            batch = self._batches.popleft()
            self.taken += 1
            was_full = self._size >= self._most
            self._size -= _size(batch)
            room = was_full and self._size < self._most
        if room:
            self._when_room()
        return batch

    def end(self, error: BaseException | None = None, *, drop: bool = False) -> bool:
        """End it, after the batches that it has.

        Args:
            error: Raised to the consumer instead of giving it these.
            drop: Whether they are of no use any more.

        Returns:
            Whether it had not ended before; otherwise nothing changes.
        """
        with self._changed:
            if self._ended:
                if drop:
                    self._batches.clear()
                return False
            self._ended, self._error = True, error
            if drop or error is not None:
                self._batches.clear()
            self._changed.notify_all()
            return True


def _size(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes) + 1
