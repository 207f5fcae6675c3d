"""The access modules of a block at work: rounds of arrivals, lookups, EOTs, and waiting for them.

Raman, Deshpande & Hellerstein 2003, sections 2.1.3, 3.2 and 3.3. Answers of an index arrive like the tuples
of a scan: they are built into the SteM, where duplicates end, and then look for their matches. The EOT of a
binding comes a round later, when all of its tuples have been built.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow as pa

from millrace.clock import Clock, VirtualClock
from millrace.eddy.buffer import Buffer
from millrace.eddy.paths import Lookup, Paths
from millrace.eddy.schedule import POLLED, STALLED, Arrival, Schedule, Source, cut
from millrace.errors import ExecutionError, InputError, near
from millrace.graph import QueryGraph
from millrace.modules import Destination, SteM
from millrace.modules.access import Answer, IndexAM, Scan, ScanAM, is_index
from millrace.modules.answers import agreeing, checked
from millrace.modules.bindings import BindingSet, bound
from millrace.modules.matching import Matching
from millrace.relations import codes
from millrace.spec import JoinSpec
from millrace.tuples import TupleBatch

Access = Mapping[str, Sequence[ScanAM | IndexAM]]
"""Access modules by alias."""

_LATENCY_MEMORY = 0.9


@dataclass
class _Asked:
    """What one index AM was asked for in one combination of types, and how long answers took."""

    bindings: BindingSet
    seconds: float = 0.0


class AccessModules:
    """The scans and indexes of a block.

    Args:
        spec: The block.
        graph: Its query graph.
        sources: Record batches by alias: one scan each, read as fast as they come.
        access: More access modules, by alias; they work asynchronously.
        clock: What they wait by.

    Raises:
        InputError: The access modules do not suffice to answer the block.
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
        self._graph = graph
        self._clock = clock
        self._scans: dict[int, list[ScanAM]] = {}
        self._stalled: set[int] = set()
        self._indexes: list[tuple[int, IndexAM]] = []
        self.sources: dict[int, Source] = {}
        for relation, alias in enumerate(spec.aliases):
            if spec.relations[relation].same_as is not None:
                continue
            mine = access.get(alias, ())
            self._indexes += [(relation, cast(IndexAM, am)) for am in mine if is_index(am)]
            scans = [cast(ScanAM, am) for am in mine if not is_index(am)]
            if alias in sources and scans:
                scans.append(Scan(alias, _batches(sources[alias]), clock))
            elif alias in sources:
                self.sources[relation] = sources[alias]
            if scans:
                self._scans[relation] = scans
        counts = {r: len(scans) for r, scans in self._scans.items()} | dict.fromkeys(self.sources, 1)
        self.paths = Paths.of(spec, graph, counts, self._indexes)
        self._asked: dict[tuple[int, tuple[str, ...]], _Asked] = {}
        self._wanted: dict[tuple[int, tuple[str, ...]], BindingSet] = {}
        self._ended: list[tuple[int, BindingSet, Answer]] = []
        self._sent: dict[int, float] = {}
        self._stems: Sequence[SteM] = ()
        self._seen_stalled: frozenset[int] = frozenset()

    @cached_property
    def _matching(self) -> Matching:
        return Matching(self._graph)

    def check_windows(self) -> None:
        """Raise InputError if a relation with a window does not come from one scan alone."""
        for relation, spec in enumerate(self._spec.relations):
            asked = any(each.relation == relation for each in self.paths.lookups)
            if spec.window is not None and (asked or self.paths.sets >> relation & 1):
                raise InputError(
                    f"relation {spec.alias!r} has a window, so its rows have to come in order of time from "
                    "one scan, but it has an index or several access modules; leave out these, or the window"
                )

    @property
    def indexes(self) -> Sequence[tuple[int, IndexAM]]:
        """The index AMs with the relations that they belong to; a lookup's ``module`` is a place here."""
        return self._indexes

    @property
    def is_asynchronous(self) -> bool:
        """Whether some relation is scanned by modules that may keep the eddy waiting."""
        return bool(self._scans)

    def attach(self, stems: Sequence[SteM]) -> None:
        """Tell the SteMs what they may expect: scans, duplicates, EOTs of bindings."""
        self._stems = stems
        for relation, stem in enumerate(stems):
            stem.base.scanned = bool(self.paths.scanned >> relation & 1)
            if self.paths.sets >> relation & 1 and relation == self._graph.leads[relation]:
                stem.base.as_set()
            stem.lookups = [
                (each.classes, stem.base.eot(each.keys))
                for each in self.paths.lookups
                if each.relation == relation
            ]

    def rounds(self, schedule: Schedule, size: int) -> Iterator[list[Arrival]]:
        """Yield what arrives, in rounds, until nothing more can come.

        All of a round has been built, and all it leads to has been looked up, before the next one is
        asked for.

        Raises:
            ExecutionError: All scans of a relation have broken off, or nothing can come although
                something is still missing.
        """
        scheduled = schedule.arrivals(self.sources, size)
        reading = True
        while True:
            arrivals = self._ends() + self._answers(size)
            if not self._is_full():
                arrivals += self._scanned(size)
                if reading:
                    arrived = next(scheduled, None)
                    reading = arrived is not None
                    arrivals += arrived or []
            stalled = all(batch is STALLED for _, batch in arrivals)
            if stalled and not self._ended and (arrivals or self._is_open()):
                arrivals += [(relation, STALLED) for relation in self._scans]
                if arrivals:  # the eddy may do what can be done without what is waited for
                    yield arrivals
                self._wait(reading=reading)
            elif arrivals or self._ended:
                yield arrivals
            elif not reading:
                return

    def look_up(
        self, destination: Destination, batch: TupleBatch, buffer: Buffer, unbuilt: int | None
    ) -> None:
        """Submit the bindings of tuples that the AM was not asked for yet, and bounce the tuples back.

        A prior prober whose components are all in SteMs has then done its part: what the AM returns will
        find them there. One with a component that is not built waits, and probes again.
        """
        lookup = self.paths.lookups[destination.target]
        stem = self._stems[lookup.relation]
        coded, values = bound(self._matching, batch, lookup.classes)
        unknown = np.flatnonzero(~stem.base.eot(lookup.keys).contains(coded, values))
        if len(unknown) and not stem.complete:
            some = [c[unknown] for c in coded]
            fresh = self._asked_of(lookup).bindings.add(some, lambda k: values(k).take(pa.array(unknown)))
            self._want(lookup, fresh)
            if fresh.num_rows:
                self._sent.setdefault(lookup.module, self._clock.now())
                self._indexes[lookup.module][1].submit(fresh)
        asked = replace(
            batch, signature=replace(batch.signature, asked=batch.signature.asked | 1 << destination.target)
        )
        waits = (
            batch.signature.prior is not None and unbuilt is not None and batch.signature.span >> unbuilt & 1
        )
        if waits and not (stem.base.scanned and stem.rows > batch.seen):
            buffer.hold(asked, lookup.relation, batch.seen)
        else:
            buffer.push([asked])

    def outlook(self, lookup: int) -> float:
        """Return how little a lookup is worth: 1 for a relation's fastest index, up to 2 for slower ones.

        Where scans return everything anyway, 0 while they stall and infinity while they do not.
        """
        each = self.paths.lookups[lookup]
        if self.paths.scanned >> each.relation & 1:
            return 0.0 if self._graph.leads[each.relation] in self._stalled else math.inf
        mine = self._asked_of(each).seconds
        rivals = [
            self._asked_of(other).seconds for other in self.paths.lookups if other.relation == each.relation
        ]
        fastest = min(rivals)
        return 1.0 if mine <= fastest else min(2.0, mine / fastest if fastest else 2.0)

    def has_changed(self) -> bool:
        """Whether a scan has stalled, or goes on, since this was last asked: decisions may be out of date."""
        before, self._seen_stalled = self._seen_stalled, frozenset(self._stalled)
        return before != self._seen_stalled and bool(self._indexes)

    def name(self, lookup: int) -> str:
        """Return what a lookup is called in reports."""
        each = self.paths.lookups[lookup]
        columns = ", ".join(key.name for key in each.keys)
        return f"Index({self._spec.aliases[each.relation]}.{columns})"

    def close(self) -> None:
        """Let go of all sources."""
        for scans in self._scans.values():
            for scan in scans:
                scan.close()
        for _, index in self._indexes:
            index.close()

    # What has arrived

    def _ends(self) -> list[Arrival]:
        """Put EOT tuples into SteMs: of bindings whose tuples arrived in an earlier round."""
        arrivals: list[Arrival] = []
        for relation, eots, answer in self._ended:
            columns = [answer.bindings.column(key.name) for key in eots.keys]
            coded = [codes(c, key.type)[0] for c, key in zip(columns, eots.keys, strict=True)]
            eots.add(coded, columns.__getitem__)
            arrivals.append((relation, pa.RecordBatch.from_pylist([], self._spec.relations[relation].schema)))
        self._ended.clear()
        return arrivals

    def _answers(self, size: int) -> list[Arrival]:
        arrivals: list[Arrival] = []
        for module, (relation, index) in enumerate(self._indexes):
            if not index.pending or self._stems[relation].complete:
                continue
            for answer in index.poll():
                lookup = next(
                    each
                    for each in self.paths.lookups
                    if each.module == module and answer.bindings.schema.types == [k.type for k in each.keys]
                )
                asked = self._asked_of(lookup)
                took = self._clock.now() - self._sent.get(module, self._clock.now())
                asked.seconds = (
                    took
                    if not asked.seconds
                    else (_LATENCY_MEMORY * asked.seconds + (1 - _LATENCY_MEMORY) * took)
                )
                if not index.pending:
                    self._sent.pop(module, None)
                else:
                    self._sent[module] = self._clock.now()
                self._ended.append((relation, self._stems[relation].base.eot(lookup.keys), answer))
                rows = self._checked(index.name, relation, answer.rows)
                if not self.paths.sets >> relation & 1:
                    rows = agreeing(rows, answer.bindings, lookup.keys)
                arrivals += [(relation, piece) for piece in cut([rows], size)]
        return arrivals

    def _scanned(self, size: int) -> list[Arrival]:
        """Return what scan AMs have; the first that has returned everything makes the others needless."""
        arrivals: list[Arrival] = []
        for relation, scans in list(self._scans.items()):
            batches = [(scan, scan.poll()) for scan in scans]
            for scan, batch in batches:
                if batch is not None:
                    checked = self._checked(scan.name, relation, batch)
                    arrivals += [(relation, piece) for piece in cut([checked], size)]
            if any(batch is not None for _, batch in batches):
                self._stalled.discard(relation)
                continue
            self._stalled.add(relation)
            if any(scan.state == "complete" for scan in scans):
                arrivals.append((relation, None))
                for scan in scans:
                    scan.close()
                del self._scans[relation]
                self._stalled.discard(relation)
            elif all(scan.state == "broken" for scan in scans):
                names = ", ".join(scan.name for scan in scans)
                raise ExecutionError(
                    f"relation {self._spec.aliases[relation]!r}: every scan of it ended before it had "
                    f"returned everything ({names}); expected one to end normally; run again, or add "
                    "another source"
                )
        return arrivals

    def _checked(self, name: str, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        return checked(name, self._spec.relations[relation].schema, rows)

    # What is still to come

    def _asked_of(self, lookup: Lookup) -> _Asked:
        key = lookup.module, tuple(str(k.type) for k in lookup.keys)
        if key not in self._asked:
            self._asked[key] = _Asked(BindingSet(lookup.keys))
        return self._asked[key]

    def _want(self, lookup: Lookup, fresh: pa.RecordBatch) -> None:
        """Note bindings that some AM was asked for: each needs the EOT of one AM only."""
        key = self._graph.leads[lookup.relation], tuple(f"{k.name} {k.type}" for k in lookup.keys)
        if key not in self._wanted:
            self._wanted[key] = BindingSet(lookup.keys)
        coded = [codes(fresh.column(k.name), k.type)[0] for k in lookup.keys]
        self._wanted[key].add(coded, lambda place: fresh.column(place))

    def _missing(self, relation: int) -> bool:
        """Whether some binding of the relation that was asked for has no EOT."""
        stem = self._stems[relation]
        return not stem.complete and any(
            wanted.size > stem.base.eot(wanted.keys).size
            for (lead, _), wanted in self._wanted.items()
            if lead == relation
        )

    def _is_full(self) -> bool:
        return any(index.is_full and self._missing(relation) for relation, index in self._indexes)

    def _is_open(self) -> bool:
        """Whether something may come that the answer needs."""
        return bool(self._scans) or any(self._missing(relation) for relation, _ in self._indexes)

    def _wait(self, *, reading: bool) -> None:
        """Let time pass until a module has something, or a source may have that has nothing at present."""
        modules: list[ScanAM | IndexAM] = [scan for scans in self._scans.values() for scan in scans]
        modules += [index for relation, index in self._indexes if self._missing(relation)]
        known = [module.due() for module in modules]
        now = self._clock.now()
        soonest = min((due for due in known if due is not None), default=math.inf)
        if soonest == math.inf and None not in known and not reading:
            waiting = ", ".join(sorted(module.name for module in modules))
            raise ExecutionError(
                "nothing will come any more, although these access modules have not returned "
                f"everything: {waiting}; give their relations another source"
            )
        if isinstance(self._clock, VirtualClock) and (soonest < math.inf or reading):
            self._clock.advance(max(0.0, min(soonest, now + POLLED if reading else math.inf) - now))
            return
        pause = min(soonest - now, POLLED) if reading or None in known else soonest - now
        threading.Event().wait(min(max(pause, 0.0), 1.0))


def _batches(source: Source) -> Iterator[pa.RecordBatch | None]:
    """Yield batches, and None where there is nothing at present."""
    return (batch if isinstance(batch, pa.RecordBatch) else None for batch in source)
