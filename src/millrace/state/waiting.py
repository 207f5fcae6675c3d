"""Tuples that wait for more of a relation: prior probers, which its SteM bounced back (ProbeCompletion).

Raman, Deshpande & Hellerstein 2003, sections 2.3 and 3.5. They are not in flight, and come back when the SteM
has what they have not seen yet.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from millrace.state.stem import SteM
from millrace.state.windows import Windows
from millrace.tuples import TupleBatch


class Waiting:
    """Prior probers, by the relation that they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[TupleBatch]] = {}
        self._ended: dict[int, int] = {}

    def hold(self, batch: TupleBatch, relation: int, seen: int) -> None:
        """Keep a tuple batch that a SteM bounced until that SteM has grown beyond ``seen`` rows."""
        prior = replace(batch, signature=replace(batch.signature, prior=relation), seen=seen, origin=0)
        self._waiting.setdefault(relation, []).append(prior)

    def release(self, relation: int, stem: SteM) -> list[TupleBatch]:
        """Return the prior probers of the SteM for which it has what they have not seen yet.

        Without a scan that is so once it has all of their matches: one more probe is enough then.
        """
        if relation not in self._waiting:
            return []
        if stem.base.scanned:
            waiting = self._waiting.pop(relation)
            still = [] if stem.complete else [batch for batch in waiting if batch.seen >= stem.rows]
            released = [batch for batch in waiting if batch.seen < stem.rows]
        else:
            ended = sum(eots.size for _, eots in stem.lookups)
            if self._ended.get(relation) == ended:
                return []
            self._ended[relation] = ended
            still, released = [], []
            for batch in self._waiting.pop(relation):
                missing = stem.missing(batch)
                found = np.setdiff1d(np.arange(batch.size), missing, assume_unique=True)
                released.append(batch.take(found))
                if len(missing):
                    still.append(batch.take(missing))
        if still:
            self._waiting[relation] = still
        return [batch for batch in released if batch.size]

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
