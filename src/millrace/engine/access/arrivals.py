"""Arrivals: rounds of tuples from scans and indexes, lookups, EOTs, and waiting for them.

Raman, Deshpande & Hellerstein 2003, sections 2.1.3, 3.2 and 3.3. Answers of an index arrive like the tuples
of a scan: they are built into the SteM, where duplicates end, and then look for their matches. The EOT of a
binding comes a round later, when all of its tuples have been built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from millrace.engine.access.access_methods import AccessMethods
from millrace.engine.access.hybrid import Ask, Hybrid
from millrace.engine.access.modules import IndexAM, ScanAM, agreeing, checked, find_types
from millrace.engine.access.paths import Lookup
from millrace.engine.access.requests import Requests
from millrace.engine.access.schedule import POLLED, STALLED, Arrival, Schedule, cut
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stems.bindings import BindingSet
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import ExecutionError
from millrace.limits.clock import Clock, VirtualClock

MOST_WAITING = 256 << 20
"""Bytes of source rows whose tuples wait for indexes, from which on no more is read."""


class Arrivals:
    """The access methods of a block at work.

    Args:
        spec: The block.
        graph: Its query graph.
        methods: Its scans and indexes.
        stems: Where tuples are built, by relation.
        clock: What is waited by.
    """

    def __init__(
        self, spec: JoinSpec, graph: QueryGraph, methods: AccessMethods, stems: Sequence[SteM], clock: Clock
    ) -> None:
        self._spec = spec
        self._graph = graph
        self._methods = methods
        self._stems = stems
        self._clock = clock
        self._scans = dict(methods.scans)
        self._indexes = methods.indexes
        self._paths = methods.paths
        self._requests = Requests(graph, methods.indexes, stems)
        self._reading = True
        self._ended: list[tuple[int, BindingSet, pa.RecordBatch]] = []
        self._hybrid: Hybrid | None = None
        self._read = np.zeros((len(spec.sources), 2))  # rows and bytes, by relation
        self._waits: Callable[[], int] = int

    def rounds(
        self,
        schedule: Schedule,
        size: int,
        is_busy: Callable[[], bool] = lambda: False,
        waits: Callable[[], int] = int,
    ) -> Iterator[list[Arrival]]:
        """Yield what arrives, in rounds, until nothing more can come.

        All of a round has been built, and all it leads to has been looked up, before the next one is
        asked for; while the eddy is busy with tuples of earlier rounds, it may also ask in between, unless
        bindings are ending.

        Args:
            schedule: How sources are read.
            size: Tuples of a batch.
            is_busy: Whether tuples are in flight.
            waits: How many tuples wait for answers of indexes.

        Raises:
            ExecutionError: All scans of a relation have broken off, or nothing can come although
                something is still missing.
        """
        scheduled = schedule.arrivals(self._methods.sources, size)
        self._reading, self._waits = True, waits
        self._begin()
        while True:
            self._ask_beside_scans(busy=is_busy())
            arrivals = self._ends() + self._answers(size)
            if not self._is_full():
                arrivals += self._scanned(size)
                if self._reading:
                    arrived = next(scheduled, None)
                    self._reading = arrived is not None
                    for relation, batch in arrived or []:
                        self._note(relation, batch)
                    arrivals += arrived or []
            if not is_busy():  # everything that has arrived has been built
                arrivals += self._covered()
            stalled = all(batch is STALLED for _, batch in arrivals)
            if stalled and not self._ended and (arrivals or self._is_open()):
                arrivals += [(relation, STALLED) for relation in self._scans]
                yield arrivals  # the eddy may give out what it has, and do what can be done meanwhile
                if not is_busy():
                    self._ask_beside_scans(busy=False)  # a scan may just have broken off
                    self._wait(reading=self._reading)
            elif arrivals or self._ended or is_busy():
                yield arrivals
            elif not self._reading:
                return

    @property
    def is_ending(self) -> bool:
        """Whether bindings end with the next round: until then all that an index answered is to be built."""
        return bool(self._ended)

    def due(self) -> float:
        """Return when something may arrive, in seconds of the clock: minus infinity for at once."""
        modules: list[ScanAM | IndexAM] = [scan for scans in self._scans.values() for scan in scans]
        known = [module.due() for module in (*modules, *(index for _, index in self._indexes))]
        at_once = self._reading or None in known
        return -math.inf if at_once else min((due for due in known if due is not None), default=math.inf)

    def ask(self, lookup: int, batch: TupleBatch) -> None:
        """Submit the bindings of tuples that an index was not asked for yet.

        Where a scan returns the matches too, they are submitted when that pays, if ever.
        """
        each = self._paths.lookups[lookup]
        if self._hybrid is not None and self._stems[each.relation].scanned:
            self._hybrid.wait(lookup, batch)
        else:
            self._requests.ask(each, batch)

    def regrade(self, graded: Callable[[TupleBatch], Iterable[TupleBatch]]) -> None:
        """Let other tuples ask first of those that wait for a scan or an index."""
        if self._hybrid is not None:
            self._hybrid.regrade(graded)

    # What has arrived

    def _ends(self) -> list[Arrival]:
        """Put EOT tuples into SteMs: of bindings whose tuples arrived in an earlier round."""
        arrivals: list[Arrival] = []
        for relation, eots, bindings in self._ended:
            eots.add_rows(bindings)
            arrivals.append((relation, pa.RecordBatch.from_pylist([], self._spec.relations[relation].schema)))
        self._ended.clear()
        return arrivals

    def _answers(self, size: int) -> list[Arrival]:
        arrivals: list[Arrival] = []
        for module, (relation, index) in enumerate(self._indexes):
            if not index.pending or self._stems[relation].complete:
                continue
            bindings: dict[Lookup, list[pa.RecordBatch]] = {}
            found: list[pa.RecordBatch] = []
            for answer in index.poll():
                lookups = [each for each in self._paths.lookups if each.module == module]
                types = [[key.type for key in each.keys] for each in lookups]
                lookup = lookups[find_types(index.name, answer.bindings, types)]
                bindings.setdefault(lookup, []).append(answer.bindings)
                rows = self._checked(index.name, relation, answer.rows)
                if not self._paths.sets >> relation & 1:
                    rows = agreeing(rows, answer.bindings, lookup.keys)
                found.append(rows)
            # What came together is built together, and ends together.
            for lookup, batches in bindings.items():
                eots = self._stems[relation].eot(lookup.keys)
                self._ended.append((relation, eots, pa.concat_batches(batches)))
            if found:
                arrivals += [(relation, piece) for piece in cut([pa.concat_batches(found)], size)]
        return arrivals

    def _scanned(self, size: int) -> list[Arrival]:
        """Return what scan AMs have; the first that has returned everything makes the others needless."""
        arrivals: list[Arrival] = []
        for relation, scans in list(self._scans.items()):
            batches = [(scan, scan.poll()) for scan in scans]
            for place, (scan, batch) in enumerate(batches):
                if batch is not None:
                    self._note(relation, batch, place)
                    checked = self._checked(scan.name, relation, batch)
                    arrivals += [(relation, piece) for piece in cut([checked], size)]
            if any(batch is not None for _, batch in batches):
                continue
            if any(scan.state == "complete" for scan in scans):
                arrivals.append(self._end(relation))
            elif all(scan.state == "broken" for scan in scans) and not self._may_be_covered(relation):
                names = ", ".join(scan.name for scan in scans)
                raise ExecutionError(
                    f"relation {self._spec.aliases[relation]!r}: every scan of it ended before it had "
                    f"returned everything ({names}); expected one to end normally; run again, or add "
                    "another source"
                )
        return arrivals

    def _end(self, relation: int) -> Arrival:
        """Return the EOT of a relation, whose scans are not needed any more."""
        for scan in self._scans.pop(relation):
            scan.close()
        return relation, None

    def _ask_beside_scans(self, *, busy: bool) -> None:
        """Let indexes return what scans would, if that is sooner, and what no scan will."""
        if self._hybrid is None:
            return
        for relation, scans in self._scans.items():
            gone = all(scan.state == "broken" or scan.due() == math.inf for scan in scans)
            if gone and not busy:
                self._hybrid.take_over(relation)
        self._hybrid.submit()

    def _covered(self) -> list[Arrival]:
        """Return the EOTs of relations of which indexes have returned all there is a need for."""
        if self._hybrid is None or self._ended:
            return []
        return [self._end(relation) for relation in list(self._scans) if self._hybrid.is_covered(relation)]

    def _may_be_covered(self, relation: int) -> bool:
        return any(self._graph.leads[each.relation] == relation for each in self._paths.lookups)

    def _checked(self, name: str, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        return checked(name, self._spec.relations[relation].schema, rows)

    # Lookups of relations that have scans too

    def _begin(self) -> None:
        """Begin to measure scans of relations with indexes: now they are asked for the first time."""
        requests = self._requests
        asks = {
            i: Ask(each, self._indexes[each.module][1], requests.asked(each), partial(requests.submit, each))
            for i, each in enumerate(self._paths.lookups)
            if self._paths.scanned >> each.relation & 1
        }
        if asks:
            leads = {self._graph.leads[ask.lookup.relation] for ask in asks.values()}
            scans = {lead: len(self._scans.get(lead, ())) or 1 for lead in leads}
            self._hybrid = Hybrid(self._spec, self._graph, self._stems, asks, scans, self._clock)

    def _note(self, relation: int, batch: object, scan: int = 0) -> None:
        if not isinstance(batch, pa.RecordBatch):
            return
        if self._indexes:
            self._read[relation] += batch.num_rows, batch.nbytes
        if self._hybrid is not None:
            self._hybrid.note(relation, scan, batch.num_rows)

    # What is still to come

    def _missing(self, relation: int) -> bool:
        """Whether an index is to answer something about the relation, or will soon be asked to."""
        waits = self._hybrid is not None and self._hybrid.waits(relation)
        return self._requests.missing(relation) or (waits and not self._stems[relation].complete)

    def _is_full(self) -> bool:
        """Whether an index has to answer before more is read; what a scan returns too holds nothing up."""
        asked = [each for each in self._indexes if not self._paths.scanned >> each[0] & 1]
        if not any(self._missing(relation) for relation, _ in asked):
            return False
        rows, size = self._read.T
        wide = float(np.max(size / np.maximum(rows, 1)))
        if self._waits() * wide >= MOST_WAITING:
            return True
        return any(index.is_full and self._missing(relation) for relation, index in asked)

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
        self._methods.woken.wait(min(max(pause, 0.0), 1.0))
        self._methods.woken.clear()
