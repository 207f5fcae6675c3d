"""What does not pay is left to Spark, and said."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from millrace.spark import daemon, session
from millrace.sql.blocks import cost_model
from millrace.sql.planner import plan_cache


@pytest.fixture
def started(monkeypatch):
    """Say how long starting Python takes, instead of measuring it; nothing has been planned before."""
    plan_cache._kept.clear()

    def starting(seconds: float) -> None:
        monkeypatch.setattr(cost_model, "start_seconds", lambda spark, saved: seconds)

    return starting


@pytest.mark.parametrize("how", ["files", "views"])
def test_a_small_join_is_left_to_spark_where_python_starts_slowly(same, started, request, how):
    """Whether Spark or the tasks would read it; the option takes it all the same."""
    tables, text = request.getfixturevalue(how), "select a.id, b.v from a join b on a.id = b.id"
    started(0.5)
    found = same(text, tables)
    assert not found.blocks
    told = "joining 13 rows is not worth a stage in Python, which takes 0.50 s to start (option take_all)"
    assert told in found.explain()
    assert len(same(text, tables, {"take_all": True}).blocks) == 1
    started(0.03)
    assert len(same(text, tables).blocks) == 1


def test_each_join_and_each_row_weigh(spark, same, started, files, tmp_path):
    """Six relations pay where two do not; so do two with more rows."""
    started(0.15)
    joins = " ".join(f"join b b{n} on a.id = b{n}.id" for n in range(5))
    assert len(same(f"select count(*) n from a {joins}", files).blocks) == 1
    assert not same("select count(*) n from a join b on a.id = b.id", files).blocks
    path = str(tmp_path / "many")
    spark.range(600_000).coalesce(1).write.parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("many")
    text = "select count(*) n from many l join many r on l.id = r.id where l.id < 10"
    assert len(same(text, {"many": path}).blocks) == 1


def test_a_join_that_spark_runs_for_an_exists_is_no_saving(same, started, files):
    """Its rows come out of Spark, and a block above would only take them in."""
    started(0.1)
    inner = "exists (select * from b, c where b.id = c.id and b.k = a.k)"
    text = f"select a.id from a join b x on a.id = x.id join b y on a.id = y.id where {inner}"
    assert not same(text, files).blocks
    assert not same(f"{text} and ({inner} or a.id = 1)", files).blocks
    assert len(same(text, files, {"take_all": True}).blocks) == 2


JOINED = "select a.id, b.v from a join b on a.id = b.id"
CUT = (f"{JOINED} limit 100", f"select count(*) n from (select id from ({JOINED}) q limit 100) r")


def test_a_limit_ends_workers(same, started, files, monkeypatch):
    """New ones of Spark's daemon are charged, where nothing reads all rows before the LIMIT stops."""
    monkeypatch.setattr(daemon, "MODULE", "another")
    started(0.0)
    for cut in CUT:
        found = same(cut, files)
        assert not found.blocks
        assert "LIMIT has stopped those" in found.explain()
        assert len(same(cut, files, {"take_all": True}).blocks) == 1
    for read in (f"{JOINED} order by a.id, b.v limit 100", f"select count(*) n from ({JOINED}) q limit 100"):
        assert len(same(read, files).blocks) == 1


def test_workers_that_start_loaded_are_not_charged(same, started, files):
    started(0.0)
    assert all(len(same(cut, files).blocks) == 1 for cut in CUT)


def test_rows_that_spark_has_already_do_not_count(same, started, files):
    """A join of two aggregates is Spark's; the block below them stays."""
    started(0.03)
    grouped = "with g as (select a.id, count(*) n from a join b on a.k = b.k group by a.id) "
    found = same(grouped + "select l.n from g l join g r on l.id = r.id + 1", files)
    assert [block.join.aliases for block in found.blocks] == [("a", "b")]
    assert "joining 0 rows" in found.explain()


def test_a_busy_minute_does_not_leave_later_queries_to_spark(monkeypatch):
    """The start is measured again where an old measurement would leave a query to Spark."""
    spark, clock = Mock(), SimpleNamespace(now=0.0, start=0.5)

    def passes(seconds: float) -> None:
        clock.now += seconds

    spark.range().selectExpr().collect = lambda: passes(0.1)
    spark.range().mapInArrow().collect = lambda: passes(0.1 + clock.start)
    monkeypatch.setattr(session, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    for start, later, saved, told in (
        (0.5, 0, 0.2, 0.5),
        (0.05, 50, 0.2, 0.5),
        (0.05, 20, 0.6, 0.5),  # such a query is worth it anyway
        (0.05, 0, 0.2, 0.05),
        (0.5, 100, 0.2, 0.05),
    ):
        clock.start = start
        passes(later)
        assert session.start_seconds(spark, saved) == pytest.approx(told)
