"""Seven small tables whose names, types and values are easy to mix up.

Columns share names between tables. Columns are also called like tables, and where such a column is a
struct, its fields are called like that table's columns. Keys are small numbers, so that random
equalities find partners; floating-point numbers are exact in binary, so that sums do not depend on
the order in which they are added.
"""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tests.sql import small_tables

NAN = math.nan
DAYS = [dt.date(1995, 1, 1), dt.date(1995, 1, 2), dt.date(1995, 2, 28), dt.date(1996, 2, 29)]
TIMES = [dt.datetime(1995, 1, 1), dt.datetime(1995, 1, 2, 12, 30), dt.datetime(1996, 2, 29, 23, 59, 59, 5)]  # noqa: DTZ001  # the zone is the column's

FRAME_ONLY = frozenset({"t"})
"""Tables with columns that are never null: Parquet would forget that."""


def _dicts(names: str, *rows: tuple | None) -> list[dict | None]:
    return [None if row is None else dict(zip(names.split(), row, strict=True)) for row in rows]


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


I8, I16, I32, I64, F32, F64 = pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()
TEXT = pa.string()


def _grown(name: str, key: str, **more: pa.Array) -> pa.Table:
    """Return a table of :mod:`tests.sql.small_tables` with a row twice, smaller keys and more columns."""
    small = small_tables.TABLES[name]
    table = pa.concat_tables([small, small.slice(0, 1)])
    keys = pc.divide(table[key], pa.scalar(10, table[key].type))
    return pa.table({**dict(zip(table.column_names, table.columns, strict=True)), key: keys, **more})


def _a() -> pa.Table:
    first, second, third, fourth = DAYS
    rows = _dicts("id s k", (1, "x", 2), (2, "y", 2), None, (3, None, 1), (None, "x", 4), (1, "y", 1))
    rows += _dicts("id s k", (5, "z", None), (1, "x", 2))
    days = [first, second, second, None, third, fourth, first, first]
    return _grown("a", "k", d=pa.array(days, pa.date32()), b=pa.array(rows, _struct(id=I32, s=TEXT, k=I64)))


def _b() -> pa.Table:
    midnight, noon, late = TIMES
    times = pa.array([midnight, noon, late, None, midnight, noon, noon], pa.timestamp("us", "UTC"))
    return _grown("b", "k", d=times, w=pa.array(["p", "q", None, "{}", "x", "p", "y"], TEXT))


def _c() -> pa.Table:
    inner = _struct(id=I32, k=I64)
    rows = _dicts("id k", (1, 1), (2, 2), (3, None), None, (1, 4), (2, 1))
    st = _dicts("f g a", (1, "x", rows[0]), (2, "y", rows[1]), None, (None, "z", rows[2]), (1, None, rows[3]))
    st += _dicts("f g a", (4, "x", rows[4]), (2, "y", rows[5]))
    t = _dicts("k v", (1, "x"), (2, "y"), (None, None), (3, "z"), (4, "x"), None, (2, "y"))
    return _grown(
        "c",
        "k",
        k=pa.array([1, 2, 1, 3, None, 4, 2], I16),
        st=pa.array(st, _struct(f=I32, g=TEXT, a=inner)),
        t=pa.array(t, _struct(k=I32, v=TEXT)),
    )


def _odd() -> pa.Table:
    return _grown(
        "odd name",
        "a`b",
        merge=pa.array([1, 1, 2, 3, 1], I32),
        left=pa.array([4, 3, 2, 1, 3], I64),
        Id=pa.array([1, 2, 2, None, 2], I32),
        a=pa.array(["x", "y", "z", None, "y"], TEXT),
    )


def _e() -> pa.Table:
    midnight, noon, late = TIMES
    one, two, none = _dicts("id s", (1, "x"), (2, "y"), (3, None))
    maps = [[("x", 1)], [], None, [("y", 2), ("x", 3)], [("z", None)], []]
    return pa.table(
        {
            "id": pa.array([1, 2, 3, None, 5, 2], I8),
            "i2": pa.array([1, 2, None, 3, 2, 2], I16),
            "f": pa.array([1.5, NAN, -0.0, 2.0, None, NAN], F32),
            "bin": pa.array([b"x", b"\x00\xff", None, b"", b"x", b"\x00\xff"], pa.binary()),
            "ntz": pa.array([midnight, noon, late, None, noon, noon], pa.timestamp("us")),
            "ts": pa.array([noon, midnight, None, late, noon, midnight], pa.timestamp("us", "UTC")),
            "items": pa.array([[one, two], [], None, [none], [two], []], pa.list_(_struct(id=I32, s=TEXT))),
            "m": pa.array(maps, pa.map_(TEXT, I32)),
            "k": pa.array(["1", "2", "3", None, "4", "2"], TEXT),
            "n": small_tables.decimals("1 2 - 10 2 2", pa.decimal128(5, 0)),
            "large": pa.array([2**62, -(2**63), 1, None, 2**63 - 1, 2], I64),
        }
    )


def _k() -> pa.Table:
    rows = _dicts("id k", (2, 1), (1, 2), None, (3, 4), (1, None), (1, 2))
    return pa.table(
        {
            "K": pa.array([1, 2, 3, 4, None, 2], I64),
            "ID": pa.array([1, 2, 2, None, 5, 2], I32),
            "S": pa.array(["x", "y", "zz", None, "x", "y"], TEXT),
            "a": pa.array(rows, _struct(id=I32, k=I64)),
            "e": pa.array([1.0, 2.0, NAN, None, 0.0, 2.0], F64),
        }
    )


def _t() -> pa.Table:
    def solid(name: str, type_: pa.DataType) -> pa.Field:
        return pa.field(name, type_, nullable=False)

    point = pa.struct([solid("id", I32), pa.field("v", TEXT)])
    rows = _dicts("id v", (1, "x"), (2, None), (1, "y"), (4, "p"), (3, "x"), (1, "x"))
    columns = [
        (solid("id", I32), [1, 2, 3, 3, 4, 1]),
        (solid("k", I32), [1, 1, 2, 3, 2, 1]),
        (solid("v", TEXT), ["x", "y", "zz", "p", "", "x"]),
        (solid("d", pa.date32()), [DAYS[n] for n in (0, 1, 2, 2, 3, 0)]),
        (solid("flag", pa.bool_()), [True, False, True, True, False, True]),
        (solid("st", point), rows),
    ]
    arrays = [pa.array(values, field.type) for field, values in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema([field for field, _ in columns]))


TABLES = {"a": _a(), "b": _b(), "c": _c(), "e": _e(), "k": _k(), "t": _t(), "odd name": _odd()}


def write(folder: Path) -> dict[str, str]:
    """Write every table that Parquet keeps whole to a file; return the path of each by name."""
    kept = {name: table for name, table in TABLES.items() if name not in FRAME_ONLY}
    return small_tables.write(folder, kept)


def schema(name: str) -> StructType:
    """Return a table's columns as Spark reads them."""
    return from_arrow_schema(TABLES[name].schema, prefer_timestamp_ntz=True)


def frames(spark, *, empty: bool = False) -> dict[str, object]:
    """Return every table as a DataFrame of the session, with or without its rows."""
    return {
        name: spark.createDataFrame(table.slice(0, 0) if empty else table, schema(name))
        for name, table in TABLES.items()
    }


def register(spark, *, empty: bool = False) -> None:
    """Make every table a temporary view of the session."""
    for name, frame in frames(spark, empty=empty).items():
        frame.createOrReplaceTempView(f"`{name}`")
