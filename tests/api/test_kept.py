"""A query that was planned before is not planned again, unless something that it rests on has changed."""

from __future__ import annotations

import datetime as dt
import decimal
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace
from millrace.api import session
from millrace.sql.planner import plan_cache
from tests.gate import sampled
from tests.session import changed
from tests.sql import cases
from tests.sql.compare import bag

TEXT = (
    "SELECT l.id, l.v, r.v AS w, current_date() AS day FROM l JOIN r ON l.id = r.id WHERE upper(l.s) <> 'B'"
)


def _write(path, values, **more) -> str:
    table = {"id": values, "v": [10 * value for value in values], "s": ["a" for _ in values]}
    pq.write_table(pa.table(table | more), path)
    return str(path)


def _plain(spark, folder, text=TEXT, args=None):
    """Spark's own rows of the tables as they are now."""
    frames = {name: spark.read.parquet(str(folder / name)) for name in "lr"}
    text = text.replace(" l ", " {l} AS l ").replace(" r ", " {r} AS r ")
    return bag(spark.sql(text, args, **frames))


@pytest.fixture
def folder(spark, tmp_path):
    """Folders of two tables, ``l`` and ``r``; views of these names are gone at the end."""
    for name in "lr":
        (tmp_path / name).mkdir()
        _write(tmp_path / name / "0.parquet", [1, 2, 3])
    yield tmp_path
    for name in "lr":
        spark.catalog.dropTempView(name)


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
def forms(request, spark, folder):
    return _tables(spark, folder, request.param)


@pytest.fixture
def tables(spark, folder):
    return _tables(spark, folder, "paths")


def _rows(spark, tables, text=TEXT, **more):
    found = millrace.query(text, spark=spark, tables=tables, **more)
    return found, bag(found.df)


def test_a_plan_is_used_again_until_something_changes(spark, folder, forms, planned):
    first, rows = _rows(spark, forms)
    schema, explained = first.df.schema, first.explain().splitlines()
    assert len(first.blocks) == 1
    del first
    second, again = _rows(spark, forms)
    assert planned == [TEXT]
    assert again == rows and sum(rows.values()) == 3
    assert second.df.schema == schema
    assert second.explain().splitlines()[0] == explained[0]
    assert second.report().totals.output_tuples == 3
    assert millrace.report(second.df.limit(2)).totals.output_tuples == 3
    _rows(spark, forms, options={"cells": 2})
    assert len(planned) == 2
    changes = (
        lambda: _write(folder / "l" / "0.parquet", [2, 3, 4, 4]),
        lambda: spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo"),
    )
    with changed(spark, {"spark.sql.session.timeZone": "UTC"}):
        for count, change in enumerate(changes, 3):
            change()
            if not forms:
                _tables(spark, folder, "views")
            assert _rows(spark, forms)[1] == _plain(spark, folder) != rows
            assert len(planned) == count


def test_each_holder_has_figures_of_its_own(spark, tables, planned):
    """As in a notebook, where the old DataFrame is still there while the new one is made."""
    df = None
    for _ in range(5):
        df = millrace.sql(TEXT, spark=spark, tables=tables)
    assert len(planned) == 2
    other = millrace.query(TEXT, spark=spark, tables=tables)
    df.collect()
    with pytest.raises(millrace.MillraceError, match="no figures yet"):
        other.report()
    del df  # whose place the next one takes
    new = millrace.query(TEXT, spark=spark, tables=tables)
    assert len(planned) == 2
    with pytest.raises(millrace.MillraceError, match="no figures yet"):
        new.report()
    assert new.df.count() == new.report().totals.output_tuples == 3


def test_what_is_kept_is_held_before_another_thread_can_see_it(spark, tables, planned, monkeypatch):
    """Else two queries had one run, and the figures of both."""
    seen = []

    def keep(*arguments):
        made = kept_keep(*arguments)
        seen.append(made.is_free)
        return made

    kept_keep = plan_cache.keep
    monkeypatch.setattr(session.plan_cache, "keep", keep)
    _rows(spark, tables)
    assert seen == [False]
    assert all(copy.is_free for copies in plan_cache._kept.values() for copy in copies)


def test_another_function_of_a_name_is_seen(spark, tables, planned):
    text = f"{TEXT} AND of_session(l.id) = 2"
    define = "CREATE OR REPLACE TEMPORARY FUNCTION of_session(x BIGINT) RETURNS BIGINT RETURN x"
    for added, kept_rows in ((0, "20"), (0, "20"), (1, "10")):
        spark.sql(f"{define} + {added}")
        _, rows = _rows(spark, tables, text)
        assert kept_rows in str(rows)
        assert sum(rows.values()) == 1
    spark.sql("DROP TEMPORARY FUNCTION of_session")


def test_a_new_file_in_a_folder_is_seen(spark, folder, tables, planned):
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


def test_values_of_parameters_are_told_apart(spark, folder, tables, planned):
    text = "SELECT l.id, :x AS x FROM l JOIN r ON l.id = r.id WHERE l.id >= :x"
    values = (1, 2, decimal.Decimal(1), decimal.Decimal("1.0"), decimal.Decimal("1.00"), 0.0, -0.0, 1.0, 1)
    for value in values:
        found, rows = _rows(spark, tables, text, args={"x": value})
        assert found.df.schema["x"] == spark.sql("SELECT :x AS x", {"x": value}).schema["x"]
        assert rows == _plain(spark, folder, text, {"x": value})
    assert len(planned) == 8
    assert _rows(spark, tables, text.replace(":x", "?"), args=[1, 2])[1]
    _rows(spark, tables, text.replace(":x", "?"), args=[1, 2])
    assert len(planned) == 9


