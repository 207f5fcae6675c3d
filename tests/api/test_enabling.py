"""``enable`` and ``df.millrace``: the same rows by the session's own methods, through Millrace."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, functions as sf
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
from pyspark.sql.connect.group import GroupedData as ConnectGroup
from pyspark.sql.group import GroupedData
from pyspark.sql.udf import UserDefinedFunction

import millrace
import millrace.api.accessor
from millrace.api import chains, gain
from millrace.spark import frames, patches
from millrace.sql.blocks import cost_model
from millrace.sql.session import errors
from tests.spark.column_chains import RESOLVED, TAKEN, differing
from tests.sql.compare import bag, bags

JOIN = "select a.id, b.v from a join b on a.id = b.id where a.k > 5"


@pytest.fixture
def asked():
    """Two functions of Python, slow to Spark's mind."""
    return [sf.udf(lambda x, by=by: x is not None and x % by == 0, "boolean") for by in (2, 3)]


@pytest.fixture
def abc(spark, files):
    """Three tables with a shared name and a name of their own each."""
    columns = {"a": "k", "b": "v", "c": "w"}
    return [spark.read.parquet(files[name]).select("id", own) for name, own in columns.items()]


def told(df) -> str:
    """What is said of a DataFrame: its explanation, or why there is none."""
    try:
        return str(millrace.explain(df))
    except millrace.MillraceError as error:
        return f"Spark's: {error}"


def is_ours(df) -> bool:
    """Whether Millrace has a part in a DataFrame."""
    return not told(df).startswith("Spark's: ")


def test_sql_of_a_session_and_back(spark, views):
    """Within the context texts go through Millrace, with Spark's rows; after it they do not."""
    plain = spark.sql(JOIN)
    even = millrace.predicate(lambda x: x is not None and x % 2 == 0, name="even")
    with millrace.enable(spark, predicates=[even]) as enabled:
        found = spark.sql(JOIN)
        assert is_ours(found) and bag(found) == bag(plain)
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
        assert found.filter(millrace.predicate(lambda x: x > 90)("id")).count() == 2
    assert not is_ours(df.filter(even("x")).select("x"))


def test_chains_of_joins_are_one(spark, abc):
    """Inner joins by names, over relations filtered by text, are a block; columns are PySpark's."""
    a2, b2, _ = abc

    def made() -> DataFrame:
        return a2.where("k > 3").join(b2, "id").join(a2.withColumnRenamed("k", "l"), ["id"], "inner")

    plain = made()
    with millrace.enable(spark, options={"take_all": True}):
        found = made()
        assert found.columns == plain.columns
        assert is_ours(found.select("v")) and bag(found) == bag(plain)
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
        assert bag(asked) == bag(plain.where("l % 2 = 1"))
        assert set(millrace.report(asked).blocks) == {"filter"}


def test_chains_on_columns_are_sparks_rows(spark, tmp_path):
    """Whatever Columns compare and name, and wherever they were taken of: its columns and its rows."""
    assert differing(spark, tmp_path, {**TAKEN, **RESOLVED}) == {}
    assert not {"_millrace_note"} & set(vars(spark.range(1).id == spark.range(1)["id"]))


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


def test_a_filter_above_a_join_that_is_left_stays(spark, files):
    """Whoever joins: Spark, or Millrace below and Spark above."""
    a, b, c = (spark.read.parquet(files[name]) for name in "abc")
    a, b, c = a.select("id", "k"), b.select("id", "v"), c.select("id", "w")

    def made() -> list[DataFrame]:
        join = a.join(b, "id").limit(99)
        return [
            join.join(c, sf.col("k") / 10 == c.id).filter("w = 'p'"),
            join.join(c, [a.k / 10 == c.id]).filter("w = 'p'").where("v > 0"),
            join.join(c, "id").filter("w = 'p'"),
        ]

    plain = [bag(each) for each in made()]
    assert all(plain)
    with millrace.enable(spark, options={"take_all": True}):
        found = made()
        assert [bag(each) for each in found] == plain
        assert all(is_ours(each) for each in found)


