"""A session holds what calls would repeat; two side by side, and two threads, do not see each other's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock, PropertyMock

import pytest
from pyspark.sql.functions import udf

import millrace
from millrace.errors import InputError, OptionError, QueryError
from tests.sql.compare import bag, taken

TEXT = "select a.id, b.v from a join b on a.id = b.id where a.k > :low"


def test_a_session_holds_tables_predicates_and_options(spark, files, views):
    """Queries, filters and joins use them; what a call gives comes first."""
    above = udf(lambda x: x is not None and x > 1, "boolean")
    shop = millrace.Session(spark, {"A": files["a"]}, {"above": above}, {"cells": 1})
    found = shop.query("select a.id from a join b on a.id = b.id and above(a.id)", tables={"b": views["b"]})
    assert taken(found) == "a b" and found.options.cells == 1
    assert bag(found.df) == bag(spark.sql("select a.id from a join b on a.id = b.id and a.id > 1"))
    one = shop.sql("select count(*) from a", tables={"a": spark.range(7)}, options={"cells": 3})
    assert one.collect()[0][0] == 7
    assert bag(shop.where(views["a"], above("id"), "k > 5")) == bag(
        spark.sql("select * from a where id > 1 and k > 5")
    )
    joined = shop.join("a", views["b"], on=[("a.id", "t2.id")], select=["v"])
    assert bag(joined) == bag(spark.sql("select v from a join b on a.id = b.id"))


def test_lookup_tables_of_a_session(spark, views):
    """Declared once, they are among the session's tables, also for the form without a query."""
    shop = millrace.Session(spark, {"o": views["a"]})
    find = millrace.function(lambda key: [{"key": key, "name": f"n{key}"}])
    table = shop.lookup("names", "key int, name string", ["key"], find)
    rows = shop.sql("select o.id, n.name from o join names n on o.id = n.key")
    joined = shop.join("o", "names", on=[("o.id", "names.key")], select=["o.id", "name"])
    expected = bag(spark.sql("select id, concat('n', id) from a where id is not null"))
    assert bag(rows) == bag(joined) == expected and table.name == "names"


@pytest.mark.parametrize("args", [{"low": 15, "unused": 1}, {"low": 15.5}])
def test_parameters_with_names(spark, views, files, args):
    """They are constants like others, wherever they stand, with the types that Spark gives them."""
    found = millrace.query(TEXT, spark=spark, tables=files, args=args)
    assert taken(found) == "a b"
    assert bag(found.df) == bag(spark.sql(TEXT, args))
    text = "select a.id + :low as n, b.k from a, b where a.k = b.k and (b.s = 'y' or b.k > :low)"
    assert bag(millrace.sql(text, spark=spark, tables=files, args=args)) == bag(spark.sql(text, args))


def test_parameters_without_names(spark, views, files):
    """They keep their values though conditions move."""
    text = "select ?, a.id from a join b on a.k = b.k and b.s <> ? where a.k < ? and a.id + b.id > ?"
    args = ["shown", "x", 30, 2]
    found = millrace.query(text, spark=spark, tables=files, args=args)
    assert taken(found) == "a b"
    assert bag(found.df) == bag(spark.sql(text, args))
    assert bag(millrace.sql("from a |> where id > ?", spark=spark, tables=files, args=[1])) == bag(
        spark.sql("select * from a where id > 1")
    )


def test_threads_have_their_own(spark):
    """Threads with functions, tables and options by the same names get their own answers."""

    def work(number):
        keep = udf(lambda x: x % 8 == number, "boolean")
        rows = spark.range(0, 64 + number).withColumnRenamed("id", "k")
        given = {"t": rows, "u": spark.range(0, 64).withColumnRenamed("id", "k")}
        texts = [
            "select count(*) from t where keep(k) or k < 0",
            "select count(*) from t join u on t.k = u.k and keep(t.k)",
            "select sum(case when keep(k) then 1 else 0 end) from t",
        ]
        more = {
            "spark": spark,
            "tables": given,
            "options": {"cells": 1 + number % 2},
            "predicates": {"keep": keep},
        }
        return [millrace.sql(text, **more).collect()[0][0] for text in texts]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    assert found == [[len(range(n, 64 + n, 8)), 8, len(range(n, 64 + n, 8))] for n in range(4)]


def test_the_session_is_that_of_a_dataframe(spark):
    """Without one given, a DataFrame among the tables tells it; temporary views of another are not seen."""
    other = spark.newSession()
    other.range(3).createOrReplaceTempView("only_there")
    given = {"t": other.range(2, 9)}
    text = "select t.id from t join only_there o on t.id = o.id"
    assert bag(millrace.sql(text, tables=given)) == {"(2,)": 1}


@pytest.mark.parametrize(
    ("text", "given", "kind", "problem"),
    [
        ("select 1", {"spark": {"a": "x"}}, InputError, "spark is given as dict.*go by name"),
        ("select 1", {"tables": ["a"]}, InputError, "tables are given as list.*expected names"),
        ("select 1", {"tables": {1: "a"}}, InputError, "a table is named 1"),
        ("select 1", {"tables": {"a": "x", "A": "y"}}, InputError, "two tables are named"),
        ("select 1", {"options": ["cells"]}, OptionError, "options are given as list"),
        ("select 1", {"options": {"batch": 1}}, OptionError, "batch"),
        ("select 1", {"options": {"online": "perhaps"}}, OptionError, "True or False"),
        ("select 1", {"options": {"seed": "x"}}, OptionError, "seed is 'x'"),
        (7, {}, QueryError, "given as int: expected its text"),
        ("select ?", {"args": 7}, QueryError, "args are given as int"),
        ("select ?, ?", {"args": [1]}, QueryError, "has 2 parameters"),
        ("table c", {"tables": {"c": 3}}, InputError, "expected a path"),
        ("table c", {"tables": {"c": "x/y.csv"}}, InputError, r"there is no .*/x/y\.csv: expected a file"),
        ("table c", {"tables": {"c": "x/y.xml"}}, InputError, "no table by its name"),
        ("table c", {"tables": {"c": "~/no/such.parquet"}}, InputError, "there is no /"),
    ],
)
def test_wrong_arguments_are_named(spark, text, given, kind, problem):
    with pytest.raises(kind, match=problem):
        millrace.query(text, **{"spark": spark, **given})


def test_a_session_that_does_not_answer(spark, monkeypatch):
    """Or that was stopped: its settings are still there. What its client raises then is not passed on."""
    gone = Mock(["sql", "conf"], sql=None, conf=None)
    type(gone).sparkContext = PropertyMock(side_effect=ConnectionError("gone"))
    with pytest.raises(InputError, match=r"does not answer \(ConnectionError\).*getOrCreate"):
        millrace.query("select 1", spark=gone)
    df, kept = spark.createDataFrame([], "id int"), millrace.predicate(lambda x: True, name="p")("id")
    monkeypatch.setattr(spark.sparkContext, "_jsc", None)  # all that PySpark does to a context that stops
    for call in (
        lambda: millrace.query("select 1", spark=spark),
        lambda: millrace.where(df, kept),
        lambda: millrace.join(df, df, on="id"),
        lambda: millrace.enable(spark),
        lambda: millrace.monitor.progress(spark, shown=True).__enter__(),
    ):
        with pytest.raises(InputError, match=r"does not answer.*if it was stopped"):
            call()
