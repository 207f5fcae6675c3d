"""What access modules return, checked: the right columns, and of an index only what it was asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.errors import ExecutionError
from millrace.expressions import widen
from millrace.relations import KeyColumn, codes
from millrace.state.bindings import BindingSet


def checked(name: str, schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return an access module's rows; ExecutionError unless they have exactly the relation's schema."""
    if not rows.schema.equals(schema):
        raise ExecutionError(
            f"access module {name!r} returned columns {rows.schema.names} of types "
            f"{[str(t) for t in rows.schema.types]}; expected exactly {schema.names} of types "
            f"{[str(t) for t in schema.types]}"
        )
    return rows


def agreeing(rows: pa.RecordBatch, bindings: pa.RecordBatch, keys: Sequence[KeyColumn]) -> pa.RecordBatch:
    """Return the rows that were asked for: others would come again with their own binding."""
    asked = BindingSet(keys)
    asked.add(
        [codes(c, k.type)[0] for c, k in zip(bindings.columns, asked.keys, strict=True)], bindings.column
    )
    columns = [widen(rows.column(key.name), key.type) for key in keys]
    both = [codes(c, k.type) for c, k in zip(columns, keys, strict=True)]
    keep = asked.contains([coded for coded, _ in both], columns.__getitem__)
    for _, valid in both:
        keep = keep if valid is None else keep & valid
    return rows if keep.all() else rows.filter(pa.array(keep))
