"""Spark's types as Arrow types and back, and Arrow batches from Spark under Millrace's types."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type

from millrace.engine.arrays import counted
from millrace.errors import UnsupportedType
from millrace.parquet.types import PLAIN_MICROS, UTC_MICROS, NotSparks, cast, spark_type as read_type

_SIMPLE: dict[type[st.DataType], pa.DataType] = {
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.BinaryType: pa.binary(),
    st.DateType: pa.date32(),
    st.TimestampType: UTC_MICROS,
    st.TimestampNTZType: PLAIN_MICROS,
    st.CharType: pa.string(),
    st.VarcharType: pa.string(),
}


def arrow_type(kind: st.DataType) -> pa.DataType:
    """Return the Arrow type that Millrace uses for a Spark type.

    UnsupportedType if that has no counterpart (intervals, variants, collated strings, …).
    """
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    match kind:
        case st.StringType() if kind == st.StringType():
            return pa.string()
        case st.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case st.ArrayType():
            return pa.list_(pa.field("element", arrow_type(kind.elementType)))
        case st.MapType():
            return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
        case st.StructType():
            return pa.struct([pa.field(f.name, arrow_type(f.dataType)) for f in kind.fields])
    raise UnsupportedType(
        f"Spark type {kind.simpleString()} cannot pass through a join here; "
        "expected a number, string, binary, boolean, date, timestamp, or an array, map or struct of them"
    )


def spark_type(kind: pa.DataType) -> st.DataType:
    """Return the Spark type of one of Millrace's Arrow types; UnsupportedType if it is not one."""
    with suppress(NotSparks):
        if read_type(kind) == kind:
            return from_arrow_type(kind, prefer_timestamp_ntz=True)
    raise UnsupportedType(f"Arrow type {kind} is not the form of a Spark type")


def spark_schema(schema: pa.Schema) -> st.StructType:
    """Return the Spark schema of an Arrow schema; every column may be null."""
    return st.StructType([st.StructField(f.name, spark_type(f.type)) for f in schema])


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema; :class:`UnsupportedType` names the column."""
    fields = []
    for column in schema.fields:
        try:
            fields.append(pa.field(column.name, arrow_type(column.dataType)))
        except UnsupportedType as error:
            raise UnsupportedType(f"column {column.name!r}: {error}") from None
    return pa.schema(fields)


def normalise(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return what ``mapInArrow`` gives under the types and names of ``schema``, by position.

    Spark hands timestamps over in the session's time zone (the same instants) and may use large
    types; neither changes a value.
    """
    if not len(schema):
        return counted(batch.num_rows)
    if batch.schema == schema:
        return batch
    columns = [cast(column, f.type) for column, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
