"""Tuples whose results the user wants first, some more than others; that may change while a run goes on.

Raman, Deshpande & Hellerstein 2003, sections 1.2 and 4.1. A preference changes the order of work, never its
amount or the answer. Benefit is what the user gains; how many times more one tuple is worth than another does
not matter for the order, only which of both is worth more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import is_true
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import Call, ColumnRef, Predicate, columns_of, show
from millrace.engine.plan.spec import JoinSpec, check_columns
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
