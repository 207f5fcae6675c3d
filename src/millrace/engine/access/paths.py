"""Access paths: how the tuples of each relation can be got, and whether a block can be answered at all.

Raman, Deshpande & Hellerstein 2003, sections 2.1.3 and 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from millrace.engine.access.modules import IndexAM
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stems.conditions import Classes
from millrace.engine.tuples import KeyColumn
from millrace.errors import InputError, near


@dataclass(frozen=True)
class Lookup:
    """One way to ask an index AM.

    Attributes:
        relation: The relation whose tuples it returns.
        module: Place of the AM among all index AMs of the block.
        classes: Per bind column, the attribute class that binds it.
        keys: The bind columns, in the types of those classes.
    """

    relation: int
    module: int
    classes: Classes
    keys: tuple[KeyColumn, ...] = field(compare=False)


@dataclass(frozen=True)
class Paths:
    """The access paths of a block.

    Attributes:
        scanned: Bit set of the relations that have a scan AM: every tuple of theirs comes unasked.
        sets: Bit set of the relations that may get a tuple more than once, from several AMs.
        lookups: Every way to ask an index AM; a destination ``("lookup", i)`` and the bit ``i`` of
            ``Signature.asked`` are number ``i``.
    """

    scanned: int
    sets: int = 0
    lookups: tuple[Lookup, ...] = ()

    @classmethod
    def scans(cls, graph: QueryGraph) -> Paths:
        """Return the paths of a block that has one scan for each relation."""
        return cls(graph.everything)

    @classmethod
    def of(
        cls,
        spec: JoinSpec,
        graph: QueryGraph,
        scans: Mapping[int, int],
        indexes: Sequence[tuple[int, IndexAM]],
    ) -> Paths:
        """Lay out the paths and check that they suffice.

        Args:
            spec: The block.
            graph: Its query graph.
            scans: How many scan AMs there are, by relation.
            indexes: Index AMs with the relations that they belong to.

        Raises:
            InputError: A relation has no scan, and no index that joins can bind; or an index binds a column
                that its relation does not have.
        """
        lookups: list[Lookup] = []
        for module, (lead, index) in enumerate(indexes):
            for relation in graph.roles(lead):
                lookups += _lookups(spec, graph, relation, module, index)
        scanned = sets = 0
        for relation in range(graph.relations):
            lead = graph.leads[relation]
            scanned |= (scans.get(lead, 0) > 0) << relation
            ways = {
                (each.module, *((k.name, str(k.type)) for k in each.keys))
                for each in lookups
                if graph.leads[each.relation] == lead
            }
            sets |= (scans.get(lead, 0) + len(ways) > 1) << relation
        paths = cls(scanned, sets, tuple(lookups))
        paths._check(spec, graph, indexes)
        return paths

    def bound(self, span: int, relation: int, graph: QueryGraph) -> tuple[int, ...]:
        """Return the numbers of the lookups of a relation that tuples of a span bind."""
        if not any(each.relation == relation for each in self.lookups):
            return ()
        tied = set(graph.bound(span, relation))
        return tuple(
            i
            for i, each in enumerate(self.lookups)
            if each.relation == relation and tied.issuperset(each.classes)
        )

    def built(self, graph: QueryGraph) -> frozenset[int]:
        """Return the relations that must be built (BuildFirst, relaxed): a single scan alone need not."""
        return frozenset(
            r
            for r in range(graph.relations)
            if self.sets >> r & 1
            or len(graph.roles(r)) > 1
            or any(each.relation == r for each in self.lookups)
        )

    def is_open(self, span: int, relation: int, graph: QueryGraph) -> bool:
        """Whether all matches of tuples of a span can be got from the relation."""
        return bool(self.scanned >> relation & 1) or bool(self.bound(span, relation, graph))

    def _check(self, spec: JoinSpec, graph: QueryGraph, indexes: Sequence[tuple[int, IndexAM]]) -> None:
        """Raise unless every relation can be reached, from those with scans by way of indexes.

        What is bound by relations that can be reached can be reached (Morris 1988, for NAIL!).
        """
        reached = self.scanned
        while True:
            more = [
                r
                for r in range(graph.relations)
                if not reached >> r & 1 and reached and self.bound(reached, r, graph)
            ]
            if not more:
                break
            for relation in more:
                reached |= 1 << relation
        lost = [r for r in range(graph.relations) if not reached >> r & 1]
        if not lost:
            return
        reasons = []
        for relation in lost:
            alias = spec.aliases[relation]
            needed = [i.columns for lead, i in indexes if lead == graph.leads[relation]]
            ways = " or ".join("(" + ", ".join(f"{alias}.{c}" for c in columns) + ")" for columns in needed)
            reasons.append(f"relation {alias!r} " + (f"needs values for {ways}" if ways else "has no source"))
        able = [spec.aliases[r] for r in range(graph.relations) if reached >> r & 1]
        raise InputError(
            f"the block cannot be answered: {'; '.join(reasons)}; expected a scan, or equalities that bind "
            f"all columns of one of its indexes to relations that can be read first (here {able or 'none'})"
        )


def _lookups(spec: JoinSpec, graph: QueryGraph, relation: int, module: int, index: IndexAM) -> list[Lookup]:
    names = spec.relations[relation].schema.names
    for column in index.columns:
        if column not in names:
            raise InputError(
                f"index {index.name!r} binds column {column!r}, which relation "
                f"{spec.aliases[relation]!r} does not have: {near(column, names)}"
            )
    choices = [
        [c for c, attribute in enumerate(graph.classes) if column in attribute.columns(relation)]
        for column in index.columns
    ]
    return [
        Lookup(
            relation,
            module,
            classes,
            tuple(KeyColumn(c, graph.classes[k].type) for c, k in zip(index.columns, classes, strict=True)),
        )
        for classes in product(*choices)
    ]