def test_what_is_left_to_spark_says_why(spark, abc, asked, caplog):
    """To whoever asks for the explanation of a DataFrame or of one derived from it, and to the log."""
    caplog.set_level("INFO", "millrace")
    (a, b, _), (even, third) = abc, asked
    before = a.id == b.id
    with millrace.enable(spark, options={"take_all": True}):
        unheld = b.select("id").id
        outer = a.join(b, "id", "left")
        calls = [~even("id"), even("id") & (a.k > 3), even("id") == sf.lit(True), even("id") & third("k")]
        for frame, why in (
            (a.join(b, before), "was not seen being made"),
            (a.join(b, a.id == b.id + 1), "is not just a column"),
            (a.join(b, a.id == unheld), "'id' is a column of a DataFrame that is joined 0 times"),
            (b.alias("l").join(b, sf.col("l.id") == sf.col("l.v")), "is not just a column"),
            (outer, "a join with how='left' is Spark's"),
            (outer.withColumn("z", sf.lit(1)).join(b, "id", "left").groupBy("z").count(), "how='left'"),
            (a.join(a.join(b, "id"), "id"), "a join on the right of a join"),
            (a.join(b, "id").limit(9).select(b.id), "select asks for what only Spark's DataFrame has"),
            (a.filter("k > 3"), "no condition of the filter is a call"),
            *((a.filter(each), "a call in them") for each in calls),  # and what to write in its place
            (spark.sql("select 1 x"), "no FROM clause joins two relations"),
        ):
            assert not is_ours(frame) and why in told(frame), why
            assert any(why in each.message for each in caplog.records), why
        assert is_ours(a.filter(even("id")).filter(third("k")))


def test_joins_whose_rows_do_not_pay_to_pass_are_sparks(spark, files, abc, monkeypatch, asked):
    """Taken are those of which conditions keep little; what pays below one that does not stays taken."""
    monkeypatch.setattr(cost_model, "start_seconds", lambda spark, saved: 0.0)
    monkeypatch.setattr(gain, "LEAST_GAIN_SECONDS", 0.0)
    a, b, c = abc
    many = spark.range(5_000).withColumn("n", sf.col("id") + 1)
    even, third = asked
    joined, own = "would pass from Python", "would come from Spark"

    def below() -> DataFrame:
        return a.where("k = 20").join(b, "id").withColumn("z", sf.lit(1))

    chosen = {
        "all": (lambda: a.join(b, "id"), joined),
        "grouped": (lambda: a.join(b, a.id == b.id).groupBy("v").count(), joined),
        "range": (lambda: a.where("k > 3").join(b, "id"), joined),
        "either": (lambda: a.where("k = 20 or id > 0").join(b, "id"), joined),
        "half": (lambda: a.where("k in (1, 10, 20, 30, 40)").join(b, "id"), joined),
        "computed": (lambda: a.where("k = 20").join(many, "id"), own),
        "pieces": (lambda: a.join(b, "id").withColumn("z", sf.col("k") + 1).join(c, "id"), joined),
        "wide": (lambda: a.where("k = 20").join(spark.read.parquet(files["c"]), "id"), joined),
        "one": (lambda: a.where("k = 20").join(b, "id"), "block"),
        "both": (lambda: a.where("(k in (10, 20) and id > 0)").join(b, "id"), "block"),
        "above": (lambda: a.join(b, "id").join(c, "id").filter("w = 'p'"), "block"),
        "below": (lambda: below().join(c, "id"), "block"),
        "filtered": (lambda: below().join(many, "id").where("n > 2"), "block"),
        "outer": (lambda: a.where("k = 20").join(b, "id").join(c, "id", "left"), "block"),
        "function": (lambda: a.join(b, "id").filter(even("k")).filter(third("k")), "2. <lambda>"),
        "function, inner": (lambda: a.filter(even("id")).filter(third("id")).join(many, "id"), "2. <lambda>"),
        "function, left": (lambda: a.filter(even("id")).join(b, "id", "left"), "1. <lambda>"),
        "function, right": (lambda: many.join(a.filter(even("id")), "id", "left"), "1. <lambda>"),
    }
    plain = {name: chain() for name, (chain, _) in chosen.items()}
    with millrace.enable(spark):
        found = {name: chain() for name, (chain, _) in chosen.items()}
        for name, (_, word) in chosen.items():
            assert found[name].columns == plain[name].columns, name
            assert word in told(found[name]), name
        assert "would pass" in told(a.join(b, "id").orderBy("id").limit(3))
        assert "take_all" in told(a.join(b, "id"))
        monkeypatch.setattr(gain, "LEAST_GAIN_SECONDS", 0.2)
        assert "joining 13 rows saves less" in told(a.where("k = 20").join(b, "id"))
        with millrace.enable(spark, options={"take_all": True}):
            assert is_ours(a.join(b, "id"))
    assert bags(found) == bags(plain)


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
    """None by queries; by enabling those that it lists, exactly, until it is over."""
    assert bag(millrace.sql(JOIN, spark=spark)) and changed(unpatched) == set()
    monkeypatch.delattr(ClassicFrame, "join")  # as if PySpark inherited it
    inherited = [dict(vars(kind)) for kind in CLASSES]
    with millrace.enable(spark):
        table = patches.REPLACED["enable"]
        assert changed(inherited) == table - {("SparkSession", "sql")} and "sql" in vars(spark)
        assert spark.range(3).filter(sf.udf(lambda x: x > 0, "boolean")("id")).count() == 2
    assert changed(inherited) == set() and "sql" not in vars(spark)
    monkeypatch.undo()
    _ = millrace.where
    assert changed(unpatched) == patches.REPLACED["where"]
    with millrace.enable(spark):
        pass
    assert changed(unpatched) == patches.REPLACED["where"]


