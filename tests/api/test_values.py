"""``{name}`` in a query's text means what it means to PySpark's ``sql``."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf

import millrace
from millrace.errors import InputError, QueryError
from tests.sql import cases
from tests.sql.compare import bag, taken


@pytest.mark.parametrize("text", cases.lines("braces")["values"])
def test_rows_are_those_of_spark(spark, views, text):
    """DataFrames, their columns, and literals, wherever they stand."""
    a, b, c = (views[name] for name in "abc")
    known = {"a": a, "b": b, "c": c, "same": a, "among": [a, b], "k": sf.col("k"), "quoted": "it's \\ {x}"}
    known |= {"n": 15, "yes": True, "numbers": (1, 2, 3), "float": 2.0, "decimal": Decimal("1.50")}
    given = {name: value for name, value in known.items() if re.search(rf"(?<!{{){{{name}\b", text)}
    args = {"low": 15} if ":low" in text else None
    assert bag(millrace.sql(text, args, **given)) == bag(spark.sql(text, args, **given))


def test_a_column_may_stand_first_or_alone(spark, views):
    """Only a DataFrame tells a session; without values braces are text."""
    given = {"k": sf.col("k"), "a": views["a"]}
    text = "select {k} from {a}"
    assert bag(millrace.sql(text, **given)) == bag(spark.sql(text, **given))
    assert millrace.sql("select {k} from values (7) t(k)", k=sf.col("k")).collect() == [(7,)]
    assert millrace.sql("select '{a}' as x, '{' as y", spark=spark).collect() == [("{a}", "{")]


def test_the_join_of_the_frames_is_taken(spark, views):
    """Under the names that they have in braces, also where a view has that name."""
    text = "select x.id, {b[v]} from {a} x join {b} on x.id = {b}.id"
    found = millrace.query(text, a=views["a"], b=views["b"])
    assert taken(found) == "x b"
    assert bag(found.df) == bag(spark.sql(text, a=views["a"], b=views["b"]))
    text = "select a.id, y.id from a join {a} y on a.k = y.k"  # the view, and another of its name
    other = views["a"].where("id = 1")
    assert bag(millrace.sql(text, a=other)) == bag(spark.sql(text, a=other))
    assert bag(millrace.Session(tables={"a": other}).sql(text, a=views["a"])) == bag(
        millrace.sql("select l.id, y.id from l join y on l.k = y.k", tables={"l": other, "y": views["a"]})
    )


def test_lookup_tables_are_tables(spark, views):
    """Which PySpark does not know."""
    find = millrace.function(lambda key: [{"key": key, "name": "n"}])
    names = millrace.lookup("names", "key int, name string", ["key"], find)
    text = "select x.id, n.name from {a} x join {names} n on x.id = n.key"
    expected = spark.sql("select id, 'n' from a where id is not null")
    assert bag(millrace.sql(text, names=names, a=views["a"])) == bag(expected)


def test_an_estimate_is_of_the_text_with_values(views):
    """A predicate's rows come from the DataFrame in braces."""
    even = millrace.predicate(lambda x: x % 2 == 0, name="is_even")
    text = "select id from {a} where is_even(id) and id > {low}"
    assert millrace.query(text, predicates=[even], low=1, a=views["a"]).estimate(sample=10).rows == 5


@pytest.mark.parametrize(
    ("text", "values", "kind", "problem"),
    [
        ("select * from {a} join {d}", {}, QueryError, r"has \{d\}, which has no value.*'a'"),
        ("select {} from {a}", {}, QueryError, "braces of the text cannot be read"),
        ("select '}' from {a}", {}, QueryError, r"written \{\{ and \}\}"),
        ("select * from {a}", {"table": "x"}, InputError, r"no \{table\}.*did you mean 'tables'"),
        ("select {e} from {a}", {"e": lambda: sf.col("k") + 1}, InputError, "write an expression into the"),
        ("select {e} from {a}", {"e": lambda: sf.lit(3)}, InputError, "expected a column of a DataFrame"),
        ("select {a.nothing} from {a}", {}, Exception, "nothing"),
        ("select {e} from {a}", {"e": dt.time(3, 4)}, AnalysisException, ""),
        ("select {e} from {a}", {"e": None}, AnalysisException, "None"),
    ],
)
def test_what_cannot_be_written_is_refused(spark, views, text, values, kind, problem):
    """Ours says what works; what is SQL to PySpark, Spark refuses as it does there."""
    made = {name: value() if callable(value) else value for name, value in values.items()}
    with pytest.raises(kind, match=f"(?s){problem}"):
        millrace.sql(text, a=views["a"], **made).collect()


def test_all_but_the_text_and_its_parameters_go_by_name(spark):
    """A session in the second place is no parameter."""
    with pytest.raises(QueryError, match="args are given as SparkSession"):
        millrace.sql("select 1", spark)
    with pytest.raises(TypeError, match="positional"):
        millrace.sql("select 1", None, spark)
