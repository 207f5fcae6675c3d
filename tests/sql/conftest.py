"""Small tables with nulls, duplicates and awkward names: as files, as DataFrames, and as views."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace import query
from tests.sql.compare import bag

DAY = dt.date(1995, 1, 1)


def _tables() -> dict[str, pa.Table]:
    days = [DAY + dt.timedelta(days=n) for n in range(4)]
    return {
        "a": pa.table(
            {
                "id": pa.array([1, 2, 2, 3, 4, None, 5], pa.int32()),
                "k": pa.array([10, 20, 20, None, 40, 10, 30], pa.int64()),
                "s": pa.array(["x", "y", "y", None, "it's {x}", 'a"b', "x"], pa.string()),
                "d": pa.array([days[0], days[1], days[1], None, days[2], days[3], days[0]], pa.date32()),
                "x": pa.array([1.5, math.nan, -0.0, None, 0.0, 2.5, 1.5], pa.float64()),
                "n": pa.array(
                    [
                        Decimal("1.50"),
                        Decimal("2.00"),
                        None,
                        Decimal("1.50"),
                        Decimal("9.99"),
                        Decimal("0.00"),
                        Decimal("2.00"),
                    ],
                    pa.decimal128(10, 2),
                ),
                "flag": pa.array([True, False, None, True, False, True, None], pa.bool_()),
            }
        ),
        "b": pa.table(
            {
                "id": pa.array([1, 1, 2, 3, None, 6], pa.int32()),
                "k": pa.array([10, 20, 20, 40, 10, None], pa.int32()),
                "s": pa.array(["x", "y", None, "zz", "x", "it's {x}"], pa.string()),
                "v": pa.array([1.5, math.nan, 0.0, 2.5, None, 7.0], pa.float64()),
                "d": pa.array([days[0], days[2], days[1], None, days[3], days[3]], pa.date32()),
                "n": pa.array(
                    [
                        Decimal("1.5000"),
                        Decimal("2.0001"),
                        Decimal("9.9900"),
                        None,
                        Decimal("0.0000"),
                        Decimal("2.0000"),
                    ],
                    pa.decimal128(12, 4),
                ),
            }
        ),
        "c": pa.table(
            {
                "id": pa.array([1, 2, 3, 3, 7, None], pa.int64()),
                "k": pa.array([10, 20, 10, 30, None, 40], pa.int32()),
                "w": pa.array(["p", "q", None, "r", "p", "{}"], pa.string()),
                "st": pa.array(
                    [
                        {"f": 1, "g": "x"},
                        {"f": 2, "g": "y"},
                        None,
                        {"f": None, "g": "z"},
                        {"f": 1, "g": None},
                        {"f": 4, "g": "x"},
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


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, str]:
    """The tables as Parquet files: the path of each by name."""
    folder = tmp_path_factory.mktemp("small")
    paths = {}
    for name, table in _tables().items():
        paths[name] = str(folder / f"{name.replace(' ', '_')}.parquet")
        pq.write_table(table, paths[name], row_group_size=3)
    return paths


@pytest.fixture(scope="session")
def scans(spark, files) -> dict[str, object]:
    """The tables as DataFrames that scan the files."""
    return {name: spark.read.parquet(path) for name, path in files.items()}


@pytest.fixture(scope="session")
def rows(spark, scans) -> dict[str, object]:
    """The tables as DataFrames of rows."""
    return {name: spark.createDataFrame(table, scans[name].schema) for name, table in _tables().items()}


@pytest.fixture
def views(spark, scans, rows) -> dict[str, object]:
    """The tables as DataFrames of rows; as temporary views of the session they are scans of the files."""
    for name, frame in scans.items():
        if not spark.catalog.tableExists(f"`{name}`"):  # other tests drop views of the same names
            frame.createOrReplaceTempView(f"`{name}`")
    return rows


@pytest.fixture
def same(spark, views):
    """Run a query with Millrace and with Spark; the answers agree in rows, names, types, nullability."""

    def check(text, tables=None, options=None):
        expected = spark.sql(text)
        found = query(text, spark=spark, tables=tables, options=options)
        assert found.df.columns == expected.columns
        assert [(f.dataType, f.nullable) for f in found.df.schema] == [
            (f.dataType, f.nullable) for f in expected.schema
        ]
        assert bag(found.df) == bag(expected), found.explain()
        return found

    return check
