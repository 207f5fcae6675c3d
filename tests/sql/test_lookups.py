"""A query with lookup tables gives the rows that Spark gives for tables of the same rows, or is refused."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import hypothesis
import psutil
import pytest
from hypothesis import strategies as st
from pyspark.errors import AnalysisException

import millrace
from millrace import query
from millrace.errors import InputError
from millrace.limits.process import CoordinatorProcess
from millrace.spark.block import LookupInput
from millrace.sql.planner import plan_cache
from millrace.sql.session.asking import Frames
from millrace.sql.session.tables import lookup_of
from tests.gate import examples, sampled
from tests.session import changed
from tests.sql import cases, lookup_tables
from tests.sql.answers import answer_of
from tests.sql.compare import bag

PRICED = "select o.id from o join prices p on o.sku = p.sku and p.price > 1"


@pytest.fixture(scope="module")
def given(spark):
    return lookup_tables.declared(spark)


@pytest.fixture(scope="module")
def plain(spark):
    """The same rows as views of the same names, for Spark."""
    frames = lookup_tables.plain(spark)
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    yield
    for name in frames:
        spark.catalog.dropTempView(name)


@pytest.mark.parametrize(
    "text", sampled(pytest.param(text, id=name) for name, text in lookup_tables.answered().items())
)
def test_rows_are_those_of_plain_spark(spark, given, oracle, text):
    """Whatever joins the table: inner, outer, semi and anti joins, constants, subqueries, CTEs and unions."""
    found = query(text, spark=spark, tables=given)
    assert answer_of(found.df) == oracle("lookups", text), found.explain()


@pytest.mark.parametrize(("reason", "text"), cases.read("lookups/refused"))
def test_what_nothing_binds_is_refused(spark, given, reason, text):
    """Before anything runs, with the place, the reason and what would work."""
    with pytest.raises(InputError) as error:
        query(text, spark=spark, tables=given)
    assert reason in str(error.value)
    hints = ("What would work", "give the lookup table a scan", "first")
    assert any(hint in str(error.value) for hint in hints)


@pytest.mark.parametrize("setting", ["spark.sql.caseSensitive", "spark.sql.ansi.doubleQuotedIdentifiers"])
def test_settings_that_leave_queries_to_spark_refuse_lookups(spark, given, setting):
    """Spark has no rows of a lookup table, so it gets no query with one."""
    text = "select \"sku\" from prices where sku = 'a'"
    with changed(spark, {setting: "true"}), pytest.raises(InputError, match=setting):
        query(text, spark=spark, tables=given)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ["x", "EU"],
            "select id, ? as tag from o left semi join prices p on o.sku = p.sku where o.region = ?",
        ),
        (
            [3, 7, 0],
            "with q as (select * from o where n < ?) select id, ? from q join prices using (sku) where k > ?",
        ),
        (
            [1, "a", "EU"],
            "select ? as one, c.name from prices p join cats c on p.k = c.k where p.sku = ? and p.region = ?",
        ),
    ],
)
def test_parameters_without_names_keep_their_values(spark, given, plain, args, text):
    """The queries for keys have some of them, in another order."""
    expected = bag(spark.sql(text, args))
    assert expected and bag(millrace.sql(text, spark=spark, tables=given, args=args)) == expected


def test_a_text_that_looks_like_our_names_is_one(spark, given, plain):
    """What Spark reads for a block is shown under the caller's names, and texts stay as they are."""
    text = "select o.id from o join prices p on o.sku = p.sku where o.region <> '__c99'"
    found = query(text, spark=spark, tables=given)
    assert "region <> '__c99'" in found.explain()
    assert bag(found.df) == bag(spark.sql(text))


def test_texts_that_only_spark_reads_name_tables_by_whole_words(spark, given):
    """Lookup tables are refused there, and names with dots, which would mean tables of Spark's."""
    tables = {"p": given["prices"], "shop": given["o"], "db.t": given["o"]}
    assert query("from shop |> limit 1", spark=spark, tables=tables).df.count() == 1
    with pytest.raises(InputError, match="names lookup table 'p'"):
        query("from p |> limit 1", spark=spark, tables=tables)
    with pytest.raises(InputError, match=r"names table 'db\.t'.*a name without"):
        query("from db.t |> limit 1", spark=spark, tables=tables)


