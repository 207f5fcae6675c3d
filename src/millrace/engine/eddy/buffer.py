"""The eddy's buffer of work: tuples in flight come before new ones.

Last in, first out: a batch is followed to its end before the next one is touched, so the buffer
never holds more than a few batches for each step of a join. Singletons that wait to be built come
first of all, so that whatever arrives together can be probed together. Tuples that the user prefers go
before others at every step, the most wanted first.

Small batches wait until nothing else is there. An operator takes about as long for ten tuples as for a
thousand, and what was divided among several operators comes together again when it has visited all of them:
small batches of one signature are merged, those that have visited the fewest operators first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.engine.eddy.operator import Operator, Work
from millrace.engine.tuples.batch import TupleBatch

_SMALL = 1 / 8
"""Share of a full batch below which a batch waits for others."""


class Buffer:
    """Batches and unfinished work in flight.

    Args:
        limit: Tuples of a full batch.
    """

    def __init__(self, limit: int = 1) -> None:
        self._small = int(limit * _SMALL)
        self._new: list[TupleBatch] = []
        self._flying: list[Work] = []
        self._preferred: dict[int, list[Work]] = {}
        self._waiting: dict[Hashable, _Crumbs] = {}

    def push(self, batches: Iterable[TupleBatch]) -> None:
        """Add batches; empty ones are dropped."""
        for batch in batches:
            if not batch.size:
                continue
            signature = batch.signature
            if not signature.built:
                self._new.append(batch)
            elif signature.preferred:
                self._preferred.setdefault(signature.preferred, []).append(batch)
            elif batch.size >= self._small or signature.prior is not None or batch.failures:
                self._flying.append(batch)
            else:
                self._collect(batch)

    def _collect(self, batch: TupleBatch) -> None:
        """Let a small batch wait for others like it, until all together are not small."""
        key = batch.signature, frozenset(map(id, batch.stores.values())), batch.stamps is None
        crumbs = self._waiting.get(key)
        if crumbs is None:
            visited = batch.signature.span.bit_count() + batch.signature.done.bit_count()
            crumbs = self._waiting[key] = _Crumbs(visited)
        crumbs.batches.append(batch)
        crumbs.size += batch.size
        if crumbs.size >= self._small:
            self._flying.append(TupleBatch.merged(self._waiting.pop(key).batches))

    def resume(self, operator: Operator, rest: Any, *, preferred: int) -> None:
        """Add work whose output did not fit into one batch."""
        (self._preferred.setdefault(preferred, []) if preferred else self._flying).append((operator, rest))

    def regrade(self, graded: Callable[[TupleBatch], Iterable[TupleBatch]]) -> None:
        """Put batches in order again, for other tuples are wanted first now; unfinished work stays."""
        works, before = self.works(), self._preferred
        self._new, self._flying, self._preferred, self._waiting = [], [], {}, {}
        for work in works:
            if isinstance(work, TupleBatch):
                self.push(graded(work) if work.signature.built else (work,))
            else:
                grade = next((grade for grade, held in before.items() if work in held), 0)
                self.resume(*work, preferred=grade)

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
        small = [batch for crumbs in self._waiting.values() for batch in crumbs.batches]
        wanted = [work for grade in sorted(self._preferred, reverse=True) for work in self._preferred[grade]]
        return [*self._new, *wanted, *self._flying, *small]

    @property
    def is_flying(self) -> bool:
        """Whether tuples are in flight."""
        return bool(self._new or self._preferred or self._flying or self._waiting)

    def pop(self, *, draining: bool = False) -> Work | None:
        """Take the next piece of work, or None when nothing is in flight."""
        if self._preferred and not self._new:
            grade = max(self._preferred)
            work = self._preferred[grade].pop()
            if not self._preferred[grade]:
                del self._preferred[grade]
            return work
        queue = self._new or self._flying
        if queue:
            return queue.pop()
        if not self._waiting:
            return None
        key = min(self._waiting, key=lambda each: self._waiting[each].visited)
        return TupleBatch.merged(self._waiting.pop(key).batches)


@dataclass
class _Crumbs:
    """Small batches of one signature, which have visited so many operators."""

    visited: int
    batches: list[TupleBatch] = field(default_factory=list)
    size: int = 0
