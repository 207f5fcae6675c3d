"""Bindings on their way to a source, in the types of its columns, and its rows on their way back, by key.

A join compares in a type that may be wider than the lookup's column: an ``int`` with a ``bigint``, a date
with a timestamp. A source is asked in the column's own type; a value that this type does not have equals
nothing there. And a source may compare in its own way, so rows of keys that nobody asked for are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.plan.evaluation import widen
from millrace.engine.stems.bindings import KeyedRows
from millrace.engine.tuples import KeyColumn, codes

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def narrowed(bindings: pa.RecordBatch, keys: pa.Schema) -> tuple[pa.RecordBatch, Mask]:
    """Return bindings in the types of their columns, and which of them can be expressed so.

    The bindings have a column for each key, without nulls. The mask has shape ``(n,)``; rows of the batch
    outside of it mean nothing.
    """
    columns = []
    fits = np.ones(bindings.num_rows, np.bool_)
    for field in keys:
        wide = bindings.column(field.name)
        own = wide if wide.type == field.type else _cast(wide, field.type)
        if own is not wide:
            same = pc.fill_null(pc.equal(widen(own, wide.type), wide), False)
            fits &= same.to_numpy(zero_copy_only=False)
        columns.append(own)
    return pa.RecordBatch.from_arrays(columns, schema=keys), fits


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast what can be cast; what cannot becomes null, or some other value."""
    try:
        # An unsafe cast to a decimal makes values of more digits than the type has.
        return pc.cast(values, to, safe=pa.types.is_decimal(to))
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, to)
        half = len(values) // 2
        return pa.concat_arrays([_cast(values[:half], to), _cast(values[half:], to)])


def grouped(rows: pa.RecordBatch, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
    """Return the rows of these keys in the keys' order, and how many each key has.

    Rows of other keys are dropped: a source may compare in its own way, by collation for example. Rows have
    the keys' columns among theirs, in the same types. Keys are distinct and without nulls.
    """
    if keys.num_rows == 1:
        mask = None
        for name, column in zip(keys.schema.names, keys.columns, strict=True):
            same = pc.fill_null(pc.equal(rows.column(name), column[0]), False)
            mask = same if mask is None else pc.and_(mask, same)
        found = rows if pc.all(mask).as_py() is not False else rows.filter(mask)
        return found, [found.num_rows]
    index = KeyedRows(keys.schema, [KeyColumn(field.name, field.type) for field in keys.schema])
    index.append(keys, [codes(keys.column(k.name), k.type)[0] for k in index.keys])
    valid = np.ones(rows.num_rows, np.bool_)
    coded = []
    for key in index.keys:
        code, mask = codes(rows.column(key.name), key.type)
        coded.append(code)
        valid = valid if mask is None else valid & mask
    places, numbers = index.matches(coded, lambda k: rows.column(index.keys[k].name))
    kept = valid[places]
    places, numbers = places[kept], numbers[kept]
    order = np.lexsort((places, numbers))
    counts = np.bincount(numbers, minlength=keys.num_rows)
    return rows.take(pa.array(places[order])), counts.tolist()
