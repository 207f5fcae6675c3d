"""The entry points: errors, settings, explanations, reports, and the DataFrame form."""

from __future__ import annotations

from collections import OrderedDict

import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException

from millrace import enable, join, query, sql
from millrace.errors import OptionError, QueryError
from millrace.sql.planner import plan_cache, planner
from millrace.sql.session import errors
from millrace.sql.syntax.parse import conjuncts, disjuncts, parse, unwrap
from millrace.sql.syntax.scopes import Scopes
from tests.session import changed
from tests.sql.compare import bag, taken

TEXT = "select a.id, b.v from a, b where a.id = b.id"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  -- nothing\n",
        "drop table a",
        "insert into a select * from b",
        "with q as (select 1) insert into a select * from q",
        "from a insert into b select *",
        "create table x as select 1",
        "explain select 1",
        "set spark.sql.ansi.enabled=false",
        "show tables",
        "merge into a using b on a.id = b.id when matched then delete",
    ],
)
def test_only_queries_are_answered(spark, text):
    """What is not a query is refused before Spark could run it, in one sentence."""
    with pytest.raises(QueryError, match="expected"):
        query(text, spark=spark)


@pytest.mark.parametrize(
    "text",
    [
        "select nothing from a, b where a.id = b.id",
        "select id from a, b where a.id = b.id",
        "select * from a, nowhere where a.id = nowhere.id",
        "select a.id from a, b where z.id = b.id",
        "select count(*) from a, b group by a.id order by b.v",
        "select nosuchfunction(a.id) from a, b where a.id = b.id",
        "select a.id from a, a where a.id = 1",
    ],
)
def test_wrong_queries_raise_what_spark_raises(spark, views, text):
    """Spark's own errors come out, of the same class and condition."""
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


@pytest.mark.parametrize(
    "text",
    [
        "table a",
        "values (1)",
        "from a |> select id",
        "with q as (table a) table q",
        "select 1 -- more \\\n , 2 as x",
        "from a | select id",
    ],
)
def test_what_is_not_parsed_still_sees_the_given_tables(spark, files, text):
    """Queries that only Spark reads find tables given by path."""
    found = query(text, spark=spark, tables={"A": files["a"]})
    assert found.blocks == () and found.reasons
    assert found.df.count() >= 1


@pytest.mark.parametrize("end", [";", " ; -- done", "\n;\n/* {x} */ ;; "])
def test_what_ends_a_query(spark, files, end):
    """Semicolons, and comments behind them, as Spark has it."""
    found = query(TEXT + end, spark=spark, tables=files)
    assert taken(found) == "a b" and bag(found.df) == bag(query(TEXT, spark=spark, tables=files).df)
    assert query("table a" + end, spark=spark, tables=files).df.count() == 7


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


def test_names_in_tables_hide_the_catalog(spark, views):
    """A given table wins over a view of that name, a common table expression over both."""
    given = {"a": spark.sql("select 7 as id, 1 as k"), "b": spark.sql("select 7 as id, 2 as v")}
    assert bag(sql(TEXT, spark=spark, tables=given)) == {"(7, 2)": 1}
    assert bag(sql("with a as (select 8 as id) " + TEXT, spark=spark, tables=given)) == {}


def test_tables_that_are_not_read_are_not_opened(spark, views):
    """A wrong path does no harm to a query that does not use it."""
    assert query(TEXT, spark=spark, tables={**views, "z": "/no/such/file"}).blocks


def test_options_are_checked(spark, views):
    """Unknown options are refused before anything else."""
    with pytest.raises(OptionError):
        query(TEXT, spark=spark, tables=views, options={"batch": 1})
    assert bag(sql(TEXT, spark=spark, tables=views, options={"batch_size": 1, "policy": "random"})) == bag(
        spark.sql(TEXT)
    )


@pytest.mark.parametrize("setting", ["spark.sql.caseSensitive", "spark.sql.ansi.doubleQuotedIdentifiers"])
def test_settings_that_change_names_leave_the_query_to_spark(spark, views, setting):
    """Names compare without case and double quotes are strings, or Spark runs everything."""
    with changed(spark, {setting: "true"}):
        found = query(TEXT + ' and "x" = "x"', spark=spark)
    assert found.blocks == () and setting in found.reasons[0]


@pytest.fixture
def ends(spark):
    """Tables of one row: ``a`` has the greatest key that there is."""
    keys = (("a", 2**63 - 1), ("b", 0))
    return {name: spark.createDataFrame([(1, k)], "id int, k bigint") for name, k in keys}


@pytest.mark.parametrize(
    "condition",
    ["a.k + 1 <=> b.k", "coalesce(a.k + 1, 0) = b.k", "(a.k + 1 is null) = (b.k = 0)"],
)
def test_an_error_is_no_null_that_something_is_made_of(spark, ends, condition):
    """Where a null would join, or become something that does, arithmetic stays Spark's, which refuses it."""
    text = f"select a.id from a join b on a.id = b.id and {condition}"
    with pytest.raises(PySparkException, match="ARITHMETIC_OVERFLOW"):
        query(text, spark=spark, tables=ends).df.collect()


