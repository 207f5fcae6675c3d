"""Left outer joins: a tuple that spans the block is widened by its matches in a relation beside the join.

The join with every other relation comes first, for it decides which tuples there are; see
:meth:`millrace.engine.graph.QueryGraph.of`. Among themselves left joins may come in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.operator import Estimate, Probe, Step
from millrace.engine.operators.beside import AskedRelation, BesideRelation, Search
from millrace.engine.relations import is_run
from millrace.engine.tuples import Signature, TupleBatch

_MOST_ASIDE = 16
"""Batches that wait together for the answers of an index."""


@dataclass(eq=False)
class Widening:
    """Tuples that are being widened.

    Attributes:
        batch: The tuples.
        search: How they look for matches.
        matched: Which of them have one, as far as is known.
        origin: Source tuples that the next piece stands for.
    """

    batch: TupleBatch
    search: Search
    matched: Array
    origin: int


class OuterProbe(Probe):
    """Widens tuples by a relation beside the join.

    Args:
        number: Of the left join, behind the block's residual predicates: the done bit that it sets.
        relation: The number of the relation.
        alias: Its alias.
        beside: The relation.
    """

    def __init__(self, number: int, relation: int, alias: str, beside: BesideRelation) -> None:
        super().__init__(relation, beside.name, alias)
        self.beside = beside
        self.done = 1 << number

    def estimate(self, signature: Signature, *, alone: bool) -> Estimate:
        """Return the tuples that a key has, at least the one of nulls."""
        index = self.beside.index
        return Estimate(self.label, max(1.0, index.rows / max(1, index.distinct)))

    def start(self, batch: TupleBatch) -> Widening:
        """Begin to look for matches."""
        return Widening(batch, self.beside.search(batch), np.zeros(batch.size, np.bool_), batch.origin)

    def step(self, work: Widening, limit: int) -> Step:
        """Return tuples widened by the next matches; with the last ones those that have none."""
        walk, pairs = work.search.walk, list[tuple[Array, Array]]()
        if not walk.is_done:
            pairs += self.beside.matches(work.search, limit)
        for left, _ in pairs:
            work.matched[left] = True
        if walk.is_done:
            alone = np.flatnonzero(~work.matched)
            pairs.append((alone, np.zeros(len(alone), np.int32)))
        left, right = (np.concatenate(each) for each in zip(*pairs, strict=True))
        widened = self._widened(work, left, right)
        work.origin = 0
        return Step((widened,), widened.size, None if walk.is_done else work)

    def _widened(self, work: Widening, left: Array, right: Array) -> TupleBatch:
        """Return tuples at these positions, with these rows of the relation."""
        batch = work.batch
        signature = batch.signature.having(done=batch.signature.done | self.done)
        if len(left) == batch.size and is_run(left):
            taken = replace(batch, origin=work.origin)  # exactly one match for each
        else:
            taken = batch.take(left, origin=work.origin)
        return replace(
            taken,
            signature=signature,
            rows={**taken.rows, self.target: right},
            stores={**taken.stores, self.target: self.beside.store},
            path=(*batch.path, self.label),
        )


class AskingProbe(OuterProbe):
    """Widens tuples by a relation that an index returns as it is asked.

    Tuples are set aside while others arrive: the more bindings are under way at once, the less is waited.

    Attributes:
        sets_aside: Whether somebody takes back what is set aside; otherwise each batch is waited for.
    """

    beside: AskedRelation

    def __init__(self, number: int, relation: int, alias: str, beside: AskedRelation) -> None:
        super().__init__(number, relation, alias, beside)
        self.sets_aside = False
        self._aside: list[Widening] = []

    def start(self, batch: TupleBatch) -> Widening:
        """Ask for what the tuples need."""
        search = self.beside.prepare(batch)
        self.beside.ask(search)
        return Widening(batch, search, np.zeros(batch.size, np.bool_), batch.origin)

    def step(self, work: Widening, limit: int) -> Step:
        """Return tuples widened by the next matches, or set them aside until they are here."""
        if not work.search.has_begun:
            if self.sets_aside and self._has_room(work, limit) and not self.beside.is_answered():
                self._aside.append(work)
                return Step((), 0)
            self.beside.wait()
            self.beside.begin(work.search)
        return super().step(work, limit)

    def _has_room(self, work: Widening, limit: int) -> bool:
        tuples = work.batch.size + sum(each.batch.size for each in self._aside)
        return len(self._aside) < _MOST_ASIDE and tuples <= limit

    def take_back(self, *, waits: bool) -> list[Widening]:
        """Return what was set aside, once all answers are here; nothing before, unless it ``waits``."""
        if not self._aside:
            return []
        if waits:
            self.beside.wait()
        elif not self.beside.is_answered():
            return []
        back, self._aside = self._aside, []
        return back
