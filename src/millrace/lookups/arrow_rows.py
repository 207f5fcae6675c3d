"""Arrow tables as a function returns them, as batches of the declared columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from millrace.errors import near
from millrace.lookups.strict import Rules, Unfit, array_of


def batch_of(
    table: pa.Table, schema: pa.Schema, key: Mapping[str, Any], rules: Rules, *, pandas: bool
) -> pa.RecordBatch:
    """Return a table's rows as a batch of the schema; columns that it does not name are left out.

    The table has a column for each of the schema's, but for those of ``key``: values for bind columns that it
    lacks, as Arrow scalars. With ``pandas`` it was a DataFrame, where whole numbers with nulls among them are
    floats.

    Raises:
        Unfit: A column is missing, or has a value of another type.
    """
    columns = []
    for field in schema:
        if field.name in table.column_names:
            given = table.column(table.column_names.index(field.name)).combine_chunks()
            columns.append(_converted(given, field, rules, pandas=pandas))
        elif field.name in key:
            columns.append(pa.repeat(key[field.name], table.num_rows))
        else:
            raise Unfit(f"column {field.name!r} is missing: {near(field.name, table.column_names)}")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _converted(given: Any, field: pa.Field, rules: Rules, *, pandas: bool) -> pa.Array:
    if isinstance(given, pa.ChunkedArray):  # of no chunks at all
        given = pa.concat_arrays(given.chunks) if given.num_chunks else pa.array([], given.type)
    if t.is_dictionary(given.type):
        given = given.dictionary_decode()
    kind = field.type
    if given.type == kind:
        return given
    if _alike(given.type, kind) or (pandas and t.is_floating(given.type) and t.is_integer(kind)):
        # Digits behind microseconds are cut off, as Spark does.
        finer = t.is_timestamp(given.type) and given.type.unit == "ns"
        try:
            return given.cast(kind, safe=not finer)
        except pa.ArrowInvalid:
            return array_of(given.to_pylist(), kind, field.name, rules)  # which names the value
    return array_of(given.to_pylist(), kind, field.name, rules)


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether Arrow's own checked conversion is as strict as ours."""
    if t.is_null(one):
        return True
    if t.is_integer(other):
        return bool(t.is_integer(one))
    if t.is_float64(other):
        return bool(t.is_float32(one) or t.is_integer(one))
    if t.is_decimal(other):
        return bool(t.is_decimal(one) or t.is_integer(one))
    if t.is_string(other):
        return bool(t.is_large_string(one) or t.is_string_view(one))
    if t.is_binary(other):
        return bool(t.is_large_binary(one) or t.is_binary_view(one) or t.is_fixed_size_binary(one))
    if t.is_timestamp(other) and t.is_timestamp(one):
        return (one.tz is None) == (other.tz is None)
    return False
