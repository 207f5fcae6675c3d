"""Lookups in queries of streams: rows are those of a batch join by DuckDB, and no key is asked for twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

import millrace
from millrace.errors import InputError, SetupError
from millrace.spark import task_inputs
from tests.spark.shop import KEYS
from tests.streams.feed import Feed, figures

pytestmark = pytest.mark.spark

TWO = """
    SELECT o.k, o.t AS ordered, p.v AS paid, s.v AS text, n.name
    FROM orders o JOIN payments p ON o.k = p.k AND p.t BETWEEN o.t AND o.t + INTERVAL 8 SECONDS
    JOIN shop s ON s.k = o.k JOIN names n ON n.v = s.v
    WHERE o.g = 'odd' AND s.v <> 'value 7'
"""
NAMES = f"SELECT 'value ' || k AS v, 'n' || k AS name FROM (SELECT unnest(range({KEYS})) AS k)"
SHOP = f"SELECT k, 'value ' || k AS v FROM (SELECT unnest(range({KEYS})) AS k)"
WITH = f"WITH shop AS ({SHOP}), names AS ({NAMES}) "


def names(spark):
    return spark.sql(f"SELECT concat('value ', id) AS v, concat('n', id) AS name FROM range({KEYS})")


@pytest.mark.nightly
def test_a_join_of_streams_with_a_lookup_a_table_behind_it_and_a_predicate(streaming, tmp_path, shop):
    """Asked for are keys of results alone, each once: over micro-batches, and when one runs again."""
    feed = Feed(streaming, tmp_path, ("orders", "payments"))
    cheap = millrace.predicate(lambda k, text: text.endswith(str(k)) and k != 9, name="cheap")
    table = shop.table(cache=tmp_path / "answers.sqlite")

    def query():
        tables = {**feed.tables(), "shop": table, "names": names(streaming)}
        return millrace.query(
            f"{TWO} AND cheap(o.k, s.v)", spark=streaming, tables=tables, predicates=[cheap]
        )

    feed.put(60, 0, 0, 0)
    first = query()
    told = first.explain()
    assert "p: a stream by t" in told and "joined is a stream" in told and "cheap" in told
    found = feed.run(first.df)
    assert sum(each.results for each in figures(found)) > len(feed.rows())
    (progress,) = first.lookups()
    assert progress.requests == progress.keys - progress.cached == sum(shop.asked.values()) > 10
    latest = max((feed.folder / "out_checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    latest.unlink()
    (latest.parent / f".{latest.name}.crc").unlink()
    feed.put(60)
    feed.run(query().df)  # as after a restart
    want = feed.answer(f"{WITH}{TWO} AND o.k <> 9")
    assert feed.rows() == want and len(want) > 10
    wanted = {k for (k,) in feed.answer("SELECT DISTINCT o.k FROM orders o SEMI JOIN payments p USING (k)")}
    assert set(shop.asked.values()) == {1} and shop.asked.keys() <= wanted


def test_one_stream_is_joined_with_lookups_as_it_comes_and_keeps_its_watermark(
    streaming, tmp_path, shop, monkeypatch
):
    """Without a cache answers last from one micro-batch to the next too; a scan is not read every time."""
    feed = Feed(streaming, tmp_path, ("orders",))
    feed.put(80, 0, 0, 0, 0)
    text = """
        SELECT window.start, s.v, count(*) AS orders
        FROM orders o JOIN begun b ON b.at <= o.t + INTERVAL 1 SECOND JOIN shop s ON s.k = o.k
        GROUP BY window(o.t, '10 seconds'), s.v
    """
    nothing = streaming.createDataFrame([], "k bigint, v string")
    begun = streaming.sql("SELECT TIMESTAMP'1999-01-01' AS at")
    tables = {**feed.tables(), "begun": begun, "shop": shop.table(scan=nothing)}
    query = millrace.query(text, spark=streaming, tables=tables)
    (told,) = (line for line in query.explain().splitlines() if line.startswith("  s: "))
    assert "o: about" in query.explain() and "scan" not in told
    with pytest.raises(InputError, match="no end to wait for"):
        next(query.to_batches())
    with monkeypatch.context() as small:
        small.setattr(task_inputs, "MOST_TABLE", 7)
        with pytest.raises(SetupError, match=r"'b' is a DataFrame of 8 bytes.*Parquet"):
            millrace.query(f"{text} ", spark=streaming, tables=tables)
    feed.run(query.df)
    whole = f"""
        {WITH} SELECT time_bucket(INTERVAL 10 SECONDS, o.t) AS start, s.v, count(*)
        FROM orders o JOIN shop s ON s.k = o.k GROUP BY 1, 2
    """
    want = feed.answer(whole)
    found = feed.rows()
    assert set(found) <= set(want)
    assert {row for row in want if row[0] < max(each[0] for each in found)} <= set(found)
    assert len(found) > 40 and set(shop.asked.values()) == {1}


@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_a_key_that_failed_is_asked_again_by_the_next_micro_batch(streaming, tmp_path, shop, on_error):
    """With ``fail`` the query stops, and goes on where it was; with ``null`` later rows have the answer."""
    feed = Feed(streaming, tmp_path, ("orders",))
    feed.put(300)
    shop.behave = lambda key, before: "500" if key == 3 and before == 0 else "ok"
    text = "SELECT o.k, o.t, s.v FROM orders o JOIN shop s ON s.k = o.k WHERE o.k BETWEEN 1 AND 8"
    tables = {**feed.tables(), "shop": shop.table(on_error=on_error, retries=0, circuit_breaker=None)}
    query = millrace.query(text, spark=streaming, tables=tables)
    if on_error == "fail":
        with pytest.raises(StreamingQueryException, match="500"):
            feed.run(query.df)
        first = []
    else:
        feed.run(query.df)
        first = feed.rows()
        assert query.failed_keys().num_rows == 1
        assert {v for k, _, v in first if k == 3} == {None}
    feed.put(300)
    feed.run(query.df)
    want = feed.answer(f"{WITH}{text}")
    nulled = {(k, t) for k, t, v in first if v is None}
    assert feed.rows() == sorted(((k, t, None if (k, t) in nulled else v) for k, t, v in want), key=repr)
    others = {n for k, n in shop.asked.items() if k != 3}
    assert shop.asked[3] == 2 and others <= ({1, 2} if on_error == "fail" else {1})


def test_budgets_and_limits_go_on_from_one_micro_batch_to_the_next(streaming, tmp_path, shop):
    """What the first one spent, later ones do not have; nor has the query after a restart."""
    feed = Feed(streaming, tmp_path, ("orders",))
    feed.put(12, 0, 0, 0)
    text = "SELECT o.k, s.v FROM orders o JOIN shop s ON s.k = o.k"
    table = shop.table(max_requests=16, cache=tmp_path / "answers")
    for _ in range(2):
        query = millrace.query(text, spark=streaming, tables={**feed.tables(), "shop": table})
        with pytest.raises(StreamingQueryException, match="16 of 16 requests"):
            feed.run(query.df)
        assert sum(shop.asked.values()) == 16
    written = Path(tmp_path / "out").glob("*.parquet")
    assert any(written), "micro-batches before it are done"
