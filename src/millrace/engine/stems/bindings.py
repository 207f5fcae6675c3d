"""Sets of bindings: which values an index was asked for, and for which it has returned everything (EOT).

Raman, Deshpande & Hellerstein 2003, section 2.1.3: an EOT tuple has values in the bound fields; a probe
tuple that agrees with it has all of its matches in the SteM. Two bindings are equal when they are equal
under Spark's equality in the type of the join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.arrays import Array, scalar, to_arrow
from millrace.engine.kernels import Multimap
from millrace.engine.plan.evaluation import widen
from millrace.engine.stems.conditions import Classes, Matching, combine_codes
from millrace.engine.tuples import KeyColumn, RelationStore, codes
from millrace.engine.tuples.batch import TupleBatch
from millrace.engine.tuples.keys import Values, first_of_equal

_STEP = 65_536


def find_matches(
    index: Multimap, coded: Array, agree: Callable[[Array, Array], Array], low: int = 0
) -> tuple[Array, Array]:
    """Return the pairs with equal codes that ``agree``: positions of tuples, and rows from ``low`` on."""
    walk = index.probe(coded, low)
    lefts, rights = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    while not walk.is_done:
        left, right = walk.pairs(max(_STEP, len(coded)))
        keep = agree(left, right)
        lefts.append(left[keep])
        rights.append(right[keep])
    return np.concatenate(lefts), np.concatenate(rights)


class KeyedRows:
    """Rows found by the exact values of their keys, in the types that these compare in; at least one key."""

    def __init__(self, schema: pa.Schema, keys: Sequence[KeyColumn]) -> None:
        self.keys = tuple(keys)
        self.store = RelationStore(schema, keys)
        self._index = Multimap()

    def append(self, rows: pa.RecordBatch, coded: Sequence[Array]) -> None:
        self.store.append(rows, coded)
        self._index.insert(combine_codes(coded))

    def matches(self, coded: Sequence[Array], values: Values) -> tuple[Array, Array]:
        """Return positions of tuples and numbers of the rows that agree with them on every key.

        ``coded`` has an array of shape ``(n,)`` for each key. ``values`` are asked only for keys whose codes
        do not decide.
        """

        def agree(left: Array, right: Array) -> Array:
            return self.store.agree(self.keys, range(len(self.keys)), coded, values, left, right)

        return find_matches(self._index, combine_codes(coded), agree)


class BindingSet(KeyedRows):
    """Different bindings of some columns, in the types of these keys."""

    def __init__(self, keys: Sequence[KeyColumn]) -> None:
        self.schema = pa.schema([pa.field(key.name, key.type) for key in keys])
        super().__init__(self.schema, keys)

    @property
    def size(self) -> int:
        return self.store.rows

    @property
    def nbytes(self) -> int:
        """Memory of bindings, codes and index in bytes."""
        return self.store.nbytes + self._index.nbytes

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that the index takes however few bindings there are."""
        return self._index.least

    def codes(self, first: int) -> Array:
        """Return a code for each binding from number ``first`` on: equal ones have equal codes."""
        return combine_codes([self.store.codes(k)[first:] for k in range(len(self.keys))])

    def contains(self, coded: Sequence[Array], values: Values) -> Array:
        """Return which tuples have a binding that is in the set, shape ``(n,)``; see :meth:`matches`."""
        known = np.zeros(len(coded[0]), np.bool_)
        if self.size and len(known):
            known[self.matches(coded, values)[0]] = True
        return known

    def add(self, coded: Sequence[Array], values: Values) -> pa.RecordBatch:
        """Add bindings; return those that were not in the set, each once, as a batch of ``schema``."""
        first = first_of_equal(self.keys, coded, values)
        known = self.contains([c[first] for c in coded], lambda k: values(k).take(to_arrow(first)))
        fresh = first[~known]
        rows = pa.RecordBatch.from_arrays(
            [values(k).take(to_arrow(fresh)) for k in range(len(self.keys))], schema=self.schema
        )
        if len(fresh):
            self.append(rows, [c[fresh] for c in coded])
        return rows

    def add_rows(self, bindings: pa.RecordBatch) -> pa.RecordBatch:
        """Add bindings, with a column for each key; return as :meth:`add` does."""
        columns = [bindings.column(key.name) for key in self.keys]
        coded = [codes(column, key.type)[0] for column, key in zip(columns, self.keys, strict=True)]
        return self.add(coded, columns.__getitem__)


def bound(matching: Matching, batch: TupleBatch, classes: Classes) -> tuple[list[Array], Values]:
    """Return what tuples bind: codes of these classes, and what gives their values, in the classes' types.

    Floats are given as Spark compares them: there is no -0.0 among them.
    """

    @cache
    def values(place: int) -> pa.Array:
        relation, number = matching.member(batch.rows, classes[place])
        key = matching.layouts[relation].keys[number]
        return as_compared(batch.stores[relation].gather(key.name, batch.rows[relation]), key.type)

    return matching.bound((batch.stores, batch.rows), classes), values


def as_compared(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in the type that they compare in; of floats that are equal to Spark there is one."""
    column = widen(column, kind)
    return pc.add(column, scalar(0.0, kind)) if pa.types.is_floating(kind) else column
