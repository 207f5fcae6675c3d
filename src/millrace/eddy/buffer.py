"""The eddy's buffer of work: tuples in flight come before new ones.

Last in, first out: a batch is followed to its end before the next one is touched, so the buffer
never holds more than a few batches for each step of a join. Singletons that wait to be built come
first of all, so that whatever arrives together can be probed together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from millrace.modules import Destination, SteM
from millrace.tuples import TupleBatch

Work = TupleBatch | tuple[Destination, Any]
"""A batch to route, or a probe to go on with at that destination."""


class Buffer:
    """Batches and unfinished probes in flight, and prior probers that wait for more data."""

    def __init__(self) -> None:
        self._new: list[TupleBatch] = []
        self._flying: list[Work] = []
        self._waiting: dict[int, list[TupleBatch]] = {}

    def push(self, batches: Iterable[TupleBatch]) -> None:
        """Add batches; empty ones are dropped."""
        for batch in batches:
            if batch.size:
                (self._flying if batch.signature.built else self._new).append(batch)

    def resume(self, destination: Destination, probe: Any) -> None:
        """Add a probe whose output did not fit into one batch."""
        self._flying.append((destination, probe))

    def hold(self, batch: TupleBatch, relation: int, seen: int) -> None:
        """Keep a tuple batch that a SteM bounced until that SteM has grown beyond ``seen`` rows."""
        prior = replace(batch, signature=replace(batch.signature, prior=relation), seen=seen, origin=0)
        self._waiting.setdefault(relation, []).append(prior)

    def release(self, relation: int, stem: SteM) -> None:
        """Put prior probers of the SteM back into flight if it has what they have not seen yet."""
        waiting = self._waiting.pop(relation, [])
        self.push(batch for batch in waiting if batch.seen < stem.rows)
        if not stem.complete:
            still = [batch for batch in waiting if batch.seen >= stem.rows]
            if still:
                self._waiting[relation] = still

    def pop(self) -> Work | None:
        """Take the next piece of work, or None when nothing is in flight."""
        if self._new:
            return self._new.pop()
        return self._flying.pop() if self._flying else None
