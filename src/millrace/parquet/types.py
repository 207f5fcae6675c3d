"""Spark's view of a Parquet column's type, as an Arrow type.

Parquet files may carry an Arrow schema with types that Spark does not have: ``string_view``, large types,
dictionaries, unsigned integers, milliseconds. Spark reads the Parquet types beneath. Every batch is cast to
these before anybody else sees it.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as t

UTC_MICROS = pa.timestamp("us", tz="UTC")
PLAIN_MICROS = pa.timestamp("us")

_SAME = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
)
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


class NotSparks(TypeError):
    """Spark refuses what a file has, or reads it in a way that is not repeated here."""


def spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow form of the Spark type under which Spark reads a Parquet column.

    Raises:
        NotSparks: There is none that is certain; Spark has to read the column itself.
    """
    if kind in _SAME:
        return kind
    if kind in _WIDER:
        return _WIDER[kind]
    if t.is_uint64(kind):
        return pa.decimal128(20, 0)
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        return pa.binary()
    if t.is_dictionary(kind):
        return spark_type(kind.value_type)
    if t.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if t.is_timestamp(kind) and kind.unit in ("ms", "us"):
        return UTC_MICROS if kind.tz is not None else PLAIN_MICROS
    if t.is_struct(kind):
        return pa.struct([pa.field(f.name, spark_type(f.type)) for f in kind.fields])
    if t.is_list(kind) or t.is_large_list(kind):
        return pa.list_(pa.field("element", spark_type(kind.value_type)))
    if t.is_map(kind):
        return pa.map_(spark_type(kind.key_type), spark_type(kind.item_type))
    raise NotSparks(f"type {kind}")


def cast(array: pa.Array, to: pa.DataType) -> pa.Array:
    """Return the array as ``to``; the same array when it has that type already."""
    if array.type == to:
        return array
    if t.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type == to else array.cast(to)
