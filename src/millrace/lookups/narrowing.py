"""Bindings in the types of a lookup's own columns.

A join compares in a type that may be wider than the lookup's column: an ``int`` with a ``bigint``, a date
with a timestamp. A source is asked in the column's own type; a value that this type does not have equals
nothing there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.expressions import widen

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def narrowed(bindings: pa.RecordBatch, keys: pa.Schema) -> tuple[pa.RecordBatch, Mask]:
    """Return bindings in the types of their columns, and which of them can be expressed so.

    Args:
        bindings: A column for each key, without nulls.
        keys: The types to have.

    Returns:
        A batch of the schema ``keys``, and a mask of shape ``(n,)``; rows outside of it mean nothing.
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