def test_a_sum_that_is_null_where_spark_raises_is_explained(spark, ends):
    """A key that has no value joins nothing; the explanation says so, for the query that has one."""
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
        found = query("select a.k, b.k from a join b on a.k + 1 = b.k", spark=spark, tables=given)
        assert taken(found) == "a b"
        assert bag(found.df) == {f"({ends['a']}, {ends['b']})": 1}
        found = query(
            "select a.k, b.k from a join b on a.k % 0 <=> b.k / 0 and a.k = b.k", spark=spark, tables=given
        )
        assert bag(found.df) == {"(7, 7)": 1}


def test_timestamps_compare_in_the_session_time_zone(spark):
    """A text that becomes a timestamp is read in the session's time zone, as Spark reads it."""
    with changed(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        left = spark.sql("select 1 as k, timestamp '2024-03-10 12:00:00' as t")
        right = spark.sql("select 1 as k, timestamp '2024-03-10 16:00:00 UTC' as u")
        given = {"l": left, "r": right}
        text = "select count(*) from l, r where l.t = r.u and l.t = '2024-03-10 12:00:00'"
        found = query(text, spark=spark, tables=given)
        assert taken(found) == "l r"
        assert found.df.collect()[0][0] == 1


def test_char_columns_stay_with_spark(spark):
    """CHAR columns are padded by Spark when it compares them: it keeps them."""
    spark.sql("create or replace temporary view ch as select cast('a' as string) as c, 1 as k")
    frame = spark.table("ch")
    found = query("select l.k from l, r where l.c = r.c", spark=spark, tables={"l": frame, "r": frame})
    assert taken(found) == "l r"
    padded = frame.withMetadata("c", {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"})
    found = query("select l.k from l, r where l.c = r.c", spark=spark, tables={"l": padded, "r": frame})
    assert taken(found) == ""


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


def test_join_without_a_query(spark, files, views):
    """The DataFrame form builds the query itself."""
    relations = {"x": files["a"], "y y": views["b"]}
    on, where = ["x.id = `y y`.id"], ["x.k > 5 or x.k is null"]
    frame = join(relations, on=on, where=where, select=["x.id", "v"], spark=spark)
    assert bag(frame) == bag(spark.sql(TEXT + " and (a.k > 5 or a.k is null)"))
    assert len(join(relations, how="cross", spark=spark).columns) == 13


def test_join_arguments_are_checked(spark, files):
    """A forgotten list or an empty mapping is told apart from a wrong query."""
    with pytest.raises(QueryError, match="at least one"):
        join({}, spark=spark)


def test_partitioned_folders(spark, tmp_path, views):
    """Partition columns of a folder join and filter like others."""
    path = str(tmp_path / "parts")
    spark.sql("select id, k, s from a where id is not null").write.partitionBy("id").parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("parts")
    text = "select p.id, p.s, b.v from {} p, b where p.id = b.id and p.id > 1"
    found = query(text.format("parts"), spark=spark, tables={"parts": path, "b": views["b"]})
    assert taken(found) == "p b"
    assert bag(found.df) == bag(spark.sql(text.format("parts")))
    found = query(text.format(f"parquet.`{path}`"), spark=spark)
    assert taken(found) == "p b"
    assert bag(found.df) == bag(spark.sql(text.format("parts")))


@pytest.mark.parametrize(("word", "test"), [(" and ", "<>"), (" or ", "=")])
def test_long_conditions(spark, views, files, word, test):
    """Thousands of terms are one condition, and are evaluated by the block."""
    terms = [f"a.k {test} {number}" for number in range(15, 1515)]
    found = query(
        f"select a.id, b.v from a, b where a.id = b.id and ({word.join(terms)})", spark=spark, tables=files
    )
    between = "between 15 and 1514"
    expected = f"select a.id, b.v from a, b where a.id = b.id and a.k {'not ' * (word == ' and ')}{between}"
    assert taken(found) == "a b"
    assert bag(found.df) == bag(spark.sql(expected))


@pytest.mark.parametrize("word", ["and", "or"])
@pytest.mark.parametrize("nested", [False, True])
def test_the_terms_of_a_condition_are_found_at_any_depth(word, nested):
    terms = [f"x = {number}" for number in range(30 if nested else 3000)]
    text = f" {word} ".join(f"({term}" if nested else term for term in terms) + ")" * len(terms) * nested
    statement = parse(f"select x from t where {text}")
    found = (conjuncts if word == "and" else disjuncts)(statement.root.args["where"].this)
    assert [unwrap(term).sql() for term in found] == terms
    assert len(Scopes(statement).all) == 1


FAULTS = [KeyError("some"), RecursionError("deep"), AssertionError(), OSError("no")]


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
