"""``enable`` and ``df.millrace``: the same rows by the session's own methods, through Millrace."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, functions as sf

import millrace
import millrace.accessor
from tests.front.compare import bag
from tests.spark.column_chains import RESOLVED, TAKEN, differing

JOIN = "select a.id, b.v from a join b on a.id = b.id where a.k > 5"


@pytest.fixture
def asked():
    """A function of Python that counts nothing, but is slow to Spark's mind; and another."""
    return sf.udf(lambda x: x is not None and x % 2 == 0, "boolean"), sf.udf(lambda x: x % 3 == 0, "boolean")


def is_ours(df) -> bool:
    """Whether Millrace has a part in a DataFrame."""
    try:
        millrace.explain(df)
    except millrace.MillraceError:
        return False
    return True


def test_sql_of_a_session_and_back(spark, views):
    """Within the context texts go through Millrace, with Spark's rows; after it they do not."""
    plain = spark.sql(JOIN)
    with millrace.enable(spark) as enabled:
        found = spark.sql(JOIN)
        assert is_ours(found) and bag(found) == bag(plain)
        given = spark.sql("select a.id from a join b on a.id = b.id where a.k > :k", {"k": 5})
        assert is_ours(given)
        assert not is_ours(spark.sql("select 1 x"))
        assert spark.sql("show tables").count() > 0
        with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
            spark.sql("select nothing from a")
    assert not is_ours(spark.sql(JOIN))
    assert "sql" not in vars(spark)
    enabled.disable()  # once more does nothing


def test_predicates_of_a_session(spark, views):
    """Functions that are given at the beginning are called by name."""
    even = millrace.predicate(lambda x: x is not None and x % 2 == 0, name="even")
    with millrace.enable(spark, predicates=[even]):
        assert bag(spark.sql("select id from a where even(id)")) == bag(
            spark.sql("select id from a where id % 2 = 0")
        )


def test_chains_of_filters_are_one(spark, asked):
    """Functions of Python that are chained are one filter; conditions of Spark's stand among them."""
    even, third = asked
    df = spark.range(100).withColumn("x", sf.col("id") + 1)
    expected = df.where("x % 2 = 0 and id % 3 = 0 and id > 10").collect()
    with millrace.enable(spark):
        found = df.filter(even("x")).where("id > 10").filter(third(df.id))
        assert is_ours(found.select("x")) and found.collect() == expected
        named = {module.name for _, module in millrace.report(found).modules()}
        assert len([name for name in named if "lambda" in name]) == 2
        assert not is_ours(df.filter("id > 3")) and not is_ours(df.filter(df.id > 3))
        assert df.filter(df.id > 3).filter(even(df.x)).filter(found.id > 90).count() == 5  # odd numbers
        assert found.filter(millrace.predicate(lambda x: x > 90)("id")).count() == 2
    assert not is_ours(df.filter(even("x")).select("x"))


def test_chains_of_joins_are_one(spark, files):
    """Inner joins by names, over relations filtered by text, are a block; columns are PySpark's."""
    a, b = (spark.read.parquet(files[name]) for name in "ab")
    a2, b2 = a.select("id", "k"), b.select("id", "v")
    plain = a2.where("k > 3").join(b2, "id").join(a2.withColumnRenamed("k", "l"), ["id"], "inner")
    expected, columns = bag(plain), plain.columns
    with millrace.enable(spark, options={"take_all": True}):
        found = a2.where("k > 3").join(b2, "id").join(a2.withColumnRenamed("k", "l"), ["id"], "inner")
        assert found.columns == columns
        assert is_ours(found.select("v")) and bag(found) == expected
        assert found.count() == found.groupBy("id").count().agg(sf.sum("count")).collect()[0][0]
        assert "block b0" in millrace.explain(found.limit(1))
        assert bag(found.select(a2.k, "v")) == bag(plain.select(a2.k, "v"))  # a column that only Spark's has
        above = found.filter("l > 4").where("v is not null")  # text above a join is part of the block
        assert is_ours(above.limit(9)) and bag(above) == bag(plain.where("l > 4 and v is not null"))
        assert "l > 4" in millrace.explain(above)
        again = above.join(a2.withColumnRenamed("k", "m"), "id")
        assert is_ours(again.limit(9)) and again.count() == again.toArrow().num_rows > 0
        kept = found.select("l").cache()
        assert kept.storageLevel.useMemory and "InMemory" in millrace.explain(kept.unpersist().cache())
        kept.unpersist()
        odd = sf.udf(lambda x: x % 2 == 1, "boolean")  # a function above a join is a filter of what it makes
        asked = found.filter(odd("l"))
        assert "block b0" in millrace.explain(found) and "filter" in millrace.explain(asked)
        assert bag(asked) == bag(plain.where("l % 2 = 1")) and set(millrace.report(asked).blocks) == {
            "filter"
        }


