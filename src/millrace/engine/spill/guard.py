"""Stopping a join whose state outgrows the budget so that what is left can be done in smaller pieces.

Nobody knows beforehand how many intermediate tuples there will be, nor which indexes. So the state is
measured as the join runs. When it is too large, it has to be certain what is left: the results that are out
are those of certain base tuples, each once.

* Sources read one after the other: no result comes before the last source, the *stream*, is read. Before
  that, the join is given up, and all of it is left. From then on joins keep nothing of what comes, so only
  moving state makes more of it, when the results of what has come are out. What is left then is what has
  not been read of the stream, with all tuples of the others: any one relation may be cut anywhere.
* All sources in turn, one batch at a time: results are out. The batch that is being joined meets what is in
  state, and nothing of it has to be kept if no other batch follows. So that is the last one: all sources are
  taken to have ended (*early* tuples; :mod:`millrace.engine.spill.algorithms`).

An index takes up to 330 kB however few its rows are. So a budget below a few megabytes may be exceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import pyarrow as pa

from millrace.engine.eddy.operator import Work as InFlight
from millrace.engine.operators.beside import BesideRelation
from millrace.engine.spill.context import Budget, SpillContext
from millrace.engine.stems.join_state import Held, bytes_in_flight
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import TupleBatch


class OverBudget(Exception):  # nothing failed, and nobody outside of this folder sees it
    """The state of a join is too large, and what is left of the join is known."""


class Remainder:
    """What a join has left: base tuples in its state, and what has not been read, by relation."""

    def __init__(
        self,
        context: SpillContext,
        built: dict[int, list[pa.RecordBatch]],
        unread: dict[int, Iterator[pa.RecordBatch]],
    ) -> None:
        self._budget = context.budget
        self._built = built
        self.unread = unread
        self._budget.wait(sum(int(batch.nbytes) for batches in built.values() for batch in batches))

    def built(self, relation: int) -> Iterator[pa.RecordBatch]:
        """Yield a relation's tuples in memory; each batch is let go of before the next is asked for."""
        return self._budget.drain(self._built[relation], lambda batch: int(batch.nbytes))

    def all(self, relation: int) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a relation, those in memory first."""
        yield from self.built(relation)
        yield from self.unread[relation]


class StateMonitor:
    """Measures what a join holds."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._stems: Sequence[SteM] = ()
        self._state: Callable[[], Held] | None = None
        self._in_flight: Callable[[], Iterable[InFlight]] = tuple

    def attach(
        self, stems: Sequence[SteM], state: Callable[[], Held], in_flight: Callable[[], Iterable[InFlight]]
    ) -> None:
        self._stems, self._state, self._in_flight = stems, state, in_flight

    def _measure(self, beside: Iterable[BesideRelation], counted: int = 0) -> Held:
        """Book what the join holds, with ``counted`` bytes of relations beside it; return its state's."""
        assert self._state is not None
        held = self._state()
        stores = [each.store for each in self._stems] + [each.store for each in beside]
        self._budget.join(held.nbytes + counted + bytes_in_flight(self._in_flight(), stores))
        return held


class BudgetMonitor(StateMonitor):
    """Watches one join, whose state may take ``budget.state`` bytes, beside what small indexes take anyhow.

    Args:
        stream: The relations of which results come: the one read last, or all, if they are read in turn.
        is_limited: False if the join cannot be made any smaller.
        may_end: Whether the stream may end early. Not with set semantics: its duplicates have to meet.
        beside: Relations beside the join, by alias: their memory is counted apart.
    """

    def __init__(
        self,
        context: SpillContext,
        stream: frozenset[int],
        *,
        is_limited: bool,
        may_end: bool,
        beside: Mapping[str, BesideRelation],
    ) -> None:
        super().__init__(context.budget)
        self._context = context
        self._stream = stream
        self._is_limited = is_limited
        self._may_end = may_end
        self._beside = beside
        self._has_results = False
        self._is_over = False

    def look(self, *, at_stasis: bool = False) -> None:
        """Measure, and see to it that the join ends if it is too large.

        Raises:
            OverBudget: It has to be given up at once.
        """
        held = self._measure(self._beside.values())
        if not self._is_limited or not self._is_too_much(held) or (self._has_results and not self._may_end):
            return
        if any(isinstance(work, TupleBatch) and not work.signature.built for work in self._in_flight()):
            return  # predicates may come before building, and what is not built would be lost
        self._is_over = True
        if not self._has_results or at_stasis:
            raise OverBudget
        for stem in self._stems:
            stem.complete = True

    def _is_too_much(self, held: Held) -> bool:
        return held.nbytes - held.least > self._budget.state

    def reading(self, relation: int, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a source, of the stream as long as the state is not too large."""
        streamed = relation in self._stream
        while not (streamed and self._is_over) and (batch := next(source, None)) is not None:
            self._has_results = self._has_results or streamed
            yield batch

    def remainder(self, unread: dict[int, Iterator[pa.RecordBatch]]) -> Remainder | None:
        """Return what is left when the join has ended, which must not go on; None for nothing."""
        if not self._is_over:
            return None
        first = {relation: next(unread[relation], None) for relation in self._stream}
        if all(batch is None for batch in first.values()):
            return None  # without another tuple of the stream there is no other result
        later = {
            r: source if (batch := first.get(r)) is None else chain([batch], source)
            for r, source in unread.items()
        }
        return Remainder(self._context, {stem.number: stem.store.hand_over() for stem in self._stems}, later)