def test_columns_are_qualified_by_a_whole_name(spark, given, plain):
    """A table may be named with its database, and its columns by that name."""
    tables = {"db.t": given["o"], "prices": given["prices"]}
    text = "select db.t.id, db.t.* from db.t where db.t.id > 1"
    expected = bag(spark.sql("select id, * from o where id > 1"))
    assert bag(millrace.sql(text, spark=spark, tables=tables)) == expected
    text = "select db.t.id from db.t where exists (select 1 from p.t where p.t.sku = db.t.sku)"
    with pytest.raises(AnalysisException):  # both are t to Spark, and one would be taken for the other
        millrace.sql(text, spark=spark, tables={"db.t": given["o"], "p.t": given["o"]})
    tables = {"p.t": given["prices"], "o": given["o"]}
    text = "select id from o left semi join p.t on o.sku = p.t.sku and p.t.region = 'EU'"
    expected = bag(spark.sql(text.replace("p.t", "prices")))
    assert bag(millrace.sql(text, spark=spark, tables=tables)) == expected
    tables = {"db.t": given["o"], "prices": given["prices"]}
    text = "select db.t.id from db.t join prices p on db.t.sku = p.sku"
    expected = bag(spark.sql("select o.id from o join prices p on o.sku = p.sku"))
    assert bag(millrace.sql(text, spark=spark, tables=tables)) == expected


def test_what_stands_for_a_lookup_fails_when_it_is_read(spark, given):
    """Behind every check there is one more: the stand-in has no empty answer, for any filter."""
    _, frame = lookup_of(Frames(spark), given["prices"])
    for shape in (frame, frame.where("sku is null"), frame.groupBy().count()):
        with pytest.raises(Exception, match="read by Spark itself"):
            shape.collect()


def blocks(spark, tables, text):
    return query(text, spark=spark, tables=tables).blocks


def test_only_bound_indexes_are_asked(spark, given):
    """A block gets those that have values; all columns where rows are a set, else the needed ones."""
    (block,) = blocks(spark, given, "select o.id, e.price from o join either e on o.n = e.k")
    asked = block.inputs["e"]
    assert isinstance(asked, LookupInput)
    assert [index.columns for index in asked.indexes] == [("k",)]
    assert block.join.relation("e").schema.names == ["sku", "price", "region", "k"]
    (block,) = blocks(spark, given, PRICED)
    assert block.join.relation("p").schema.names == ["sku"]
    assert [str(index.name) for index in block.inputs["p"].indexes] == ["prices"]
    assert len(block.inputs["p"].filters) == 1
    # A second equality in another type is checked, not asked: a row would come twice.
    with_bigint = {**given, "o": given["o"].selectExpr("id", "cast(id as bigint) as big", "n")}
    (block,) = blocks(spark, with_bigint, "select o.id from o join cats c on o.n = c.k and o.big = c.k")
    assert len(block.join.equalities) == 1 and len(block.join.residuals) == 1
    # Nor is a constant that no value of the column equals.
    for condition, keys in (("k in (1, 2, 2)", [1, 2]), ("k = 1.5", [])):
        (block,) = blocks(spark, given, f"select name from cats where {condition}")
        assert sorted(row.key for row in block.inputs["__key0"].frame.collect()) == keys


def test_an_interval_is_asked_for_once(spark, given):
    """Each that may have rows, not each event, nor all rows of a host; the plan says so."""
    text = "select m.v from events e join metrics m on m.host = e.host and m.at between e.since and e.until"
    found = query(text, spark=spark, tables=given)
    assert "by host, an interval of at via function" in found.explain()
    wanted = {row[1:4] for row in lookup_tables.EVENTS if None not in row and row[2] <= row[3]}
    assert found.df.count() and [each.requests for each in found.lookups()] == [len(wanted)]


@pytest.mark.parametrize("tables", ["a, b", "b, a"])
def test_constants_are_no_condition_on_what_an_interval_is_compared_with(spark, tables):
    """Where a lookup table needs them to be asked, what it is compared with is only checked."""

    def find(low: int, high: int) -> list[dict[str, int]]:
        return [{"t": number, "u": number + 2} for number in range(low, high + 1)]

    given = {
        name: millrace.lookup(name, "t bigint, u bigint", [], millrace.function(find), between=["t"])
        for name in "ab"
    }
    where = "b.t between 3L and 6L and a.t between b.t and b.u"
    found = query(f"select b.t, a.t as other from {tables} where {where}", spark=spark, tables=given)
    assert sorted(map(tuple, found.df.collect())) == [(t, t + n) for t in range(3, 7) for n in range(3)]


