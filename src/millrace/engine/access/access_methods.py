"""Access methods: the scans and indexes that a block's tuples can be got by.

Raman, Deshpande & Hellerstein 2003, section 2.1.3.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pyarrow as pa

from millrace.engine.access.measured_index import Paced
from millrace.engine.access.modules import IndexAM, Scan, ScanAM, Waking, is_index
from millrace.engine.access.paths import Paths
from millrace.engine.access.schedule import Source
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.errors import InputError, near
from millrace.limits.clock import Clock

Access = Mapping[str, Sequence[ScanAM | IndexAM]]
"""Access modules by alias."""


class AccessMethods:
    """The scans and indexes of a block.

    Args:
        spec: The block.
        graph: Its query graph.
        sources: Record batches by alias: one scan each, read as fast as they come.
        access: More access modules, by alias; they work asynchronously.
        clock: What they wait by.

    Attributes:
        sources: What is read as fast as it comes, by relation.
        scans: Scans that may keep the eddy waiting, by relation.
        indexes: Indexes with the relations that they belong to; a lookup's ``module`` is a place here.
        paths: How the tuples of each relation can be got.
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
        self._spec = spec
        self.scans: dict[int, list[ScanAM]] = {}
        self.indexes: list[tuple[int, Paced]] = []
        self.sources: dict[int, Source] = {}
        for relation, alias in enumerate(spec.aliases):
            if spec.relations[relation].same_as is not None:
                continue
            mine = access.get(alias, ())
            self.indexes += [(relation, Paced(cast(IndexAM, am), clock)) for am in mine if is_index(am)]
            scans = [cast(ScanAM, am) for am in mine if not is_index(am)]
            if alias in sources and scans:
                scans.append(Scan(alias, _batches(sources[alias]), clock))
            elif alias in sources:
                self.sources[relation] = sources[alias]
            if scans:
                self.scans[relation] = scans
        counts = {r: len(scans) for r, scans in self.scans.items()} | dict.fromkeys(self.sources, 1)
        self.paths = Paths.of(spec, graph, counts, self.indexes)
        self._check_windows()
        self.woken = threading.Event()
        for module in (am for modules in access.values() for am in modules):
            if isinstance(module, Waking):
                module.wake_by(self.woken)

    @property
    def is_asynchronous(self) -> bool:
        """Whether some relation is scanned by modules that may keep the eddy waiting."""
        return bool(self.scans)

    def outlook(self, lookup: int, *, ahead: bool) -> float:
        """Return how little a lookup is worth: 1 for a relation's fastest index, up to 2 for slower ones.

        Args:
            lookup: Its number.
            ahead: It would be made before the relation's SteM is probed. There is no point in that:
                the SteM bounces back what may be worth it (:mod:`millrace.engine.access.hybrid`).
        """
        if ahead:
            return math.inf
        each = self.paths.lookups[lookup]
        mine = self.indexes[each.module][1].latency
        rivals = [
            self.indexes[other.module][1].latency
            for other in self.paths.lookups
            if other.relation == each.relation
        ]
        fastest = min(rivals)
        return 1.0 if mine <= fastest else min(2.0, mine / fastest if fastest else 2.0)

    def name(self, lookup: int) -> str:
        """Return what a lookup is called in reports."""
        each = self.paths.lookups[lookup]
        columns = ", ".join(key.name for key in each.keys)
        return f"Index({self._spec.aliases[each.relation]}.{columns})"

    def close(self) -> None:
        """Let go of all sources."""
        for scans in self.scans.values():
            for scan in scans:
                scan.close()
        for _, index in self.indexes:
            index.close()

    def _check_windows(self) -> None:
        for relation, spec in enumerate(self._spec.relations):
            asked = any(each.relation == relation for each in self.paths.lookups)
            if spec.window is not None and (asked or self.paths.sets >> relation & 1):
                raise InputError(
                    f"relation {spec.alias!r} has a window, so its rows have to come in order of time from "
                    "one scan, but it has an index or several access modules; leave out these, or the window"
                )


def _batches(source: Source) -> Iterator[pa.RecordBatch | None]:
    """Yield batches, and None where there is nothing at present."""
    return (batch if isinstance(batch, pa.RecordBatch) else None for batch in source)
