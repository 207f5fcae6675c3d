"""Tuples whose results the user wants first, some more than others; that may change while a run goes on.

Raman, Deshpande & Hellerstein 2003, sections 1.2 and 4.1. A preference changes the order of work, never its
amount or the answer. Benefit is what the user gains; how many times more one tuple is worth than another does
not matter for the order, only which of both is worth more.

A grade is part of the signature, so the engine's policies and SteMs know it: ``interactive`` routes tuples by
it, and a SteM bounces wanted ones to an index. Here it is the priority of a tuple in the eddy's buffer.

Tuples of the streamed relation that are not wanted wait as long as wanted ones may come, and memory allows
(Raman, Raman & Hellerstein 1999, "Online dynamic reordering for interactive data processing"). They wait only
where what comes behind the reading takes longer than the reading: else nothing comes earlier. A streamed
tuple is wanted too if it joins to a wanted tuple of a relation that was read before. Row groups that may have
wanted tuples are read before others: by the wish itself, or by the keys of the tuples that it leads to.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.access.hybrid import IndexOrScan
from millrace.engine.access.paths import AccessMethods, Paths
from millrace.engine.access.schedule import STALLED, Arrival
from millrace.engine.arrays import ends_of, is_true
from millrace.engine.eddy.context import Given, RunContext
from millrace.engine.eddy.dataflow import EddyDataflow
from millrace.engine.eddy.decisions import RoutingTable
from millrace.engine.eddy.eddy import Buffer, Eddy
from millrace.engine.eddy.ingest import ReadOrder
from millrace.engine.eddy.operator import Kind, Operator, Step, Work
from millrace.engine.eddy.output import Output
from millrace.engine.eddy.run import Run
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import (
    And,
    Call,
    Column,
    ColumnRef,
    Compare,
    Literal,
    Or,
    Predicate,
    columns_of,
    show,
)
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec, check_columns
from millrace.engine.start_up import work_time
from millrace.engine.stems.state import stems_of
from millrace.engine.stems.stem import SteM, singletons
from millrace.engine.tuples import codes
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import InputError

MOST_ASIDE = 1 << 28
"""Bytes of streamed tuples that wait in a task because others are wanted first."""

FIRST_ASIDE = 1 << 24
"""Bytes of them after which it is found out whether waiting pays."""

_PAYING = 4.0
"""How many times longer than its reading a tuple's work takes where waiting pays.

To wait and to be gathered costs half a reading (4 million rows of 60 bytes, one join), which is a tenth then.
"""

_MOST_NEAR = 1 << 20
"""Tuples of a relation up to which it is found out which streamed tuples join to wanted ones of it."""

_MOST_RANGES = 8
"""Ranges of keys that each row group's statistics are compared with: ten thousands take a second then."""

_FLUSH_SECONDS = 0.2
"""Seconds after which results are handed on though there are few of them: somebody waits for them."""

Wanted = Predicate | Sequence[Predicate] | None
"""What the user wants first: one predicate, several with the most wanted first, or nothing in particular."""


