"""The live page of a session: queries are on it while they run, when they are done and when they fail."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import millrace
from tests.session import wait_for


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
