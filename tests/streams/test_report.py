"""The report of a running stream, its callbacks and its lines: figures agree with what came and went."""

from __future__ import annotations

import json
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from pyspark.sql import Row

import millrace
from millrace.errors import ExecutionError, InputError
from millrace.reports.micro_batch import (
    MOST_ORDERS,
    PREFIX,
    StreamFigures,
    decode_cells,
    encode_cell,
    micro_batch,
)
from millrace.streams.reporting import StreamWatch
from tests.session import write_stream
from tests.streams.feed import Feed

TEXT = """
    SELECT o.k, o.t AS ordered, p.t AS paid, o.v FROM orders o JOIN payments p ON p.k = o.k
    WHERE p.t BETWEEN o.t AND o.t + INTERVAL 5 SECONDS
"""
IN_TIME = TEXT.replace("orders o", "(SELECT * FROM orders WHERE t >= to_timestamp(1600000000)) o")


def test_a_stream_tells_what_it_does(streaming, tmp_path):
    """In a report, to a function and in a file; and so it does after a restart, with the same rows."""

    def raising(batch):
        raise ValueError(f"about batch {batch.batch}")

    feed, seen = Feed(streaming, tmp_path, ("orders", "payments")), []
    watch = millrace.streams.watch(streaming, raising)
    with (
        millrace.monitor.live() as page,
        millrace.streams.log(streaming, tmp_path / "log" / "figures.jsonl"),
        millrace.streams.watch(streaming, seen.append),
    ):
        reports = []
        for late in (0, 7):
            feed.put(100, 0, late)
            joined = millrace.sql(TEXT, spark=streaming, tables=feed.tables())
            query = write_stream(joined, tmp_path, title="live")
            reports.append(millrace.streams.report(query))
    with pytest.raises(ValueError, match="about batch 0"):
        watch.stop()
    watch.stop()  # once more does nothing
    shown = page.figures()["streams"]
    assert [(each["title"], each["state"], each["error"]) for each in shown] == [("live", "done", "")] * 2
    assert [each["batches"] for each in shown] == [report.to_dict()["batches"] for report in reports[::-1]]

    batches = [batch for report in reports for batch in report.batches]
    assert seen == batches and len(batches) == 4
    lines = (tmp_path / "log" / "figures.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [batch.to_dict() for batch in batches]

    sums = [report.totals for report in reports]
    keyed = "SELECT t >= to_timestamp(1600000000) FROM {} WHERE k IS NOT NULL"
    orders, payments = (Counter(feed.answer(keyed.format(name))) for name in feed.names)
    assert sum(each["late"] for each in sums) == orders[(False,)] == sums[1]["late"] > 0
    assert sum(each["rows"] for each in sums) == orders[(True,)] + payments[(True,)]
    assert feed.rows() == feed.answer(IN_TIME)
    assert sum(each["results"] for each in sums) == len(feed.rows()) > 100
    rebuilt = [batch.rebuilt for batch in batches]
    assert rebuilt[0] == 0 and rebuilt[2] == 2, "both cells, after the restart"
    assert sums[1]["expired"] > 0

    second = reports[1]
    assert [(each.alias, each.late) for each in second.streams] == [("o", sums[1]["late"]), ("p", 0)]
    assert sum(each.rows for each in second.streams) == sums[1]["rows"]
    assert sum(each.expired for each in second.streams) == sums[1]["expired"]
    for batch in batches:
        assert sum(each.tuples for each in batch.streams) == batch.held
        assert sum(each.nbytes for each in batch.streams) == batch.bytes
        assert all(0 < each.index_bytes < each.nbytes and each.log_bytes > 0 for each in batch.streams)
        assert {order.split(" → ")[0] for order, _ in batch.orders} == {"o", "p"}
    # The watermark is 5 s behind the newest row of the slowest stream, at the end of the batch before.
    assert batches[0].watermark is None and batches[0].lag is None
    assert 5 <= batches[-1].lag == second.lag <= 5 + 10 + 4
    assert second.seconds(50) <= second.seconds(95) == pytest.approx(second.seconds(95))
    assert not second.active and json.loads(second.to_json()) == second.to_dict()
    text = str(second)
    assert text.startswith("live: ended, micro-batches 2 to 3, p50 ") and " cells made anew" in text
    assert "from 2 on, p: p → " in text and "from 2 on, p" in second._repr_html_()


def test_orders_change_when_most_tuples_take_another():
    """A beginning of an order is that order; cells are added up, and tell of a bounded number of orders."""
    one = StreamFigures("o", 1, 0, 0, 5, 100, 10, 50, 1, None)
    lines = [
        encode_cell([one], (("o → p", 3),), results=1),
        encode_cell([one], (("o → p", 2), ("o → s", 9)), results=3),
    ]
    assert decode_cells(lines) == {
        "results": 4,
        "rows": 2,
        "late": 0,
        "expired": 0,
        "held": 10,
        "streams": (StreamFigures("o", 2, 0, 0, 10, 200, 20, 100, 2, None),),
        "orders": (("o → s", 9), ("o → p", 5)),
    }
    many = tuple((f"o → p{n}", 1) for n in range(100))
    assert len(decode_cells([encode_cell([one], many)])["orders"]) == MOST_ORDERS


def test_what_has_no_report_says_so(streaming, tmp_path):
    """With what would work."""
    with pytest.raises(InputError, match=r"expected a streaming query, as df\.writeStream"):
        millrace.streams.report(streaming.range(3))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        millrace.streams.log(streaming, tmp_path / "file" / "log")


@pytest.mark.nightly
def test_a_stream_without_a_join_of_millraces_has_no_report(streaming):
    """There is nothing to tell of it."""
    alone = streaming.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    query = alone.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.recentProgress[0].numInputRows >= 50
    with pytest.raises(ExecutionError, match="told nothing of a join of Millrace's"):
        millrace.streams.report(query)


def test_event_times_beyond_the_year_9999_are_told():
    """Spark's timestamps reach further than Python's."""
    late = 253_402_300_800_000_000  # microseconds, the first of the year 10000
    told = micro_batch(progress_of(late)).to_dict()
    assert told["lag"] == 0.0
    assert told["watermark"] == told["streams"][0]["newest"] == "10000-01-01T00:00:00.000000+00:00"


def progress_of(newest):
    """What Spark says of a micro-batch of one cell; event time in microseconds."""
    sums = ("results", "bytes", "restored", "rebuilt", "worked")
    line = encode_cell([StreamFigures("o", 1, 0, 0, 1, 8, 8, 8, 0, newest)], (), **dict.fromkeys(sums, 1))
    return SimpleNamespace(
        id="q",
        runId="r",
        name=None,
        batchId=7,
        timestamp="2026-11-28T00:00:00.000Z",
        durationMs={"addBatch": 1, "triggerExecution": 2000},
        eventTime={"watermark": "10000-01-01T00:00:00.000Z"},
        observedMetrics={f"{PREFIX}1": Row(cells=line)},
    )


def test_the_last_micro_batch_of_a_query_that_began_before_is_waited_for(monkeypatch):
    """Spark tells of it some time after the query has ended."""
    seen, running = [], [SimpleNamespace(runId="r")]

    class Waiting(threading.Condition):
        def wait_for(self, predicate, timeout=None):
            if not predicate():
                watch.onQueryProgress(SimpleNamespace(progress=progress_of(1)))
                watch.onQueryTerminated(SimpleNamespace(runId="r", exception=None))
            return predicate()

    listeners = {"addListener": lambda _: None, "removeListener": lambda _: None}
    spark = SimpleNamespace(streams=SimpleNamespace(active=running, **listeners))
    monkeypatch.setattr(threading, "Condition", Waiting)
    with millrace.streams.watch(spark, seen.append) as watch:
        running.clear()
    assert [each.batch for each in seen] == [7]


def test_a_stream_that_begins_while_a_watch_does_is_waited_for():
    """Nothing of it is missed that Spark tells after its end."""
    query, told, removed = SimpleNamespace(runId="1", exception=None), [], threading.Event()
    streams = SimpleNamespace(active=[], removeListener=lambda _: removed.set())
    streams.addListener = lambda _: streams.active.append(query)
    watch = StreamWatch(SimpleNamespace(streams=streams), told.append, lambda run, _: told.append(run))
    streams.active.clear()
    thread = threading.Thread(target=lambda: removed.wait(0.1) or watch.onQueryTerminated(query))
    thread.start()
    watch.stop()
    thread.join()
    assert told == ["1"]
