"""Predicates called by name: Spark's rows whoever calls them, and eddies wherever they may."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.functions import udf
from pyspark.sql.types import BooleanType, IntegerType

from millrace import query
from millrace.errors import PredicateError, QueryError
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


@pytest.mark.parametrize(
    ("number", "head", "text"),
    sampled([(number // 2, *case) for number, case in enumerate(cases.read("predicates"))]),
)
def test_rows_are_those_of_registered_functions(spark, oracle, files, views, number, head, text):
    """Blocks and filters are the case's; rows are those of the functions registered with Spark."""
    blocks, filters = ("" if part == "none" else part for part in head.split(" ; "))
    found = called(spark, files if number % 2 else views, text)
    assert taken(found) == blocks, found.explain()
    assert " | ".join(" & ".join(one.calls) for one in found.filters) == filters, found.explain()
    assert answer_of(found.df) == oracle("predicates", text), found.explain()


def called(spark, tables, text, predicates=PREDICATES, **more):
    return query(text, spark=spark, tables=tables, predicates=predicates, **more)


def test_the_explanation_says_who_calls_what(spark, files):
    text = "select a.id from a, b where a.id = b.id and above(a.id) and near(a.k + 1, b.k)"
    text += " and (short(a.s) or a.id > 1)"
    shown = called(spark, files, text).explain()
    assert "where above(a.id)" in shown
    assert "1. near(a.k + 1, b.k), kind row" in shown
    assert "stands for near(a.k + 1, b.k)" in shown
    assert "(short(a.s) or a.id > 1) is evaluated by Spark, row by row" in shown
    # Equal arguments are passed once, unless they may differ between two calls.
    text = "select id from a where above(id) and near(id, k) and near(rand(), rand())"
    assert "(id, k, rand(), rand())" in called(spark, files, text).rewritten


def test_the_report_counts_calls(spark, views):
    """Filters report like blocks, under names of their own; one that no row reached is left out."""
    text = "select id from a where above(id) union all select id from b where id > 100 and above(id)"
    found = called(spark, views, text)
    rows = found.df.collect()
    report = found.report()
    assert list(report.blocks) == ["f1"] and report.totals.output_tuples == len(rows)


def counted(spark, keeps):
    """An accumulator of the calls of a function, and the function."""
    calls = spark.sparkContext.accumulator(0)
    return calls, udf(lambda x: calls.add(1) or keeps(x), BOOLEAN)


def test_native_conditions_and_selective_predicates_come_first(spark):
    """Spark calls every function for every row; here few rows reach the unselective one."""
    wide, tall = counted(spark, lambda x: x % 10 != 0)
    rare, scarce = counted(spark, lambda x: x % 50 == 1)
    text = "select id from t where tall(id) and id < 2000 and scarce(id)"
    numbers, functions = {"t": spark.range(0, 4000, 1, 1)}, {"tall": tall, "scarce": scarce}
    found = called(spark, numbers, text, functions, options={"batch_size": 100})
    assert {row.id for row in found.df.collect()} == {x for x in range(2000) if x % 50 == 1}
    assert rare.value <= 2000 and wide.value <= 1000


def test_a_predicate_of_a_join_is_asked_once_a_row(spark):
    """In a block, a predicate over one relation is not called for rows that the scan drops."""
    calls, kept = counted(spark, lambda x: x % 2 == 0)
    left = spark.range(0, 100, 1, 2).selectExpr("id as k", "id as x")
    right = spark.range(0, 1000, 1, 2).selectExpr("id % 100 as k", "id as y")
    text = "select count(*) from l, r where l.k = r.k and kept(l.x) and l.x < 50"
    found = called(spark, {"l": left, "r": right}, text, {"kept": kept}, options={"cells": 1})
    assert found.df.collect()[0][0] == 250
    assert calls.value <= 50


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
    assert bag(called(spark, views, ours, made).df) == bag(spark.sql(plain))


def test_coroutines(spark, views):
    """An async predicate filters anywhere, but inside an expression it has to be certain."""

    @predicate(kind="async")
    async def asked(x):
        return None if x is None else x > 2

    def filtered(condition):
        return called(spark, views, f"select id from a where {condition}", [asked])

    assert bag(filtered("asked(id)").df) == bag(spark.sql("select id from a where id > 2"))
    inside = filtered("id is not null and (asked(id) or k = 10)")
    expected = spark.sql("select id from a where id is not null and (id > 2 or k = 10)")
    assert bag(inside.df) == bag(expected)
    assert list(inside.report().blocks) == ["asked"]
    with pytest.raises(Exception, match="it has to return True or False"):
        filtered("not asked(id)").df.collect()


