"""The entry points: errors, settings, explanations, reports, and the DataFrame form."""

from __future__ import annotations

from collections import OrderedDict

import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameWriter

from millrace import enable, query, sql
from millrace.errors import InputError, QueryError
from millrace.spark import frames
from millrace.spark.overwriting import Overwriting
from millrace.sql.planner import plan_cache, planner
from millrace.sql.session import errors
from tests.session import changed
from tests.sql import cases
from tests.sql.compare import bag, taken

TEXT = "select a.id, b.v from a, b where a.id = b.id"
CHAR = "__CHAR_VARCHAR_TYPE_STRING"


TEXTS = cases.lines("texts")


@pytest.mark.parametrize("text", ["", "  -- nothing\n", *TEXTS["no query"]])
def test_only_queries_are_answered(spark, text):
    """What is not a query is refused before Spark could run it, in one sentence."""
    with pytest.raises(QueryError, match="expected"):
        query(text, spark=spark)


@pytest.mark.parametrize("text", TEXTS["wrong"])
def test_wrong_queries_raise_what_spark_raises(spark, views, text):
    with pytest.raises(AnalysisException) as expected:
        spark.sql(text)
    with pytest.raises(AnalysisException) as found:
        query(text, spark=spark, tables=views)
    assert found.value.getCondition() == expected.value.getCondition()
    with pytest.raises(AnalysisException) as found:
        query(text, spark=spark)
    first = str(expected.value).splitlines()[0].removesuffix(";")  # behind which Spark shows its plan
    assert str(found.value).splitlines()[0] == first
    assert "-^^^" in str(found.value) or "line 1 pos" not in first


WRITES = {
    "a comment": "with c as (select 'a' x) --\\\nselect 1 /*\n insert into written select x from c --*/",
    "pipe": "with c as (select 'a' x) insert into written from c |> limit 1",
    "at once": "execute immediate 'insert into written values (''a'')' -- c \\\n it's\n",
    "several": "from (select 'a' x) insert into written select x insert into written select x",
}
"""Writes that look like queries to who reads comments, or statements, in another way than Spark."""


@pytest.fixture
def written(spark):
    """A table of texts; returns how many rows it has."""
    spark.sql("create table written (x string) using parquet")
    yield lambda: spark.sql("table written").count()
    spark.sql("drop table written")


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_looks_like_a_query_is_refused(spark, written, name):
    """It has no effect; an enabled session leaves it to Spark, which runs it once."""
    for tables in ({}, {"c": spark.range(1)}):
        with pytest.raises(QueryError, match="expected"):
            query(WRITES[name], spark=spark, tables=tables)
    assert written() == 0
    spark.sql(WRITES[name])
    rows = written()
    with enable(spark):
        spark.sql(WRITES[name])
    assert written() == 2 * rows > 0


@pytest.mark.parametrize("text", TEXTS["not parsed"])
def test_what_is_not_parsed_still_sees_the_given_tables(spark, files, text):
    found = query(text, spark=spark, tables={"A": files["a"]})
    assert found.blocks == () and found.reasons
    assert found.df.count() >= 1


def test_relative_paths_are_of_this_process(spark, files, tmp_path, monkeypatch):
    """Also where Spark reads the file, whose own folder is another; and after another change of it."""
    texts = [TEXT, "select a.id from a", "select a.id, b.v from a left join b on a.id = b.id"]
    for rows in (3, 5):
        folder = tmp_path / str(rows)
        folder.mkdir()
        for name in "ab":
            pq.write_table(pq.read_table(files[name]).slice(0, rows), folder / f"{name}.parquet")
        monkeypatch.chdir(folder)
        given = {name: str(folder / f"{name}.parquet") for name in "ab"}
        for text in texts:
            found = query(text, spark=spark, tables={"a": "a.parquet", "b": "./b.parquet"})
            assert bag(found.df) == bag(query(text, spark=spark, tables=given).df)