def test_a_left_join_asks_for_what_comes(spark, given):
    """What is joined is read once: a tuple waits for its answers, or for that there are none."""
    text = "select o.id, p.price from o left join prices p on o.sku = p.sku and p.price > 1"
    (block,) = blocks(spark, given, text)
    assert [(join.relation, join.bind) for join in block.join.outer] == [("p", ("sku",))]
    assert len(block.inputs["p"].filters) == 1


@pytest.mark.nightly
def test_queries_leave_nothing_behind(spark, given, monkeypatch):
    """Of queries that nobody keeps only the latest are known; files and threads do not become more."""
    text = "select o.id from o join prices p on o.sku = p.sku"
    monkeypatch.setattr(plan_cache, "_MOST", 16)
    runs, held = [], []
    for number in range(101):
        planned = query(f"{text} where o.id <> {number}", spark=spark, tables=given)
        runs += planned.runs
        coordinator = CoordinatorProcess.get_or_start()
        if number % 25 == 0:
            child = psutil.Process(coordinator.pid)
            files = len(list(Path("/proc/self/fd").iterdir())) + child.num_fds()
            held.append((files, threading.active_count() + child.num_threads()))
    del planned
    gc.collect()
    known = [bool(coordinator.progress(run)) for run in runs]
    # The last 64 that were let go are kept too, for DataFrames that are derived from theirs; in what order
    # they are let go is the garbage collector's choice.
    assert known[-1] and sum(known) <= 16 + 64 + 5, [number for number, each in enumerate(known) if each]
    (files, threads), (more_files, more_threads) = held[1], held[-1]
    assert more_files <= files + 10
    assert more_threads <= threads + 5


def test_a_scan_without_a_column_is_refused(spark, given):
    scan = spark.sql("select 'a' as sku, 1 as costs")
    wrong = millrace.lookup(
        "w", "sku string, cost double", ["sku"], given["prices"].indexes[0].source, scan=scan
    )
    with pytest.raises(InputError, match="lookup table 'w' has no column 'cost': did you mean 'costs'"):
        query("select * from w", spark=spark, tables={"w": wrong})


def test_progress_belongs_to_a_query(spark, given):
    """Progress and failures are told of the DataFrame that was returned, or of one derived from it."""
    frame = millrace.sql("select price from prices where sku = 'a'", spark=spark, tables=given)
    for each in (frame, frame.limit(1)):
        assert millrace.monitor.failed_keys(each).num_rows == 0
        assert [progress.name for progress in millrace.monitor.lookups(each)] == ["prices"]
    for function in (
        millrace.monitor.failed_keys,
        millrace.monitor.lookups,
        millrace.report,
        millrace.explain,
    ):
        with pytest.raises(InputError, match="nothing is known of this DataFrame"):
            function(spark.range(3).groupBy().count())


PARTS = cases.lines("lookups/shapes")


def shape(around, join, on, where, table, swapped) -> str | None:
    """Return a query, unless it names what its join does not give."""
    semi = "semi" in join or "anti" in join
    left, right = (f"{table} p", "o") if swapped else ("o", f"{table} p")
    items = "o.id, p.price" if not semi else ("p.price, p.k as id" if swapped else "o.id")
    hidden = "o." if swapped else "p."
    text = around.format(
        items=items, left=left, right=right, join=join, on=on, where=where, table=table,
        left_alias="p" if swapped or not semi else "o",
    )  # fmt: skip
    return None if semi and (hidden in where or "o.k" in text) else text


SHAPES = st.builds(
    shape,
    **{name: st.sampled_from(texts) for name, texts in PARTS.items()},
    table=st.sampled_from(["prices", "pairs"]),
    swapped=st.booleans(),
)


@pytest.mark.law
@pytest.mark.slow
@hypothesis.settings(max_examples=examples(3, 60), suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(SHAPES.filter(bool))
def test_no_shape_gives_a_wrong_answer(spark, given, plain, text):
    """Each gives the rows that Spark gives for the same tables, or an error that says what would work."""
    try:
        found = query(text, spark=spark, tables=given)
    except InputError as error:
        assert "What would work" in str(error)  # noqa: PT017  # most shapes have rows
    else:
        assert bag(found.df) == bag(spark.sql(text)), found.explain()
