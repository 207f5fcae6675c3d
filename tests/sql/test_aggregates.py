"""Aggregates that begin in tasks: at the limits of types, what is told about them, and when they are off."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from millrace import query
from tests.session import changed
from tests.sql.compare import bag, taken

# ``big`` is near the end of bigint, ``wide`` has all digits of a decimal; several rows of ``a`` have id 2.
LIMITS = (
    "(select id, k, 9223372036854775800 + id as big, "
    "cast('99999999999999999999999999999999999990' as decimal(38, 0)) + id as wide, "
    "cast('0.00000000000000000000000000000000000001' as decimal(38, 38)) as fine from a) a"
)


@pytest.mark.parametrize("column", ["big", "wide"])
def test_a_sum_that_overflows_raises_as_in_spark(spark, views, column):
    """In ANSI mode, with the same class of error; a group that does not overflow is no matter."""
    text = f"select a.k, sum(a.{column}) from {LIMITS} join b on a.id = b.id group by a.k"
    found = query(text, spark=spark)
    assert taken(found) == "a b+"
    with pytest.raises(PySparkException) as expected:
        spark.sql(text).collect()
    with pytest.raises(PySparkException) as raised:
        found.df.collect()
    assert raised.value.getCondition() == expected.value.getCondition()


def test_without_ansi_mode_sums_wrap_or_are_null(spark, same):
    """And what Spark computes of them goes on being Spark's."""
    with changed(spark, {"spark.sql.ansi.enabled": "false"}):
        text = (
            "select a.k, sum(a.big), sum(a.wide), avg(a.big), min(a.wide), max(a.wide), sum(a.fine), "
            f"sum(-a.big), count(*) from {LIMITS} join b on a.id = b.id group by a.k"
        )
        assert taken(same(text)) == "a b"  # only Spark negates
        assert taken(same(text.replace("sum(-a.big), ", ""))) == "a b+"


def test_large_numbers_that_do_not_overflow(same):
    """Arrow would add them up without noticing, so they go to Spark one by one."""
    text = f"select b.id, sum(a.big), max(a.wide), count(a.wide) from {LIMITS} join b on a.k = b.k and "
    assert taken(same(text + "a.id = b.id and a.id > 2 group by b.id")) == "a b+"


def test_what_is_told(spark, files):
    """The plan says what tasks make of the rows, the report how many went in and came out."""
    found = query("select a.s, sum(a.k) from a join b on a.id = b.id group by a.s", spark=spark, tables=files)
    plan = found.explain()
    assert "aggregates them partially by __mr0_2_s: sum(__mr0_1_k) as __mr0_p0" in plan
    found.df.collect()
    (figures,) = [m for _, m in found.report().modules() if m.action == "aggregate"]
    assert (figures.tuples_in, found.report().totals.output_tuples) == (5, 5)
    assert figures.tuples_out == 3


def test_why_not(spark, files):
    """A query whose groups only Spark makes says why."""
    found = query(
        "select a.s, collect_list(a.k) from a join b on a.id = b.id group by a.s", spark=spark, tables=files
    )
    assert found.reasons == ["from a: its rows are grouped by Spark alone: arrayagg may need every row"]


def test_switched_off(spark, files):
    """The same answer, and the rows go to Spark as they are."""
    text = "select a.s, sum(a.k), count(*) from a join b on a.id = b.id group by a.s"
    found = query(text, spark=spark, tables=files, options={"partial_aggregates": False})
    assert taken(found) == "a b"
    assert bag(found.df) == bag(query(text, spark=spark, tables=files).df)


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
