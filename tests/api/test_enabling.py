"""``enable`` and ``df.millrace``: the same rows by the session's own methods, through Millrace."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, functions as sf
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
from pyspark.sql.udf import UserDefinedFunction

import millrace
import millrace.api.accessor
from millrace.api import optimize as optimizing
from millrace.errors import MillraceWarning
from millrace.spark import frames, patches
from millrace.sql.blocks import cost_model
from tests.sql.compare import bag, bags

JOIN = "select a.id, b.v from a join b on a.id = b.id where a.k > 5"


@pytest.fixture
def asked():
    """Two functions of Python, slow to Spark's mind."""
    return [sf.udf(lambda x, by=by: x is not None and x % by == 0, "boolean") for by in (2, 3)]


def told(df) -> str:
    """What is said of a DataFrame: its explanation, or why there is none."""
    try:
        return str(millrace.explain(df))
    except millrace.MillraceError as error:
        return f"Spark's: {error}"


def is_ours(df) -> bool:
    return not told(df).startswith("Spark's: ")


def test_sql_of_a_session_and_back(spark, views):
    """Within the context texts go through Millrace, with Spark's rows; after it they do not."""
    plain = spark.sql(JOIN)
    even = millrace.predicate(lambda x: x is not None and x % 2 == 0, name="even")
    with millrace.enable(spark, predicates=[even]) as enabled:
        found = spark.sql(JOIN)
        assert is_ours(found) and bag(found) == bag(plain) == bag(millrace.sql(JOIN, spark=spark))
        assert is_ours(spark.sql("select a.id from a join b on a.id = b.id where a.k > :k", {"k": 5}))
        assert bag(spark.sql("select id from a where even(id)")) == bag(
            views["a"].select("id").where("id % 2 = 0")
        )
        assert not is_ours(spark.sql("select 1 x"))
        assert spark.sql("show tables").count() > 0
        with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
            spark.sql("select nothing from a")
    assert not is_ours(spark.sql(JOIN))
    assert "sql" not in vars(spark)
    enabled.disable()  # once more does nothing


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
        # What Millrace asks Spark for goes to Spark.
        assert millrace.where(df, even("x"), third("id"), "id > 10").collect() == expected
    assert not is_ours(df.filter(even("x")).select("x"))


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

    plain = dict(zip("abcde", made(), strict=True))
    with millrace.enable(spark, options={"take_all": True}):
        found = made()
        ours = {name: each.select("id", "x") for name, each in zip("abcde", found, strict=True)}
        assert all(is_ours(each.limit(9)) for each in found[:3])
    assert bags(ours) == bags({name: each.select("id", "x") for name, each in plain.items()})


def test_joins_that_pay_are_taken(spark, files, tmp_path, monkeypatch, asked):
    """It is known what leaves the tasks: what is asked above a join."""
    monkeypatch.setattr(cost_model, "start_seconds", lambda spark, saved: 0.0)
    monkeypatch.setattr(optimizing, "LEAST_GAIN_SECONDS", 0.0)
    a, b = (spark.read.parquet(files[name]).select("id", own) for name, own in ("ak", "bv"))
    many = spark.range(5_000).withColumn("n", sf.col("id") + 1)
    even, third = asked
    a.write.csv(f"{tmp_path}/a", header=True)
    of_text = spark.read.csv(f"{tmp_path}/a", header=True, schema="id bigint, k bigint")
    a.createOrReplaceTempView("few")
    many.createOrReplaceTempView("counted")
    text = "SELECT k, n FROM few JOIN counted ON few.id = counted.id WHERE k = 20"
    chosen = {
        "grouped": (lambda: a.join(b, a.id == b.id).groupBy("v").count(), "block"),
        "one": (lambda: a.where("k = 20").join(b, "id"), "block"),
        "all": (lambda: a.join(b, "id"), "would pass from Python"),
        "computed": (lambda: a.where("k = 20").join(many, "id"), "would come from Spark"),
        "CSV": (lambda: of_text.join(of_text.groupBy("k").count(), "k"), "reads these files alone"),
        "CSV and Parquet": (lambda: of_text.join(b, "id").groupBy("v").count(), "block"),
        "text": (lambda: spark.sql(text), "would come from Spark"),
        "function": (lambda: a.join(b, "id").filter(even("k")).filter(third("k")), "lambda_1"),
        "function, inner": (lambda: a.filter(even("id")).filter(third("id")).join(many, "id"), "lambda_1"),
        "function, left": (lambda: a.filter(even("id")).join(b, "id", "left"), "lambda"),
        "function, right": (lambda: many.join(a.filter(even("id")), "id", "left"), "lambda"),
    }
    plain = {name: chain() for name, (chain, _) in chosen.items()}
    with millrace.enable(spark):
        found = {name: chain() for name, (chain, _) in chosen.items()}
        for name, (_, word) in chosen.items():
            assert word in told(found[name]), name
        assert {name: bag(frame) for name, frame in found.items()} == {
            n: bag(each) for n, each in plain.items()
        }


