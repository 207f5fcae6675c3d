"""Rows as keys: equal for rows that are the same in every value, of whatever type."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from millrace.limits.digest import digest


def row_keys(batch: pa.RecordBatch) -> list[bytes]:
    """Return a digest of each row.

    Two rows have the same one exactly if all their values are the same: null only equals null, every NaN is
    the same NaN, 0.0 and -0.0 differ, nested values are compared likewise.
    """
    if batch.num_columns == 0:
        return [digest(())] * batch.num_rows
    return [digest(row) for row in zip(*map(_values, batch.columns), strict=True)]


def _values(column: pa.Array) -> Iterator[object]:
    plain = plain_type(column.type)
    return iter((column if plain == column.type else column.cast(plain)).to_pylist())


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type whose values Python can all hold: times beyond its years become integers."""
    if pt.is_date32(kind) or pt.is_time32(kind):
        return pa.int32()
    if pt.is_temporal(kind) and not pt.is_interval(kind):
        return pa.int64()
    if pt.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pt.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)), kind.list_size)
    if pt.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(plain_type(kind.value_type)))
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind
