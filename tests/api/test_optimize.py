"""``millrace.optimize``: pipelines of DataFrames, however they were made, have Spark's rows."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, Window, functions as sf

import millrace
from lab.bench.trips import count_trips
from millrace.api import optimize as optimizing, query as accounts
from millrace.errors import InputError
from millrace.spark.frames import query_of
from millrace.spark.plan_reader import AnalysedPlan
from millrace.sql import from_plan
from millrace.sql.session import errors
from tests.gate import sampled
from tests.session import changed
from tests.spark import pipelines
from tests.spark.pipelines import BLOCKS, COLUMNS, LEFT, PIPELINES, blocks, dated, mapped, star
from tests.sql import cases
from tests.sql.answers import SUITES, answer_of, recorded
from tests.sql.compare import bag, bags, taken
from tests.sql.small_tables import register, write

FORCED = millrace.Options(take_all=True)
ANY = "any_value"
"""What a text with it answers depends on the order of rows."""


@pytest.fixture(scope="module")
def shop(spark, tmp_path_factory) -> dict[str, DataFrame]:
    return pipelines.shop(spark, tmp_path_factory.mktemp("shop"))


HALVES = pytest.mark.parametrize("half", sampled(range(2)))


@HALVES
def test_pipelines_have_sparks_rows(spark, shop, half):
    """Columns, types and rows; and eddies run a part of each."""
    made = {name: PIPELINES[name](*shop.values()) for name in [*PIPELINES][half::2]}
    found = {name: millrace.optimize(frame, FORCED) for name, frame in made.items()}
    left = {name: vars(made[name])["_millrace_left"] for name, frame in found.items() if frame is made[name]}
    assert left == {}
    assert {name: frame.dtypes for name, frame in found.items()} == {
        n: each.dtypes for n, each in made.items()
    }
    assert bags(found) == bags(made)
    assert all(bags(found).values())


@HALVES
def test_pipelines_of_columns_have_sparks_rows(spark, tmp_path, half):
    tables = pipelines.abc(spark, tmp_path)
    made = {name: COLUMNS[name](*tables) for name in [*COLUMNS][half::2]}
    found = {name: millrace.optimize(frame, FORCED) for name, frame in made.items()}
    assert {name for name, frame in found.items() if frame is made[name]} == LEFT & made.keys()
    several = BLOCKS.keys() & made.keys()
    assert {name: blocks(found[name]) for name in several} == {name: BLOCKS[name] for name in several}
    assert {name: frame.schema for name, frame in found.items()} == {
        n: each.schema for n, each in made.items()
    }
    assert bags(found) == bags(made)


@pytest.fixture(scope="module")
def views(spark, tmp_path_factory):
    session = spark.newSession()
    register(session, write(tmp_path_factory.mktemp("views")))
    return session


TEXTS = [(asked, name) for name in cases.SMALL for asked in SUITES[name].questions()]


@pytest.mark.parametrize("part", sampled(range(12), every=12))
def test_what_spark_makes_of_a_text_is_read(views, part):
    """The cases of SQL, read from what Spark's analyser makes of them, have the answers of plain Spark."""
    read = 0
    for asked, name in TEXTS[part::12]:
        expected = recorded(name)[1][asked]
        with changed(views, cases.settings(asked.settings)):
            if expected.error or ANY in asked.text:
                continue
            df = views.sql(asked.text)
            found = millrace.optimize(df, FORCED)
            if found is not df:
                answer = answer_of(found)
                assert answer.rows == expected.rows, (asked, millrace.explain(found))
                assert [c[:2] for c in answer.columns] == [c[:2] for c in expected.columns]
                read += 1
    assert read > 10


def test_a_pipeline_of_joins_is_one_block(shop):
    """Whatever stands between them: what is computed, renamed and dropped; and a count needs no columns."""
    s, i, p, _ = shop.values()
    found = millrace.optimize(star(s, i, p, _), FORCED)
    assert taken(query_of(found)) == "t0 t1 ?t2+"
    assert "columns id" not in millrace.explain(found)
    assert taken(query_of(millrace.optimize(dated(s, i, p, _), FORCED))) == "t0 t1+"


def test_rows_as_they_come_belong_to_the_callers_group_of_jobs(spark, shop):
    """By that group people find and cancel jobs."""
    jobs = spark.sparkContext
    jobs.setJobGroup("mine", "rows as they come")
    try:
        assert list(millrace.to_batches(next(iter(shop.values()))))
        assert jobs.statusTracker().getJobIdsForGroup("mine")
    finally:
        jobs.setLocalProperty("spark.jobGroup.id", None)
        jobs.setLocalProperty("spark.job.description", None)


