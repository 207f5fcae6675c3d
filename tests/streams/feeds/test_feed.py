"""The made-up streams: rows that depend on seed and number alone, with the disorder and drift they claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millrace.errors import OptionError
from millrace.streams.feeds import source
from millrace.streams.feeds.rows import STREAMS, Feed
from millrace.streams.feeds.source import FeedReader, FeedSource, Supply

ROWS = 20_000
BEGIN = 1_735_689_600_000_000


def column(feed: Feed, name: str, rows: int = ROWS) -> np.ndarray:
    """A column of a feed's first rows; times in microseconds."""
    values = feed.rows(0, rows).column(name)
    return (values.cast(pa.int64()) if name == "t" else values).to_numpy(zero_copy_only=False)


@given(
    st.sampled_from(STREAMS),
    st.integers(0, 2**63),
    st.lists(st.integers(0, 300), min_size=3, max_size=3).map(sorted),
    st.floats(0.5, 1000),
)
@settings(max_examples=50, deadline=None)
def test_rows_are_the_same_however_they_are_cut(stream, seed, cuts, rate):
    """By micro-batch, partition or restart; another seed gives others."""
    feed = Feed(stream, rate=rate, seed=seed, late=0.1, skew=0.1, drift_at=0.2)
    first, middle, last = cuts
    parts = [feed.rows(first, middle), feed.rows(middle, last)]
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([feed.rows(first, last)])
    assert feed.rows(0, 300) != replace(feed, seed=seed + 1).rows(0, 300)


@pytest.mark.parametrize("stream", STREAMS)
def test_times_are_out_of_order_within_the_bound(stream):
    """And later only for the share that is asked for."""
    feed = Feed(stream, disorder=3)
    arrival = BEGIN + np.arange(ROWS) * 1000
    behind = (arrival - column(feed, "t")) / 1e6
    assert behind.min() >= -1e-6 and 2.9 < behind.max() <= 3
    late = (arrival - column(replace(feed, late=0.02), "t")) / 1e6 > 3
    assert 0.015 < late.mean() < 0.025


@pytest.mark.parametrize("stream", ["payments", "shipments"])
def test_what_follows_an_order_comes_after_it(stream):
    """By event time, and no later than the feed says."""
    orders, feed = Feed("orders", rate=300, skew=0), Feed(stream, rate=300, match=1, skew=0.2)
    assert (column(orders, "order_id") == np.arange(ROWS)).all()
    of = column(feed, "order_id")
    known = of >= 0
    assert known.mean() > 0.6, "all but those before the first order"
    gap = (column(feed, "t")[known] - column(orders, "t")[of[known]]) / 1e6
    assert gap.min() >= 0 and feed.within < gap.max() <= feed.reach


def test_selectivity_and_skew_change_at_the_drift():
    """The selective stream is another one, and keys become skewed."""
    drift = {"drift_at": 10.0, "within": 1.0, "disorder": 0.1, "skew_after": 0.3}
    for stream, before, after in (("payments", 0.9, 0.2), ("shipments", 0.2, 0.9)):
        of = column(Feed(stream, **drift), "order_id")
        halves = of[2000:10_000], of[10_000:]
        for half, share in zip(halves, (before, after), strict=True):
            assert abs((half >= 0).mean() - share) < 0.03
        big = [(half[half >= 0] % 1000 == 0).mean() for half in halves]
        assert big[0] < 0.01 and 0.27 < big[1] < 0.33


def test_rows_become_there_as_time_passes(monkeypatch):
    """The offset has the beginning, so a reader that goes on after a restart agrees."""
    now = [1000.0]
    monkeypatch.setattr(source.time, "time", lambda: now[0])
    supply = Supply("orders", rate=10, backlog=5, rows_in_all=100, max_rows=20)
    reader = FeedReader(supply)
    start = reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    assert reader.latestOffset(start, ReadMaxRows(20))["row"] == 5
    now[0] += 4
    assert reader.latestOffset(start, ReadMaxRows(20))["row"] == 20
    assert reader.latestOffset(start, ReadAllAvailable())["row"] == 45
    later = FeedReader(supply)
    later.prepareForTriggerAvailableNow()
    now[0] += 1000
    assert later.latestOffset({**start, "row": 40}, ReadMaxRows(20))["row"] == 45
    assert reader.latestOffset({**start, "row": 90}, ReadMaxRows(20))["row"] == 100


def test_a_large_micro_batch_is_read_by_several_tasks():
    """Each row by one of them."""
    reader = FeedReader(Supply("payments", tasks=3))
    parts = reader.partitions({"row": 7}, {"row": 170_000})
    assert len(parts) == 3 and reader.partitions({"row": 7}, {"row": 7}) == []
    rows = pa.Table.from_batches([batch for part in parts for batch in reader.read(part)])
    assert rows == pa.Table.from_batches([Feed("payments").rows(7, 170_000)], rows.schema).combine_chunks()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "payment"}, r"no stream 'payment' in the feed: did you mean 'payments'"),
        ({"speed": "3"}, r"the feed has no option 'speed': did you mean 'seed'"),
        ({"rate": "fast"}, r"option rate is 'fast': expected a number"),
        ({"rate": "0"}, r"option rate is 0: expected rows a second, more than 0"),
        ({"late": "2"}, r"option late is 2: expected a share, from 0 to 1"),
        ({"disorder": "-1"}, r"option disorder is -1: expected seconds, 0 or more"),
        ({"max_rows": "0"}, r"option max_rows is 0: expected a number, 1 or more"),
        ({"start": "soon"}, r"option start is 'soon': expected a time such as"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(options, message):
    """With what would work."""
    with pytest.raises(OptionError, match=message):
        FeedSource(options).schema()
