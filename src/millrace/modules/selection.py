"""Selection modules: predicates over tuples that span the relations they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.expressions import Predicate, columns_of, evaluate, show
from millrace.tuples import TupleBatch


class Selection:
    """Passes tuples for which the predicate is true; unknown counts as false.

    Args:
        number: Place among the block's residual predicates: the done bit it sets.
        predicate: Over columns of the relations named in ``aliases``.
        aliases: The block's relations, by number.
    """

    def __init__(self, number: int, predicate: Predicate, aliases: Sequence[str]) -> None:
        self.number = number
        self.name = f"Selection({show(predicate)})"
        self._predicate = predicate
        self._columns = [(ref, aliases.index(ref.relation)) for ref in set(columns_of(predicate))]

    def select(self, batch: TupleBatch) -> TupleBatch:
        """Return the passing tuples, marked as done with this predicate."""
        values = {
            ref: batch.stores[relation].gather(ref.column, batch.rows[relation])
            for ref, relation in self._columns
        }
        truth = evaluate(self._predicate, values)
        if isinstance(truth, pa.Scalar):  # a predicate of constants only
            passing = np.arange(batch.size if truth.as_py() else 0)
        else:
            passing = np.flatnonzero(pc.fill_null(truth, False).to_numpy(zero_copy_only=False))
        signature = replace(batch.signature, done=batch.signature.done | 1 << self.number)
        return batch.take(passing, signature=signature, path=(*batch.path, f"σ{self.number + 1}"))