def test_chains_on_columns_are_sparks_rows(spark, tmp_path):
    """Whatever Columns compare and name, and wherever they were taken of: its columns and its rows."""
    assert differing(spark, tmp_path, {**TAKEN, **RESOLVED}) == {}
    assert not {"_millrace_column"} & set(vars(spark.range(1).id == spark.range(1)["id"]))


def test_aliases_of_joined_dataframes_are_sparks(spark, tmp_path):
    """A dotted name is an alias of Spark's before it is a field: below a join, above it, above a function."""
    for name, columns in (
        ("l", ["id AS x"]),
        ("r", ["id AS y", "named_struct('x', 5 - id, 'y', 5 - id) AS a"]),
    ):
        spark.range(6).selectExpr("id", *columns).write.parquet(f"{tmp_path}/{name}")
    left, right = (spark.read.parquet(f"{tmp_path}/{name}") for name in "lr")
    small = sf.udf(lambda x: x < 5, "boolean")

    def made() -> list[DataFrame]:
        join = left.alias("a").join(right.alias("b"), "id")
        return [
            left.join(right.alias("a").filter("a.y > 3"), "id"),
            join.filter("x > .5"),
            join.filter("a.x > 3"),
            join.filter(small("x")).filter("a.x > 3"),
            join.filter(small("a.x")),
        ]

    plain = [bag(each.select("id", "x")) for each in made()]
    with millrace.enable(spark, options={"take_all": True}):
        found = made()
        assert [bag(each.select("id", "x")) for each in found] == plain
        assert all(is_ours(each.limit(9)) for each in found[:3])


def test_what_is_left_to_spark_says_why(spark, files, caplog):
    """To whoever asks for the explanation of a DataFrame, and to the log."""
    caplog.set_level("INFO", "millrace")
    a, b = (spark.read.parquet(files[name]) for name in "ab")
    before = a.id == b.id
    with millrace.enable(spark, options={"take_all": True}):
        unheld = b.select("id").id
        for frame, why in (
            (a.join(b, before), "was not seen being made"),
            (a.join(b, a.id == b.id + 1), "is not just a column"),
            (a.join(b, a.id == unheld), "'id' is a column of a DataFrame that is joined 0 times"),
            (b.alias("l").join(b, sf.col("l.id") == sf.col("l.k")), "is not just a column"),
            (a.join(b, "id", "left"), "a join with how='left' is Spark's"),
            (a.join(a.join(b, "id"), "id"), "a join on the right of a join"),
            (a.join(b, "id").limit(9).select(b.id), "select asks for what only Spark's DataFrame has"),
            (a.filter("k > 3"), "no condition of the filter is a call"),
            (spark.sql("select 1 x"), "no FROM clause joins two relations"),
        ):
            with pytest.raises(millrace.MillraceError, match=why):
                millrace.explain(frame)
            assert any(why in each.message for each in caplog.records), why


def test_within_millrace_it_is_off(spark, views, asked):
    """What Millrace asks Spark for goes to Spark: its own functions give what they give without."""
    even, _ = asked
    df = spark.range(20)
    expected = [row.id for row in df.collect() if row.id % 2 == 0]
    with millrace.enable(spark):
        assert [row.id for row in millrace.where(df, even("id"), "id >= 0").collect()] == expected
        assert bag(millrace.sql(JOIN, spark)) == bag(spark.sql(JOIN))
    assert DataFrame.filter.__qualname__ == "DataFrame.filter"


def test_the_accessor(spark, files, asked):
    """Millrace's functions as methods."""
    even, _ = asked
    df = spark.read.parquet(files["a"])
    kept = df.millrace.where(even("id"))
    assert bag(kept) == bag(df.where("id % 2 = 0"))
    assert kept.millrace.report().totals.output_tuples == kept.count()
    assert "filter" in kept.millrace.explain()
    other = spark.read.parquet(files["b"])
    joined = df.millrace.join(other, on="id", options={"take_all": True})
    assert bag(joined) == bag(df.join(other, "id"))
    assert bag(df.millrace.sql("select count(*) n from this")) == bag(df.groupBy().count())
    assert sum(batch.num_rows for batch in kept.millrace.stream_results()) == kept.count()
    assert {"where", "join", "sql"} <= set(dir(df.millrace))