def test_a_session_stays_enabled_until_all_contexts_are_left(spark, views):
    """Whatever their order, and in whatever thread; the latest options that still hold count."""
    before = vars(spark).get("sql")
    other = spark.newSession()
    with millrace.enable(spark) as outer:
        with millrace.enable(spark, options={"take_all": True}) as inner, millrace.enable(other):
            inner.disable()
            inner.disable()
            assert "sql" in vars(other) and is_ours(spark.sql(JOIN))
        assert "sql" not in vars(other) and is_ours(spark.sql(JOIN))
        inner = millrace.enable(spark)
        outer.disable()
        assert is_ours(spark.sql(JOIN))
        inner.disable()
        assert not is_ours(spark.sql(JOIN)) and vars(spark).get("sql") is before

    entered, go = threading.Barrier(3), threading.Event()

    def enable_and_leave() -> None:
        for _ in range(20):
            with millrace.enable(spark):
                pass
        with millrace.enable(spark):
            entered.wait(60)
            go.wait(60)

    with ThreadPoolExecutor(2) as pool:
        left = [pool.submit(enable_and_leave) for _ in range(2)]
        entered.wait(60)
        with millrace.enable(spark):
            go.set()
            for each in left:
                each.result(60)
            assert is_ours(spark.sql(JOIN))
    assert not is_ours(spark.sql(JOIN)) and vars(spark).get("sql") is before


CLASSES = (ClassicFrame, ClassicColumn, UserDefinedFunction)


def changed(before) -> set[tuple[str, str]]:
    """What differs in PySpark's classes."""
    return {
        (kind.__name__, name)
        for kind, old in zip(CLASSES, before, strict=True)
        for name in {*old, *vars(kind)}
        if old.get(name) is not vars(kind).get(name)
    }


@pytest.fixture
def unpatched():
    """PySpark's classes as they are before Millrace is used, and what other tests want of them."""
    wanted = hasattr(UserDefinedFunction.__call__, "__wrapped__")
    patches.restore("where")
    yield [dict(vars(kind)) for kind in CLASSES]
    if wanted:
        patches.watch()


def test_patches_are_those_of_the_table_and_are_given_back(spark, views, unpatched, monkeypatch):
    """None by queries; exactly those that it lists by functions, and by enabling, until it is over."""
    assert bag(millrace.sql(JOIN, spark=spark)) and changed(unpatched) == set()
    monkeypatch.delattr(ClassicFrame, "join")  # as if PySpark inherited it
    inherited = [dict(vars(kind)) for kind in CLASSES]
    with millrace.enable(spark):
        table = patches.REPLACED["enable"]
        assert changed(inherited) == table - {("SparkSession", "sql")} and "sql" in vars(spark)
        assert spark.range(3).filter(sf.udf(lambda x: x > 0, "boolean")("id")).count() == 2
    assert changed(inherited) == set() and "sql" not in vars(spark)
    monkeypatch.undo()
    for name in ("where", "filter", "predicate", "cascade", "estimate", "Session", "join"):
        patches.restore("where")
        getattr(millrace, name)
        assert changed(unpatched) == patches.REPLACED["where"], name
    with millrace.enable(spark):
        pass
    assert changed(unpatched) == patches.REPLACED["where"]


IMPORTS = """
import millrace.api.enabling, millrace.api.session, millrace.engine.eddy.run
import pyspark.sql.connect.udf, pyspark.sql.udf

def calls():
    for module in (pyspark.sql.udf, pyspark.sql.connect.udf):
        call = module.UserDefinedFunction.__call__
        print(call.__name__, hasattr(call, "__wrapped__"))

calls()
from millrace import filter
calls()
"""


def test_importing_millrace_changes_nothing_of_pyspark():
    """The use of some of its functions does: both classes are wrapped, and all else about them stays."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__call__", "False"] * 2 + ["__call__", "True"] * 2


def test_a_call_that_was_not_noted_is_told(spark):
    """The rows are right, and a warning says why the function is called for all of them and what to do."""
    patches.watch()
    even = sf.udf(lambda x: x % 2 == 0, "boolean")
    column = even("id")
    del column.__dict__["_millrace_note"]
    with pytest.warns(MillraceWarning, match="called by Spark for every row.*as \\(function"):
        frame = millrace.where(spark.range(4), column)
    assert frame.count() == 2
    with pytest.warns(MillraceWarning, match="condition 2 is called by Spark"):
        assert millrace.where(spark.range(4), "id > 0", even("id") | (sf.col("id") == 3)).count() == 2
    assert millrace.where(spark.range(4), (even, "id"), sf.isnotnull("id")).count() == 2


def test_patches_of_other_libraries_stay(spark, files, monkeypatch):
    """Made while a session is enabled, before or after; Millrace's below it does nothing more."""
    calls, plain = [], ClassicFrame.count

    def patched(before):
        return lambda self: calls.append(self) or before(self)

    monkeypatch.setattr(ClassicFrame, "count", plain)  # puts it back in the end
    enabled = millrace.enable(spark)
    theirs = patched(ClassicFrame.count)
    ClassicFrame.count = theirs
    enabled.disable()
    assert ClassicFrame.count is theirs
    found = spark.range(4).filter(sf.udf(lambda x: x % 2 == 0, "boolean")("id"))
    assert found.count() == 2 and len(calls) == 1
    with millrace.enable(spark):
        assert is_ours(found) and found.count() == 2
        assert spark.range(4).count() == 4 and len(calls) == 2
    assert ClassicFrame.count is theirs and not is_ours(found.select("id"))


def test_every_action_of_the_table_is_pysparks():
    """On classic Spark and on Spark Connect."""
    assert frames.ACTIONS["DataFrame"] <= set(dir(ClassicFrame)) & set(dir(ConnectFrame))
    for name, kind in (("DataFrameWriter", DataFrameWriter), ("DataFrameWriterV2", DataFrameWriterV2)):
        assert frames.ACTIONS[name] <= set(dir(kind))


def test_the_accessor(spark, files, asked):
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
    assert sum(batch.num_rows for batch in kept.millrace.to_batches()) == kept.count()
    assert {"where", "join", "sql"} <= set(dir(df.millrace))