def test_actions_of_an_enabled_session_are_planned_when_they_run(spark, shop, tmp_path):
    """Each of them, with accounts of what ran; afterwards and for others they are PySpark's."""
    s, i, p, _ = shop.values()

    def made() -> DataFrame:
        return s.join(i, "item").join(p, "who", "left").where("n > 1")

    expected, count = bag(made().select("id", "kind")), made().count()
    with millrace.enable(spark, FORCED):
        df = made()
        assert df.count() == count and "only counts rows" in millrace.explain(df)
        assert millrace.report(df).totals.output_tuples > 0
        chosen = df.select("id", "kind")
        assert bag(chosen) == expected and "t1.kind" in millrace.explain(chosen)
        assert millrace.report(chosen).totals.output_tuples == count
        assert len(df.take(3)) == len(df.head(3)) == 3 and df.first() and not df.isEmpty()
        assert df.toPandas().shape == (count, len(df.columns)) and df.toArrow().num_rows == count
        assert (
            sum(1 for _ in df.toLocalIterator()) == sum(b.num_rows for b in millrace.to_batches(df)) == count
        )
        df.write.parquet(f"{tmp_path}/out")
        df.createOrReplaceTempView("joined")
        assert spark.table("joined").groupBy("kind").count().agg(sf.sum("count")).first()[0] == count
        kept = df.select("id").cache()
        assert kept.count() == count and "left to Spark" not in str(kept)
        again = kept.join(s.select("id", "n"), "id")  # what is cached is read from there
        assert again.count() == count and "from a DataFrame" in millrace.explain(again)
        kept.unpersist()
        below = s.join(i, "item").select("id", "kind").cache()
        above = mapped(below).join(s.select("id", "n"), "id")
        assert above.count() == below.count() and len(millrace.report(above).blocks) == 1
        below.unpersist()
    assert spark.read.parquet(f"{tmp_path}/out").count() == count
    assert bag(made().select("id", "kind")) == expected


def test_what_is_left_is_told(spark, shop, monkeypatch, caplog):
    """To whoever asks for the explanation, and to the log; a fault of Millrace's leaves it to Spark too."""
    caplog.set_level("INFO", "millrace")
    s, i, *_ = shop.values()
    joined = s.join(i.drop("na.me"), "item")
    with millrace.enable(spark):
        for df, why in (
            (s.where("n > 1"), "joins nothing"),
            (joined.mapInArrow(lambda batches: batches, joined.schema), "below what SQL cannot say"),
            (s.join(i, "item", "full"), "no two relations joined by an inner join"),
        ):
            assert df.count() and why in caplog.text
            with pytest.raises(InputError, match=why):
                millrace.explain(df)

        def broken(*_: object) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr(errors, "is_strict", False)
        monkeypatch.setattr(optimizing, "read", broken)
        assert joined.count() == joined.toArrow().num_rows and "KeyError" in caplog.text
    with pytest.raises(InputError, match="got a int"):
        millrace.optimize(3)


AWAY = {
    "fill": lambda j: j.withColumn(
        "f", sf.last("age", ignorenulls=True).over(Window.partitionBy("kind").orderBy("id"))
    ),
    "first": lambda j: j.groupBy("kind").agg(sf.first("age", ignorenulls=True).isNull()),
    "names": lambda j: j.withColumnRenamed("id", "x").select(
        sf.to_json(sf.struct("x", sf.lit(1).alias("y")))
    ),
    "swapped": lambda j: j.select(sf.col("id").alias("n"), sf.col("n").alias("id")).select(
        sf.struct("n", "id")
    ),
    "error": lambda j: j.agg(sf.approx_count_distinct("id", 0.3)),
    "quoted": lambda j: j.select(sf.lit("extractansiintervaldays(x"), sf.lit("__py7(x) '\"")),
    "within": lambda j: j.sortWithinPartitions("id").select("id"),
    "number": lambda j: j.filter(sf.udf(lambda x: x + 1, "int")("n") > 3),
    "constant": lambda j: j.agg(sf.lit(1).alias("b")),
}
"""What the text of an expression leaves out, or SQL cannot say."""
KEPT = {
    "distinct": lambda j: distinct(j).select("kind"),
    "unions": lambda j: distinct(j).union(distinct(j)).agg(sf.count(sf.lit(1))),
    "one row": lambda j: j.agg(sf.sum("id")).agg(sf.count(sf.lit(1))),
    "one constant": lambda j: j.agg(sf.sum("id")).select(sf.lit(1)),
    "constant beside": lambda j: j.agg(sf.lit(1).alias("a"), sf.sum("id").alias("b")).agg(sf.count("a")),
    "constant of one": lambda j: j.agg(sf.sum("id").alias("a"), sf.lit(1).alias("b")).select("b"),
    "builtins": lambda j: j.filter(~long("kind", "who")).filter(sf.col("kind").contains("a")),
    "braces": lambda j: j.withColumnRenamed("id", "\u00fc {z}"),
    "noted": lambda j: j.withMetadata("kind", {"comment": "a kind"}),
}