def test_non_deterministic_predicates_keep_their_place(spark, views):
    """They are merged in the order as written, never enter a block, and keep theirs out of one."""
    unsure = above.asNondeterministic()
    names = {"unsure": unsure, "near": near}
    text = "select a.id from a, b where a.id = b.id and unsure(a.id) and near(a.k, b.k)"
    found = called(spark, views, text, names)
    assert taken(found) == "a b"
    assert [one.calls for one in found.filters] == [("unsure(a.id)",)]
    assert "not deterministic: keeps its place" in found.explain()
    assert bag(found.df) == bag(called(spark, views, text, names | {"unsure": above}).df)
    inner = "select 1 from (select * from a where unsure(id)) t join b on t.id = b.id"
    found = called(spark, views, inner, names)
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
    found = called(spark, views, text, names)
    assert taken(found) == "a b" and len(found.filters) == 1
    assert bag(found.df) == bag(spark.sql("select b.id from a, b where a.id = b.id and a.id >= 2"))


def test_settings_that_leave_a_query_to_spark_leave_the_predicates_too(spark, views):
    """Where names could mean something else, Spark calls the functions itself."""
    with changed(spark, {"spark.sql.caseSensitive": "true"}):
        found = called(spark, views, "select id from a where above(id)")
        rows = bag(found.df)
    assert found.filters == () and rows == bag(spark.sql("select id from a where id > 1"))


def test_a_name_before_a_parenthesis_may_be_a_relations(spark, views):
    """Relations may have the name of a predicate, with or without names for their columns."""
    for text, expected in (
        ("with spam(id) as (select 1) select * from spam", [1]),
        ("with t as (select 2 n), spam(id) as (select n from t) select id from spam where spam(id)", [2]),
        ("select * from (select 3) as spam(id)", [3]),
        ("select * from (select 4) spam(id)", [4]),
    ):
        found = query(text, spark=spark, tables=views, predicates={"spam": above})
        assert [row.id for row in found.df.collect()] == expected


def test_names_belong_to_one_query(spark, views):
    """A second query may bring another function of a name; it hides one of the session's or of Spark's."""
    spark.udf.register("theirs", bool, "boolean")
    for name in ("above", "abs", "theirs"):
        for condition in ("{0}(id)", "not {0}(id) or {0}(id)"):
            text = f"select id from a where {condition.format(name)}"
            one = called(spark, views, text, {name: udf(lambda x: x == 1, BOOLEAN)})
            other = called(spark, views, text, {name: udf(lambda x: None, BOOLEAN)})
            assert bag(one.df) != bag(other.df) == {}
    assert spark.sql("select theirs(0), abs(-1)").collect() == [(False, 1)]


def test_no_name_of_a_filter_stays_in_the_session(spark, views, monkeypatch):
    """A query keeps its functions and runs again without their names; one that fails leaves none either."""
    found = called(spark, views, "select id from a where above(id)")
    lock = threading.Lock()
    unsendable = udf(lambda x: lock is not None, BOOLEAN)
    text, names = "select id from a where above(id) and holds(id)", {"above": above, "holds": unsendable}
    with pytest.raises(PredicateError):
        called(spark, views, text, names)
    monkeypatch.setattr(planner, "Catalog", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        called(spark, views, "select 1")
    assert not [f.name for f in spark.catalog.listFunctions() if f.name.startswith("__millrace")]
    assert bag(found.df) == bag(found.df.where("true"))


@pytest.mark.parametrize(
    ("call", "given", "kind", "problem"),
    [
        ("above(id, k)", PREDICATES, PredicateError, "predicate 'above' takes .*got 2 arguments"),
        ("near(id)", PREDICATES, PredicateError, "predicate 'near' takes .*got 1 argument"),
        ("not near(id)", PREDICATES, PredicateError, "predicate 'near' takes .*got 1 argument"),
        ("above()", PREDICATES, PredicateError, "called without arguments"),
        ("above(x => id)", PREDICATES, PredicateError, "give its arguments by position"),
        ("nobody(id)", PREDICATES, AnalysisException, "UNRESOLVED_ROUTINE"),
        ("true", {"p": len}, PredicateError, "no predicate"),
        ("true", {"p": 3}, PredicateError, "no predicate"),
        ("true", "above", PredicateError, "given as str"),
        ("true", 7, PredicateError, "given as int"),
        ("true", {"two words": above}, QueryError, "'two words'"),
        ("true", {"": above}, QueryError, "letters"),
        ("true", {"__millrace_x": above}, QueryError, "taken"),
        ("true", {"p": above, "P": near}, QueryError, "different names"),
        ("true", [udf(lambda x: x, BOOLEAN)], QueryError, "<lambda>"),
        ("true", {"p": udf(lambda x: x, IntegerType())}, PredicateError, "expected boolean"),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_runs(spark, views, call, given, kind, problem):
    """The predicate, what it takes and what it got are named; Spark refuses what is in neither place."""
    with pytest.raises(kind, match=problem):
        called(spark, views, f"select id from a where {call}", given)