def test_what_tasks_read_is_not_overwritten(spark, tmp_path):
    """Spark empties a folder before tasks read it, and does not see what they read."""
    a, b, link = f"{tmp_path}/o wn", f"{tmp_path}/b", tmp_path / "link"
    spark.range(50).selectExpr("id AS k", "id % 5 AS part").write.parquet(a)
    spark.range(40).selectExpr("id AS k", "id % 3 AS v").write.partitionBy("v").parquet(b)
    link.symlink_to(a)
    tables = {"a": a, "b": b}
    df = sql("SELECT a.k, a.part, b.v FROM a JOIN b ON a.k = b.k", tables=tables, spark=spark)
    df.createOrReplaceTempView("joined_before")
    with enable(spark, {"take_all": True}):
        spark.read.parquet(a).createOrReplaceTempView("a")
        spark.read.parquet(b).createOrReplaceTempView("b")
        text = spark.sql("SELECT a.k, a.part, b.v FROM a JOIN b ON a.k = b.k")
        over_view = spark.table("joined_before").select("v", "k")
        for write in (
            lambda: df.write.mode("overwrite").parquet(a),
            lambda: df.select("k").distinct().write.parquet(f"file://{tmp_path}/./b/", "Overwrite"),
            lambda: df.write.mode("overwrite").option("Path", f"{tmp_path}/x/../b/v=1").save(),
            lambda: df.write.save(path=str(link), mode="overwrite"),
            lambda: df.write.partitionBy("v").mode("overwrite").json(str(tmp_path)),
            lambda: text.write.mode("overwrite").parquet(a),
            lambda: text.groupBy("v").count().write.orc(a, "overwrite"),
            lambda: over_view.write.mode("overwrite").parquet(a),
        ):
            with pytest.raises(InputError, match="would replace files that the query reads"):
                write()
        wanted = spark.range(40).selectExpr("id AS k", "id % 5 AS part", "id % 3 AS v")
        df.localCheckpoint().write.mode("overwrite").parquet(f"{tmp_path}/out")
        text.write.mode("overwrite").parquet(f"{tmp_path}/out")
        assert bag(spark.read.parquet(f"{tmp_path}/out").select("k", "part", "v")) == bag(wanted)
        df.write.mode("overwrite").mode("append").parquet(a)  # the last mode counts
        # What is pruned is not read.
        some = sql("SELECT a.k, a.part FROM a JOIN b ON a.k = b.k WHERE b.v = 1", tables=tables, spark=spark)
        some.write.mode("overwrite").parquet(f"{b}/v=2")
    assert spark.read.parquet(a).count() == 90


@pytest.mark.parametrize(
    ("target", "file", "same"),
    [
        ("hdfs://nn:8020/data/t", "hdfs://nn:8020/data/t/x", True),
        ("hdfs:///data/t/", "hdfs://nn:8020/data/t/x", True),
        ("/data/t", "hdfs://nn:8020/data/t/x", True),
        ("hdfs://new/data/t", "hdfs://old/data/t/x", False),
        ("s3a://bucket/t", "s3://bucket/t/k=1/x", True),
        ("GCS://bucket/t", "gs://bucket/t/x", True),
        ("abfss://c@account/t", "abfs://c@account/t/x", True),
        ("s3://bucket/t/x", "s3://bucket/t/x", True),
        ("s3://bucket/t/x", "s3://bucket/t/xy", False),
        ("/t", "s3://bucket/t/x", False),
        ("dbfs:/mnt/t", "/dbfs/mnt/t/x", True),
        ("file:///data/a b", "/data/a b/x", True),
        ("/data", "/data2/x", False),
    ],
)
def test_files_by_other_names_are_the_same(spark, target, file, same):
    call = Overwriting()
    given = call.note(DataFrameWriter.parquet, [target, "Overwrite"], {})
    assert call.overwrites and call.replaces(spark, "parquet", given, {file}) == same


def test_tables_that_tasks_read_are_not_overwritten(spark, tmp_path):
    """Partitions that are overwritten dynamically are replaced when all is read, and are no loss."""
    spark.range(50).selectExpr("id AS k", "id % 5 AS part").write.partitionBy("part").saveAsTable("kept")
    spark.range(0, 50, 5).selectExpr("id AS k").write.parquet(f"{tmp_path}/b")
    try:
        df = sql(
            "SELECT a.k, a.part FROM kept a JOIN b ON a.k = b.k", tables={"b": f"{tmp_path}/b"}, spark=spark
        )
        for write in (
            lambda: df.write.insertInto("kept", overwrite=True),
            lambda: df.write.mode("overwrite").saveAsTable("kept"),
        ):
            with pytest.raises(InputError, match="would replace files that the query reads"):
                write()
        df.write.mode("overwrite").format("noop").save()
        with pytest.raises(InputError, match="would replace files"):
            df.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").insertInto("kept")
        with changed(spark, {"spark.sql.sources.partitionOverwriteMode": "DYNAMIC"}):
            df.write.mode("overwrite").insertInto("kept")
        spark.catalog.refreshTable("kept")
        assert spark.table("kept").where("part = 0").count() == 10
        assert spark.table("kept").count() == 50
        spark.range(0, 50, 5).selectExpr("id AS k", "id % 3 AS v").write.partitionBy("v").parquet(
            f"{tmp_path}/c"
        )
        df = sql(
            "SELECT c.* FROM c JOIN b ON c.k = b.k", tables={n: f"{tmp_path}/{n}" for n in "bc"}, spark=spark
        )
        dynamic = df.write.partitionBy("v").option("partitionOverwriteMode", "dynamic")
        dynamic.parquet(f"{tmp_path}/c", mode="overwrite")
        assert spark.read.parquet(f"{tmp_path}/c").count() == 10
    finally:
        spark.sql("DROP TABLE IF EXISTS kept")