def test_patches_of_other_libraries_stay(spark, files, monkeypatch):
    """Made while a session is enabled, before or after; Millrace's below it does nothing more."""
    calls, plain = [], ClassicFrame.filter

    def patched(before):
        def filter_(self, condition):
            calls.append(condition)
            return before(self, condition)

        return filter_

    monkeypatch.setattr(ClassicFrame, "filter", plain)  # puts it back in the end
    enabled = millrace.enable(spark)
    theirs = patched(ClassicFrame.filter)
    ClassicFrame.filter = theirs
    enabled.disable()
    assert ClassicFrame.filter is theirs
    even = sf.udf(lambda x: x % 2 == 0, "boolean")
    assert spark.range(4).filter("id > 1").count() == 2 and calls == ["id > 1"]
    with millrace.enable(spark):
        found = spark.range(4).filter(even("id"))
        assert is_ours(found) and found.count() == 2 and len(calls) > 1
    assert ClassicFrame.filter is theirs and not is_ours(spark.range(4).filter(even("id")))


def unlisted(kind) -> set[str]:
    """Public names of a class that the table of methods lacks."""
    names = [name for role in frames.METHODS[kind.__name__] for name in role]
    assert len(names) == len(set(names)), "a method has two roles"
    return {name for name in dir(kind) if not name.startswith("_")} - {*names, "millrace"}


@pytest.mark.parametrize("kind", [ClassicFrame, ConnectFrame, GroupedData, ConnectGroup])
def test_every_method_of_pyspark_is_in_the_table(kind):
    """One that PySpark adds has to be put there; until then it is Spark's own."""
    assert unlisted(kind) == set()
    newer = type(kind.__name__, (kind,), {"novel": lambda self: "Spark's"})
    assert unlisted(newer) == {"novel"}
    made = frames.substitute(object.__new__(newer), None)
    assert vars(made) and type(made).__bases__ == (newer,) and made.novel() == "Spark's"


def test_every_action_of_the_table_is_pysparks():
    """On classic Spark and on Spark Connect."""
    assert frames.METHODS["DataFrame"].runs <= set(dir(ClassicFrame)) & set(dir(ConnectFrame))
    for name, kind in (("DataFrameWriter", DataFrameWriter), ("DataFrameWriterV2", DataFrameWriterV2)):
        assert frames.METHODS[name].runs <= set(dir(kind))


def test_a_fault_of_millrace_leaves_chains_to_spark(spark, abc, asked, monkeypatch, caplog):
    """The rows are Spark's, and the log has where it was."""
    monkeypatch.setattr(errors, "is_strict", False)
    (a, b, _), (even, _) = abc, asked
    expected = bag(a.where("id % 2 = 0")), bag(a.join(b, "id"))

    def broken(*args, **named):
        raise KeyError("a bug")

    for module, name in ((chains, "where"), (chains, "_conditions"), (chains.Joins, "_joined")):
        with millrace.enable(spark), monkeypatch.context() as patch:
            patch.setattr(module, name, broken)
            caplog.clear()
            assert (bag(a.filter(even("id"))), bag(a.join(b, "id"))) == expected
            assert "a bug" in caplog.text and "Traceback" in caplog.text
    with millrace.enable(spark), monkeypatch.context() as patch:
        patch.setattr(chains, "where", broken)
        assert "KeyError" in told(a.filter(even("id")))


def test_within_millrace_it_is_off(spark, views, asked):
    """What Millrace asks Spark for goes to Spark: its own functions give what they give without."""
    even, _ = asked
    df = spark.range(20)
    expected = [row.id for row in df.collect() if row.id % 2 == 0]
    with millrace.enable(spark):
        assert [row.id for row in millrace.where(df, even("id"), "id >= 0").collect()] == expected
        assert bag(millrace.sql(JOIN, spark=spark)) == bag(spark.sql(JOIN))
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
    assert sum(batch.num_rows for batch in kept.millrace.to_batches()) == kept.count()
    assert {"where", "join", "sql"} <= set(dir(df.millrace))
