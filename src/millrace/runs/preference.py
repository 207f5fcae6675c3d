"""Tuples whose results the user wants first.

Raman, Deshpande & Hellerstein 2003, section 4.1. A preference changes the order of work, never its amount
or the answer.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import InputError, near
from millrace.expressions import Call, Predicate, columns_of, evaluate, show
from millrace.spec import JoinSpec
from millrace.tuples import TupleBatch


class Preference:
    """Tells preferred singletons from others.

    Args:
        predicate: Over columns of one relation, which Millrace evaluates itself; None for no preference.
        spec: The block.

    Raises:
        InputError: The predicate reads columns of no relation or of several, or calls a user's function.
    """

    def __init__(self, predicate: Predicate | None, spec: JoinSpec) -> None:
        self._predicate = predicate
        self._columns = set() if predicate is None else set(columns_of(predicate))
        self._relation: int | None = None
        if predicate is None:
            return
        aliases = sorted({ref.relation for ref in self._columns})
        if len(aliases) != 1 or isinstance(predicate, Call):
            raise InputError(
                f"tuples cannot be preferred by {show(predicate)}: expected a comparison of columns of one "
                f"relation, got columns of {aliases or 'none'}"
            )
        if aliases[0] not in spec.aliases:
            raise InputError(f"unknown relation {aliases[0]!r}: {near(aliases[0], spec.aliases)}")
        names = spec.relation(aliases[0]).schema.names
        for ref in self._columns:
            if ref.column not in names:
                raise InputError(
                    f"relation {ref.relation!r} has no column {ref.column!r}: {near(ref.column, names)}"
                )
        self._relation = spec.aliases.index(aliases[0])

    def split(self, batch: TupleBatch) -> list[TupleBatch]:
        """Return singletons as two batches, the preferred ones last; those of other relations as they are."""
        if self._predicate is None or self._relation not in batch.rows or batch.signature.preferred:
            return [batch]
        assert self._relation is not None
        store, rows = batch.stores[self._relation], batch.rows[self._relation]
        truth = evaluate(self._predicate, {ref: store.gather(ref.column, rows) for ref in self._columns})
        assert isinstance(truth, pa.Array), "the predicate reads a column"
        wanted = pc.fill_null(truth, False).to_numpy(zero_copy_only=False)
        signature = batch.signature.having(preferred=True)
        first, others = np.flatnonzero(wanted), np.flatnonzero(~wanted)
        pieces = []
        if len(others):
            pieces.append(batch.take(others, origin=len(others)))
        if len(first):
            pieces.append(batch.take(first, origin=len(first), signature=signature))
        return pieces
