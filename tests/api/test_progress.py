"""What runs now: on a line, of nothing that ran before; on the live page, when it is done and fails too."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import millrace
from millrace.api import monitor
from millrace.api.monitor import Watch
from millrace.spark.frames import tasks_of
from tests.session import wait_for


def test_a_line_tells_of_what_runs_now(spark, files):
    """Rows and the order in use, counted from the beginning; earlier runs of the session are not in it."""
    text = "select a.id from a join b on a.id = b.id"
    query = millrace.query(text, spark=spark, tables=files, options={"placement": "hypercube", "cells": 4})
    query.df.collect()
    (run,) = query.runs
    assert [*query.tasks.values()] == [8]
    now = [0.0]
    watch = Watch(clock=lambda: now[0])
    now[0] = 2.0
    assert watch.line() == "2.0 s"
    watch.tasks(4, 1)
    watch.tasks(3, 0)  # a stage that ended is forgotten by Spark
    assert watch.line() == "2.0 s · 1 of 4 tasks"
    watch.expect(tasks_of([run]))
    assert watch.line() == "2.0 s · 1 of 8 tasks"  # four that scan, and four cells whose stage has not begun
    watch.tasks(4, 2)
    assert watch.line() == "2.0 s · 2 of 8 tasks · about 6 s left"
    watch.tasks(9, 3)
    assert watch.line() == "2.0 s · 3 of 9 tasks"  # Spark has more to do than the block
    other = millrace.query(text + " where a.k > 0", spark=spark, tables=files)
    rows = len(other.df.collect())
    (order,) = other.report().orders()
    told = f"{rows} rows, {rows / 2:,.0f} a second · {order.order} (100%)"
    assert watch.line() == f"2.0 s · 3 of 9 tasks · {told}"


def test_it_is_shown_where_somebody_looks(spark, capsys):
    """In a terminal, or when asked for; never in a pipe, and not when it is off."""
    # Slow enough for tasks to be counted while they run.
    even = millrace.predicate(lambda x: time.sleep(0.005) or x % 2 == 0, name="even")
    kept = millrace.where(spark.range(100), even("id"))
    for shown in (None, False):
        with millrace.monitor.progress(spark, shown=shown):
            kept.count()
        assert capsys.readouterr().err == ""
    with millrace.monitor.progress(spark, shown=True):
        kept.count()
    last = capsys.readouterr().err.split("\r")[-1]
    told = r"\d+\.\d s · \d+ of \d+ tasks · 50 rows, [\d,]+ a second · rows → even \(100%\)\x1b\[K\n"
    assert re.fullmatch(told, last)


def test_a_line_is_shown_by_default_and_gone_at_the_end(spark, monkeypatch):
    """For whatever runs something and takes a while, unless options say no; an error takes it away too."""
    shown: list[str] = []
    monkeypatch.setattr(monitor, "is_seen", lambda: True)
    monkeypatch.setattr(monitor, "writer", lambda: lambda line, _last: shown.append(line))
    monkeypatch.setattr(monitor, "EVERY", 0.02)
    odd = millrace.predicate(lambda x: time.sleep(0.002) or (1 / (x - 500) and x % 2 == 1), name="odd")
    frame = millrace.where(spark.range(100), odd("id"))
    assert frame.groupBy().count().collect()[0][0] == 50
    assert re.match(r"\d+\.\d s", shown[0])
    assert shown[-1] == ""
    slow = millrace.where(spark.range(100), millrace.predicate(lambda x: time.sleep(0.005) or x > 4)("id"))
    slow.write.format("noop").mode("overwrite").save()  # a writer's tasks are counted too
    assert any(re.match(r"\d+\.\d s · \d of \d+ tasks", each) for each in shown)
    for quiet in (
        lambda: millrace.where(spark.range(100), odd("id"), options={"progress": False}).toArrow(),
        lambda: frame.select("id").schema,
    ):
        shown.clear()
        quiet()
        assert shown == []
    with millrace.monitor.progress(spark, shown=False):
        frame.count()
    assert shown == []
    with pytest.raises(millrace.MillraceError):
        millrace.where(spark.range(450, 550), odd("id")).write.format("noop").mode("overwrite").save()
    assert shown[-1] == ""


def test_what_is_printed_does_not_stand_behind_the_line(monkeypatch):
    """The line goes when the action prints; others may print meanwhile, which leaves it."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    line = monitor._Line(None, prints=True)
    other = threading.Thread(target=print, args=("other",))
    other.start()
    other.join()
    assert line._thread.is_alive()
    sys.stdout.write("table\n")
    assert not line._thread.is_alive()
    line.end(None)
    assert sys.stdout is out
    assert out.getvalue() == "other\ntable\n"


# The live page of a session.


def until(page, wanted):
    """The latest query's figures, once they are as wanted."""
    return wait_for(lambda: next((each for each in page.figures()["queries"][:1] if wanted(each)), None))


def test_a_query_is_on_the_page_while_it_runs(spark, tmp_path):
    """Its tasks tell what they have read before they are over; then it is done, and the next one fails."""
    gate = tmp_path / "open"

    def waits(x: int) -> bool:
        while x == 5 and not gate.exists():
            time.sleep(0.01)
        return x % 2 == 0

    kept_before = millrace.where(spark.range(10), millrace.predicate(lambda x: x > 3, name="early")("id"))
    with millrace.monitor.live() as page:
        kept = millrace.where(spark.range(1000), millrace.predicate(waits, name="waits")("id"))
        with ThreadPoolExecutor(1) as pool:
            counted = pool.submit(lambda: kept.groupBy().count().collect()[0][0])
            try:
                query = until(page, lambda query: query["rows_in"])
            finally:
                gate.touch()
            assert counted.result(60) == 500
        told = [query[name] for name in ("state", "action", "title")]
        assert told == ["running", "collect", "filter by waits(id)"]
        assert query["tasks_planned"] is None  # a DataFrame's partitions
        assert query["tasks_over"] < 2 <= query["tasks"] + 1
        query = until(page, lambda query: query["state"] == "done")
        assert (query["rows_in"], query["rows_out"]) == (1000, 500)
        (calls,) = [one["evaluated"] for one in query["modules"] if one["name"] == "Predicate(waits(id))"]
        assert calls == 1000

        # Planned before anybody looked: its tasks tell at their end.
        rows = list(kept_before.toLocalIterator())
        assert len(rows) == 6
        query = until(page, lambda query: query["state"] == "done")
        told = [query[name] for name in ("title", "action", "rows_out")]
        assert told == ["filter by early(id)", "toLocalIterator", 6]

        def breaks(x: int) -> bool:
            raise ValueError("no such thing")

        broken = millrace.where(spark.range(10), millrace.predicate(breaks, name="breaks")("id"))
        with pytest.raises(millrace.MillraceError):
            broken.write.format("noop").mode("overwrite").save()
        query = until(page, lambda query: query["action"] == "save")
        assert query["state"] == "failed"
        assert query["error"] == "ExecutionError: predicate 'breaks' raised ValueError: no such thing"
    kept.count()  # nobody looks any more
    assert millrace.monitor.live().figures()["queries"] == []
    millrace.monitor.live().close()