def distinct(j):
    j.createOrReplaceTempView("joined")
    return j.sparkSession.sql("SELECT DISTINCT kind, who FROM joined")


def long(*columns):
    def contains(x, y):
        return len(x) > 100 or len(y) > 100

    return sf.udf(contains, "boolean")(*columns)


def test_what_a_text_would_change_is_sparks(spark, shop):
    """It is compared with what Spark reads back, under the settings of now."""
    s, i, p, _ = shop.values()
    j = s.join(i.drop("na.me"), "item").join(p, "who", "left")
    made = {name: pipeline(j) for name, pipeline in {**AWAY, **KEPT}.items()}
    found = {name: millrace.optimize(df, FORCED) for name, df in made.items()}
    assert [name for name, df in found.items() if df is made[name]] == []
    assert {name: df.dtypes for name, df in found.items()} == {name: df.dtypes for name, df in made.items()}
    assert bags(found) == bags(made)
    assert millrace.optimize(KEPT["noted"](j), FORCED).schema["kind"].metadata == {"comment": "a kind"}
    with changed(spark, {"spark.sql.ansi.enabled": "false"}):
        lenient = j.select(sf.col("kind").cast("int"))
    with changed(spark, {"spark.sql.parser.escapedStringLiterals": "true"}):
        for df in (lenient, j.select(sf.lit("a\\b"))):
            found = millrace.optimize(df, FORCED)
            assert found is not df and bag(found) == bag(df)
    hides = p.select("who", sf.struct(sf.lit("w9").alias("who")).alias("t0"))
    df = s.join(hides, "who", "anti")
    assert bag(millrace.optimize(df, FORCED)) == bag(df)


BROKEN = {
    "trust_texts": (AnalysedPlan, "unsayable", lambda self, operators: set(), "fill"),
    "write_out_beside": (from_plan, "is_plain", lambda select: True, "preserved"),
}
"""Rules of reading a plan, each in a broken form, and a pipeline whose rows are then others."""


@pytest.mark.broken_rule
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_of_reading_is_noticed(shop, monkeypatch, name):
    """Texts are compared with what Spark reads back; what nulls may replace is not written out above."""
    s, i, p, c = shop.values()
    holder, rule, broken, pipeline = BROKEN[name]
    if pipeline in PIPELINES:
        df = PIPELINES[pipeline](s, i, p, c)
    else:
        df = AWAY[pipeline](s.join(i.drop("na.me"), "item").join(p, "who", "left"))
    monkeypatch.setattr(holder, rule, broken)
    assert bag(millrace.optimize(df, FORCED)) != bag(df)


def test_a_pipeline_of_several_parts_is_explained_and_reported_as_one(spark, shop, monkeypatch):
    """All parts, the reason for what stands above, and one plan of Spark's."""
    s, i, p, _ = shop.values()
    with millrace.enable(spark, FORCED):
        left = s.join(i.drop("na.me"), "item").select("id", "kind")
        right = s.join(p, "who").select("id", "age")
        df = mapped(left).join(mapped(right), "id", "full")
        rows = df.count()
        df = df.select("*", sf.lit(1).alias("one"))
        assert len(df.collect()) == rows
        planned, asked = accounts.planned, []
        monkeypatch.setattr(accounts, "planned", lambda *given: asked.append(given) or planned(*given))
        text = str(millrace.explain(df))
        assert len(asked) == 1  # Spark is not asked for a plan of each part
        assert "part 1 of 2" in text and "part 2 of 2" in text and "left to Spark" in text
        assert text.count("Spark's plan") == 1 and "FullOuter" in text.partition("Spark's plan")[2]
        report = millrace.report(df)
        assert [name[:2] for name in report.blocks] == ["1.", "2."] == [n[:2] for n in report.planned.shapes]
        assert report.totals.output_tuples == left.count() + right.count()
        with pytest.raises(InputError, match="derived from 2"):
            query_of(df)
        whole = mapped(left).join(right, "id")
        rows = whole.count()
        text = str(millrace.explain(whole))
        assert text.index("block b0") < text.index("part 2 of 2") < text.index("Spark's plan")
        assert "stands above" not in text
        assert sorted(millrace.report(whole).blocks) == ["1.b0", "2.b0"]
        found = millrace.optimize(whole, FORCED)
        assert sum(batch.num_rows for batch in millrace.to_batches(found)) == rows > 0


