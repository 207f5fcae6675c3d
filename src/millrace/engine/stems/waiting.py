"""Tuples that wait for more of a relation: prior probers, which its SteM bounced back (ProbeCompletion).

Raman, Deshpande & Hellerstein 2003, sections 2.3 and 3.5. They are not in flight, and come back when the SteM
has what they have not seen yet.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from millrace.engine.stems.stem import SteM
from millrace.engine.stems.waiters import Waiters
from millrace.engine.stems.windows import Windows
from millrace.engine.tuples.batch import TupleBatch


class Waiting:
    """Prior probers, by the relation that they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[TupleBatch]] = {}
        self._waiters: dict[int, Waiters] = {}

    def hold(self, batch: TupleBatch, relation: int, seen: int) -> None:
        """Keep a tuple batch that a SteM bounced until that SteM has grown beyond ``seen`` rows."""
        prior = replace(batch, signature=batch.signature.having(prior=relation), seen=seen, origin=0)
        self._waiting.setdefault(relation, []).append(prior)

    @property
    def held(self) -> list[TupleBatch]:
        """The tuples that wait."""
        bound = [batch for waiters in self._waiters.values() for batch in waiters.held]
        return [*(batch for batches in self._waiting.values() for batch in batches), *bound]

    @property
    def size(self) -> int:
        """How many tuples wait."""
        unbound = sum(batch.size for batches in self._waiting.values() for batch in batches)
        return unbound + sum(waiters.size for waiters in self._waiters.values())

    def release(self, relation: int, stem: SteM) -> list[TupleBatch]:
        """Return the prior probers of the SteM for which it has what they have not seen yet.

        Without a scan that is so once it has all of their matches: one more probe is enough then.
        """
        waiting = self._waiting.pop(relation, [])
        if not stem.base.scanned:
            if waiting and relation not in self._waiters:
                self._waiters[relation] = Waiters(stem)
            found = self._waiters[relation].release(waiting) if relation in self._waiters else ()
            return [batch for batch in found if batch.size]
        still = [] if stem.complete else [batch for batch in waiting if batch.seen >= stem.rows]
        if still:
            self._waiting[relation] = still
        return [batch for batch in waiting if batch.seen < stem.rows]

    def expire(self, windows: Windows, watermark: int) -> None:
        """Drop prior probers that have expired before the watermark: nothing to come matches them."""
        for relation, waiters in self._waiters.items():
            self._waiting.setdefault(relation, []).extend(waiters.held)
        self._waiters.clear()
        for relation, waiting in self._waiting.items():
            alive = [batch.take(np.flatnonzero(windows.alive(batch, watermark))) for batch in waiting]
            self._waiting[relation] = [batch for batch in alive if batch.size]
