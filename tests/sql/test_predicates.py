"""Predicates called by name: Spark's rows whoever calls them, and eddies wherever they may."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.functions import arrow_udf, pandas_udf, udf
from pyspark.sql.types import BooleanType, IntegerType

from millrace import join, query, sql
from millrace.errors import ExecutionError, PredicateError, QueryError
from millrace.spark.predicates import predicate
from millrace.sql.planner import planner
from tests.gate import sampled
from tests.session import changed
from tests.sql import cases
from tests.sql.answers import answer_of
from tests.sql.compare import bag, taken
from tests.sql.small_tables import PREDICATES

BOOLEAN = BooleanType()
above, near = PREDICATES["above"], PREDICATES["near"]


@pytest.fixture(scope="module")
def plain(spark, files):
    """Another session in which Spark alone has the same tables and functions."""
    session = spark.newSession()
    for name, path in files.items():
        session.read.parquet(path).createOrReplaceTempView(f"`{name}`")
    for name, function in PREDICATES.items():
        session.udf.register(name, function)
    return session


@pytest.mark.parametrize(
    ("number", "head", "text"),
    sampled([(number // 2, *case) for number, case in enumerate(cases.read("predicates"))]),
)
def test_rows_are_those_of_registered_functions(spark, oracle, files, views, number, head, text):
    """Blocks and filters are the case's; rows are those of the functions registered with Spark."""
    blocks, filters = ("" if part == "none" else part for part in head.split(" ; "))
    found = query(text, spark=spark, tables=files if number % 2 else views, predicates=PREDICATES)
    assert taken(found) == blocks, found.explain()
    assert " | ".join(" & ".join(one.calls) for one in found.filters) == filters, found.explain()
    assert answer_of(found.df) == oracle("predicates", text), found.explain()


def test_the_explanation_says_who_calls_what(spark, files):
    """Filters, predicates of blocks, and calls that Spark makes are all named."""
    text = "select a.id from a, b where a.id = b.id and above(a.id) and near(a.k + 1, b.k)"
    text += " and (short(a.s) or a.id > 1)"
    shown = query(text, spark=spark, tables=files, predicates=PREDICATES).explain()
    assert "where above(a.id)" in shown
    assert "1. near(a.k + 1, b.k), kind row" in shown
    assert "stands for near(a.k + 1, b.k)" in shown
    assert "(short(a.s) or a.id > 1) is evaluated by Spark, row by row" in shown


def test_the_report_counts_calls(spark, views):
    """Filters report like blocks, under names of their own."""
    found = query(
        "select * from a where above(id) and short(s)", spark=spark, tables=views, predicates=PREDICATES
    )
    with pytest.raises(ExecutionError, match="no figures"):
        found.report()
    rows = found.df.collect()
    report = found.report()
    assert list(report.blocks) == ["f1"] and report.totals.output_tuples == len(rows)
    off = query(
        "select * from a where above(id)",
        spark=spark,
        tables=views,
        options={"report": False},
        predicates=PREDICATES,
    )
    off.df.collect()
    with pytest.raises(ExecutionError, match="report is off"):
        off.report()


def test_a_filter_that_no_row_reached_is_left_out_of_the_report(spark, files):
    """Figures of the rest are shown."""
    text = "select id from a where above(id) union all select id from b where id > 100 and above(id)"
    found = query(text, spark=spark, tables=files, predicates=PREDICATES)
    found.df.collect()
    assert list(found.report().blocks) == ["f1"]


def _counted(spark, keeps):
    """A predicate with an accumulator of its calls."""
    calls = spark.sparkContext.accumulator(0)

    @udf(BOOLEAN)
    def count(x):
        calls.add(1)
        return keeps(x)

    return calls, count


def test_native_conditions_and_selective_predicates_come_first(spark):
    """Spark calls every function for every row; here few rows reach the unselective one."""
    wide, tall = _counted(spark, lambda x: x % 10 != 0)
    rare, scarce = _counted(spark, lambda x: x % 50 == 1)
    numbers = spark.range(0, 4000, 1, 1)
    given = {"t": numbers}
    text = "select id from t where tall(id) and id < 2000 and scarce(id)"
    found = sql(
        text,
        spark=spark,
        tables=given,
        options={"batch_size": 100},
        predicates={"tall": tall, "scarce": scarce},
    )
    assert {row.id for row in found.collect()} == {x for x in range(2000) if x % 50 == 1}
    assert rare.value <= 2000 and wide.value <= 1000


def test_a_predicate_of_a_join_is_asked_once_a_row(spark):
    """In a block, a predicate over one relation is not called for rows that the scan drops."""
    calls, kept = _counted(spark, lambda x: x % 2 == 0)
    left = spark.range(0, 100, 1, 2).selectExpr("id as k", "id as x")
    right = spark.range(0, 1000, 1, 2).selectExpr("id % 100 as k", "id as y")
    text = "select count(*) from l, r where l.k = r.k and kept(l.x) and l.x < 50"
    frame = sql(
        text, spark=spark, tables={"l": left, "r": right}, options={"cells": 1}, predicates={"kept": kept}
    )
    assert frame.collect()[0][0] == 250
    assert calls.value <= 50


