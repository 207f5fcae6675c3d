"""The line of progress: tasks, rows and orders of what runs now, and of nothing that ran before."""

from __future__ import annotations

import re
import time

import millrace
from millrace.api.progress import Watch


def test_a_line_tells_of_what_runs_now(spark, files):
    """Rows and the order in use, counted from the beginning; earlier runs of the session are not in it."""
    text = "select a.id from a join b on a.id = b.id"
    query = millrace.query(text, spark, files)
    query.df.collect()
    now = [0.0]
    watch = Watch(clock=lambda: now[0])
    now[0] = 2.0
    assert watch.line() == "2.0 s"
    watch.tasks(4, 1)
    watch.tasks(3, 0)  # a stage that ended is forgotten by Spark
    assert watch.line() == "2.0 s · 1 of 4 tasks"
    other = millrace.query(text + " where a.k > 0", spark, files)
    rows = len(other.df.collect())
    (order,) = other.report().orders()
    told = f"{rows} rows, {rows / 2:,.0f} a second · {order.order} (100%)"
    assert watch.line() == f"2.0 s · 1 of 4 tasks · {told}"


def test_it_is_shown_where_somebody_looks(spark, capsys):
    """In a terminal, or when asked for; never in a pipe, and not when it is off."""
    # Slow enough for tasks to be counted while they run.
    even = millrace.predicate(lambda x: time.sleep(0.005) or x % 2 == 0, name="even")
    kept = millrace.where(spark.range(100), even("id"))
    for shown in (None, False):
        with millrace.progress(spark, shown=shown):
            kept.count()
        assert capsys.readouterr().err == ""
    with millrace.progress(spark, shown=True):
        kept.count()
    last = capsys.readouterr().err.split("\r")[-1]
    told = r"\d+\.\d s · \d+ of \d+ tasks · 50 rows, [\d,]+ a second · rows → even \(100%\)\x1b\[K\n"
    assert re.fullmatch(told, last)