def test_statements_do_not_overwrite_what_tasks_read(spark, tmp_path):
    """A view's rows come from tasks, which read the files after Spark has emptied them."""
    a, b = f"{tmp_path}/a", f"{tmp_path}/b"
    spark.range(50).selectExpr("id AS k").write.saveAsTable("kept", path=a)
    spark.range(0, 50, 5).selectExpr("id AS k").write.parquet(b)
    try:
        df = sql("SELECT a.k FROM kept a JOIN b ON a.k = b.k", tables={"b": b}, spark=spark)
        df.createOrReplaceTempView("joined_before")
        with enable(spark):
            folders = f"'{b}' USING parquet", f"USING parquet OPTIONS ('path' = '{b}')"
            for target in ("TABLE kept", "`default`.kept", *(f"DIRECTORY {each}" for each in folders)):
                with pytest.raises(InputError, match="would replace files that the query reads"):
                    spark.sql(f"INSERT OVERWRITE {target} SELECT k FROM joined_before")
            spark.sql(f"INSERT OVERWRITE DIRECTORY '{tmp_path}/c' USING parquet SELECT * FROM joined_before")
            spark.sql("INSERT OVERWRITE TABLE kept VALUES (7)")
        assert spark.read.parquet(f"{tmp_path}/c").count() == spark.read.parquet(b).count() == 10
        assert spark.table("kept").collect() == [(7,)]
    finally:
        spark.sql("DROP TABLE IF EXISTS kept")


def test_a_write_of_sparks_own_asks_for_no_plan(spark, tmp_path, monkeypatch):
    """Where Millrace has planned nothing there is nothing to look for."""
    monkeypatch.setattr(frames, "_runs", {})
    monkeypatch.setattr(frames, "explained", lambda *_: pytest.fail("a plan was asked for"))
    with enable(spark):
        for _ in range(2):
            spark.range(3).write.mode("overwrite").parquet(f"{tmp_path}/a")
    assert spark.read.parquet(f"{tmp_path}/a").count() == 3


def test_names_in_tables_hide_the_catalog(spark, views):
    """A given table wins over a view of that name, a common table expression over both; no other is read."""
    given = {"a": spark.sql("select 7 as id, 1 as k"), "b": spark.sql("select 7 as id, 2 as v")}
    assert bag(sql(TEXT, spark=spark, tables=given)) == {"(7, 2)": 1}
    assert bag(sql("with a as (select 8 as id) " + TEXT, spark=spark, tables=given)) == {}
    assert query(TEXT, spark=spark, tables={**views, "z": "/no/such/file"}).blocks


def test_a_sum_that_is_null_where_spark_raises_is_explained(spark):
    """A key that has no value joins nothing; the explanation says so, for the query that has one."""
    keys = (("a", 2**63 - 1), ("b", 0))
    ends = {name: spark.createDataFrame([(1, k)], "id int, k bigint") for name, k in keys}
    found = query("select a.id from a join b on a.k + 1 = b.k", spark=spark, tables=ends)
    assert taken(found) == "a b" and found.df.count() == 0
    assert "(a.k + 1), as null" in found.explain()
    plain = query("select a.id from a join b on a.k = b.k", spark=spark, tables=ends)
    assert "as null" not in plain.explain()


