"""Index and hash join in one: which tuples do not wait for the scan but ask an index.

Raman, Deshpande & Hellerstein 2003, section 4.3: where a relation has both, its SteM bounces tuples back that
lack matches. The eddy sends them to the index while most of the scan is still to come, and lets the scan
find them when it is about to end. Here that is a matter of time: a lookup pays if its answer is expected
before the scan returns the match, both as measured. What does not pay now waits beside the index and may pay
later, for a scan may stall; and no more is submitted than keeps the index busy, for what stands in its
queue might come by the scan meanwhile. Tuples whose match has come are not asked for.

None of this is needed for the answer: what nobody asks for, the scan returns. It is only when a scan can
return nothing any more, broken off or silent for ever, that everything has to be asked for; a relation is
then complete when the index has answered all bindings of some complete relation, for every result has one
of these.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from millrace.engine.access.measured_index import Paced
from millrace.engine.access.paths import Lookup
from millrace.engine.access.progress import Progress
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stems.bindings import BindingSet, bound
from millrace.engine.stems.conditions import Matching, combined
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.limits.clock import Clock

_LOOKED_THROUGH = 64
"""Waiting tuples that are looked at together, at least, for some that still have something to ask."""


@dataclass(frozen=True)
class Ask:
    """A lookup of a relation that has a scan too.

    Attributes:
        lookup: Which.
        index: Its AM.
        asked: The bindings that the AM was asked for.
        submit: Submits bindings that are new to the AM.
        urgent: Tuples whose results are wanted first: they ask in any case, the most wanted first.
        rest: Tuples of a driver, all of whose bindings have to be answered, matches or not: after what is
            urgent, they ask in any case.
        waiting: Other tuples.
        drivers: Relations that have ended and bind the lookup alone, with the number of answers from which
            on it is worth a look whether all of their bindings are answered.
    """

    lookup: Lookup
    index: Paced
    asked: BindingSet
    submit: Callable[[pa.RecordBatch], None]
    urgent: deque[TupleBatch] = field(default_factory=deque)
    rest: deque[TupleBatch] = field(default_factory=deque)
    waiting: deque[TupleBatch] = field(default_factory=deque)
    drivers: dict[int, int] = field(default_factory=dict)


class Hybrid:
    """The tuples that wait for a scan or an index, whichever is first.

    Args:
        spec: The block.
        graph: Its query graph.
        stems: Its SteMs.
        asks: The lookups of relations that have scans.
        scans: By relation, how many scans it has; they begin now.
        clock: What alarms are set by.
    """

    def __init__(
        self,
        spec: JoinSpec,
        graph: QueryGraph,
        stems: Sequence[SteM],
        asks: Mapping[int, Ask],
        scans: Mapping[int, int],
        clock: Clock,
    ) -> None:
        self._graph = graph
        self._stems = stems
        self._asks = asks
        sizes = spec.relations
        self._scans = {
            r: [Progress(clock, sizes[r].rows, guessed=sizes[r].guessed) for _ in range(n)]
            for r, n in scans.items()
        }
        self._clock = clock
        self._matching = Matching(graph)
        self._taken_over: set[int] = set()

    def note(self, relation: int, scan: int, rows: int) -> None:
        """Take note of what a scan has returned."""
        if relation in self._scans:
            self._scans[relation][scan].arrive(rows)

    def wait(self, lookup: int, batch: TupleBatch) -> None:
        """Take tuples that a SteM bounced back."""
        ask = self._asks[lookup]
        grade = batch.signature.preferred
        if not grade:
            ask.waiting.append(batch)
            return
        before = sum(each.signature.preferred >= grade for each in ask.urgent)
        ask.urgent.insert(before, batch)

    def regrade(self, graded: Callable[[TupleBatch], Iterable[TupleBatch]]) -> None:
        """Put tuples in order again, for others are wanted first now; what has its match does not wait."""
        for lookup, ask in self._asks.items():
            held = [*ask.urgent, *ask.waiting]
            ask.urgent.clear()
            ask.waiting.clear()
            for batch in held:
                for piece in graded(self._open(ask, self._kept(batch), lazy=True)):
                    self.wait(lookup, piece)
            pieces = [piece for batch in ask.rest for piece in graded(batch)]
            ask.rest.clear()
            ask.rest.extend(sorted(pieces, key=lambda each: -each.signature.preferred))

    def waits(self, relation: int) -> bool:
        """Whether tuples wait that may be submitted before anything else happens."""
        return any(ask.index.alarm < math.inf for ask in self._asks_of(relation).values())

    def submit(self) -> None:
        """Submit what pays now, and set alarms for what pays later."""
        for ask in self._asks.values():
            ask.index.alarm = math.inf
        for ask in self._asks.values():
            if self._stems[ask.lookup.relation].complete:
                ask.urgent.clear()
                ask.rest.clear()
                ask.waiting.clear()
                continue
            for queue in (ask.urgent, ask.rest):
                if queue:
                    self._submit(ask, queue, ask.index.room(math.inf), lazy=False)
            if ask.waiting:
                self._submit_paying(ask)

    def take_over(self, relation: int) -> None:
        """No scan of the relation will return any more: ask for everything, once all of it is known."""
        asks = {i: ask for i, ask in self._asks_of(relation).items() if self._driver(ask) is not None}
        if not asks or relation in self._taken_over:
            return
        # The fastest of those that have ever answered.
        best = min(asks.values(), key=lambda ask: (not ask.index.latency, ask.index.expected))
        driver = self._driver(best)
        assert driver is not None, "it was among those that have one"
        self._taken_over.add(relation)
        best.waiting.clear()
        best.rest.append(self._all(driver))

    def is_covered(self, relation: int) -> bool:
        """Whether an index has returned every tuple of the relation that results can have."""
        return any(
            self._covers(ask, driver)
            for ask in self._asks_of(relation).values()
            if (driver := self._driver(ask)) is not None
        )

    def _asks_of(self, relation: int) -> dict[int, Ask]:
        leads = self._graph.leads
        return {i: ask for i, ask in self._asks.items() if leads[ask.lookup.relation] == relation}

    def _submit_paying(self, ask: Ask) -> None:
        """Submit what is expected to be answered before any scan returns it."""
        scans = self._scans[self._graph.leads[ask.lookup.relation]]
        room = ask.index.room(min(scan.wait for scan in scans))
        if not room:
            return
        begin = max(scan.slower(ask.index.expected) for scan in scans)
        if self._clock.now() < begin:
            ask.index.alarm = min(ask.index.alarm, begin)
            return
        self._submit(ask, ask.waiting, room, lazy=True)

    def _submit(self, ask: Ask, queue: deque[TupleBatch], room: int, *, lazy: bool) -> None:
        """Submit bindings of the first tuples in a queue that have any to ask for."""
        most = _LOOKED_THROUGH
        while queue and room > 0:
            batch = queue.popleft()
            most *= 2
            size = min(batch.size, max(most, 2 * room))
            if size < batch.size:
                queue.appendleft(batch.cut(size, batch.size))
            batch = self._open(ask, self._kept(batch.cut(0, size)), lazy=lazy)
            if batch.size > room:
                queue.appendleft(batch.cut(room, batch.size))
                batch = batch.cut(0, room)
            if batch.size:
                coded, values = bound(self._matching, batch, ask.lookup.classes)
                fresh = ask.asked.add(coded, values)
                if fresh.num_rows:
                    ask.submit(fresh)
                    room -= fresh.num_rows

    def _kept(self, batch: TupleBatch) -> TupleBatch:
        """Return the tuples that no window has passed since they came."""
        alive = np.ones(batch.size, np.bool_)
        for relation, rows in batch.rows.items():
            alive &= rows >= batch.stores[relation].first
        return batch if alive.all() else batch.take(np.flatnonzero(alive))

    def _open(self, ask: Ask, batch: TupleBatch, *, lazy: bool) -> TupleBatch:
        """Return the tuples that still have something to ask for, each binding once.

        With ``lazy``, those that have found a match need none, where bindings have one match each.
        """
        if not batch.size:
            return batch
        stem, lookup = self._stems[ask.lookup.relation], ask.lookup
        coded, values = bound(self._matching, batch, lookup.classes)
        here = ask.asked.contains(coded, values) | stem.eot(lookup.keys).contains(coded, values)
        codes = combined(coded)
        index = stem.index(lookup.classes)
        if lazy and index.rows and index.unique:
            walk = index.probe(codes)
            while not walk.is_done:
                here[walk.pairs(max(1024, len(codes)))[0]] = True
        open_ = np.flatnonzero(~here)
        if all(key.exact for key in lookup.keys):
            open_ = np.sort(open_[np.unique(codes[open_], return_index=True)[1]])
        return batch if len(open_) == batch.size else batch.take(open_)

    def _driver(self, ask: Ask) -> int | None:
        """Return a relation that has ended, one of whose tuples is in every result and binds the lookup."""
        for relation, stem in enumerate(self._stems):
            binds = all(attribute in stem.layout.of_class for attribute in ask.lookup.classes)
            whole = stem.complete and stem.rows and not stem.store.first
            alone = len(stem.roles) == 1 and len(self._stems[ask.lookup.relation].roles) == 1
            if relation != ask.lookup.relation and binds and whole and alone:
                return relation
        return None

    def _all(self, relation: int) -> TupleBatch:
        stem = self._stems[relation]
        rows = np.arange(stem.rows, dtype=np.int32)
        return TupleBatch(Signature(1 << relation), {relation: rows}, {relation: stem.store})

    def _covers(self, ask: Ask, driver: int) -> bool:
        eots = self._stems[ask.lookup.relation].eot(ask.lookup.keys)
        if eots.size < ask.drivers.get(driver, 1):
            return False
        coded, values = bound(self._matching, self._all(driver), ask.lookup.classes)
        here = eots.contains(coded, values)
        # At least as many answers are needed as there are different bindings without one.
        ask.drivers[driver] = eots.size + max(1, len(np.unique(combined(coded)[~here])))
        return bool(here.all())
