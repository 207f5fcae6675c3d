"""Arrivals: rounds of tuples from scans and indexes, and what says that no more will come.

Raman, Deshpande & Hellerstein 2003, sections 2.1.3, 3.2 and 3.3. Answers of an index arrive like the tuples
of a scan: they are built into the SteM, where duplicates end, and then look for their matches. The EOT of a
binding comes a round later, when all of its tuples have been built.

The watermark of a stream join is an end too: below it no time will come any more, and what has expired may
go. Sources of windowed relations are in order of time, which is checked. So the watermark is the smallest of
the latest times of those that have not ended. While a relation without a window has not ended there is none:
its tuples have no time, and may meet anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from millrace.engine.access.hybrid import IndexOrScan
from millrace.engine.access.modules import (
    Answer,
    IndexAM,
    MeasuredIndex,
    ScanAM,
    check_schema,
    expect_bytes,
    find_types,
    keep_asked,
)
from millrace.engine.access.paths import AccessMethods, Lookup
from millrace.engine.access.schedule import STALLED, Arrival, Schedule
from millrace.engine.arrays import joined, sliced
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stems.bindings import BindingSet
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples import codes
from millrace.errors import BudgetError, ExecutionError, InputError, PriceError
from millrace.limits.clock import POLLED

MOST_WAITING = 256 << 20
"""Bytes of rows that wait for indexes, or of answers to come, at which reading stops without a budget."""

_EXPIRED = 4
"""Base tuples are evicted once a quarter of those held has expired: looking costs O(1) a tuple over time."""


class Arrivals:
    """The access methods of a block at work; ``requests`` are what indexes are asked."""

    def __init__(
        self, methods: AccessMethods, stems: Sequence[SteM], most_waiting: int = MOST_WAITING
    ) -> None:
        self._most_waiting = most_waiting
        self._methods, self._stems, self._spec = methods, stems, methods.spec
        self._indexes, self._paths = methods.indexes, methods.paths
        self._scans = dict(methods.scans)
        self.requests = IndexOrScan(methods, stems)
        self._reading = True
        self._ended: list[tuple[int, BindingSet, pa.RecordBatch]] = []
        # By relation: rows, or bindings that were answered, and the bytes that have come of these.
        self._read = np.zeros((len(methods.spec.sources), 2))
        for relation, _ in self._indexes:
            self._read[relation] = 1, expect_bytes(self._spec.relations[relation].schema)
        self._waits: Callable[[], int] = int

    def rounds(
        self, schedule: Schedule, size: int, waits: Callable[[], int] = int
    ) -> Iterator[list[Arrival]]:
        """Yield what arrives, in rounds, until nothing more can come.

        All of a round has been built, and all it leads to has been looked up, before the next one is
        asked for. Batches have at most ``size`` rows. ``waits`` counts the tuples that wait for indexes.

        Raises:
            ExecutionError: All scans of a relation have broken off, or nothing can come although
                something is still missing.
        """
        scheduled = schedule.arrivals(self._methods.sources, size)
        self._reading, self._waits = True, waits
        self.requests.begin()
        while True:
            self._ask_beside_scans()
            arrivals = self._ends() + self._answers(size)
            if not self._is_full():
                arrivals += self._scanned(size)
                if self._reading:
                    arrived = next(scheduled, None)
                    self._reading = arrived is not None
                    for relation, batch in arrived or []:
                        self._note(relation, batch)
                    arrivals += arrived or []
            arrivals += self._covered()
            stalled = all(batch is STALLED for _, batch in arrivals)
            if stalled and not self._ended and (arrivals or self._is_open()):
                arrivals += [(relation, STALLED) for relation in self._scans]
                yield arrivals  # the eddy may give out what it has, and do what can be done meanwhile
                self._ask_beside_scans()  # a scan may just have broken off
                self._wait()
            elif arrivals or self._ended:
                yield arrivals
            elif not self._reading:
                return

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
            for answer in self._poll(relation, index):
                lookups = [each for each in self._paths.lookups if each.module == module]
                types = [[key.type for key in each.keys] for each in lookups]
                lookup = lookups[find_types(index.name, answer.bindings, types)]
                bindings.setdefault(lookup, []).append(answer.bindings)
                rows = self._checked(index.name, relation, answer.rows)
                if not self._paths.sets >> relation & 1:
                    rows = keep_asked(rows, answer.bindings, lookup.keys)
                found.append(rows)
                self._read[relation] += answer.bindings.num_rows, rows.nbytes
            # What came together is built together, and ends together.
            for lookup, batches in bindings.items():
                eots = self._stems[relation].eot(lookup.keys)
                self._ended.append((relation, eots, pa.concat_batches(batches)))
            if found:
                arrivals += [(relation, piece) for piece in sliced(joined(found), size)]
        return arrivals

    def _poll(self, relation: int, index: MeasuredIndex) -> list[Answer]:
        """Return what an index has; if its budget is spent, scans of the relation return the rest.

        Raises:
            BudgetError: It is spent, and the relation has no scan; or nobody can tell what was spent.
        """
        try:
            return index.poll()
        except PriceError:
            raise
        except BudgetError as error:
            if not self._paths.scanned >> relation & 1:
                raise
            self.requests.stop(relation, index, error)
            return []

    def _scanned(self, size: int) -> list[Arrival]:
        """Return what scan AMs have; the first that has returned everything makes the others needless."""
        arrivals: list[Arrival] = []
        for relation, scans in list(self._scans.items()):
            batches = [(scan, scan.poll()) for scan in scans]
            for place, (scan, batch) in enumerate(batches):
                if batch is not None:
                    self._note(relation, batch, place)
                    rows = self._checked(scan.name, relation, batch)
                    arrivals += [(relation, piece) for piece in sliced(rows, size)]
            if any(batch is not None for _, batch in batches):
                continue
            if any(scan.state == "complete" for scan in scans):
                arrivals.append(self._end(relation))
            elif all(scan.state == "broken" for scan in scans) and not self._has_lookup(relation):
                names = ", ".join(": ".join(filter(None, (scan.name, scan.why))) for scan in scans)
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

    def _ask_beside_scans(self) -> None:
        """Let indexes return what scans would, if that is sooner, and what no scan will."""
        if self._paths.lookups:
            self._take_over()
            self.requests.submit()

    def _take_over(self) -> None:
        for relation, scans in self._scans.items():
            if any(scan.state == "complete" for scan in scans):
                continue
            if all(scan.state == "broken" or scan.due() == math.inf for scan in scans):
                self.requests.take_over(relation, "; ".join(scan.why for scan in scans if scan.why))
            else:
                self.requests.finish(relation)

    def _covered(self) -> list[Arrival]:
        """Return the EOTs of relations of which indexes have returned all there is a need for."""
        if self._ended:
            return []
        return [self._end(relation) for relation in list(self._scans) if self.requests.is_covered(relation)]

    def _has_lookup(self, relation: int) -> bool:
        return any(self._methods.graph.leads[each.relation] == relation for each in self._paths.lookups)

    def _checked(self, name: str, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        return check_schema(name, self._spec.relations[relation].schema, rows)

    def _note(self, relation: int, batch: object, scan: int = 0) -> None:
        if not isinstance(batch, pa.RecordBatch):
            return
        if self._indexes:
            self._read[relation] += batch.num_rows, batch.nbytes
        self.requests.note(relation, scan, batch.num_rows)

    # What is still to come

    def _is_full(self) -> bool:
        """Whether an index has to answer before more is read; what a scan returns too holds nothing up."""
        asked = [each for each in self._indexes if not self._paths.scanned >> each[0] & 1]
        if not any(self.requests.missing(relation) for relation, _ in asked):
            return False
        rows, size = self._read.T
        wide = float(np.max(size / np.maximum(rows, 1)))
        if self._waits() * wide >= self._most_waiting:
            return True
        return any(index.is_full and self.requests.missing(relation) for relation, index in asked)

    def _is_open(self) -> bool:
        """Whether something may come that the answer needs."""
        return bool(self._scans) or any(self.requests.missing(relation) for relation, _ in self._indexes)

    def _open_scans(self) -> list[ScanAM]:
        return [scan for scans in self._scans.values() for scan in scans]

    def _wait(self) -> None:
        """Let time pass until a module has something, or a source may have that has nothing at present."""
        modules: list[ScanAM | IndexAM] = [*self._open_scans()]
        modules += [index for relation, index in self._indexes if self.requests.missing(relation)]
        known = [module.due() for module in modules]
        clock = self._methods.clock
        now = clock.now()
        soonest = min((due for due in known if due is not None), default=math.inf)
        if soonest == math.inf and None not in known and not self._reading:
            waiting = ", ".join(sorted(module.name for module in modules))
            raise ExecutionError(
                "nothing will come any more, although these access modules have not returned "
                f"everything: {waiting}; give their relations another source"
            )
        if self._reading or (None in known and soonest < math.inf):
            soonest = min(soonest, now + POLLED)
        clock.wait(None if soonest == math.inf else soonest - now, self._methods.woken)


class Watermark:
    """Checks that windowed relations arrive in order of time, and says what has expired."""

    def __init__(self, spec: JoinSpec, graph: QueryGraph, stems: Sequence[SteM]) -> None:
        self.windows = stems[0].matching.windows
        self._spec = spec
        self._graph = graph
        self._stems = stems
        self._latest: dict[int, int] = {}
        self._last: dict[int, pa.Scalar] = {}
        self._rows = [0] * graph.relations

    def arrive(self, relation: int, batch: pa.RecordBatch) -> None:
        """Take note of the times of tuples that arrive.

        Raises:
            InputError: They are not in order of time.
        """
        window = self._spec.relations[relation].window
        if window is None or not batch.num_rows:
            return
        column = batch.column(window.column)
        times, valid = codes(column, column.type)
        places = np.arange(len(times)) if valid is None else np.flatnonzero(valid)
        first, self._rows[relation] = self._rows[relation], self._rows[relation] + len(times)
        if not len(places):
            return
        ordered = times[places]
        before = self._latest.get(relation, int(ordered[0]))
        fallen = np.flatnonzero(ordered < np.concatenate(([before], ordered[:-1])))
        if len(fallen):
            place = int(fallen[0])
            last = column[int(places[place - 1])] if place else self._last[relation]
            raise InputError(
                f"relation {self._spec.aliases[relation]!r} has a window, so its rows have to come in order "
                f"of {window.column!r}, but row {first + int(places[place])} of it (the first is 0) has time "
                f"{column[int(places[place])]} after {last}; sort the source by that column, or leave out "
                "the window"
            )
        self._last[relation] = column[int(places[-1])]
        for role in self._graph.roles(relation):
            self._latest[role] = int(ordered[-1])

    def value(self) -> int | None:
        """Return the watermark, in the unit of the times; None while there is none."""
        waited = [stem.number for stem in self._stems if not stem.complete]
        if not waited or any(r not in self._latest for r in waited):
            return None
        return min(self._latest[r] for r in waited)

    def due(self, watermark: int | None) -> dict[int, int]:
        """Return the relations to evict from, with the number of the first row that stays in each."""
        found: dict[int, int] = {}
        if watermark is None:
            return found
        for relation in self.windows.lengths:
            stem = self._stems[relation]
            expired = self.windows.expired(relation, stem.store, watermark)
            if expired and _EXPIRED * expired >= stem.store.held:
                found[relation] = stem.store.first + expired
        return found
