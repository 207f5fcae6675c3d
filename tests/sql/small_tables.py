"""Small tables with nulls, duplicates and awkward names, and functions of every kind to call on them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.functions import arrow_udf, pandas_udf, udf
from pyspark.sql.types import BooleanType

BOOLEAN = BooleanType()
FIRST, SECOND, THIRD, FOURTH = (dt.date(1995, 1, day) for day in range(1, 5))


def decimals(texts: str, kind: pa.DataType) -> pa.Array:
    return pa.array([None if text == "-" else Decimal(text) for text in texts.split()], kind)


TABLES = {
    "a": pa.table(
        {
            "id": pa.array([1, 2, 2, 3, 4, None, 5], pa.int32()),
            "k": pa.array([10, 20, 20, None, 40, 10, 30], pa.int64()),
            "s": pa.array(["x", "y", "y", None, "it's {x}", 'a"b', "x"], pa.string()),
            "d": pa.array([FIRST, SECOND, SECOND, None, THIRD, FOURTH, FIRST], pa.date32()),
            "x": pa.array([1.5, math.nan, -0.0, None, 0.0, 2.5, 1.5], pa.float64()),
            "n": decimals("1.50 2.00 - 1.50 9.99 0.00 2.00", pa.decimal128(10, 2)),
            "flag": pa.array([True, False, None, True, False, True, None], pa.bool_()),
        }
    ),
    "b": pa.table(
        {
            "id": pa.array([1, 1, 2, 3, None, 6], pa.int32()),
            "k": pa.array([10, 20, 20, 40, 10, None], pa.int32()),
            "s": pa.array(["x", "y", None, "zz", "x", "it's {x}"], pa.string()),
            "v": pa.array([1.5, math.nan, 0.0, 2.5, None, 7.0], pa.float64()),
            "d": pa.array([FIRST, THIRD, SECOND, None, FOURTH, FOURTH], pa.date32()),
            "n": decimals("1.5000 2.0001 9.9900 - 0.0000 2.0000", pa.decimal128(12, 4)),
        }
    ),
    "c": pa.table(
        {
            "id": pa.array([1, 2, 3, 3, 7, None], pa.int64()),
            "k": pa.array([10, 20, 10, 30, None, 40], pa.int32()),
            "w": pa.array(["p", "q", None, "r", "p", "{}"], pa.string()),
            "st": pa.array(
                [
                    None if row is None else dict(zip("fg", row, strict=True))
                    for row in ((1, "x"), (2, "y"), None, (None, "z"), (1, None), (4, "x"))
                ],
                pa.struct([("f", pa.int32()), ("g", pa.string())]),
            ),
            "arr": pa.array([[1, 2], [], None, [3], [1], [4, 4]], pa.list_(pa.int32())),
        }
    ),
    "odd name": pa.table(
        {
            "weird col": pa.array([1, 2, 3, None], pa.int32()),
            "order": pa.array(["x", "y", None, "x"], pa.string()),
            "a`b": pa.array([10, 20, 30, 40], pa.int64()),
            "p.q": pa.array([1, 1, 2, 2], pa.int64()),
        }
    ),
}


def write(folder: Path, tables: Mapping[str, pa.Table] = TABLES, rows: int = 3) -> dict[str, str]:
    """Write tables as Parquet files, in row groups of so many rows; return the path of each by name.

    Statistics of floating-point columns are left out: pyarrow's do not count NaN, and where Spark skips
    row groups by them it loses rows.
    """
    paths = {name: str(folder / f"{name.replace(' ', '_')}.parquet") for name in tables}
    for name, path in paths.items():
        fields = tables[name].schema
        counted = [f.name for f in fields if not (pa.types.is_floating(f.type) or pa.types.is_nested(f.type))]
        pq.write_table(tables[name], path, row_group_size=rows, write_statistics=counted)
    return paths


def register(spark, paths: Mapping[str, str]) -> Mapping[str, str]:
    """Make scans of files temporary views of their names; return the same paths."""
    for name, path in paths.items():
        spark.read.parquet(path).createOrReplaceTempView(f"`{name}`")
    return paths


def _predicates():
    """Make them inside a function, so that they travel to the tasks as they are."""

    above = udf(lambda x: None if x is None else x > 1, BOOLEAN)
    near = udf(lambda x, y: None if x is None or y is None else abs(x - y) < 15, BOOLEAN)

    @pandas_udf(BOOLEAN)
    def short(s: pd.Series) -> pd.Series:
        return s.map(lambda text: None if text is None else len(text) < 2).astype("boolean")

    @arrow_udf(BOOLEAN)
    def ten(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Over Arrow arrays, called once for many."""
        for k in batches:
            yield pc.equal(k, pa.scalar(10, k.type))

    return {"above": above, "near": near, "Short": short, "match": ten}


PREDICATES = _predicates()
