"""Row groups and partitions that joins leave out, on Spark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace
from tests.gate import sampled
from tests.sql.compare import bag
from tests.sql.small_tables import register, write

SQL = "SELECT s.id, s.day, d.name FROM sales s JOIN dates d ON s.day = d.day WHERE d.month = 3"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Sales in folders by day, or in one file in the order of days, and a calendar."""
    folder = tmp_path_factory.mktemp("ranges")
    days = [n // 50 for n in range(5000)]
    sales = pa.table({"id": range(5000), "day": pa.array(days, pa.int32())})
    pq.write_table(sales, folder / "sales.parquet", row_group_size=100)
    pq.write_to_dataset(sales, folder / "by_day", partition_cols=["day"])
    dates = pa.table(
        {"day": range(100), "month": [d // 10 for d in range(100)], "name": [f"d{d}" for d in range(100)]}
    )
    pq.write_table(dates, folder / "dates.parquet")
    return {name: str(folder / name) for name in ("sales.parquet", "by_day", "dates.parquet")}


def ask(spark, text, tables, placement):
    """Return a query and its rows, which are Spark's."""
    options = {"placement": placement, "take_all": True, "cells": 2}
    query = millrace.query(text, spark=spark, tables=tables, options=options)
    found = bag(query.df)
    register(spark, tables)
    assert found == bag(spark.sql(text))
    return query, found.total()


@pytest.mark.parametrize("sales", sampled(["by_day", "sales.parquet"]))
@pytest.mark.parametrize("placement", ["auto", "hypercube"])
def test_what_no_key_reaches_is_not_read(spark, tables, sales, placement):
    """Neither in place nor on the map side of an exchange."""
    query, rows = ask(spark, SQL, {"sales": tables[sales], "dates": tables["dates.parquet"]}, placement)
    assert rows == 500
    (pruned,) = [m for _, m in query.report().modules() if m.action == "prune"]
    assert pruned.name == "RowGroups(s)" and pruned.tuples_out < pruned.tuples_in / 2


@pytest.mark.parametrize("placement", sampled(["hypercube", "auto"]))
def test_keys_that_python_does_not_have_are_keys(spark, tmp_path, placement):
    """The greatest keys are a date of year 10183 and bytes that are no UTF-8."""
    days = pa.array([3_000_000 - n % 7 for n in range(700)], pa.int32()).view(pa.date32())
    texts = pa.array([b"\xff" * (n % 5) for n in range(700)]).view(pa.string())
    large = pa.table({"n": range(700), "day": days, "text": texts})
    tables = write(tmp_path, {"large": large, "small": large.slice(0, 9)}, 100)
    for key in ("day", "text"):
        sql = f"SELECT l.n, s.n AS m FROM large l JOIN small s ON l.{key} = s.{key} WHERE s.n < 3"
        assert ask(spark, sql, tables, placement)[1] >= 300