@dataclass(frozen=True)
class _Wish:
    """A predicate over columns of one relation."""

    relation: int
    columns: frozenset[ColumnRef]
    predicate: Predicate

    def holds(self, batch: TupleBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which tuples satisfy it, those where it is null not among them."""
        store, rows = batch.stores[self.relation], batch.rows[self.relation]
        truth = evaluate(self.predicate, {ref: store.gather(ref.column, rows) for ref in self.columns})
        assert isinstance(truth, pa.Array), "the predicate reads a column"
        return is_true(truth)


class Preference:
    """Grades tuples by how much they are wanted: 0 for no preference, and the more the higher.

    Predicates are over columns of one relation each, and Millrace evaluates them itself. Singletons are
    graded when they arrive or are built, and again when other tuples are wanted; what they join to has their
    grades. ``near`` returns which tuples a singleton has to meet to join to wanted ones of another relation,
    None where that is not known.
    """

    def __init__(
        self, spec: JoinSpec, near: Callable[[_Wish, TupleBatch], SteM | None] = lambda _, __: None
    ) -> None:
        self._spec, self._near = spec, near
        self.wishes: list[_Wish] = []

    def change(self, wanted: Wanted) -> None:
        """Grade by other predicates from now on.

        Raises:
            InputError: A predicate reads columns of no relation or of several, or ones that are not there, or
                it calls a user's function; then what was wanted before still is.
        """
        predicates = () if wanted is None else wanted if isinstance(wanted, Sequence) else (wanted,)
        self.wishes = [self._checked(each) for each in reversed(predicates)]

    def _checked(self, predicate: Predicate) -> _Wish:
        columns = frozenset(columns_of(predicate))
        aliases = sorted({ref.relation for ref in columns})
        if len(aliases) != 1 or isinstance(predicate, Call):
            raise InputError(
                f"tuples cannot be preferred by {show(predicate)}: expected a comparison of columns of one "
                f"relation, got columns of {aliases or 'none'}"
            )
        check_columns(columns, self._spec.relations)
        return _Wish(self._spec.aliases.index(aliases[0]), columns, predicate)

    def split(self, batches: Iterable[TupleBatch]) -> Iterator[TupleBatch]:
        """Yield batches, singletons in one for each grade, the most wanted last; a grade is kept."""
        for batch in batches:
            is_joined = batch.signature.span & (batch.signature.span - 1)
            yield from [batch] if is_joined or batch.signature.preferred else self.graded(batch)

    def graded(self, batch: TupleBatch) -> list[TupleBatch]:
        """Return tuples in a batch for each grade, whatever grade they had; none before they are built."""
        if not batch.signature.built or not (self.wishes or batch.signature.preferred):
            return [batch]
        grades, is_known = np.zeros(batch.size, np.int64), bool(batch.signature.preferred)
        for grade, wish in enumerate(self.wishes, 1):
            if wish.relation in batch.rows:
                grades[wish.holds(batch)] = grade
            elif (stem := self._near(wish, batch)) is not None:
                grades[stem.meets(batch)] = grade
            else:
                continue
            is_known = True
        if not is_known:
            return [batch]
        pieces: list[TupleBatch] = []
        for grade in np.flatnonzero(np.bincount(grades)).tolist():
            rows = np.flatnonzero(grades == grade)
            origin = len(rows) if batch.origin == batch.size else 0 if pieces else batch.origin
            signature = batch.signature.having(preferred=grade)
            pieces.append(batch.take(rows, origin=origin, signature=signature))
        return pieces

    def best(self, batch: TupleBatch) -> int:
        """Return the highest grade that singletons like these can have."""
        wishes = enumerate(self.wishes, 1)
        known = (g for g, w in wishes if w.relation in batch.rows or self._near(w, batch) is not None)
        return max(known, default=0)


def prefer(run: Run, wanted: Wanted) -> None:
    """Let results of other tuples come first from now on, also of those that wait already.

    ``run`` was made with ``eddy=PreferringDataflow``, or with queues. To be called before it runs, when
    ``run()`` has yielded a batch, from a source, or by who takes results. A user who looks at partial results
    may change their mind (Raman, Deshpande & Hellerstein 2003, section 1.2). Of several predicates the most
    wanted is first.

    Raises:
        InputError: A predicate reads columns of no relation or of several, or calls a user's function.
    """
    assert isinstance(run.dataflow, PreferringDataflow)
    run.dataflow.prefer(wanted)


class PreferringBuffer(Buffer):
    """A buffer in which tuples that the user prefers go before others, the most wanted first.

    They wait for no others: what is wanted is not to come late because it comes in small batches.
    """

    def __init__(self, limit: int = 1) -> None:
        super().__init__(limit)
        self._flying = _ByGrade()

    def push(self, batches: Iterable[TupleBatch]) -> None:
        for batch in batches:
            if batch.size and batch.signature.preferred:
                self._flying.append(batch)
            else:
                super().push((batch,))

    def is_next(self, batch: TupleBatch) -> bool:
        top = _grade(self._flying[-1]) if self._flying else 0
        return super().is_next(batch) and batch.signature.preferred >= top

    def regrade(self, graded: Callable[[TupleBatch], Iterable[TupleBatch]]) -> None:
        """Put batches in order again, for other tuples are wanted first now; unfinished work stays."""
        works = sorted(self.works(), key=lambda work: -_grade(work))
        self._new, self._flying = [], _ByGrade()
        self._waiting.clear()
        for work in works:
            if isinstance(work, TupleBatch):
                self.push(graded(work))
            else:
                self.resume(*work)


class _ByGrade(list[Work]):
    """Work, the most wanted last, and what came last behind what is wanted as much."""

    def append(self, work: Work) -> None:
        place, grade = len(self), _grade(work)
        while place and _grade(self[place - 1]) > grade:
            place -= 1
        self.insert(place, work)


def _grade(work: Work) -> int:
    batch: TupleBatch = work if isinstance(work, TupleBatch) else work[1].batch
    return batch.signature.preferred


class _Aside:
    """Singletons of the streamed relation that wait, by grade, as long as more wanted ones may come."""

    def __init__(
        self, relation: int | None, preference: Preference, order: ReadOrder | None, first: int
    ) -> None:
        self._span = 0 if relation is None else 1 << relation
        self._relation, self._preference, self._order = relation, preference, order
        self._waiting: dict[int, deque[TupleBatch]] = {}
        self._bytes, self._first = 0, first
        self._came = math.inf  # the highest grade that could come when tuples were last divided
        self.open()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_due(self) -> bool:
        """Whether one has to go on: they take too much memory, or nothing better will come."""
        return self.is_full or (bool(self) and max(self._waiting) >= self._coming)

    @property
    def is_full(self) -> bool:
        return bool(self) and self._bytes > self._room

    @property
    def _coming(self) -> float:
        order = self._order
        return math.inf if order is None or order.coming is None else order.coming

    def close(self) -> None:
        """Keep no more from now on: nothing will be read that could come before."""
        self._span = 0

    def open(self) -> None:
        """Keep tuples, of ``first`` bytes until it is known whether that pays."""
        self._room = self._first

    def judge(self, work: float, reading: float) -> None:
        """Keep more than now if waiting pays, by the seconds that a tuple takes, and none if it does not.

        Wanted tuples come earlier by the work of those that wait. Where that takes little, they come later:
        what waits needs memory that is not in caches, and is gathered row by row, not sliced as it was read.
        """
        self._room = min(2 * self._room, MOST_ASIDE) if work > _PAYING * reading else 0

    def divide(self, batches: Iterable[TupleBatch]) -> Iterator[TupleBatch]:
        """Yield what is not to wait, a batch for each grade where it matters."""
        for batch in batches:
            is_alike = False
            if batch.signature.span == self._span:
                # Tuples that were read before may have waited until there were enough for a batch.
                is_alike = not (self._room and (self._came or self._coming))
                self._came = self._coming
            yield from (batch,) if is_alike else self.keep(self._preference.split((batch,)))

    def keep(self, batches: Iterable[TupleBatch]) -> Iterator[TupleBatch]:
        """Yield what is not to wait."""
        for batch in batches:
            best = self._preference.best(batch) if self._may_wait(batch.signature) else 0
            if batch.signature.preferred < min(best, self._coming):
                self._waiting.setdefault(batch.signature.preferred, deque()).append(batch)
                self._bytes += self._size(batch)
            else:
                yield batch

    def pop(self) -> TupleBatch:
        """Take those that are wanted most, and have waited longest."""
        grade = max(self._waiting)
        batch = self._waiting[grade].popleft()
        if not self._waiting[grade]:
            del self._waiting[grade]
        self._bytes -= self._size(batch)
        return batch

    def _may_wait(self, signature: Signature) -> bool:
        is_streamed = signature.span == self._span and signature.prior is None
        return is_streamed and self._room > 0 and bool(self._preference.wishes)

    def _size(self, batch: TupleBatch) -> int:
        """Return the bytes that tuples keep in memory: those of all that arrived with them."""
        assert self._relation is not None
        return batch.stores[self._relation].nbytes


class PreferringEddy(Eddy):
    """An eddy that grades what arrives."""

    def __init__(
        self,
        context: RunContext,
        buffer: Buffer,
        table: RoutingTable,
        aside: _Aside,
    ) -> None:
        super().__init__(context, buffer, table)
        self._aside = aside

    def push(self, batches: Iterable[TupleBatch]) -> None:
        super().push(self._aside.divide(batches))


class PreferringRequests(IndexOrScan):
    """Requests to indexes; tuples whose results are wanted first ask in any case, the most wanted first."""

    def __init__(self, methods: AccessMethods, stems: Sequence[SteM]) -> None:
        super().__init__(methods, stems)
        self._urgent: dict[int, deque[TupleBatch]] = {}

    def ask(self, number: int, batch: TupleBatch) -> None:
        grade = batch.signature.preferred
        if number not in self._queues or not grade:
            super().ask(number, batch)
            return
        urgent = self._urgent.setdefault(number, deque())
        urgent.insert(sum(each.signature.preferred >= grade for each in urgent), batch)

    def submit(self) -> None:
        """Submit what is urgent, before what has to be asked for and what pays."""
        for number, urgent in self._urgent.items():
            queues = self._queues[number]
            if self._stems[queues.lookup.relation].complete:
                urgent.clear()
            elif urgent:
                self._submit_first(queues, urgent, queues.index.room(math.inf), lazy=False)
        super().submit()

    def regrade(self, graded: Callable[[TupleBatch], Iterable[TupleBatch]]) -> None:
        """Put tuples in order again, for others are wanted first now; what has its match does not wait."""
        for number, queues in self._queues.items():
            held = [*self._urgent.pop(number, ()), *queues.waiting]
            queues.waiting.clear()
            for batch in held:
                for piece in graded(self._open(queues, self._kept(batch), lazy=True)):
                    self.ask(number, piece)
            pieces = [piece for batch in queues.rest for piece in graded(batch)]
            queues.rest.clear()
            queues.rest.extend(sorted(pieces, key=lambda each: -each.signature.preferred))


class PreferringDataflow(EddyDataflow):
    """An eddy whose user prefers some tuples, between arrivals and the output.

    ``latest`` returns what is wanted now, the same object as long as that is the same. It is asked before
    each round.
    """

    _buffer: PreferringBuffer

    def __init__(
        self, context: RunContext, given: Given, latest: Callable[[], Wanted] = lambda: None
    ) -> None:
        self._preference = Preference(context.spec, self._near)
        self._latest, self._known = latest, latest()
        self._preference.change(self._known)
        self._stems_near: dict[_Wish, SteM | None] = {}
        self._conditions: dict[_Wish, Predicate] = {}
        self._flushed = context.clock.now()
        # Tuples may come in any order where nobody knows that in which they were read.
        is_free = context.watch is None and isinstance(context.output, Output) and not context.graph.windows
        self._orders = context.ranges.orders if is_free else {}
        streamed = context.schedule.unbuilt if is_free else None
        order = None if streamed is None else self._orders.get(context.spec.aliases[streamed])
        # What predicates and requests take is not known before, and one batch may take minutes.
        is_slow = context.called or bool(given.get("access")) or bool(context.filters.asking)
        first = MOST_ASIDE if is_slow else FIRST_ASIDE
        self._aside = _Aside(streamed, self._preference, order, first)
        visit = context.visit

        def graded(operator: Operator, work: Any) -> Step:
            """Let singletons be graded when they have been built."""
            step = visit(operator, work)
            if operator.kind is not Kind.BUILD or not self._preference.wishes:
                return step
            return replace(step, batches=[*self._preference.split(step.batches)])

        context.visit = graded
        context.arrivals.requests = self._requests = PreferringRequests(context.methods, context.stems)
        super().__init__(context, given)
        self._order_reads()

    def _make_buffer(self, limit: int) -> PreferringBuffer:
        return PreferringBuffer(limit)

    def _make_eddy(self, table: RoutingTable) -> Eddy:
        return PreferringEddy(self._context, self._buffer, table, self._aside)

    def prefer(self, wanted: Wanted) -> None:
        """See :func:`prefer`."""
        self._preference.change(wanted)
        self._stems_near.clear()
        self._conditions.clear()
        self._order_reads()
        self._aside.open()
        self._buffer.regrade(self._preference.graded)
        self._requests.regrade(self._preference.graded)
        waiting = [piece for batch in self._take_aside() for piece in self._preference.graded(batch)]
        self._buffer.push(self._aside.keep(waiting))

    def _rounds_of_arrivals(self) -> Iterator[list[Arrival]]:
        streamed = self._schedule.unbuilt
        for arrivals in super()._rounds_of_arrivals():
            self._hear()
            own = [batch for relation, batch in arrivals if relation == streamed]
            if None in own or STALLED in own or self._aside.is_due:  # before these what waits ungraded
                self._eddy.push(self._admission.rest())
            if None in own:  # an end holds once nothing waits
                self._aside.close()
                yield []
            while self._aside.is_due or (self._aside and (None in own or STALLED in own)):
                yield from self._go_on()
                self._hear()
            yield arrivals
            if any(batch is None for _, batch in arrivals):
                self._order_reads()

    def _go_on(self) -> Iterator[list[Arrival]]:
        """Yield a round of what has waited longest; what it takes tells whether waiting pays."""
        clock, is_full = self._context.clock, self._aside.is_full
        batch, began = self._aside.pop(), work_time(clock)
        self._buffer.push((batch,))
        yield []
        if is_full:
            scan = self._context.statistics.accounts.get(("scan", self._schedule.unbuilt))
            reading = scan.seconds / max(1, scan.tuples_in)
            self._aside.judge((work_time(clock) - began) / batch.size, reading)  # the reader's time, too

    def _order_reads(self) -> None:
        """Let row groups be read first that may have wanted tuples, by what is known now."""
        wishes = [*enumerate(self._preference.wishes, 1)][::-1]
        for relation, alias in enumerate(self._context.spec.aliases):
            if (order := self._orders.get(alias)) is not None:
                known = ((grade, self._condition(wish, relation)) for grade, wish in wishes)
                order.wanted = tuple((grade, each) for grade, each in known if each is not None)
                order.coming = None

    def _condition(self, wish: _Wish, relation: int) -> Predicate | None:
        """Return what holds of all tuples of a relation that are wanted, None where nothing is known."""
        if wish.relation == relation:
            return wish.predicate
        stem = self._find_lead(wish) if relation == self._schedule.unbuilt else None
        if stem is None or not stem.rows:
            return None
        if wish not in self._conditions:
            alias, rows = self._context.spec.aliases[relation], np.arange(stem.rows, dtype=np.int32)
            self._conditions[wish] = And(
                tuple(
                    _cover(stem.store.gather(own, rows), ColumnRef(alias, theirs), known.type)
                    for known in self._context.graph.classes
                    if not pa.types.is_floating(known.type)
                    for own in known.columns(stem.number)
                    for theirs in known.columns(relation)
                )
            )
        return self._conditions[wish]

    def _hear(self) -> None:
        """Do what the user has come to want first."""
        if (wanted := self._latest()) is not self._known:
            self._known = wanted
            self.prefer(wanted)

    def _take_aside(self) -> Iterator[TupleBatch]:
        while self._aside:
            yield self._aside.pop()

    def _work(self) -> Iterator[Any]:
        yield from super()._work()
        now = self._context.clock.now()
        if now >= self._flushed + _FLUSH_SECONDS:
            self._flushed = now
            yield from self._output.idle()

    def _near(self, wish: _Wish, batch: TupleBatch) -> SteM | None:
        """Return those tuples next to the streamed ones that lead to what is wanted."""
        streamed = self._schedule.unbuilt
        is_streamed = streamed is not None and batch.signature.span == 1 << streamed
        return self._find_lead(wish) if is_streamed else None

    def _find_lead(self, wish: _Wish) -> SteM | None:
        streamed = self._schedule.unbuilt
        if streamed is None or wish.relation == streamed:
            return None
        if wish not in self._stems_near:
            path = _path(self._context.graph, wish.relation, streamed)
            if not all(self.stems[relation].complete for relation in path):
                return None
            self._stems_near[wish] = self._make_lead(wish, path)
        return self._stems_near[wish]

    def _make_lead(self, wish: _Wish, path: Sequence[int]) -> SteM | None:
        """Return the last relation's tuples that join, along a path, to wanted ones of the first."""
        graph, spec, found = self._context.graph, self._context.spec, None
        own = [self.stems[relation] for relation in path]
        if any(len(graph.roles(stem.number)) > 1 or stem.store.held > _MOST_NEAR for stem in own):
            return None
        if not all(stem.scanned for stem in own):
            return None
        stems = stems_of(spec, graph, Paths(graph.everything)) if path else []
        for relation, stem in zip(path, own, strict=True):
            rows = np.arange(stem.store.first, stem.rows, dtype=np.int32)
            batch = TupleBatch(Signature(1 << relation), {relation: rows}, {relation: stem.store})
            kept = rows[wish.holds(batch) if found is None else found.meets(batch)]
            found = stems[relation]
            found.build(singletons(found, stem.store.chunk(kept), spec.aliases[relation], built=False), None)
            found.complete = True
        return found


def _cover(keys: pa.Array, ref: ColumnRef, kind: pa.DataType) -> Predicate:
    """Return that a column lies in one of a few ranges, which have all keys; the widest gaps are between."""

    def enclose(low: pa.Scalar, high: pa.Scalar) -> Predicate:
        ends = zip((">=", "<="), (low, high), strict=True)
        return And(tuple(Compare(op, Column(ref), Literal(end, end.type), kind) for op, end in ends))  # type: ignore[arg-type]

    if not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        ends = ends_of([keys])
        return And(()) if ends is None else enclose(*ends)
    numbers, _ = codes(keys, kind)
    order = np.argsort(numbers)
    gaps = np.diff(numbers[order].astype(np.float64))
    widest = np.sort(np.argsort(gaps)[1 - _MOST_RANGES :])
    parts = np.split(order, widest[gaps[widest] > 1] + 1)
    return Or(tuple(enclose(keys[int(part[0])], keys[int(part[-1])]) for part in parts))


def _path(graph: QueryGraph, first: int, target: int) -> list[int]:
    """Return the fewest relations, from the first on, that lead to a neighbour of a target."""
    paths, seen = deque([[first]]), {first, target}
    while paths:
        path = paths.popleft()
        near = graph.neighbours(1 << path[-1])
        if target in near:
            return path
        paths.extend([*path, each] for each in near if each not in seen)
        seen.update(near)
    return []
