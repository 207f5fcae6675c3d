"""The schema of a lookup table as users declare it: Spark's DDL, or an Arrow schema."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millrace.errors import InputError
from millrace.parquet.types import PLAIN_MICROS, UTC_MICROS, NotSparks, spark_type

_EXAMPLE = "such as 'sku string, price double, day date'"
_TYPES: dict[exp.DType, pa.DataType] = {
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMP: UTC_MICROS,
    exp.DType.TIMESTAMPTZ: UTC_MICROS,
    exp.DType.TIMESTAMPLTZ: UTC_MICROS,
    exp.DType.TIMESTAMPNTZ: PLAIN_MICROS,
}


def schema_of(name: str, schema: object) -> pa.Schema:
    """Return a schema, Spark's DDL text or an Arrow one, in the Arrow types of Spark's.

    Raises:
        InputError: It cannot be read, or has a type that Spark has not; says of which table.
    """
    where = f"lookup table {name!r}"
    if isinstance(schema, str):
        return _from_text(where, schema)
    if isinstance(schema, pa.Schema):
        return pa.schema([_arrow_field(where, field) for field in schema])
    raise InputError(
        f"{where}: schema is given as {type(schema).__name__}: expected Spark's DDL, {_EXAMPLE}, a "
        "pyarrow.Schema or a StructType"
    )


def _arrow_field(where: str, field: pa.Field) -> pa.Field:
    try:
        return pa.field(field.name, spark_type(field.type))
    except NotSparks:
        hint = "; use microseconds" if pa.types.is_timestamp(field.type) else ""
        raise InputError(
            f"{where}: column {field.name!r} has Arrow type {field.type}, which Spark has not{hint}"
        ) from None


def _from_text(where: str, text: str) -> pa.Schema:
    if not text.strip():
        raise InputError(f"{where} has no column: expected its schema, {_EXAMPLE}")
    try:
        # Spark takes ``name type`` and ``name: type`` alike, and so do the fields of a struct.
        made = sqlglot.parse_one(f"CREATE TABLE t (s struct<{text}>)", dialect="spark")
    except SqlglotError:
        made = exp.Null()
    struct = next((each for each in made.find_all(exp.DataType) if each.this == exp.DType.STRUCT), None)
    columns = [] if struct is None or text.rstrip().endswith(",") else list(struct.expressions)
    definitions = [c for c in columns if isinstance(c, exp.ColumnDef) and c.args.get("kind") is not None]
    if not definitions or len(definitions) != len(columns):
        raise InputError(f"{where}: schema {text!r} cannot be read: expected Spark's DDL, {_EXAMPLE}")

    def refuse(shown: str) -> InputError:
        return InputError(
            f"{where}: schema {text!r} has type {shown}: expected a number, string, binary, boolean, date, "
            "timestamp, or an array, map or struct of them"
        )

    return pa.schema([pa.field(d.name, _type(d.args["kind"], refuse)) for d in definitions])


def _type(node: exp.DataType, refuse: Callable[[str], InputError]) -> pa.DataType:
    kind, inner = node.this, node.expressions
    if kind in (exp.DType.VARCHAR, exp.DType.CHAR):
        raise refuse(f"{node.sql(dialect='spark')} (use string)")
    if kind in _TYPES and not inner:
        return _TYPES[kind]
    if kind == exp.DType.DECIMAL:
        digits = [int(each.name) for each in inner] or [10]
        precision, scale = digits[0], digits[1] if len(digits) > 1 else 0
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    if kind == exp.DType.ARRAY and len(inner) == 1:
        return pa.list_(pa.field("element", _type(inner[0], refuse)))
    if kind == exp.DType.MAP and len(inner) == 2:
        return pa.map_(_type(inner[0], refuse), _type(inner[1], refuse))
    if kind == exp.DType.STRUCT and inner and all(isinstance(each, exp.ColumnDef) for each in inner):
        return pa.struct([pa.field(each.name, _type(each.args["kind"], refuse)) for each in inner])
    raise refuse(node.sql(dialect="spark"))
