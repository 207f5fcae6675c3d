"""Which joins of a block are index joins, for architectures without competing access methods.

Binary joins hide their access method: the relations that have indexes alone are the inner sides of index
joins, all others are scanned. Only SteMs let a relation have several access methods that compete (Raman,
Deshpande & Hellerstein 2003, section 2.1.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.engine.access.paths import Access, AccessMethods
from millrace.engine.operators.index_join import IndexJoin, IndexPath
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import Edge, edges_of
from millrace.engine.stairs.stair import BinaryJoin, MakeJoin
from millrace.engine.stems.conditions import Matching
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples import RelationStore
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import InputError
from millrace.limits.clock import Clock

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext


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
