"""Access paths: the scans and indexes that tuples can be got by, and whether a block can be answered at all.

Raman, Deshpande & Hellerstein 2003, sections 2.1.3 and 2.2.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import cast

from millrace.engine.access.modules import IndexAM, MeasuredIndex, Scan, ScanAM, Waking, is_index
from millrace.engine.access.schedule import Source
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stems.conditions import Classes
from millrace.engine.tuples import KeyColumn
from millrace.errors import InputError, near
from millrace.limits.clock import Clock

Access = Mapping[str, Sequence[ScanAM | IndexAM]]
"""Access modules by alias."""


@dataclass(frozen=True)
class Lookup:
    """One way to ask an index AM.

    Attributes:
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
    def of(
        cls,
        spec: JoinSpec,
        graph: QueryGraph,
        scans: Mapping[int, int],
        indexes: Sequence[tuple[int, IndexAM]],
    ) -> Paths:
        """Lay out the paths of relations with so many scans and with these indexes; check that they suffice.

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
        reached, before = self.scanned, 0
        while reached != before:
            before = reached
            for r in range(graph.relations):
                reached |= bool(self.bound(before, r, graph)) << r
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


class AccessMethods:
    """The scans and indexes of a block.

    Args:
        sources: By alias: one scan each, read as fast as its batches come.
        access: More access modules, by alias; they work asynchronously.

    Attributes:
        sources: Those without another scan beside them, by relation.
        scans: Scans that may keep the eddy waiting, by relation.
        indexes: Indexes with the relations that they belong to; a lookup's ``module`` is a place here.
        woken: Set by access modules that have something.

    Raises:
        InputError: The access modules do not suffice to answer the block, or a relation with a window does
            not come from one scan alone.
    """

    def __init__(
        self,
        spec: JoinSpec,
        graph: QueryGraph,
        sources: Mapping[str, Source],
        access: Access,
        clock: Clock,
    ) -> None:
        for alias in access:
            if alias not in spec.aliases:
                raise InputError(f"access modules of {alias!r}: {near(alias, spec.aliases)}")
            if spec.relation(alias).same_as is not None:
                raise InputError(
                    f"access modules of {alias!r}: its tuples are those of "
                    f"{spec.relation(alias).same_as!r}, so the access modules belong there"
                )
        self.spec, self.graph, self.clock = spec, graph, clock
        self.scans: dict[int, list[ScanAM]] = {}
        self.indexes: list[tuple[int, MeasuredIndex]] = []
        self.sources: dict[int, Source] = {}
        for relation, alias in enumerate(spec.aliases):
            if spec.relations[relation].same_as is not None:
                continue
            mine = access.get(alias, ())
            indexes = [cast(IndexAM, am) for am in mine if is_index(am)]
            self.indexes += [(relation, MeasuredIndex(index, clock)) for index in indexes]
            scans = [cast(ScanAM, am) for am in mine if not is_index(am)]
            if alias in sources and scans:
                scans.append(Scan(alias, sources[alias], clock))
            elif alias in sources:
                self.sources[relation] = sources[alias]
            if scans:
                self.scans[relation] = scans
        counts = {
            # As two scans return a tuple twice, so may one.
            r: sum(1 + getattr(scan, "may_repeat", False) for scan in scans)
            for r, scans in self.scans.items()
        } | dict.fromkeys(self.sources, 1)
        self.paths = Paths.of(spec, graph, counts, self.indexes)
        self._check_windows()
        self.woken = threading.Event()
        for module in (am for modules in access.values() for am in modules):
            if isinstance(module, Waking):
                module.wake_by(self.woken)

    def relative_latency(self, lookup: int, *, ahead: bool) -> float:
        """Return the latency of a lookup's index over that of the relation's fastest one, 2 at most.

        Infinity for a lookup ``ahead`` of a probe of the relation's SteM. There is no point in that: the SteM
        bounces back what may be worth it (:mod:`millrace.engine.access.hybrid`).
        """
        if ahead:
            return math.inf
        asked = self.paths.lookups[lookup]
        rivals = [each.module for each in self.paths.lookups if each.relation == asked.relation]
        own, indexes = self.indexes[asked.module][1], [self.indexes[module][1] for module in rivals]
        fastest = min((index.latency for index in indexes if index.spent is None), default=0.0)
        if own.spent is not None:
            return 2.0
        return 1.0 if own.latency <= fastest else min(2.0, own.latency / fastest if fastest else 2.0)

    def name(self, lookup: int) -> str:
        """Return what a lookup is called in reports."""
        each = self.paths.lookups[lookup]
        columns = ", ".join(key.name for key in each.keys)
        return f"Index({self.spec.aliases[each.relation]}.{columns})"

    def close(self) -> None:
        for scans in self.scans.values():
            for scan in scans:
                scan.close()
        for _, index in self.indexes:
            index.close()

    def _check_windows(self) -> None:
        for relation, spec in enumerate(self.spec.relations):
            asked = any(each.relation == relation for each in self.paths.lookups)
            if spec.window is not None and (asked or self.paths.sets >> relation & 1):
                raise InputError(
                    f"relation {spec.alias!r} has a window, so its rows have to come in order of time from "
                    "one scan, but it has an index or several access modules; leave out these, or the window"
                )
