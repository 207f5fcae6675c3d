"""Index joins: an index hidden in a binary join, with a cache of what it has returned; and which joins are.

Avnur & Hellerstein 2000, section 2.2 and figure 7; Raman, Deshpande & Hellerstein 2003, section 4.2. Tuples
of the outer side wait for their lookups in the order of their arrival, and everything behind them waits too
(head-of-line blocking), even if what it looks for is in the cache. That is what SteMs do away with; this join
is there for what it is compared with.

The relations that have indexes alone are the inner sides of index joins, all others are scanned. Access
methods compete (Raman, Deshpande & Hellerstein 2003, section 2.1.3) where an eddy runs the joins: what scans
and indexes of a relation return is built into its SteM, which drops duplicates, and goes on to one STAIR. So
a hash join and an index join along an edge share that STAIR. A static plan has one access method a relation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.engine.access.modules import IndexAM, check_schema, find_types, keep_asked
from millrace.engine.access.paths import Access, AccessMethods, Lookup
from millrace.engine.figures import ModuleFigures
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import Edge, edges_of, index_join_name
from millrace.engine.stairs.stair import BinaryJoin, StairProbe
from millrace.engine.stems.bindings import BindingSet, bound
from millrace.engine.stems.stem import SteM, singletons
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import ExecutionError, InputError
from millrace.limits.clock import POLLED, Clock

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext


class IndexJoin(BinaryJoin):
    """The join along one edge, one end of which is a relation that only an index returns.

    What the index has returned is in the ``inner`` relation's SteM and STAIR: the cache. Outer tuples are not
    stored, for nothing will come to look for them. ``built`` is told of the inner relation's tuples as they
    come.
    """

    def __init__(
        self,
        edge: Edge,
        spec: JoinSpec,
        stems: Sequence[SteM],
        inner: SteM,
        lookup: Lookup,
        index: IndexAM,
        clock: Clock,
        built: Callable[[TupleBatch], None] | None = None,
    ) -> None:
        super().__init__(edge, spec, stems)
        self.name = index_join_name(spec, inner.matching.graph, edge, inner.number)
        self._asked = self._hits = self._returned = 0
        self._seconds = 0.0
        self._inner = inner
        self._alias, self._schema = spec.aliases[inner.number], spec.relations[inner.number].schema
        self._lookup, self._index = lookup, index
        self._clock = clock
        self._built = built
        self._known = BindingSet(lookup.keys)
        self._asking: TupleBatch | None = None
        self._since = 0.0

    def route(
        self, batch: TupleBatch, *, kept: bool = True, apart: Collection[int] | None = None, skip: int = 0
    ) -> StairProbe:
        """Look up what outer tuples bind, wait for the answers, and begin to probe what is here then.

        Raises:
            ExecutionError: The index will never answer, or returned other columns than the relation has.
        """
        assert not batch.signature.span >> self._inner.number & 1, "the inner relation comes from the index"
        if batch.size:
            self._fetch(batch)
        return super().route(batch, kept=False, skip=skip)

    def due(self, batch: TupleBatch) -> float | None:
        """Ask for what outer tuples bind; return when to call again, None once :meth:`route` need not wait.

        Raises:
            ExecutionError: As for :meth:`route`.
        """
        index = self._index
        if self._asking is not batch:
            fresh = self._unknown(batch)
            self._asked += fresh.num_rows
            self._hits += batch.size - fresh.num_rows
            self._asking, self._since = batch, self._clock.now()
            if fresh.num_rows:
                index.submit(fresh)
        for answer in index.poll() if index.pending else ():
            find_types(index.name, answer.bindings, [[key.type for key in self._lookup.keys]])
            rows = check_schema(index.name, self._schema, answer.rows)
            self._keep(keep_asked(rows, answer.bindings, self._lookup.keys))
        now = self._clock.now()
        if not index.pending:
            self._seconds += now - self._since
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
            self._clock.wait(None if self._index.due() is None else due - self._clock.now())

    def _unknown(self, batch: TupleBatch) -> pa.RecordBatch:
        """Return the bindings of tuples that the index was not asked for yet, each once."""
        return self._known.add(*bound(self._inner.matching, batch, self._lookup.classes))

    def _keep(self, rows: pa.RecordBatch) -> None:
        """Build tuples of the inner relation, and insert them on its side."""
        built = self._inner.build(singletons(self._inner, rows, self._alias, built=False), None)
        self._returned += built.size
        self.stairs[self._inner.number].insert(built)
        if self._built is not None:
            self._built(built)

    def figures(self) -> ModuleFigures:
        """Return the lookups: tuples in, tuples the index returned, and as calls the bindings asked for.

        The tuples in that made no call are the hits in the cache. The seconds, spent waiting, are part of
        those that the join itself is booked with.
        """
        tuples_in = self._asked + self._hits
        return ModuleFigures(self.name, "lookup", tuples_in, self._returned, self._asked, self._seconds)


@dataclass(frozen=True)
class IndexJoins:
    """The relations of a block that are asked for by index joins: ``inner`` spans those without a scan."""

    spec: JoinSpec
    graph: QueryGraph
    access: AccessMethods
    clock: Clock
    stems: Sequence[SteM]
    inner: int

    @classmethod
    def of(cls, context: RunContext) -> IndexJoins:
        """Find them.

        Raises:
            InputError: A relation of a static plan has several access methods that compete.
        """
        spec, paths = context.spec, context.methods.paths
        asked = sum({1 << each.relation for each in paths.lookups})
        for relation, alias in enumerate(spec.aliases) if context.options.architecture == "static" else ():
            scanned = paths.scanned >> relation & 1
            if scanned and asked >> relation & 1:
                has = "a scan and an index"
            elif scanned and paths.sets >> relation & 1:
                has = "several scans, or one that may return a row twice"
            else:
                continue
            raise InputError(
                f"relation {alias!r} has {has}, and architecture='static' gives each relation one access "
                "method; leave out all others, or use architecture='stems', 'joins' or 'stairs', whose "
                "access methods compete"
            )
        inner = asked & ~paths.scanned
        return cls(spec, context.graph, context.methods, context.clock, context.stems, inner)

    def lookup(self, span: int, relation: int) -> Lookup | None:
        """Return how tuples of a span ask for a relation; None if they bind none of its indexes."""
        paths = self.access.paths
        return next((paths.lookups[i] for i in paths.bound(span, relation, self.graph)), None)

    def _find_inner(self, inputs: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield those of two inputs, given by spans, that are asked, each with the other one."""
        for mine, other in (inputs, inputs[::-1]):
            if mine & self.inner and mine.bit_count() == 1:
                yield mine.bit_length() - 1, other

    def check_plan(self, inputs: Sequence[int]) -> None:
        """Raise InputError if one of two inputs is asked and the other binds no index."""
        for relation, other in self._find_inner(inputs):
            if other & ~self.inner and self.lookup(other, relation):
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
            for relation, other in self._find_inner([1 << end for end in edge.ends])
            if self.lookup(other, relation) is None
        )

    def check_leaves(self) -> None:
        """Raise InputError unless one join with a scanned relation binds an index of each such relation."""
        for relation, alias in enumerate(self.spec.aliases):
            if not self.inner >> relation & 1:
                continue
            scanned = [r for r in range(self.graph.relations) if not self.inner >> r & 1]
            if not any(self.lookup(1 << r, relation) for r in scanned):
                others = [self.spec.aliases[r] for r in scanned]
                raise InputError(
                    f"relation {alias!r} has no scan, and none of its indexes is bound by its join with one "
                    f"relation that has a scan (here {others}), as the index joins of an eddy need it; "
                    "architecture='stems' can ask with values of several relations, or of others without a "
                    "scan"
                )

    def end(self) -> None:
        """Note that nothing comes unasked from these relations."""
        for stem in self.stems:
            stem.complete = stem.complete or bool(self.inner >> stem.number & 1)

    def join(
        self, edge: Edge, inputs: Sequence[int], built: Callable[[TupleBatch], None] | None = None
    ) -> BinaryJoin:
        """Return the join of two inputs along an edge: an index join if one is asked; it tells ``built``."""
        for relation, other in self._find_inner(inputs):
            lookup = self.lookup(other, relation)
            assert lookup is not None, "plans are checked, and the pre-optimizer takes no other edges"
            index, stem = self.access.indexes[lookup.module][1], self.stems[relation]
            return IndexJoin(edge, self.spec, self.stems, stem, lookup, index, self.clock, built)
        return BinaryJoin(edge, self.spec, self.stems)


def refuse_shared(spec: JoinSpec, access: Access | None, architecture: str) -> None:
    """Raise InputError if several relations are to share what access modules return."""
    for relation in spec.relations:
        if relation.same_as is not None and access and access.get(relation.same_as):
            raise InputError(
                f"relations {relation.same_as!r} and {relation.alias!r} are the same data, given by access "
                f"modules, and architecture={architecture!r} cannot share what these return; give it as a "
                "source, or use architecture='stems'"
            )