def test_what_another_predicate_rejects_does_not_raise(spark, views):
    """An exception for a row that another predicate rejects never surfaces; any other does."""

    @udf(BOOLEAN)
    def fragile(x):
        return 1 // (x - 1) >= 0

    names = {"fragile": fragile, "above": above}
    rows = bag(
        sql("select id from a where fragile(id) and above(id)", spark=spark, tables=views, predicates=names)
    )
    assert rows == bag(spark.sql("select id from a where id > 1"))
    with pytest.raises(Exception, match="predicate 'fragile' raised ZeroDivisionError"):
        sql(
            "select id from a where id = 1 and fragile(id)", spark=spark, tables=views, predicates=names
        ).collect()


def test_on_error_null_holds_wherever_spark_calls(spark, views):
    """A raising row's truth is null in a condition of its own and inside an expression, for every kind."""
    functions = {
        "row": lambda x: {1: True, 2: False, 3: None}[x],
        "pandas": lambda s: [{1: True, 2: False, 3: None}[x] for x in s],
        "arrow": lambda s: [{1: True, 2: False, 3: None}[x] for x in s.to_pylist()],
    }
    made = [
        predicate(function, kind=kind, name=f"{kind}_is", on_error="null", batch=None if kind == "row" else 3)
        for kind, function in functions.items()
    ]
    known = {"{}_is(id)": "id = 1", "not {}_is(id)": "id = 2", "{}_is(id) is null": "id >= 3"}
    select = "select '{0}' as kind, '{1}' as shape, id from a where id is not null and {2}"
    pairs = [(kind, *pair) for kind in functions for pair in known.items()]
    ours = " union all ".join(select.format(kind, same, text.format(kind)) for kind, text, same in pairs)
    plain = " union all ".join(select.format(kind, same, same) for kind, _, same in pairs)
    assert bag(sql(ours, spark=spark, tables=views, predicates=made)) == bag(spark.sql(plain))


def test_coroutines(spark, views):
    """An async predicate filters anywhere, but inside an expression it has to be certain."""

    @predicate(kind="async")
    async def asked(x):
        return None if x is None else x > 2

    run = {"spark": spark, "tables": views, "predicates": [asked]}
    assert bag(sql("select id from a where asked(id)", **run)) == bag(
        spark.sql("select id from a where id > 2")
    )
    inside = query("select id from a where id is not null and (asked(id) or k = 10)", **run)
    expected = spark.sql("select id from a where id is not null and (id > 2 or k = 10)")
    assert bag(inside.df) == bag(expected)
    assert list(inside.report().blocks) == ["asked"]
    with pytest.raises(Exception, match="it has to return True or False"):
        sql("select id from a where not asked(id)", **run).collect()


