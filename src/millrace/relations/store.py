"""The base tuples of one relation in one task, and the key codes they are joined by.

Rows get numbers in the order of arrival. Payload stays in the Arrow batches it came in and is
only gathered for output, for residual predicates and to verify hashed keys; what joins touch all
the time, the key codes, lies in contiguous numpy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import ExecutionError
from millrace.kernels import MAX_ROWS
from millrace.relations.keys import codes, is_exact

Array = np.ndarray[Any, np.dtype[Any]]

_MERGE_BYTES = 1 << 30  # Arrow's strings have 32-bit offsets: never merge chunks beyond this


class KeyColumn:
    """A key of a relation: ``name`` compared in ``type``; the store numbers them."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name = name
        self.type = kind
        self.exact = is_exact(kind)


def keyed(
    batch: pa.RecordBatch, keys: Sequence[KeyColumn], same: Sequence[tuple[int, int]] = ()
) -> tuple[pa.RecordBatch, list[Array]]:
    """Return the rows that can match at all, and their key codes.

    A row with a null key meets no equality of an inner join, so it is dropped here, once and for
    all; so is a row whose two columns of one attribute class differ (``same`` lists such pairs of
    keys).
    """
    coded = [codes(batch.column(key.name), key.type) for key in keys]
    mask: Array | None = None
    for _, valid in coded:
        if valid is not None:
            mask = valid if mask is None else mask & valid
    for a, b in same:
        equal = coded[a][0] == coded[b][0]
        if not keys[a].exact:
            sides = (pc.cast(batch.column(keys[k].name), keys[k].type) for k in (a, b))
            equal &= pc.fill_null(pc.equal(*sides), False).to_numpy(zero_copy_only=False)
        mask = equal if mask is None else mask & equal
    if mask is None or mask.all():
        return batch, [c for c, _ in coded]
    return batch.filter(pa.array(mask)), [c[mask] for c, _ in coded]


class RelationStore:
    """Appended Arrow batches with row numbers, and one code array per key.

    Args:
        schema: The relation's columns.
        keys: The columns whose codes are kept.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[KeyColumn]) -> None:
        self.schema = schema
        self.keys = tuple(keys)
        self.rows = 0
        self._chunks: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        self._codes: list[Array] = [np.empty(0, np.int64) for _ in keys]

    @classmethod
    def single(cls, batch: pa.RecordBatch, keys: Sequence[KeyColumn], coded: list[Array]) -> RelationStore:
        """Return a store that holds one batch of a relation that is streamed without being kept."""
        store = cls(batch.schema, keys)
        store.rows = batch.num_rows
        store._chunks, store._starts, store._codes = [batch], [0], coded
        return store

    @property
    def nbytes(self) -> int:
        """Memory of the tuples and their codes in bytes."""
        return sum(int(c.nbytes) for c in self._chunks) + sum(int(c.nbytes) for c in self._codes)

    def append(self, batch: pa.RecordBatch, coded: Sequence[Array]) -> None:
        """Append the batch's rows with their key codes (one array a key, in the order of ``keys``)."""
        first, last = self.rows, self.rows + batch.num_rows
        if last > MAX_ROWS:
            raise ExecutionError(
                f"one cell got more than {MAX_ROWS} rows of a relation; more cells would make each smaller"
            )
        for i, values in enumerate(coded):
            if last > len(self._codes[i]):
                grown = np.empty(max(last, 2 * len(self._codes[i]), 1024), np.int64)
                grown[:first] = self._codes[i][:first]
                self._codes[i] = grown
            self._codes[i][first:last] = values
        self._chunks.append(batch)
        self._starts.append(first)
        self.rows = last

    def codes(self, key: int) -> Array:
        """Return the codes of key number ``key``, shape ``(rows,)``, without a copy."""
        return self._codes[key][: self.rows]

    def chunk(self, rows: Array) -> pa.RecordBatch:
        """Return the rows as one batch; the whole of a single-batch store without a copy."""
        if len(self._chunks) == 1 and len(rows) == self.rows:
            return self._chunks[0]
        if not self.schema.names:
            return self._chunks[0].slice(0, len(rows))
        return pa.RecordBatch.from_arrays(
            [self.gather(n, rows) for n in self.schema.names], schema=self.schema
        )

    def gather(self, column: str, rows: Array) -> pa.Array:
        """Return the column's values at these row numbers, in their order."""
        place = self.schema.get_field_index(column)
        self._merge()
        if len(self._chunks) == 1 and _is_run(rows):
            return self._chunks[0].column(place).slice(int(rows[0]), len(rows))
        if len(self._chunks) == 1:
            return self._chunks[0].column(place).take(pa.array(rows))
        if not self._chunks:
            return pa.nulls(0, self.schema.field(place).type)
        owner = np.searchsorted(np.asarray(self._starts), rows, side="right") - 1
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(len(self._chunks) + 1))
        parts = [
            chunk.column(place).take(pa.array(rows[order[low:high]] - start))
            for chunk, start, low, high in zip(
                self._chunks, self._starts, bounds[:-1], bounds[1:], strict=True
            )
        ]
        inverse = np.empty(len(order), np.int64)
        inverse[order] = np.arange(len(order))
        return pa.concat_arrays(parts).take(pa.array(inverse))

    def _merge(self) -> None:
        """Merge the newest chunks until sizes fall geometrically: few chunks, O(n log n) copying."""
        chunks, starts = self._chunks, self._starts
        if len(chunks) < 2:
            return
        keep = len(chunks)
        size, total = 0, 0
        while keep and (
            size == 0
            or (chunks[keep - 1].num_rows < 2 * size and total + chunks[keep - 1].nbytes < _MERGE_BYTES)
        ):
            keep -= 1
            size += max(1, chunks[keep].num_rows)
            total += chunks[keep].nbytes
        if len(chunks) - keep > 1:
            merged = pa.Table.from_batches(chunks[keep:], self.schema).combine_chunks()
            batches = merged.to_batches() or [pa.RecordBatch.from_pylist([], self.schema)]
            del chunks[keep:]
            first = starts[keep]
            del starts[keep:]
            for batch in batches:
                chunks.append(batch)
                starts.append(first)
                first += batch.num_rows


def _is_run(rows: Array) -> bool:
    """Whether the row numbers count up one by one, so that a slice will do."""
    if not len(rows) or rows[-1] - rows[0] + 1 != len(rows):
        return False
    return bool((rows[1:] - rows[:-1] == 1).all())
