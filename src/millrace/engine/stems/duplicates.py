"""Set semantics at build: a tuple that is identical to one already held is a duplicate.

Raman, Deshpande & Hellerstein 2003, section 3.2: where a relation has several access modules, the same tuple
may come from each of them; the SteM removes any build tuple identical to another. Nulls are identical to
nulls, NaN to NaN, and -0.0 to 0.0.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.arrays import Array, is_true, scalar, to_numpy
from millrace.engine.kernels import Multimap
from millrace.engine.stems.conditions import combined
from millrace.engine.tuples import RelationStore, codes, is_exact, is_key_type
from millrace.errors import UnsupportedType

_NULL = np.int64(0x6E756C6C)
_STEP = 65_536


class Duplicates:
    """An index on whole tuples.

    Args:
        alias: The relation's name, for errors.
        schema: Its columns.

    Raises:
        UnsupportedType: A column cannot be compared.
    """

    def __init__(self, alias: str, schema: pa.Schema) -> None:
        for field in schema:
            if not is_key_type(field.type):
                raise UnsupportedType(
                    f"relation {alias!r} has several access modules or is a set, so its tuples are compared "
                    f"to find duplicates, but column {field.name!r} is of type {field.type}; expected a "
                    "number, string, binary, boolean, date or timestamp; leave the column out"
                )
        self._schema = schema
        self._index = Multimap()
        self._base = 0

    @property
    def nbytes(self) -> int:
        """Memory of the index in bytes."""
        return self._index.nbytes

    def fresh(self, chunk: pa.RecordBatch, store: RelationStore) -> Array:
        """Return positions of the rows that are neither held already nor repeated, and index them.

        The caller appends exactly these to the store, in this order.
        """
        if not self._schema.names:  # tuples without a column are all equal
            return np.arange(min(1, chunk.num_rows) if not store.rows else 0)
        digests = combined([_known(chunk.column(f.name), f.type) for f in self._schema])
        own = RelationStore.single(chunk, (), [])
        _, first = np.unique(_ids(chunk), axis=0, return_index=True)
        first.sort()
        walk = self._index.probe(digests[first], max(0, store.first - self._base))
        held = np.zeros(len(first), np.bool_)
        while not walk.is_done:
            left, right = self._index.matches(walk, max(_STEP, len(first)))
            keep = _identical(self._schema, own, first[left], store, right + self._base)
            held[left[keep]] = True
        fresh = first[~held]
        self._index.insert(digests[fresh])
        return fresh

    def evict(self, store: RelationStore) -> None:
        """Index anew what the store still holds."""
        self._index = Multimap()
        self._base = store.first
        if store.held and self._schema.names:
            rows = np.arange(store.first, store.rows)
            self._index.insert(combined([_known(store.gather(f.name, rows), f.type) for f in self._schema]))


def _known(column: pa.Array, kind: pa.DataType) -> Array:
    """Return codes in which nulls have one code too."""
    coded, valid = codes(column, kind)
    return coded if valid is None else np.where(valid, coded, _NULL)


def _ids(chunk: pa.RecordBatch) -> Array:
    """Return numbers that are equal exactly where two rows are, shape ``(rows, 2 · columns)``."""
    columns = []
    for field in chunk.schema:
        column = chunk.column(field.name)
        coded, valid = codes(column, field.type)
        if not is_exact(field.type):
            numbers = column.dictionary_encode().indices
            coded = to_numpy(pc.fill_null(numbers, scalar(-1, numbers.type))).astype(np.int64)
        valid = np.ones(len(coded), np.bool_) if valid is None else valid
        columns += [np.where(valid, coded, 0), valid.astype(np.int64)]
    return np.stack(columns, axis=1)


def _identical(schema: pa.Schema, one: RelationStore, a: Array, other: RelationStore, b: Array) -> Array:
    keep = np.ones(len(a), np.bool_)
    for field in schema:
        x, y = one.gather(field.name, a), other.gather(field.name, b)
        if is_exact(field.type):
            equal = _known(x, field.type) == _known(y, field.type)
        else:
            equal = is_true(pc.equal(x, y))
        both = to_numpy(pc.and_(pc.is_null(x), pc.is_null(y)))
        some = to_numpy(pc.or_(pc.is_null(x), pc.is_null(y)))
        keep &= np.where(some, both, equal)
    return keep
