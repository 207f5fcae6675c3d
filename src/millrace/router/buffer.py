"""The eddy's buffer of work: tuples in flight come before new ones.

Last in, first out: a batch is followed to its end before the next one is touched, so the buffer
never holds more than a few batches for each step of a join. Singletons that wait to be built come
first of all, so that whatever arrives together can be probed together. Tuples that the user prefers go
before others, at every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millrace.operator import Operator, Work
from millrace.tuples import TupleBatch


class Buffer:
    """Batches and unfinished work in flight."""

    def __init__(self) -> None:
        self._new: list[TupleBatch] = []
        self._flying: list[Work] = []
        self._preferred: list[Work] = []

    def push(self, batches: Iterable[TupleBatch]) -> None:
        """Add batches; empty ones are dropped."""
        for batch in batches:
            if batch.size:
                queue = self._preferred if batch.signature.preferred else self._flying
                (queue if batch.signature.built else self._new).append(batch)

    def resume(self, operator: Operator, rest: Any, *, preferred: bool) -> None:
        """Add work whose output did not fit into one batch."""
        (self._preferred if preferred else self._flying).append((operator, rest))

    def put_back(self, batch: TupleBatch, *, refused: bool) -> None:
        """Take back what has not been routed; ``refused``: where it was to go there is no room at present."""
        self.push([batch])

    def weigh(self, shares: Sequence[tuple[Operator, float]]) -> None:
        """Take note of a decision: nothing, for modules work whenever tuples are sent to them."""

    def line_up(self, operator: Operator, batch: TupleBatch) -> bool:
        """Make tuples wait for a module's turn; False if they need not: here modules work at once."""
        return False

    def works(self) -> list[Work]:
        """Return all there is."""
        return [*self._new, *self._preferred, *self._flying]

    @property
    def is_flying(self) -> bool:
        """Whether tuples are in flight."""
        return bool(self._new or self._preferred or self._flying)

    def pop(self, *, draining: bool = False) -> Work | None:
        """Take the next piece of work, or None when nothing is in flight."""
        queue = self._new or self._preferred or self._flying
        return queue.pop() if queue else None
