"""Index and hash join in one: which tuples do not wait for the scan but ask an index.

Raman, Deshpande & Hellerstein 2003, section 4.3: where a relation has both, its SteM bounces tuples back that
lack matches. The eddy sends them to the index while most of the scan is still to come, and lets the scan
find them when it is about to end. Here that is a matter of time: a lookup pays if its answer is expected
before the scan returns the match, both as measured. What does not pay now waits beside the index and may pay
later, for a scan may stall; and no more is submitted than keeps the index busy, for what stands in its
queue might come by the scan meanwhile. Tuples whose match has come are not asked for. A budget that is spent
ends asking, not the run: those that ask first wait longest for the scan, so they gain most by a request.

None of this is needed for the answer: what nobody asks for, the scan returns. Everything has to be asked for
when a scan can return nothing any more, broken off or silent for ever; or when few bindings are left, and
these are sooner answered than the scan ends. A relation is then complete when the index has answered all
bindings of some complete relation, for every result has one of these.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from millrace.engine.access.modules import MeasuredIndex
from millrace.engine.access.paths import AccessMethods, Lookup
from millrace.engine.arrays import to_arrow
from millrace.engine.stems.bindings import BindingSet, bound
from millrace.engine.stems.conditions import combine_codes
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import BudgetError
from millrace.limits.clock import Clock

_MEMORY = 16
"""Arrivals after which the older ones count half."""

_SEEN = 1 / 10
"""Share of a scan that is taken to have come where its size is unknown: most of it is still to come."""

_LATE = 2
"""Times the usual gap between arrivals after which a scan counts as stalled."""


class ScanRate:
    """How a scan comes along: at what rate, how much of it is still to come, and whether it has stalled.

    The scan begins now. ``total`` is the number of rows expected, None if nobody knows; more may come if it
    is ``guessed``. ``rows`` have come so far.
    """

    def __init__(self, clock: Clock, total: int | None, *, guessed: bool = False) -> None:
        self.rows = 0
        self._clock = clock
        self._total: float | None = total
        self._guessed = guessed
        self._last = clock.now()
        self._arrivals = 0
        self._recent = [0.0, 0.0, 0.0]  # arrivals, rows, seconds

    def arrive(self, rows: int) -> None:
        now = self._clock.now()
        if self._arrivals == 1:
            self._recent = [0.0, 0.0, 0.0]  # before the first batch a source gets ready: that is no rate
        elif self._recent[0] >= _MEMORY:
            self._recent = [value / 2 for value in self._recent]
        for place, value in enumerate((1.0, rows, now - self._last)):
            self._recent[place] += value
        self._arrivals += 1
        self._last = now
        self.rows += rows

    @property
    def flow(self) -> float:
        """Seconds until a row that has not come is expected, if it is anywhere in the rest of the scan."""
        if not self.rows:
            return math.inf
        _, rows, seconds = self._recent
        total = self._total
        if total is None or (self._guessed and total <= self.rows):
            total = self.rows / _SEEN
        return max(0.0, total - self.rows) * seconds / rows / 2 if rows else 0.0

    @property
    def wait(self) -> float:
        """The same, and as long again as the scan has been stalling: a stall has no rate."""
        return self.flow + max(0.0, self._clock.now() - self._stalls)

    def slower(self, seconds: float) -> float:
        """Return from when on, if nothing comes, a row is expected to take longer than ``seconds``."""
        lacking = seconds - self.flow
        return -math.inf if lacking <= 0 else self._stalls + lacking

    @property
    def _stalls(self) -> float:
        """When the scan begins to stall."""
        arrivals, _, seconds = self._recent
        return self._last + (_LATE * seconds / arrivals if arrivals else 0.0)


_LOOKED_THROUGH = 64
"""Waiting tuples that are looked at together, at least, for some that still have something to ask."""

_FEW = 10
"""Answers for each binding that is asked for to end before a scan: a tenth more requests at most."""


@dataclass(frozen=True)
class _Queues:
    """The tuples that wait at a lookup of a relation that has a scan too.

    Attributes:
        asked: What the AM was asked for by any lookup in these types.
        rest: Tuples of a driver, all of whose bindings have to be answered, matches or not: they ask in any
            case.
        waiting: Other tuples.
        drivers: Relations that have ended and bind the lookup alone, with the number of answers from which
            on it is worth a look whether all of their bindings are answered.
    """

    lookup: Lookup
    index: MeasuredIndex
    asked: BindingSet
    rest: deque[TupleBatch] = field(default_factory=deque)
    waiting: deque[TupleBatch] = field(default_factory=deque)
    drivers: dict[int, int] = field(default_factory=dict)


class IndexOrScan:
    """What indexes are asked for: at once, or where a scan returns it too, when that pays, if ever."""

    def __init__(self, methods: AccessMethods, stems: Sequence[SteM]) -> None:
        self._methods, self._stems = methods, stems
        self._indexes, self._paths = methods.indexes, methods.paths
        self._graph, self._clock = methods.graph, methods.clock
        self._matching = stems[0].matching
        # Bindings by combination of types: those that an AM was asked for, and those of a relation.
        self._asked: dict[tuple[int, tuple[str, ...]], BindingSet] = {}
        self._wanted: dict[tuple[int, tuple[str, ...]], BindingSet] = {}
        self._queues: dict[int, _Queues] = {}
        self._scans: dict[int, list[ScanRate]] = {}
        self._taken_over: set[int] = set()

    def begin(self) -> None:
        """Begin to measure scans of relations with indexes: now they are asked for the first time."""
        for number, lookup in enumerate(self._paths.lookups):
            if self._paths.scanned >> lookup.relation & 1:
                index = self._indexes[lookup.module][1]
                self._queues[number] = _Queues(lookup, index, self._asked_of(lookup))
                lead = self._graph.leads[lookup.relation]
                known = self._methods.spec.relations[lead]
                scans = max(1, len(self._methods.scans.get(lead, ())))
                rates = (ScanRate(self._clock, known.rows, guessed=known.guessed) for _ in range(scans))
                self._scans[lead] = [*rates]

    def note(self, relation: int, scan: int, rows: int) -> None:
        """Take note of rows that one of a relation's scans has returned."""
        if relation in self._scans:
            self._scans[relation][scan].arrive(rows)

    def ask(self, number: int, batch: TupleBatch) -> None:
        """Ask for what tuples bind, but for what the AM was asked for, or some AM has answered."""
        if number in self._queues:
            self._queues[number].waiting.append(batch)
            return
        lookup = self._paths.lookups[number]
        coded, values = bound(self._matching, batch, lookup.classes)
        eots = self._stems[lookup.relation].eot(lookup.keys)
        unknown = np.flatnonzero(~eots.contains(coded, values))
        if len(unknown):
            some = [c[unknown] for c in coded]
            asked = self._asked_of(lookup)
            self._submit(lookup, asked.add(some, lambda k: values(k).take(to_arrow(unknown))))

    @property
    def bindings(self) -> list[BindingSet]:
        """What indexes were asked for, as it is remembered."""
        return [*self._asked.values(), *self._wanted.values()]

    def missing(self, relation: int) -> bool:
        """Whether an index is to answer something about the relation, or will soon be asked to.

        Of the EOTs of a binding, that of one AM is enough.
        """
        return not self._stems[relation].complete and (
            any(queues.index.alarm < math.inf for queues in self._queues_of(relation))
            or any(
                wanted.size > self._stems[relation].eot(wanted.keys).size
                for (lead, _), wanted in self._wanted.items()
                if lead == relation
            )
        )

    def submit(self) -> None:
        """Submit what pays now, and set alarms for what pays later."""
        for queues in self._queues.values():
            queues.index.alarm = math.inf
        for queues in self._queues.values():
            if self._stems[queues.lookup.relation].complete or queues.index.spent is not None:
                queues.rest.clear()
                queues.waiting.clear()
                continue
            if queues.rest:
                self._submit_first(queues, queues.rest, queues.index.room(math.inf), lazy=False)
            if queues.waiting:
                self._submit_paying(queues)

    def finish(self, relation: int) -> None:
        """Ask for what scans alone have answered, if it is little, and sooner answered than the scans end."""
        some = self._queues_of(relation)
        is_busy = self.missing(relation) or any(queues.waiting or queues.rest for queues in some)
        if is_busy or relation in self._taken_over:
            return
        for queues in (each for each in some if each.index.spent is None):
            answers = self._stems[queues.lookup.relation].eot(queues.lookup.keys).size
            end = min(scan.wait + scan.flow for scan in self._scans[relation])
            for driver, count in queues.drivers.items():
                # At least so many; what other relations asked for is among the answers, so they are counted.
                if (count - answers) * _FEW > answers or queues.index.expect(count - answers) >= end:
                    continue
                left = self._count_open(queues, driver)
                if 0 < left * _FEW <= answers and queues.index.expect(left) < end:
                    self._taken_over.add(relation)
                    queues.rest.append(self._all(driver))
                    return

    def stop(self, relation: int, index: MeasuredIndex, error: BudgetError) -> None:
        """Ask an index of the relation no more, for its budget is spent; another one may take over."""
        if index.spent is not None:
            return  # each request under way tells of it
        index.spent = error
        self._taken_over.discard(relation)
        indexes = self._queues_of(relation)
        others = {
            (each.lookup.relation, each.lookup.classes): each for each in indexes if not each.index.spent
        }
        for queues in indexes:
            other = others.get((queues.lookup.relation, queues.lookup.classes))
            if queues.index is index and other is not None:
                other.waiting.extend(queues.waiting)

    def take_over(self, relation: int, why: str = "") -> None:
        """No scan of the relation will return any more: ask for everything, once all of it is known.

        ``why`` tells of the scans.

        Raises:
            BudgetError: No index that could return all of it may be asked any more.
        """
        indexes = self._queues_of(relation)
        spent = [queues.index.spent for queues in indexes if queues.index.spent is not None]
        indexes = [queues for queues in indexes if queues.index.spent is None]
        if spent and not any(self._drivers(queues) for queues in indexes):
            raise BudgetError(f"{spent[0]}. What was to return the rest has failed: {why or 'it is silent'}")
        able = [queues for queues in indexes if self._driver(queues) is not None]
        if not able or relation in self._taken_over:
            return
        # The fastest of those that have ever answered.
        best = min(able, key=lambda queues: (not queues.index.latency, queues.index.expect()))
        driver = self._driver(best)
        assert driver is not None, "it was among those that have one"
        self._taken_over.add(relation)
        best.waiting.clear()
        best.rest.append(self._all(driver))

    def is_covered(self, relation: int) -> bool:
        """Whether an index has returned every tuple of the relation that results can have."""
        return any(
            self._covers(queues, driver)
            for queues in self._queues_of(relation)
            if (driver := self._driver(queues)) is not None
        )

    def _asked_of(self, lookup: Lookup) -> BindingSet:
        """Return the bindings that an index AM was asked for in one combination of types."""
        key = lookup.module, tuple(str(k.type) for k in lookup.keys)
        if key not in self._asked:
            self._asked[key] = BindingSet(lookup.keys)
        return self._asked[key]

    def _submit(self, lookup: Lookup, fresh: pa.RecordBatch) -> None:
        """Submit bindings that have just been added to those that the AM was asked for."""
        if not fresh.num_rows:
            return
        key = self._graph.leads[lookup.relation], tuple(f"{k.name} {k.type}" for k in lookup.keys)
        if key not in self._wanted:
            self._wanted[key] = BindingSet(lookup.keys)
        self._wanted[key].add_rows(fresh)
        self._indexes[lookup.module][1].submit(fresh)

    def _queues_of(self, relation: int) -> list[_Queues]:
        leads = self._graph.leads
        return [queues for queues in self._queues.values() if leads[queues.lookup.relation] == relation]

    def _submit_paying(self, queues: _Queues) -> None:
        """Submit what is expected to be answered before any scan returns it."""
        scans, index = self._scans[self._graph.leads[queues.lookup.relation]], queues.index
        room = index.room(min(scan.wait for scan in scans))
        if not room:
            return
        begin = max(scan.slower(index.expect()) for scan in scans)
        if self._clock.now() < begin:
            index.alarm = min(index.alarm, begin)
            return
        self._submit_first(queues, queues.waiting, room, lazy=True)

    def _submit_first(self, queues: _Queues, queue: deque[TupleBatch], room: int, *, lazy: bool) -> None:
        """Submit bindings of the first tuples in a queue that have any to ask for."""
        most = _LOOKED_THROUGH
        while queue and room > 0:
            batch = queue.popleft()
            most *= 2
            size = min(batch.size, max(most, 2 * room))
            if size < batch.size:
                queue.appendleft(batch.cut(size, batch.size))
            batch = self._open(queues, self._kept(batch.cut(0, size)), lazy=lazy)
            if batch.size > room:
                queue.appendleft(batch.cut(room, batch.size))
                batch = batch.cut(0, room)
            if batch.size:
                fresh = queues.asked.add(*bound(self._matching, batch, queues.lookup.classes))
                self._submit(queues.lookup, fresh)
                room -= fresh.num_rows

    def _kept(self, batch: TupleBatch) -> TupleBatch:
        """Return the tuples that no window has passed since they came."""
        alive = np.ones(batch.size, np.bool_)
        for relation, rows in batch.rows.items():
            alive &= rows >= batch.stores[relation].first
        return batch if alive.all() else batch.take(np.flatnonzero(alive))

    def _open(self, queues: _Queues, batch: TupleBatch, *, lazy: bool) -> TupleBatch:
        """Return the tuples that still have something to ask for, each binding once.

        With ``lazy``, those that have found a match need none, where bindings have one match each.
        """
        if not batch.size:
            return batch
        stem, lookup = self._stems[queues.lookup.relation], queues.lookup
        coded, values = bound(self._matching, batch, lookup.classes)
        here = queues.asked.contains(coded, values) | stem.eot(lookup.keys).contains(coded, values)
        codes = combine_codes(coded)
        index = stem.index(lookup.classes)
        if lazy and index.rows and index.unique:
            walk = index.probe(codes)
            while not walk.is_done:
                here[walk.pairs(max(1024, len(codes)))[0]] = True
        open_ = np.flatnonzero(~here)
        if all(key.exact for key in lookup.keys):
            open_ = np.sort(open_[np.unique(codes[open_], return_index=True)[1]])
        return batch if len(open_) == batch.size else batch.take(open_)

    def _driver(self, queues: _Queues) -> int | None:
        """Return a relation that has ended, one of whose tuples is in every result and binds the lookup."""
        for relation in self._drivers(queues):
            stem = self._stems[relation]
            if stem.complete and stem.rows and not stem.store.first:
                return relation
        return None

    def _drivers(self, queues: _Queues) -> list[int]:
        """Return the relations one of whose tuples is in every result and binds the lookup."""
        lookup = queues.lookup
        if len(self._stems[lookup.relation].roles) > 1:
            return []
        return [
            relation
            for relation, stem in enumerate(self._stems)
            if relation != lookup.relation
            and len(stem.roles) == 1
            and all(attribute in stem.layout.of_class for attribute in lookup.classes)
        ]

    def _all(self, relation: int) -> TupleBatch:
        stem = self._stems[relation]
        rows = np.arange(stem.rows, dtype=np.int32)
        return TupleBatch(Signature(1 << relation), {relation: rows}, {relation: stem.store})

    def _covers(self, queues: _Queues, driver: int) -> bool:
        lookup = queues.lookup
        eots = self._stems[lookup.relation].eot(lookup.keys)
        return eots.size >= queues.drivers.get(driver, 1) and not self._count_open(queues, driver)

    def _count_open(self, queues: _Queues, driver: int) -> int:
        """Return how many bindings of a driver have no answer, and note when to look again."""
        lookup = queues.lookup
        eots = self._stems[lookup.relation].eot(lookup.keys)
        coded, values = bound(self._matching, self._all(driver), lookup.classes)
        left = len(np.unique(combine_codes(coded)[~eots.contains(coded, values)]))
        # At least as many answers are needed as there are different bindings without one.
        queues.drivers[driver] = eots.size + max(1, left)
        return left
