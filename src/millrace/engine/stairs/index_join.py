"""Index joins: an index hidden in a binary join, with a cache of what it has returned; and which joins are.

Avnur & Hellerstein 2000, section 2.2 and figure 7; Raman, Deshpande & Hellerstein 2003, section 4.2. Tuples
of the outer side wait for their lookups in the order of their arrival, and everything behind them waits too
(head-of-line blocking), even if what it looks for is in the cache. That is what SteMs do away with; this join
is there for what it is compared with.

Binary joins hide their access method: the relations that have indexes alone are the inner sides of index
joins, all others are scanned. Only SteMs let a relation have several access methods that compete (Raman,
Deshpande & Hellerstein 2003, section 2.1.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.engine.access.modules import IndexAM, check_schema, find_types, keep_asked
from millrace.engine.access.paths import Access, AccessMethods
from millrace.engine.figures import ModuleFigures
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import Edge, edges_of, index_join_name
from millrace.engine.stairs.stair import BinaryJoin, MakeJoin, StairProbe
from millrace.engine.stems.bindings import BindingSet, bound
from millrace.engine.stems.conditions import Classes, Matching
from millrace.engine.stems.stem import SteM, singletons
from millrace.engine.tuples import KeyColumn, RelationStore
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import ExecutionError, InputError
from millrace.limits.clock import POLLED, Clock

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext


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


@dataclass(frozen=True)
class IndexJoins:
    """The relations of a block that are asked for by index joins: ``inner`` spans those without a scan."""

    spec: JoinSpec
    graph: QueryGraph
    access: AccessMethods
    clock: Clock
    inner: int

    @classmethod
    def of(cls, context: RunContext) -> IndexJoins:
        """Find them.

        Raises:
            InputError: A relation has several access methods that compete.
        """
        spec, paths = context.spec, context.methods.paths
        asked = sum({1 << each.relation for each in paths.lookups})
        for relation, alias in enumerate(spec.aliases):
            scanned = paths.scanned >> relation & 1
            if scanned and asked >> relation & 1:
                has = "a scan and an index"
            elif scanned and paths.sets >> relation & 1:
                has = "several scans"
            else:
                continue
            raise InputError(
                f"relation {alias!r} has {has}, and architecture={context.options.architecture!r} gives "
                "each relation one access method; leave out all others, or use architecture='stems', whose "
                "access methods compete"
            )
        return cls(spec, context.graph, context.methods, context.clock, asked & ~paths.scanned)

    def path(self, relation: int, classes: Iterable[int]) -> IndexPath | None:
        """Return how to ask for a relation by values of these classes; None if no index is bound by them."""
        tied = set(classes)
        for each in self.access.paths.lookups:
            if each.relation == relation and tied.issuperset(each.classes):
                return IndexPath(self.access.indexes[each.module][1], each.classes, each.keys)
        return None

    def path_from(self, span: int, relation: int) -> IndexPath | None:
        """Return how to ask for a relation by values of tuples of a span; None if they bind no index."""
        return self.path(relation, self.graph.bound(span, relation))

    def check_plan(self, inputs: Sequence[int]) -> None:
        """Raise InputError if one of two inputs, given by spans, is asked and the other binds no index."""
        for mine, other in (inputs, inputs[::-1]):
            relation = mine.bit_length() - 1
            if mine != 1 << relation or not self.inner >> relation & 1:
                continue
            if other & ~self.inner and self.path_from(other, relation):
                continue
            named = [alias for i, alias in enumerate(self.spec.aliases) if other >> i & 1]
            raise InputError(
                f"option order joins {self.spec.aliases[relation]!r}, which has no scan, with {named}, which "
                "cannot give values for any of its indexes; put it behind relations that can"
            )

    @property
    def barred(self) -> frozenset[int]:
        """Numbers of the edges to such relations that bind none of their indexes."""
        return frozenset(
            edge.number
            for edge in edges_of(self.graph)
            for end in edge.ends
            if self.inner >> end & 1 and self.path(end, edge.classes) is None
        )

    def check_leaves(self) -> None:
        """Raise InputError unless one join with a scanned relation binds an index of each such relation."""
        for relation, alias in enumerate(self.spec.aliases):
            if not self.inner >> relation & 1:
                continue
            scanned = [r for r in range(self.graph.relations) if not self.inner >> r & 1]
            if not any(self.path(relation, self.graph.bound(1 << r, relation)) for r in scanned):
                others = [self.spec.aliases[r] for r in scanned]
                raise InputError(
                    f"relation {alias!r} has no scan, and none of its indexes is bound by its join with one "
                    f"relation that has a scan (here {others}), as the index joins of an eddy need it; "
                    "architecture='stems' can ask with values of several relations, or of others without a "
                    "scan"
                )

    def end(self, stems: Sequence[SteM]) -> None:
        """Note that nothing comes unasked from these relations."""
        for stem in stems:
            stem.complete = stem.complete or bool(self.inner >> stem.number & 1)

    def maker(self, stems: Sequence[SteM], built: Callable[[TupleBatch], None]) -> MakeJoin:
        """Return what makes the joins of a tree in which these relations are leaves.

        ``built`` is told of these relations' tuples as they come.
        """

        def make(edge: Edge, matching: Matching, stores: Mapping[int, RelationStore]) -> BinaryJoin:
            asked = [end for end in edge.ends if self.inner >> end & 1]
            if not asked:
                return BinaryJoin(edge, self.spec, matching, stores)
            path = self.path(asked[0], edge.classes)
            assert path is not None, "the pre-optimizer has chosen an edge that binds an index"
            return IndexJoin(edge, self.spec, matching, stores, stems[asked[0]], path, self.clock, built)

        return make


def refuse_shared(spec: JoinSpec, access: Access | None, architecture: str) -> None:
    """Raise InputError if several relations are to share what access modules return."""
    for relation in spec.relations:
        if relation.same_as is not None and access and access.get(relation.same_as):
            raise InputError(
                f"relations {relation.same_as!r} and {relation.alias!r} are the same data, given by access "
                f"modules, and architecture={architecture!r} cannot share what these return; give it as a "
                "source, or use architecture='stems'"
            )