def test_a_cached_frame_is_read_from_the_cache(spark, folder, planned):
    tables = _tables(spark, folder, "frames")
    _, before = _rows(spark, tables)
    tables["l"].cache()
    tables["l"].count()
    (folder / "l" / "0.parquet").unlink()
    assert _rows(spark, tables)[1] == before
    assert len(planned) == 2
    tables["l"].unpersist()


def test_only_the_latest_are_kept(spark, tables, planned, monkeypatch):
    monkeypatch.setattr(plan_cache, "_MOST", 2)
    texts = [f"SELECT count(*) AS n{n} FROM l JOIN r ON l.id = r.id" for n in range(3)]
    for text in (*texts, texts[2], texts[1], texts[0]):
        _rows(spark, tables, text)
    assert planned == [*texts, texts[0]]


WITH = """WITH w AS (SELECT l.id, sum(l.v) AS v FROM l JOIN r ON l.id = r.id GROUP BY l.id)
SELECT a.id, b.v{more} FROM w AS a JOIN w AS b ON a.id = b.id"""
WHERE = "SELECT l.id FROM l JOIN r ON l.id = r.id WHERE {}"
# A value that tasks compare with is part of the plan, and tomorrow another one.
MOMENTS = [
    (WHERE.format(f"l.day >= {moment}"), int(times))
    for times, moments in cases.lines("moments").items()
    for moment in moments
]


@pytest.mark.parametrize(
    ("text", "times"),
    [
        (WHERE.format("odd(l.id)"), 2),
        ("SELECT l.v FROM l FULL JOIN r ON l.id = r.id", 1),
        *sampled(MOMENTS, 3),
    ],
)
def test_what_may_be_another_plan_is_planned_each_time(spark, folder, tables, planned, text, times):
    """Of functions, and of what the clock decides; nothing else is."""
    days = pa.array([dt.date(2020, 1, 1), dt.date.today(), None], pa.date32())  # noqa: DTZ011  # either is right
    _write(folder / "l" / "0.parquet", [1, 2, 3], day=days)
    more = {"args": {"word": "today", "day": dt.date(2020, 1, 1)}}
    if "odd" in text:
        more = {"predicates": [millrace.predicate(lambda x: x % 2 == 1, name="odd")]}
    answers = []
    for _ in range(2):
        found, rows = _rows(spark, tables, text, **more)
        answers.append(rows)
        assert bool(found.blocks) == ("FULL" not in text)
        del found
    assert answers[0] == answers[1] and planned == [text] * times


# Spark numbers common table expressions, and so takes no two analyses of such a text for the same.
DEFINITIONS = (
    (WITH.format(more=""), 1),
    ("WITH w(k, d) AS (SELECT l.id, 2 * r.v FROM l JOIN r ON l.id = r.id) SELECT d, k, w.* FROM w", 1),
    ("""WITH a AS (SELECT id, v FROM l), b AS (WITH a AS (SELECT id, -v AS v FROM a)
SELECT a.id, r.v, a.v AS low FROM a JOIN r ON a.id = r.id) SELECT b.*, a.v FROM b JOIN a USING (id)""", 1),
    ("""WITH r AS (SELECT id AS key, v FROM r) SELECT l.id, r.v FROM l JOIN r ON l.id = r.key
WHERE EXISTS (WITH l AS (SELECT key FROM r WHERE key > 1) SELECT * FROM l WHERE l.key = r.key)""", 1),
    ("WITH w AS (SELECT * FROM l) SELECT w.id, r.v FROM w TABLESAMPLE (100 PERCENT) JOIN r USING (id)", 2),
    ("WITH a AS (SELECT l.* FROM l JOIN r USING (id)), " + ", ".join(
        f"{new} AS (SELECT x.* FROM {old} x JOIN {old} y USING (id))" for old, new in pairwise("abcdef")
    ) + " SELECT id FROM f", 2),
)  # fmt: skip


@pytest.mark.parametrize(("text", "times"), DEFINITIONS)
def test_definitions_are_compared_in_the_place_of_their_names(spark, folder, tables, planned, text, times):
    answers = [bag(millrace.sql(text, spark=spark, tables=tables)) for _ in range(2)]
    assert planned == [text] * times
    _tables(spark, folder, "views")
    assert answers == [bag(spark.sql(text))] * 2


def test_another_view_in_a_definition_is_seen(spark, folder, planned):
    """A view that reads the same file in another way, where the definition is read."""
    _tables(spark, folder, "views")
    text = "WITH w AS (SELECT id, v FROM l) SELECT w.id, w.v, r.v AS b FROM w JOIN r USING (id)"
    for view in ("SELECT * FROM {l}", "SELECT * FROM {l}", "SELECT id, v + 1 AS v, s FROM {l}"):
        spark.sql(view, l=spark.read.parquet(str(folder / "l"))).createOrReplaceTempView("l")
        assert bag(millrace.sql(text, spark=spark)) == bag(spark.sql(text))
    assert len(planned) == 2


def test_a_variable_of_the_session_is_seen(spark, tables, planned):
    text = WITH.format(more=", kept_variable AS x")
    for value in (1, 1, 2):
        spark.sql(f"DECLARE OR REPLACE VARIABLE kept_variable = {value}")
        assert {row.x for row in millrace.sql(text, spark=spark, tables=tables).collect()} == {value}
    spark.sql("DROP TEMPORARY VARIABLE kept_variable")