def test_a_part_that_fails_ends_itself_alone(shop, monkeypatch):
    """What stands above it is planned all the same, and the rows are Spark's."""
    s, i, p, _ = shop.values()
    df = mapped(s.join(i.drop("na.me"), "item").select("id", "who")).join(p.select("who", "age"), "who")
    over_parts, expected = optimizing._Pipeline._over_parts, bag(df)
    assert blocks(millrace.optimize(df, FORCED)) == 2
    monkeypatch.setattr(optimizing._Pipeline, "_over_parts", lambda *_: "it does not fit")
    unfit = millrace.optimize(df, FORCED)
    assert blocks(unfit) == 1 and bag(unfit) == expected
    monkeypatch.setattr(optimizing._Pipeline, "_over_parts", over_parts)
    query = optimizing.Session.query

    def fail(session, text):
        if "item" in text:
            raise InputError("not this part")
        return query(session, text)

    monkeypatch.setattr(optimizing.Session, "query", fail)
    found = millrace.optimize(df, FORCED)
    assert blocks(found) == 1 and bag(found) == expected


def test_what_is_cached_is_not_what_it_was_made_of(shop):
    """Spark gives its columns the same numbers."""
    s, i, *_ = shop.values()
    some = s.where("id > 250")
    every = bag(millrace.optimize(s.join(i, "item"), FORCED))
    for kept in (some.localCheckpoint(), some.cache()):
        joined = kept.join(i, "item")
        assert bag(millrace.optimize(joined, FORCED)) == bag(joined) != every
    some.unpersist()


def test_what_a_pipeline_reads_is_not_overwritten(spark, shop, tmp_path):
    """Spark would empty it first; what is written beside the files is written by Millrace."""
    s, i, *_ = shop.values()
    s.limit(50).write.parquet(f"{tmp_path}/o wn")
    own = spark.read.parquet(f"{tmp_path}/o wn")
    with millrace.enable(spark, FORCED):
        joined = own.join(i, "item")
        writer = joined.write.mode("overwrite").option("compression", "gzip")
        writer.partitionBy("kind").format("json").save(f"{tmp_path}/other")
        writer.save(f"{tmp_path}/other", mode="overwrite", format="json")
        joined.write.mode("append").json(f"{tmp_path}/more")
        for _ in range(2):  # a new table, and one that is there
            joined.write.mode("overwrite").saveAsTable("sold_at")
            assert millrace.report(joined).totals.output_tuples == joined.count()
        joined.write.insertInto("sold_at", overwrite=True)
        joined.write.format("noop").mode("overwrite").save()
        assert millrace.report(joined).totals.output_tuples == spark.table("sold_at").count()
        again = spark.table("sold_at").join(i.select("item"), "item")
        for write in (
            lambda: again.write.insertInto("sold_at", overwrite=True),
            lambda: again.write.mode("overwrite").saveAsTable("sold_at"),
            lambda: joined.write.parquet(f"{tmp_path}/o wn", "OVERWRITE"),
            lambda: joined.write.mode("overwrite").option("path", f"{tmp_path}/o wn").saveAsTable("sold_by"),
        ):
            with pytest.raises(InputError, match="would replace files that the query reads"):
                write()
        spark.sql("DROP TABLE sold_at")
        joined.write.partitionBy("kind").saveAsTable("sold_by")
        joined.write.insertInto("sold_by", overwrite=True)  # of which nothing is read
        spark.sql("DROP TABLE sold_by")
        for name in ("other", "more"):
            assert spark.read.json(f"{tmp_path}/{name}").count() == joined.count()


def test_a_function_that_is_not_in_the_plan_is_named_as_the_reason(spark, shop, caplog):
    """Spark sends what a broadcast variable holds beside the function."""
    s, *_ = shop.values()
    wanted = spark.sparkContext.broadcast({1, 2})
    some = s.where(sf.udf(lambda n: n in wanted.value, "boolean")("n"))
    caplog.set_level("INFO", "millrace")
    assert millrace.optimize(some, FORCED) is some
    assert "broadcast variable" in caplog.text


def test_what_is_left_costs_few_calls_of_the_jvm(shop):
    """Reading a plan is a handful: however many operators and columns it has."""
    s, i, p, _ = shop.values()
    df = (
        s.join(i.drop("na.me"), "item")
        .join(p, "who")
        .select("*", *(sf.lit(n).alias(f"c{n}") for n in range(50)))
    )
    wide = df.mapInArrow(lambda batches: batches, df.schema)
    millrace.optimize(wide)  # what a session does once
    with count_trips() as trips:
        assert millrace.optimize(wide) is wide
    assert trips.calls <= 20, trips
