"""Content-sensitive routing: tuples of the streamed relation are divided by the value of an attribute.

Deshpande & Hellerstein 2004, section 5.4, leave it as future work: a table may consist of parts with other
join characteristics each, and no single order is good for all of them. Where an attribute tells the parts
apart, tuples get the order that their part seems to want into their signature. Decisions are made by
signature, so that each part has statistics and routes of its own from then on; they begin with what the
sample says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.eddy.operator import Kind, Operator, Step
from millrace.engine.operators.informative import Division, division
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import Signature, TupleBatch

_SAMPLE = 2048
"""Tuples whose matches are counted to find an attribute."""

_LEAST = 256
"""Tuples of a batch that say enough."""

_MATCHES = 32
"""Matches counted for a tuple of the sample, on average, at most."""

_AGAIN = 1 << 22
"""Tuples after which it is looked again at the latest; earlier it is when four times as many have come."""


class Divide(Operator):
    """Divides tuples of the relation that is not kept, when all that they join is there.

    Args:
        relation: The relation that is streamed.
        alias: Its alias.
        neighbours: The SteMs of the relations that it is tied to.
        begin: Tuples to come before a sample is taken: short runs do not repay it.
        tell: Told, for each part and each neighbour: the signature that tuples of the part will have, the
            relation, how many tuples of the sample are of that part, and their matches.

    Attributes:
        sampled: Tuples that probed a SteM for a sample.
    """

    kind = Kind.DIVIDE

    def __init__(
        self,
        relation: int,
        alias: str,
        neighbours: Sequence[SteM],
        begin: int,
        tell: Callable[[Signature, int, int, int], None],
    ) -> None:
        super().__init__(relation, f"Divide({alias})", alias)
        self._alias = alias
        self._neighbours = neighbours
        self._tell = tell
        self._seen = 0
        self._due = max(begin, _LEAST)
        self._division: Division | None = None
        self.sampled = 0

    def divides(self, batch: TupleBatch) -> bool:
        """Take note of tuples that have arrived; tell whether they are to be divided."""
        self._seen += batch.size
        if self._seen >= self._due and batch.size >= _LEAST:
            self._due = min(4 * self._seen, self._seen + _AGAIN)
            self._look(batch)
        return self._division is not None

    def _look(self, batch: TupleBatch) -> None:
        """Find an attribute in a sample of the batch."""
        if not all(stem.complete and stem.rows for stem in self._neighbours):
            return
        sample = batch.take(np.linspace(0, batch.size - 1, min(batch.size, _SAMPLE)).astype(np.int64))
        counts = np.stack([self._counted(sample, stem) for stem in self._neighbours], axis=1)
        store, rows = sample.stores[self.target], sample.rows[self.target]
        found = division({name: store.gather(name, rows) for name in store.schema.names}, counts)
        self._division = found
        if found is None:
            return
        self.name = f"Divide({self._alias}.{found.column})"
        order_of = found.of(store.gather(found.column, rows))
        for number, order in enumerate(found.orders):
            mine = counts[order_of == number]
            for stem, matches in zip(self._neighbours, mine.sum(axis=0).tolist(), strict=True):
                self._tell(batch.signature.having(order=order), stem.number, len(mine), matches)

    def _counted(self, sample: TupleBatch, stem: SteM) -> Array:
        """Return the matches of each tuple; of many, as many as are counted for all."""
        self.sampled += sample.size
        rows = sample.rows[self.target]
        found = np.zeros(int(rows[-1]) + 1, np.int64)
        probe, most = stem.start(sample), _MATCHES * sample.size
        while not probe.is_done and most > 0:
            met = stem.probe(probe, most)
            most -= met.size
            found += np.bincount(met.rows[self.target], minlength=len(found))
        return found[rows]

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples in one batch for each order."""
        assert self._division is not None, "divides() has been asked"
        column, orders = self._division.column, self._division.orders
        store, rows = work.stores[self.target], work.rows[self.target]
        order_of = self._division.of(store.gather(column, rows))
        pieces, missing = [], work.origin - work.size
        for number, order in enumerate(orders):
            positions = np.flatnonzero(order_of == number)
            if len(positions):
                signature = work.signature.having(order=order)
                origin = len(positions) + missing
                pieces.append(work.take(positions, signature=signature, origin=origin))
                missing = 0
        return Step(pieces, work.size)
