"""Index joins: an index hidden in a binary join, with a cache of what it has returned.

Avnur & Hellerstein 2000, section 2.2 and figure 7; Raman, Deshpande & Hellerstein 2003, section 4.2. Tuples
of the outer side wait for their lookups in the order of their arrival, and everything behind them waits too
(head-of-line blocking), even if what it looks for is in the cache. That is what SteMs do away with; this join
is there for what it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from millrace.engine.access.modules import IndexAM, check_schema, find_types, keep_asked
from millrace.engine.figures import ModuleFigures
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import Edge, index_join_name
from millrace.engine.stairs.stair import BinaryJoin, StairProbe
from millrace.engine.stems.bindings import BindingSet, bound
from millrace.engine.stems.conditions import Classes, Matching
from millrace.engine.stems.stem import SteM, singletons
from millrace.engine.tuples import KeyColumn, RelationStore
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import ExecutionError
from millrace.limits.clock import POLLED, Clock


@dataclass(frozen=True)
class IndexPath:
    """How an index is asked.

    Attributes:
        index: The index AM.
        classes: Per bind column, the attribute class that binds it.
        keys: The bind columns, in the types of those classes.
    """

    index: IndexAM
    classes: Classes
    keys: tuple[KeyColumn, ...]


class IndexJoin(BinaryJoin):
    """The join along one edge, one end of which is a relation that only an index returns.

    What the index has returned is in the inner relation's SteM and STAIR: the cache. Outer tuples are not
    stored, for nothing will come to look for them.

    Args:
        inner: The SteM of the relation that is asked for.
        built: Told of the inner relation's tuples as they come.

    Attributes:
        asked: Different bindings that the index was asked for.
        hits: Outer tuples that had nothing to ask: their binding was asked for by one before them.
        returned: Tuples of the inner relation that the index returned.
        seconds: Time spent waiting for it.
    """

    def __init__(
        self,
        edge: Edge,
        spec: JoinSpec,
        matching: Matching,
        stores: Mapping[int, RelationStore],
        inner: SteM,
        path: IndexPath,
        clock: Clock,
        built: Callable[[TupleBatch], None] | None = None,
    ) -> None:
        super().__init__(edge, spec, matching, stores)
        self.name = index_join_name(spec, matching.graph, edge, inner.number)
        self.asked = self.hits = self.returned = 0
        self.seconds = 0.0
        self._inner = inner
        self._alias, self._schema = spec.aliases[inner.number], spec.relations[inner.number].schema
        self._path = path
        self._matching = matching
        self._clock = clock
        self._built = built
        self._known = BindingSet(path.keys)
        self._asking: TupleBatch | None = None
        self._since = 0.0

    def route(
        self,
        batch: TupleBatch,
        *,
        kept: bool = True,
        apart: Collection[int] | None = None,
        skip: int = 0,
        stored: TupleBatch | None = None,
    ) -> StairProbe:
        """Look up what outer tuples bind, wait for the answers, and begin to probe what is here then.

        Matches that would span the relations of ``skip`` are left out. ``kept``, ``apart`` and ``stored``
        have no effect, for outer tuples are not inserted.

        Raises:
            ExecutionError: The index will never answer, or returned other columns than the relation has.
        """
        near = self.near(batch)
        assert near.owner != self._inner.number, "tuples of the inner relation come from the index alone"
        if batch.size:
            self._fetch(batch)
        return self.dual(near).start(batch, near.codes(batch), skip)

    def due(self, batch: TupleBatch) -> float | None:
        """Ask for what outer tuples bind, without waiting for it; to be called until it has been answered.

        Returns:
            None once :meth:`route` need not wait for these tuples; before that, when to call again.

        Raises:
            ExecutionError: As for :meth:`route`.
        """
        index = self._path.index
        if self._asking is not batch:
            fresh = self._unknown(batch)
            self.asked += fresh.num_rows
            self.hits += batch.size - fresh.num_rows
            self._asking, self._since = batch, self._clock.now()
            if fresh.num_rows:
                index.submit(fresh)
        for answer in index.poll() if index.pending else ():
            find_types(index.name, answer.bindings, [[key.type for key in self._path.keys]])
            rows = check_schema(index.name, self._schema, answer.rows)
            self._keep(keep_asked(rows, answer.bindings, self._path.keys))
        now = self._clock.now()
        if not index.pending:
            self.seconds += now - self._since
            self._since = now
            return None
        due = index.due()
        if due == math.inf:
            raise ExecutionError(
                f"index {index.name!r} will never answer {index.pending} of the "
                f"bindings that {self.name} waits for; expected an answer to each; give the relation another "
                "source, or use architecture='stems' if it has another one"
            )
        return now + POLLED if due is None else due

    def _fetch(self, batch: TupleBatch) -> None:
        """Return when everything that the tuples bind has been answered; the eddy stands still."""
        while (due := self.due(batch)) is not None:
            self._clock.wait(None if self._path.index.due() is None else due - self._clock.now())

    def _unknown(self, batch: TupleBatch) -> pa.RecordBatch:
        """Return the bindings of tuples that the index was not asked for yet, each once."""
        return self._known.add(*bound(self._matching, batch, self._path.classes))

    def _keep(self, rows: pa.RecordBatch) -> None:
        """Build tuples of the inner relation, and insert them on its side."""
        built = self._inner.build(singletons(self._inner, rows, self._alias, built=False), None)
        self.returned += built.size
        self.stairs[self._inner.number].insert(built)
        if self._built is not None:
            self._built(built)

    def figures(self) -> ModuleFigures:
        """Return the lookups: tuples in, tuples the index returned, and as calls the bindings asked for.

        The tuples in that made no call are the hits in the cache. The seconds, spent waiting, are part of
        those that the join itself is booked with.
        """
        tuples_in = self.asked + self.hits
        return ModuleFigures(self.name, "lookup", tuples_in, self.returned, self.asked, self.seconds)
