"""The eddy's buffer of work: tuples in flight come before new ones.

Last in, first out: a batch is followed to its end before the next one is touched, so the buffer
never holds more than a few batches for each step of a join. Singletons that wait to be built come
first of all, so that whatever arrives together can be probed together. Tuples that the user prefers go
before others, at every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from millrace.modules import Destination, SteM
from millrace.modules.windows import Windows
from millrace.tuples import TupleBatch

Work = TupleBatch | tuple[Destination, Any]
"""A batch to route; or at a destination, a probe to go on with or a batch whose turn has come."""


class Buffer:
    """Batches and unfinished probes in flight, and prior probers that wait for more data."""

    def __init__(self) -> None:
        self._new: list[TupleBatch] = []
        self._flying: list[Work] = []
        self._preferred: list[Work] = []
        self._waiting: dict[int, list[TupleBatch]] = {}
        self._ended: dict[int, int] = {}

    def push(self, batches: Iterable[TupleBatch]) -> None:
        """Add batches; empty ones are dropped."""
        for batch in batches:
            if batch.size:
                queue = self._preferred if batch.signature.preferred else self._flying
                (queue if batch.signature.built else self._new).append(batch)

    def resume(self, destination: Destination, probe: Any) -> None:
        """Add a probe whose output did not fit into one batch."""
        queue = self._preferred if probe.batch.signature.preferred else self._flying
        queue.append((destination, probe))

    def put_back(self, batch: TupleBatch, *, refused: bool) -> None:
        """Take back what has not been routed; ``refused``: where it was to go there is no room at present."""
        self.push([batch])

    def weigh(self, shares: Sequence[tuple[Destination, float]]) -> None:
        """Take note of a decision: nothing, for modules work whenever tuples are sent to them."""

    def line_up(self, destination: Destination, batch: TupleBatch) -> bool:
        """Make tuples wait for a module's turn; False if they need not: here modules work at once."""
        return False

    def hold(self, batch: TupleBatch, relation: int, seen: int) -> None:
        """Keep a tuple batch that a SteM bounced until that SteM has grown beyond ``seen`` rows."""
        prior = replace(batch, signature=replace(batch.signature, prior=relation), seen=seen, origin=0)
        self._waiting.setdefault(relation, []).append(prior)

    def release(self, relation: int, stem: SteM) -> None:
        """Put prior probers of the SteM back into flight if it has what they have not seen yet.

        Without a scan that is so once it has all of their matches: one more probe is enough then.
        """
        if relation not in self._waiting:
            return
        ended = sum(eots.size for _, eots in stem.lookups)
        if not stem.base.scanned and self._ended.get(relation) == ended:
            return
        self._ended[relation] = ended
        waiting = self._waiting.pop(relation)
        if not stem.base.scanned:
            still = []
            for batch in waiting:
                missing = stem.missing(batch)
                found = np.setdiff1d(np.arange(batch.size), missing, assume_unique=True)
                self.push([batch.take(found)])
                if len(missing):
                    still.append(batch.take(missing))
            if still:
                self._waiting[relation] = still
            return
        self.push(batch for batch in waiting if batch.seen < stem.rows)
        if not stem.complete:
            still = [batch for batch in waiting if batch.seen >= stem.rows]
            if still:
                self._waiting[relation] = still

    def expire(self, windows: Windows, watermark: int) -> None:
        """Drop prior probers that have expired before the watermark: nothing to come matches them."""
        for relation, waiting in list(self._waiting.items()):
            found = []
            for batch in waiting:
                alive = windows.alive(batch, watermark)
                if alive.all():
                    found.append(batch)
                elif alive.any():
                    found.append(batch.take(np.flatnonzero(alive)))
            self._waiting[relation] = found

    def works(self) -> list[Work]:
        """Return all there is, and the prior probers that wait."""
        waiting = (batch for batches in self._waiting.values() for batch in batches)
        return [*self._new, *self._preferred, *self._flying, *waiting]

    @property
    def is_flying(self) -> bool:
        """Whether tuples are in flight; prior probers that wait for more data are not."""
        return bool(self._new or self._preferred or self._flying)

    def pop(self, *, draining: bool = False) -> Work | None:
        """Take the next piece of work, or None when nothing is in flight."""
        queue = self._new or self._preferred or self._flying
        return queue.pop() if queue else None
