"""Small tables as files, as DataFrames and as views; queries on them by Millrace and by Spark."""

from __future__ import annotations

import pytest

from millrace import query
from tests.sql import small_tables
from tests.sql.answers import Oracle, answer_of


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, str]:
    return small_tables.write(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def scans(spark, files) -> dict[str, object]:
    return {name: spark.read.parquet(path) for name, path in files.items()}


@pytest.fixture(scope="session")
def rows(spark, scans) -> dict[str, object]:
    return {
        name: spark.createDataFrame(table, scans[name].schema) for name, table in small_tables.TABLES.items()
    }


@pytest.fixture
def views(spark, scans, rows) -> dict[str, object]:
    """The tables as DataFrames of rows; as temporary views of the session they are scans of the files."""
    for name, frame in scans.items():
        frame.createOrReplaceTempView(f"`{name}`")  # other tests make and drop views of the same names
    return rows


@pytest.fixture(scope="session")
def oracle(spark, tmp_path_factory) -> Oracle:
    """Plain Spark's answers to the cases, as they are recorded."""
    return Oracle(spark, tmp_path_factory.mktemp("oracle"))


@pytest.fixture
def same(spark, views):
    """Run a query with Millrace and with Spark; the answers agree in rows, names, types, nullability."""

    def check(text, tables=None, options=None):
        found = query(text, spark=spark, tables=tables, options=options)
        assert answer_of(found.df) == answer_of(spark.sql(text)), found.explain()
        return found

    return check
