"""Tuples whose results the user wants first, some more than others; that may change while a run goes on.

Raman, Deshpande & Hellerstein 2003, sections 1.2 and 4.1. A preference changes the order of work, never its
amount or the answer. Benefit is what the user gains; how many times more one tuple is worth than another does
not matter for the order, only which of both is worth more.

A grade is part of the signature, so the engine's policies and SteMs know it: ``interactive`` routes tuples by
it, and a SteM bounces wanted ones to an index. Here it is the priority of a tuple in the eddy's buffer.
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
from millrace.engine.access.paths import AccessMethods
from millrace.engine.arrays import is_true
from millrace.engine.eddy.context import Given, RunContext
from millrace.engine.eddy.dataflow import EddyDataflow
from millrace.engine.eddy.decisions import RoutingTable
from millrace.engine.eddy.eddy import Buffer, Eddy
from millrace.engine.eddy.operator import Kind, Operator, Step, Work
from millrace.engine.eddy.run import Run
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import Call, ColumnRef, Predicate, columns_of, show
from millrace.engine.plan.spec import JoinSpec, check_columns
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import InputError

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
    grades.
    """

    def __init__(self, spec: JoinSpec) -> None:
        self._spec = spec
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
        wishes = [(grade, wish) for grade, wish in enumerate(self.wishes, 1) if wish.relation in batch.rows]
        if not batch.signature.built or (not wishes and not batch.signature.preferred):
            return [batch]
        grades = np.zeros(batch.size, np.int64)
        for grade, wish in wishes:
            grades[wish.holds(batch)] = grade
        pieces: list[TupleBatch] = []
        for grade in np.unique(grades).tolist():
            rows = np.flatnonzero(grades == grade)
            origin = len(rows) if batch.origin == batch.size else 0 if pieces else batch.origin
            signature = batch.signature.having(preferred=grade)
            pieces.append(batch.take(rows, origin=origin, signature=signature))
        return pieces


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
        self._new, self._flying, self._waiting = [], _ByGrade(), {}
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


class PreferringEddy(Eddy):
    """An eddy that grades what arrives."""

    def __init__(
        self, context: RunContext, buffer: Buffer, table: RoutingTable, preference: Preference
    ) -> None:
        super().__init__(context, buffer, table)
        self._preference = preference

    def push(self, batches: Iterable[TupleBatch]) -> None:
        super().push(self._preference.split(batches))


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
    """An eddy whose user prefers some tuples, between arrivals and the output."""

    _buffer: PreferringBuffer

    def __init__(self, context: RunContext, given: Given) -> None:
        self._preference = Preference(context.spec)
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

    def _make_buffer(self, limit: int) -> PreferringBuffer:
        return PreferringBuffer(limit)

    def _make_eddy(self, table: RoutingTable) -> Eddy:
        return PreferringEddy(self._context, self._buffer, table, self._preference)

    def prefer(self, wanted: Wanted) -> None:
        """See :func:`prefer`."""
        self._preference.change(wanted)
        self._buffer.regrade(self._preference.graded)
        self._requests.regrade(self._preference.graded)