def test_functions_over_iterators(spark, plain, views):
    """What PySpark calls once for many batches works in a filter and in a SELECT list."""

    @pandas_udf(BOOLEAN)
    def pairs(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for x, y in batches:
            yield x > y

    @arrow_udf(BOOLEAN)
    def singles(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for x in batches:
            yield pc.greater(x, 1)

    names = {"pairs": pairs, "singles": singles}
    for name, function in names.items():
        plain.udf.register(name, function)
    for text in (
        "select id from a where pairs(k, id) and singles(id)",
        "select pairs(k, id) as p, singles(id) as q from a where id is not null",
    ):
        assert bag(sql(text, spark=spark, tables=views, predicates=names)) == bag(plain.sql(text))


def test_non_deterministic_predicates_keep_their_place(spark, views):
    """They are merged in the order as written, never enter a block, and keep theirs out of one."""
    unsure = above.asNondeterministic()
    names = {"unsure": unsure, "near": near}
    text = "select a.id from a, b where a.id = b.id and unsure(a.id) and near(a.k, b.k)"
    found = query(text, spark=spark, tables=views, predicates=names)
    assert taken(found) == "a b"
    assert [one.calls for one in found.filters] == [("unsure(a.id)",)]
    assert "not deterministic: keeps its place" in found.explain()
    assert bag(found.df) == bag(
        sql(text, spark=spark, tables=views, predicates={"unsure": above, "near": near}),
    )
    inner = "select 1 from (select * from a where unsure(id)) t join b on t.id = b.id"
    found = query(inner, spark=spark, tables=views, predicates=names)
    assert taken(found) == "" and "may give other rows" in found.explain()


def test_a_predicate_may_be_any_object(spark, views):
    """One that cannot be hashed, such as a model with settings, works in blocks and filters."""

    @dataclass
    class Model:
        least: int

        def __call__(self, x):
            return None if x is None else x >= self.least

    names = [predicate(Model(2), name="model")]
    text = "select b.id from a, b where a.id = b.id and model(a.id) and model(a.id + b.id)"
    found = query(text, spark=spark, tables=views, predicates=names)
    assert taken(found) == "a b" and len(found.filters) == 1
    assert bag(found.df) == bag(spark.sql("select b.id from a, b where a.id = b.id and a.id >= 2"))


def test_equal_arguments_are_passed_once(spark, views):
    """Unless they may differ between two calls."""
    text = "select id from a where above(id) and near(id, k) and near(rand(), rand())"
    found = query(text, spark=spark, tables=views, predicates=PREDICATES)
    assert "(id, k, rand(), rand())" in found.rewritten


def test_join_takes_predicates(spark, files, views):
    """The form without a query calls them in its conditions."""
    frame = join(
        {"x": files["a"], "y": views["b"]},
        on=["x.id = y.id", "near(x.k, y.k)"],
        where=["above(x.id)"],
        select=["x.id", "v"],
        spark=spark,
        predicates=PREDICATES,
    )
    text = "select a.id, v from a, b where a.id = b.id and abs(a.k - b.k) < 15 and a.id > 1"
    assert bag(frame) == bag(spark.sql(text))


def test_settings_that_leave_a_query_to_spark_leave_the_predicates_too(spark, views):
    """Where names could mean something else, Spark calls the functions itself."""
    with changed(spark, {"spark.sql.caseSensitive": "true"}):
        found = query("select id from a where above(id)", spark=spark, tables=views, predicates=PREDICATES)
        rows = bag(found.df)
    assert found.filters == () and rows == bag(spark.sql("select id from a where id > 1"))


def test_names_belong_to_one_query(spark, views):
    """A second query may bring another function of a name; it hides one of the session's or of Spark's."""
    texts = ["select id from a where {}(id)", "select id from a where not {}(id) or {}(id)"]
    spark.udf.register("theirs", bool, "boolean")
    for name in ("above", "abs", "theirs"):
        for text in texts:
            query_ = text.replace("{}", name)
            one = sql(query_, spark=spark, tables=views, predicates={name: udf(lambda x: x == 1, BOOLEAN)})
            other = sql(query_, spark=spark, tables=views, predicates={name: udf(lambda x: None, BOOLEAN)})
            assert bag(one) != bag(other) == {}
    assert spark.sql("select theirs(0)").collect()[0][0] is False
    assert spark.sql("select abs(-1)").collect()[0][0] == 1


def test_no_name_of_a_filter_stays_in_the_session(spark, views):
    """A query that was analysed keeps its functions, and runs again without their names."""
    found = query("select id from a where above(id)", spark=spark, tables=views, predicates=PREDICATES)
    assert not [f.name for f in spark.catalog.listFunctions() if f.name.startswith("__millrace")]
    assert bag(found.df) == bag(found.df.where("true"))


def test_no_name_of_a_function_stays_where_a_query_cannot_be_prepared(spark, views, monkeypatch):
    """Whether another function cannot be sent, or what comes with them is wrong."""
    lock = threading.Lock()
    unsendable = udf(lambda x: lock is not None, BOOLEAN)
    with pytest.raises(PredicateError):
        query("select 1", spark=spark, tables=views, predicates={"above": above, "holds": unsendable})
    monkeypatch.setattr(planner, "Catalog", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        query("select 1", spark=spark, tables=views, predicates={"above": above})
    assert not [f.name for f in spark.catalog.listFunctions() if f.name.startswith("__millrace")]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("above(id, k)", "predicate 'above' takes .*got 2 arguments"),
        ("near(id)", "predicate 'near' takes .*got 1 argument"),
        ("not near(id)", "predicate 'near' takes .*got 1 argument"),
        ("above()", "called without arguments"),
        ("above(x => id)", "give its arguments by position"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(spark, views, call, problem):
    """The predicate, what it takes and what it got are named."""
    with pytest.raises(PredicateError, match=problem):
        query(f"select id from a where {call}", spark=spark, tables=views, predicates=PREDICATES)


@pytest.mark.parametrize(
    ("given", "kind", "problem"),
    [
        ({"p": len}, PredicateError, "no predicate"),
        ({"p": 3}, PredicateError, "no predicate"),
        ("above", PredicateError, "given as str"),
        (7, PredicateError, "given as int"),
        ({"two words": above}, QueryError, "'two words'"),
        ({"": above}, QueryError, "letters"),
        ({"__millrace_x": above}, QueryError, "taken"),
        ({"p": above, "P": near}, QueryError, "different names"),
        ([udf(lambda x: x, BOOLEAN)], QueryError, "<lambda>"),
        ({"p": udf(lambda x: x, IntegerType())}, PredicateError, "expected boolean"),
    ],
)
def test_predicates_are_checked(spark, views, given, kind, problem):
    """What is no predicate, and what no query could call, is refused."""
    with pytest.raises(kind, match=problem):
        query("select id from a", spark=spark, tables=views, predicates=given)


def test_unknown_functions_are_for_spark_to_refuse(spark, views):
    """A name that is in neither place raises Spark's own error."""
    with pytest.raises(AnalysisException) as found:
        query("select id from a where nobody(id)", spark=spark, tables=views, predicates=PREDICATES)
    assert found.value.getCondition() == "UNRESOLVED_ROUTINE"
