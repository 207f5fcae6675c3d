"""The rows of an answer by the keys that were asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.relations import KeyColumn, codes
from millrace.engine.state.bindings import KeyedRows


def grouped(rows: pa.RecordBatch, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
    """Return the rows of these keys in the keys' order, and how many each key has.

    Rows of other keys are dropped: a source may compare in its own way, by collation for example.

    Args:
        rows: With the keys' columns among theirs, in the same types.
        keys: Distinct and without nulls.
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
