"""Aggregates that begin in tasks: what is told about them, and when they are off."""

from __future__ import annotations

import pytest

from millrace import query
from tests.sql.compare import bag, taken


def test_what_tasks_make_of_rows_is_told(spark, files):
    """How many went in and came out; with the same answer they are left as they are, or by an option."""
    text = "select a.s, sum(a.k), count(*) from a join b on a.id = b.id group by a.s"
    found = query(text, spark=spark, tables=files)
    rows = bag(found.df)
    (figures,) = [m for _, m in found.report().modules() if m.action == "aggregate"]
    assert (figures.tuples_in, found.report().totals.output_tuples, figures.tuples_out) == (5, 5, 3)
    assert figures.name == "Aggregate(a.s)"
    off = query(text, spark=spark, tables=files, options={"partial_aggregates": False})
    assert taken(off) == "a b" and bag(off.df) == rows
    left = query(text.replace("count(*)", "collect_list(a.k)"), spark=spark, tables=files)
    assert left.reasons == ["from a: its rows are grouped by Spark alone: arrayagg may need every row"]


@pytest.fixture
def repeating(spark, tmp_path):
    """A view of a file with few keys in many rows."""
    columns = ("id % 7 as key", "cast(id as decimal(12, 2)) as price", "if(id % 3 = 0, null, id / 8) as part")
    spark.range(3000).selectExpr(*columns).coalesce(1).write.parquet(str(tmp_path / "repeating"))
    spark.read.parquet(str(tmp_path / "repeating")).createOrReplaceTempView("repeating")


@pytest.mark.parametrize(
    ("calls", "keys", "early"),
    [
        ("count(*), count(a.k), sum(a.id), sum(a.n), avg(a.n), min(a.x), max(a.d)", "a.s", True),
        ("sum(r.price), avg(r.part), count(r.part), max(r.part), sum(a.n), count(*)", "a.s", True),
        ("count(*), max(r.key), sum(r.price)", "r.key", True),
        ("count(distinct a.k), sum(a.id) filter (where a.flag), count(*)", "a.s, a.d", True),
        # What else is read of the relation, and sums that may leave their type.
        ("count(*), count(distinct r.price)", "a.s", False),
        ("count(*), sum(a.k)", "a.s", False),
        ("sum(r.price * a.n)", "a.s", False),
    ],
)
def test_keys_that_repeat_are_aggregated_before_they_are_joined(spark, same, repeating, calls, keys, early):
    """Where only aggregates read more of a relation than its key, a tuple of each key is joined."""
    found = same(f"select {keys}, {calls} from a join repeating r on a.id = r.key group by {keys}")
    assert taken(found) == "a r+"
    found.df.collect()
    assert (found.report().totals.output_tuples <= 30) == early