def test_without_ansi_sums_begin_again_at_the_other_end(spark):
    """A key that overflows is Spark's: not null, as what replaces arithmetic that raises would have it."""
    ends = {"a": (1 << 31) - 1, "b": -(1 << 31)}
    given = {name: spark.createDataFrame([(end,), (7,)], "k int") for name, end in ends.items()}
    with changed(spark, {"spark.sql.ansi.enabled": "false"}):
        for key, rows in (
            ("a.k + 1 = b.k", [tuple(ends.values())]),
            ("a.k % 0 <=> b.k / 0 and a.k = b.k", [(7, 7)]),
        ):
            found = query(f"select a.k, b.k from a join b on {key}", spark=spark, tables=given)
            assert taken(found) == "a b" and found.df.collect() == rows


def test_char_columns_stay_with_spark(spark):
    """CHAR columns are padded by Spark when it compares them: it keeps them."""
    frame = spark.sql("select 'a' as c, 1 as k")
    for given, blocks in ((frame, "l r"), (frame.withMetadata("c", {CHAR: "char(3)"}), "")):
        tables = {"l": given, "r": frame}
        assert taken(query("select l.k from l, r where l.c = r.c", spark=spark, tables=tables)) == blocks


def test_explanation_names_what_runs_where(spark, files):
    """The explanation lists blocks, filters, what stays with Spark and why, and Spark's plan."""
    text = TEXT + " and a.s like 'x%' and a.id + b.id > 1"
    text += " union all select a.id, a.x from a, range(3) r where a.id = r.id"
    shown = query(text, spark=spark, tables=files).explain()
    assert "on a.id = b.id" in shown
    assert "a.s LIKE 'x%'" in shown
    assert "Spark evaluates above it: a.id + b.id > 1" in shown
    assert "left to Spark" in shown and "range(3)" in shown
    assert "Physical Plan" in shown


def test_partitioned_folders(spark, tmp_path, views):
    """Partition columns of a folder join and filter like others."""
    path = str(tmp_path / "parts")
    spark.sql("select id, k, s from a where id is not null").write.partitionBy("id").parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("parts")
    text = "select p.id, p.s, b.v from {} p, b where p.id = b.id and p.id > 1"
    expected = bag(spark.sql(text.format("parts")))
    for name, tables in (("parts", {"parts": path, "b": views["b"]}), (f"parquet.`{path}`", {})):
        found = query(text.format(name), spark=spark, tables=tables)
        assert taken(found) == "p b" and bag(found.df) == expected


@pytest.mark.parametrize(("word", "test", "same"), [(" and ", "<>", "not"), (" or ", "=", "")])
def test_long_conditions(spark, views, files, word, test, same):
    """Thousands of terms are one condition, and are evaluated by the block."""
    terms = word.join(f"a.k {test} {number}" for number in range(15, 1515))
    found = query(f"{TEXT} and ({terms})", spark=spark, tables=files)
    assert taken(found) == "a b"
    assert bag(found.df) == bag(spark.sql(f"{TEXT} and a.k {same} between 15 and 1514"))


FAULTS = [KeyError("some"), RecursionError("deep")]


@pytest.mark.parametrize("step", ["why_nothing_worth", "take_blocks"])
def test_a_fault_of_planning_leaves_the_query_to_spark(spark, files, views, monkeypatch, caplog, step):
    """It is logged with where it came from, and explained; tests are told, and so was this one."""
    monkeypatch.setattr(plan_cache, "_kept", OrderedDict())  # nothing that another test has planned
    expected = bag(spark.sql(TEXT))
    for fault in FAULTS:

        def fail(*_, fault=fault):
            raise fault

        monkeypatch.setattr(planner, step, fail)
        with pytest.raises(type(fault)):
            query(TEXT, spark=spark, tables=files)
        with monkeypatch.context() as patch:
            patch.setattr(errors, "is_strict", False)
            for tables in (files, {}):
                found = query(TEXT, spark=spark, tables=tables)
                assert type(fault).__name__ in found.explain()
    assert [record.exc_info[1] for record in caplog.records] == [each for each in FAULTS for _ in range(2)]
    assert bag(found.df) == expected
    monkeypatch.setattr(errors, "is_strict", False)
    with enable(spark):
        assert bag(spark.sql(TEXT)) == expected
    assert caplog.records[-1].exc_info[1] is FAULTS[-1]
    monkeypatch.setattr(planner, "take_blocks", lambda *_: spark.sql("select nothing"))
    found = query(TEXT, spark=spark, tables=files)
    assert found.blocks == () and bag(found.df) == expected
