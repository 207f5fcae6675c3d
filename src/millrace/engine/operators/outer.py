"""Left outer joins: a tuple that spans the block is widened by its matches in a relation beside the join.

The join with every other relation comes first, for it decides which tuples there are; see
:meth:`millrace.engine.plan.graph.QueryGraph.of`. Among themselves left joins may come in any order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.eddy.operator import Estimate, Kind, Operator, Step
from millrace.engine.operators.beside import AskedRelation, BesideRelation, Search
from millrace.engine.tuples import is_run
from millrace.engine.tuples.batch import Signature, TupleBatch

_PIECE = 1024
"""Tuples that wait for the same answers, at most, when they are set aside."""


class OuterProbe(Operator):
    """Widens tuples by a relation beside the join, whose ``number`` is behind those of predicates."""

    kind = Kind.PROBE

    def __init__(self, number: int, relation: int, alias: str, beside: BesideRelation) -> None:
        super().__init__(relation, beside.name, alias)
        self.beside = beside
        self.done = 1 << number

    def estimate(self, signature: Signature) -> Estimate:
        """Return the tuples that a key has, at least the one of nulls."""
        index = self.beside.index
        return Estimate(self.label, max(1.0, index.rows / max(1, index.distinct)))

    def start(self, batch: TupleBatch) -> Search:
        return self.beside.search(batch)

    def step(self, work: Search, limit: int) -> Step:
        """Return tuples widened by the next matches; with the very last ones those that have none."""
        walk, pairs = work.walk, list[tuple[Array, Array]]()
        origin = work.batch.origin if walk.is_new else 0
        if not walk.is_done:
            pairs += self.beside.matches(work, limit)
        for left, _ in pairs:
            work.matched[left] = True
        if walk.is_done:
            marks, matched = self.beside.marks, work.matched
            if marks is not None:
                matched = marks.add(work.batch, matched) | (not marks.is_last)
            alone = np.flatnonzero(~matched)
            pairs.append((alone, np.zeros(len(alone), np.int32)))
        left, right = (np.concatenate(each) for each in zip(*pairs, strict=True))
        widened = self._widened(work.batch, left, right, origin)
        return Step((widened,), widened.size, None if walk.is_done else work)

    def _widened(self, batch: TupleBatch, left: Array, right: Array, origin: int) -> TupleBatch:
        """Return tuples at these positions, with these rows of the relation."""
        signature = batch.signature.having(done=batch.signature.done | self.done)
        if len(left) == batch.size and is_run(left):
            taken = replace(batch, origin=origin)  # exactly one match for each
        else:
            taken = batch.take(left, origin=origin)
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
    They go on in small pieces, so that the first results need few answers.

    Attributes:
        sets_aside: Whether somebody takes back what is set aside; otherwise each batch is waited for.
        unbuilt: Number of the relation whose tuples nothing else holds.
    """

    beside: AskedRelation

    def __init__(
        self, number: int, relation: int, alias: str, beside: AskedRelation, most_waiting: int
    ) -> None:
        super().__init__(number, relation, alias, beside)
        self._most_waiting = most_waiting
        self.sets_aside = False
        self.unbuilt: int | None = None
        self._aside: deque[tuple[Search, int]] = deque()
        self._bytes = 0

    def start(self, batch: TupleBatch) -> Search:
        """Ask for what the tuples need."""
        work = self.beside.prepare(batch)
        self.beside.ask(work)
        return work

    def step(self, work: Search, limit: int) -> Step:
        """Return tuples widened by the next matches, or set them aside until all of these have come."""
        if not work.has_begun:
            if not self.beside.is_answered(work):
                if self.sets_aside and self._bytes < self._most_waiting and not self.beside.is_full:
                    self._set_aside(work)
                    return Step((), 0)
                self.beside.wait(work)
            self.beside.begin(work)
        return super().step(work, limit)

    def _set_aside(self, work: Search) -> None:
        batch = work.batch
        size = sum(int(column.nbytes) for column in (*work.columns, *batch.rows.values()))
        size += int(batch.size * self.beside.answer_bytes)
        if self.unbuilt is not None:
            size += batch.stores[self.unbuilt].nbytes
        for low in range(0, batch.size, _PIECE):
            piece = self.beside.prepare(batch.cut(low, low + _PIECE))
            self._aside.append((piece, size if low + _PIECE >= batch.size else 0))
        self._bytes += size

    def take_back(self, *, waits: bool) -> list[Search]:
        """Return what was set aside first, as far as it has its answers; ``waits`` until some of it has."""
        self.beside.take_answers()
        if waits and self._aside:
            self.beside.wait(self._aside[0][0])
        back: list[Search] = []
        while self._aside and self.beside.is_answered(self._aside[0][0]):
            work, size = self._aside.popleft()
            self._bytes -= size
            back.append(work)
        return back
