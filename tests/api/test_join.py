"""``join`` as PySpark users write it gives what PySpark's own joins give."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as sf
from pyspark.sql.functions import udf

import millrace
from millrace.errors import QueryError
from tests.gate import sampled
from tests.sql.compare import bag, bags


@pytest.fixture(scope="module")
def shop(spark):
    orders = spark.sql("values (1, 10, 'x'), (2, 20, 'Y'), (3, 10, null), (4, null, 'x')")
    customer = spark.sql("values (10, 1, 'x', 5.0), (20, 2, 'y', -1.0)").toDF("c_custkey", "nk", "tag", "bal")
    nation = spark.sql("values (1, 'FR'), (2, 'DE')").toDF("nk", "name")
    orders = orders.toDF("o_key", "o_custkey", "tag")
    return orders, customer, nation


def test_pairs_of_columns_and_of_expressions(spark, shop):
    """Each pair joins the relations that have its columns; all columns of all of them are in the result.

    A Column of any expression over one relation is a key too; it is not in the result.
    """
    orders, customer, nation = shop
    both = orders.join(customer, orders.o_custkey == customer.c_custkey)
    upper = sf.upper(orders.tag), sf.upper(customer.tag)
    for given, on, expected in (
        (shop, [("o_custkey", "c_custkey"), ("t2.nk", "t3.nk")], both.join(nation, customer.nk == nation.nk)),
        (shop[:2], [upper], orders.join(customer, upper[0] == upper[1])),
    ):
        found = millrace.join(*given, on=on)
        assert found.columns == expected.columns and bag(found) == bag(expected)
        assert "block b0" in millrace.explain(found)


def test_shared_names_and_conditions(spark, shop):
    """A shared name is in the result once; Columns over one relation filter it before the join."""
    _, customer, nation = shop
    conditions = [customer.bal > 0, nation.name.like("F%"), "name <> 'XX'"]
    found = millrace.join(customer, nation, on="nk", where=conditions)
    expected = customer.join(nation, on="nk").where((customer.bal > 0) & nation.name.like("F%"))
    assert found.columns == expected.columns and bag(found) == bag(expected)
    once = millrace.join(customer, nation, where=(each for each in ["t1.nk = t2.nk", customer.bal > 0]))
    assert once.count() == customer.join(nation, on="nk").where(customer.bal > 0).count()
    several = millrace.join(customer, nation, on=["nk"], where=sf.length("name") + sf.col("c_custkey") > 12)
    assert bag(several) == bag(customer.join(nation, on="nk").where("length(name) + c_custkey > 12"))
    with pytest.raises(QueryError, match=r"expected columns by name, such as col\('nk'\)"):
        millrace.join(customer, nation, on="nk", where=sf.length("name") + customer.c_custkey > 12)


def test_other_joins_are_sparks(spark, shop):
    orders, customer, _ = shop
    found, expected = {}, {}
    for how in ("left", "right", "full", "outer", "left_outer", "leftsemi", "anti", "cross"):
        on = [("o_custkey", "c_custkey")] if how != "cross" else ()
        found[how] = millrace.join(orders, customer, on=on, how=how)
        equality = orders.o_custkey == customer.c_custkey if on else None
        expected[how] = orders.join(customer, equality, how=how)
        assert found[how].columns == expected[how].columns
    assert bags(found) == bags(expected)


@pytest.mark.parametrize("how", sampled(["left", "inner", "right", "full", "semi", "anti"], 6))
def test_conditions_of_a_match_and_of_the_result(spark, how):
    """In ``on`` a condition decides what matches, in ``where`` what is kept, also of rows without a match."""
    one = spark.sql("select * from values (1, 10), (2, 20), (3, null), (4, 5) as t(id, v)")
    other = spark.sql("select * from values (1, 5), (2, null), (4, 1), (9, 1) as t(id, w)")
    tables = {"x": one, "y": other}
    x, y = one.alias("x"), other.alias("y")
    found, expected = {}, {}
    for text in ("y.w > 1", "x.v > 5", "x.v > y.w"):
        found[text] = millrace.join(tables, on=[("x.id", "y.id"), text], how=how)
        found[f"all of {text}"] = millrace.join(tables, on=f"x.id = y.id and {text}", how=how)
        expected[text] = x.join(y, sf.expr(f"x.id = y.id and {text}"), how)
        expected[f"all of {text}"] = expected[text]
    for name, column in {"a value": one.v > 5, "no value": other.w.isNull()}.items():
        found[name] = millrace.join(one, other, on=[("t1.id", "t2.id"), column], how=how)
        expected[name] = one.join(other, (one.id == other.id) & column, how)
    whole = x.join(y, sf.expr("x.id = y.id"), how)
    for name in set(whole.columns) - {"id"}:
        for kind, column in {"value": sf.col(name) > 4, "null": sf.col(name).isNull()}.items():
            found[f"{name}: {kind}"] = millrace.join(tables, on=[("x.id", "y.id")], where=column, how=how)
            expected[f"{name}: {kind}"] = whole.where(column)
    assert bags(found) == bags(expected)


def test_conditions_of_no_certain_join_are_refused(spark, shop):
    """Where an outer join has several places for them; and a join of nothing."""
    three = dict(zip("xyz", shop, strict=True))
    pairs = [("o_custkey", "c_custkey"), ("y.nk", "z.nk")]
    with pytest.raises(QueryError, match="not clear which join"):
        millrace.join(three, on=[*pairs, "y.bal > 0"], how="left")
    with pytest.raises(QueryError, match="which is not of one relation"):
        millrace.join(shop[0], shop[1], on=[*pairs[:1], sf.col("tag") == "x"], how="left")
    with pytest.raises(QueryError, match="at least one"):
        millrace.join({}, spark=spark)
    with pytest.raises(QueryError, match="there is one: expected more relations"):
        millrace.join(shop[0], on="o_key")


def test_names_paths_and_predicates(spark, shop, tmp_path):
    """Tables by name, Parquet by path, and functions of Python among the conditions, by name too."""
    orders, customer, _ = shop
    orders.createOrReplaceTempView("some_orders")
    path, rich = tmp_path / "customer.parquet", udf(lambda x: x > 0, "boolean")
    customer.write.parquet(str(path))
    on = [("o_custkey", "c_custkey")]
    where = [rich("bal"), "dear(bal)"]
    found = millrace.join("some_orders", path, on=on, where=where, spark=spark, predicates={"dear": rich})
    assert sorted(row.o_key for row in found.collect()) == [1, 3]
    assert "block b0" in millrace.explain(found)
    spark.catalog.dropTempView("some_orders")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"on": [("o_custkey", "nope")]}, "no relation has a column 'nope'"),
        ({"on": [("tag", "tag")]}, r"may join t1 and t2; or t2 and t1: write which"),
        ({"on": [("o_key", "tag"), 3]}, "on has 3"),
        ({"on": [("o_key", "o_custkey")]}, "joins no two of the relations"),
        ({}, 'nothing joins the 2 relations: expected on=.*how="cross"'),
        ({"where": "bal > 0", "how": "left"}, "nothing joins the 2 relations"),
        ({"on": "tag", "how": "sideways"}, "how is 'sideways'"),
        ({"on": "tag", "where": 3}, "where is given as int"),
    ],
)
def test_what_is_unclear_is_refused(shop, given, problem):
    with pytest.raises(QueryError, match=problem):
        millrace.join(shop[0], shop[1], **given)
    with pytest.raises(QueryError, match="given a int"):
        millrace.join(shop[0], 3, on="tag")


def test_filters_in_a_chain(spark):
    """``filter`` is ``where`` for ``DataFrame.transform``."""
    even, small = udf(lambda x: x % 2 == 0, "boolean"), udf(lambda x: x < 6, "boolean")
    found = spark.range(20).transform(millrace.filter(even("id"), small("id"), policy="rank")).select("id")
    assert bag(found) == {"(0,)": 1, "(2,)": 1, "(4,)": 1}
    assert millrace.report(found).totals.output_tuples == 3
