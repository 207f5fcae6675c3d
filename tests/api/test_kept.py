"""A query that was planned before is not planned again, unless something that it rests on has changed."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace
from millrace.api import session
from millrace.sql.planner import plan_cache
from tests.gate import sampled
from tests.session import changed
from tests.sql.compare import bag

pytestmark = pytest.mark.spark

TEXT = (
    "SELECT l.id, l.v, r.v AS w, current_date() AS day FROM l JOIN r ON l.id = r.id WHERE upper(l.s) <> 'B'"
)


def _write(path, values, **more) -> str:
    table = {"id": values, "v": [10 * value for value in values], "s": ["a" for _ in values]}
    pq.write_table(pa.table(table | more), path)
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """Folders of two tables, ``l`` and ``r``."""
    for name in "lr":
        (tmp_path / name).mkdir()
        _write(tmp_path / name / "0.parquet", [1, 2, 3])
    return tmp_path


@pytest.fixture
def planned(monkeypatch):
    """The texts that were planned, since the test began."""
    monkeypatch.setattr(plan_cache, "_kept", type(plan_cache._kept)())
    texts: list[str] = []

    class Seen(session.Planner):
        def query(self, statement):
            texts.append(statement.text)
            return super().query(statement)

    monkeypatch.setattr(session, "Planner", Seen)
    return texts


def _tables(spark, folder, mode):
    paths = {name: str(folder / name) for name in "lr"}
    if mode == "paths":
        return paths
    frames = {name: spark.read.parquet(path) for name, path in paths.items()}
    if mode == "frames":
        return frames
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    return {}


@pytest.fixture(params=["paths", "frames", "views"])
def tables(request, spark, folder):
    """The tables in one of three forms."""
    yield _tables(spark, folder, request.param)
    for name in "lr":
        spark.catalog.dropTempView(name)


def _rows(spark, tables, text=TEXT, **more):
    found = millrace.query(text, spark=spark, tables=tables, **more)
    return found, bag(found.df)


def test_the_second_time_is_not_planned_and_answers_the_same(spark, tables, planned):
    first, rows = _rows(spark, tables)
    schema, explained = first.df.schema, first.explain().splitlines()
    assert len(first.blocks) == 1
    del first
    second, again = _rows(spark, tables)
    assert planned == [TEXT]
    assert again == rows
    assert sum(rows.values()) == 3
    assert second.df.schema == schema
    assert second.explain().splitlines()[0] == explained[0]
    assert second.report().totals.output_tuples == 3
    assert millrace.report(second.df.limit(2)).totals.output_tuples == 3
    _rows(spark, tables, options={"cells": 2})
    assert len(planned) == 2


def test_each_holder_has_figures_of_its_own(spark, folder, planned):
    """As in a notebook, where the old DataFrame is still there while the new one is made."""
    tables, df = _tables(spark, folder, "paths"), None
    for _ in range(5):
        df = millrace.sql(TEXT, spark=spark, tables=tables)
    assert len(planned) == 2
    other = millrace.sql(TEXT, spark=spark, tables=tables)
    df.collect()
    with pytest.raises(millrace.MillraceError, match="no figures yet"):
        millrace.report(other)


def test_a_new_holder_starts_without_figures(spark, folder, planned):
    """Those of the holder before are not its own."""
    tables = _tables(spark, folder, "paths")
    first, _ = _rows(spark, tables)
    assert first.report().totals.output_tuples == 3
    del first
    second = millrace.query(TEXT, spark=spark, tables=tables)
    assert planned == [TEXT]
    with pytest.raises(millrace.MillraceError, match="no figures yet"):
        second.report()
    assert second.df.count() == second.report().totals.output_tuples == 3


def test_what_is_kept_is_held_before_another_thread_can_see_it(spark, folder, planned, monkeypatch):
    """Else two queries had one run, and the figures of both."""
    tables, seen = _tables(spark, folder, "paths"), []

    def keep(*arguments):
        made = kept_keep(*arguments)
        seen.append(made.is_free)
        return made

    kept_keep = plan_cache.keep
    monkeypatch.setattr(session.plan_cache, "keep", keep)
    _rows(spark, tables)
    assert seen == [False]
    assert all(copy.is_free for copies in plan_cache._kept.values() for copy in copies)


def test_what_stays_with_spark_is_kept_too(spark, tables, planned):
    text = "SELECT l.v FROM l LEFT JOIN r ON l.id = r.id"
    assert _rows(spark, tables, text)[1] == _rows(spark, tables, text)[1]
    assert planned == [text]


CHANGES = {
    "a file is written anew": lambda spark, folder: _write(folder / "l" / "0.parquet", [2, 3, 4, 4]),
    "a setting": lambda spark, folder: spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(spark, folder, tables, planned, change):
    _, before = _rows(spark, tables)
    with changed(spark, {"spark.sql.session.timeZone": "UTC"}):
        CHANGES[change](spark, folder)
        frames = {name: spark.read.parquet(str(folder / name)) for name in "lr"}
        if not tables:
            for name, frame in frames.items():
                frame.createOrReplaceTempView(name)
        expected = bag(spark.sql(TEXT.replace(" l ", " {l} AS l ").replace(" r ", " {r} AS r "), **frames))
        assert _rows(spark, tables)[1] == expected
        assert len(planned) == 2
        if change != "a setting":
            assert expected != before


def test_another_function_of_a_name_is_seen(spark, tables, planned):
    text = f"{TEXT} AND of_session(l.id) = 2"
    define = "CREATE OR REPLACE TEMPORARY FUNCTION of_session(x BIGINT) RETURNS BIGINT RETURN x"
    try:
        for added, kept_rows in ((0, "20"), (0, "20"), (1, "10")):
            spark.sql(f"{define} + {added}")
            _, rows = _rows(spark, tables, text)
            assert kept_rows in str(rows)
            assert sum(rows.values()) == 1
    finally:
        spark.sql("DROP TEMPORARY FUNCTION of_session")


def test_a_new_file_in_a_folder_is_seen(spark, folder, planned):
    tables = _tables(spark, folder, "paths")
    _, before = _rows(spark, tables)
    _write(folder / "l" / "1.parquet", [1, 1])
    assert sum(_rows(spark, tables)[1].values()) == sum(before.values()) + 2
    assert len(planned) == 2


def test_a_view_of_other_rows_is_seen(spark, folder, planned):
    _tables(spark, folder, "views")
    _rows(spark, {})
    other = _write(folder / "other.parquet", [3])
    spark.read.parquet(other).createOrReplaceTempView("l")
    assert sum(_rows(spark, {})[1].values()) == 1
    spark.catalog.dropTempView("l")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        millrace.query(TEXT, spark=spark, tables={})
    spark.catalog.dropTempView("r")


def test_a_table_of_the_catalog_is_planned_each_time(spark, folder, planned):
    spark.read.parquet(str(folder / "l")).write.saveAsTable("kept_l", format="parquet")
    try:
        text = TEXT.replace(" l ", " kept_l AS l ")
        tables = {"r": str(folder / "r")}
        _, before = _rows(spark, tables, text)
        spark.sql("INSERT INTO kept_l SELECT * FROM kept_l WHERE id = 1")
        assert sum(_rows(spark, tables, text)[1].values()) == sum(before.values()) + 1
        assert len(planned) == 2
        spark.table("kept_l").createOrReplaceTempView("l")
        _rows(spark, tables)
        spark.sql("INSERT INTO kept_l SELECT * FROM kept_l WHERE id = 2")
        spark.catalog.refreshTable("kept_l")
        plain = spark.sql(TEXT.replace(" r ", " {r} AS r "), r=spark.read.parquet(tables["r"]))
        assert _rows(spark, tables)[1] == bag(plain)
    finally:
        spark.sql("DROP TABLE kept_l")
        spark.catalog.dropTempView("l")


def test_values_of_parameters_are_told_apart(spark, folder, planned):
    tables = _tables(spark, folder, "paths")
    frames = _tables(spark, folder, "frames")
    text = "SELECT l.id, :x AS x FROM l JOIN r ON l.id = r.id WHERE l.id >= :x"
    values = (1, 2, decimal.Decimal(1), decimal.Decimal("1.0"), decimal.Decimal("1.00"), 0.0, -0.0, 1.0, 1)
    for value in values:
        found, rows = _rows(spark, tables, text, args={"x": value})
        assert found.df.schema["x"] == spark.sql("SELECT :x AS x", {"x": value}).schema["x"]
        assert rows == bag(
            spark.sql(text.replace(" l ", " {l} AS l ").replace(" r ", " {r} AS r "), {"x": value}, **frames)
        )
    assert len(planned) == 8
    assert _rows(spark, tables, text.replace(":x", "?"), args=[1, 2])[1]
    _rows(spark, tables, text.replace(":x", "?"), args=[1, 2])
    assert len(planned) == 9


def test_a_cached_frame_is_read_from_the_cache(spark, folder, planned):
    tables = _tables(spark, folder, "frames")
    _, before = _rows(spark, tables)
    tables["l"].cache()
    try:
        tables["l"].count()
        (folder / "l" / "0.parquet").unlink()
        assert _rows(spark, tables)[1] == before
        assert len(planned) == 2
    finally:
        tables["l"].unpersist()


def test_predicates_are_planned_each_time(spark, folder, planned):
    @millrace.predicate
    def odd(x: int) -> bool:
        return x % 2 == 1

    tables = _tables(spark, folder, "paths")
    for _ in range(2):
        _, rows = _rows(spark, tables, f"{TEXT} AND odd(l.id)", predicates={"odd": odd})
        assert sum(rows.values()) == 2
    assert len(planned) == 2


def test_only_the_latest_are_kept(spark, folder, planned, monkeypatch):
    monkeypatch.setattr(plan_cache, "_MOST", 2)
    tables = _tables(spark, folder, "paths")
    texts = [f"SELECT count(*) AS n{n} FROM l JOIN r ON l.id = r.id" for n in range(3)]
    for text in (*texts, texts[2], texts[1], texts[0]):
        _rows(spark, tables, text)
    assert planned == [*texts, texts[0]]


WITH = """WITH w AS (SELECT l.id, sum(l.v) AS v FROM l JOIN r ON l.id = r.id GROUP BY l.id)
SELECT a.id, b.v{more} FROM w AS a JOIN w AS b ON a.id = b.id"""


def test_common_table_expressions_are_planned_each_time(spark, folder, planned):
    """Spark numbers them, and so takes no two analyses of such a text for the same."""
    text, tables = WITH.format(more=""), _tables(spark, folder, "paths")
    assert _rows(spark, tables, text)[1] == _rows(spark, tables, text)[1]
    assert planned == [text, text]


CLOCKS = (
    "DATE 'today'",
    "CAST('today' AS DATE)",
    "CAST(' Yesterday UTC' AS DATE) + INTERVAL '1' DAY",
    "to_date(concat('to', 'day'))",
    "CAST(:word AS DATE)",
    "CAST(TIMESTAMP '12:30' AS DATE)",
)
LASTING = ("DATE '2020-01-01'", "CAST(CAST('2020-01-01 10:00:00' AS TIMESTAMP) AS DATE)", ":day")


@pytest.mark.parametrize("moment", sampled([*CLOCKS, *LASTING], 3))
def test_what_the_clock_decides_is_planned_each_time(spark, folder, planned, moment):
    """A value that tasks compare with is part of the plan, and tomorrow another one."""
    days = pa.array([dt.date(2020, 1, 1), dt.date.today(), None], pa.date32())  # noqa: DTZ011  # either is right
    _write(folder / "l" / "0.parquet", [1, 2, 3], day=days)
    tables = _tables(spark, folder, "paths")
    text = f"SELECT l.id FROM l JOIN r ON l.id = r.id WHERE l.day >= {moment}"
    args = {"word": "today", "day": dt.date(2020, 1, 1)}
    for _ in range(2):
        found, _ = _rows(spark, tables, text, args=args)
        assert len(found.blocks) == 1
        del found
    assert len(planned) == (2 if moment in CLOCKS else 1)


def test_a_variable_of_the_session_is_seen(spark, folder, planned):
    tables, text = _tables(spark, folder, "paths"), WITH.format(more=", kept_variable AS x")
    try:
        for value in (1, 1, 2):
            spark.sql(f"DECLARE OR REPLACE VARIABLE kept_variable = {value}")
            assert {row.x for row in millrace.sql(text, spark=spark, tables=tables).collect()} == {value}
    finally:
        spark.sql("DROP TEMPORARY VARIABLE kept_variable")
