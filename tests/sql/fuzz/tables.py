"""Seven small tables whose names, types and values are easy to mix up.

Columns share names between tables. Columns are also called like tables, and where such a column is a
struct, its fields are called like that table's columns. Keys are small numbers, so that random
equalities find partners; floating-point numbers are exact in binary, so that sums do not depend on
the order in which they are added.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tests.sql import small_tables

FRAME_ONLY = frozenset({"t"})
"""Tables with columns that are never null: Parquet would forget that."""

KINDS = {
    "whole": pa.decimal128(5, 0),
    "price": pa.decimal128(10, 2),
    "fine": pa.decimal128(12, 4),
    "time": pa.timestamp("us", "UTC"),
    "ntz": pa.timestamp("us"),
    "array": pa.list_(pa.int32()),
    "map": pa.map_(pa.string(), pa.int32()),
}
"""Types beside those that Arrow has a word for."""


def _type(kind: str) -> pa.DataType:
    return KINDS[kind] if kind in KINDS else pa.type_for_alias(kind)


def _fields(text: str, *, nullable: bool = True) -> list[pa.Field]:
    """Read columns that are written as in SQL, but for dots and blanks in their names."""
    pairs = [each.rpartition(" ") for each in text.split(", ")]
    return [pa.field(name, _type(kind), nullable=nullable) for name, _, kind in pairs]


KINDS["row"] = pa.struct(_fields("id int32, s string, k int64"))
KINDS["pair"] = pa.struct(_fields("id int32, k int64"))
KINDS["nested"] = pa.struct(_fields("f int32, g string, a pair"))
KINDS["point"] = pa.struct(_fields("k int32, v string"))
KINDS["solid"] = pa.struct([*_fields("id int32", nullable=False), *_fields("v string")])
KINDS["items"] = pa.list_(pa.struct(_fields("id int32, s string")))
COLUMNS = {
    "a": "id int32, k int64, s string, d date32, x double, n price, flag bool, b row",
    "b": "id int32, k int32, s string, v double, d time, n fine, w string",
    "c": "id int64, k int16, w string, st nested, arr array, t point",
    "e": "id int8, i2 int16, f float, bin binary, ntz ntz, ts time, items items, m map, k string, n whole, "
    "large int64",
    "k": "K int64, ID int32, S string, a pair, e double",
    "t": "id int32, k int32, v string, d date32, flag bool, st solid",
    "odd name": "weird col int32, order string, a`b int64, p.q int64, merge int32, left int64, Id int32, "
    "a string",
}
TIMES = [dt.datetime(1995, 1, 1), dt.datetime(1995, 1, 2, 12, 30), dt.datetime(1996, 2, 29, 23, 59, 59, 5)]  # noqa: DTZ001  # the zone is the column's
VALUES: list[tuple[str, list[Any]]] = [
    ("string", ["x", "y", "y", "zz", "p", "", "it's {x}", 'a"b', "{}"]),
    ("binary", [b"x", b"\x00\xff", b""]),
    ("bool", [True, False]),
    ("date32", [dt.date(1995, 1, 1), dt.date(1995, 1, 2), dt.date(1995, 2, 28), dt.date(1996, 2, 29)]),
    ("time ntz", TIMES),
    ("float double", [1.5, math.nan, -0.0, 0.0, 2.0, 1.0]),
    ("price fine", [Decimal("1.5"), Decimal(2), Decimal("9.99"), Decimal(0)]),
    ("int8 int16 int32 int64 whole", [1, 2, 2, 3, 4, 5]),
]
OF_TYPE = {_type(kind): values for kinds, values in VALUES for kind in kinds.split()}
OWN = {("e", "k"): ["1", "2", "3", None], ("e", "large"): [2**62, -(2**63), 1, 2, 2**63 - 1, None]}


def _value(field: pa.Field, draw: random.Random) -> Any:
    kind = field.type
    if field.nullable and draw.random() < 0.15:
        return None
    if pa.types.is_struct(kind):
        return {inner.name: _value(inner, draw) for inner in kind}
    if pa.types.is_map(kind):
        return [(key, _value(kind.item_field, draw)) for key in draw.sample("xyz", draw.randrange(3))]
    if pa.types.is_list(kind):
        return [_value(kind.value_field, draw) for _ in range(draw.randrange(3))]
    return draw.choice(OF_TYPE[kind])


def _table(name: str, rows: int = 7) -> pa.Table:
    """Return a table, whose last row is its first once more."""
    draw, fields = random.Random(name), _fields(COLUMNS[name], nullable=name not in FRAME_ONLY)
    columns = []
    for field in fields:
        own = OWN.get((name, field.name))
        values = [draw.choice(own) if own else _value(field, draw) for _ in range(rows)]
        columns.append(pa.array([*values, values[0]], field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


TABLES = {name: _table(name) for name in COLUMNS}


def write(folder: Path) -> dict[str, str]:
    """Write every table that Parquet keeps whole to a file; return the path of each by name."""
    kept = {name: table for name, table in TABLES.items() if name not in FRAME_ONLY}
    return small_tables.write(folder, kept)


def schema(name: str) -> StructType:
    return from_arrow_schema(TABLES[name].schema, prefer_timestamp_ntz=True)


def frames(spark, *, empty: bool = False) -> dict[str, object]:
    return {
        name: spark.createDataFrame(table.slice(0, 0) if empty else table, schema(name))
        for name, table in TABLES.items()
    }


def register(spark, *, empty: bool = False) -> None:
    for name, frame in frames(spark, empty=empty).items():
        frame.createOrReplaceTempView(f"`{name}`")
