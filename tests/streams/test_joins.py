"""Joins of streams on Spark: over all micro-batches the rows are those of a batch join by DuckDB."""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException

import millrace
from millrace.errors import ExecutionError, InputError, SetupError
from millrace.spark import task_inputs
from tests.session import ROCKSDB, changed
from tests.streams.cluster import SECOND
from tests.streams.feed import SCHEMA, Feed, figures

pytestmark = pytest.mark.spark

THREE = """
    SELECT o.k, o.t AS ordered, p.t AS paid, s.t AS sent, round(o.v + p.v + s.v, 6) AS total, p.g
    FROM orders o JOIN payments p ON o.k = p.k JOIN shipments s ON s.k = p.k
    WHERE p.t BETWEEN o.t AND o.t + INTERVAL 20 SECONDS
      AND s.t >= p.t - INTERVAL 5 SECONDS AND s.t <= p.t + INTERVAL '30' SECOND AND o.v + s.v > 0.2
"""


def test_three_streams_and_a_restart(streaming, tmp_path):
    """Rows out of order, null keys, another architecture after the restart."""
    feed = Feed(streaming, tmp_path, ("orders", "payments", "shipments"))
    feed.put(60, 0, 0)
    query = millrace.query(THREE, spark=streaming, tables=feed.tables())
    with pytest.raises(ExecutionError, match="report for each query that was started"):
        millrace.report(query.df)
    assert "o: a stream by t, kept for 50 s behind the watermark" in query.explain()
    assert "where (p.t >= o.t) AND (p.t <= " in query.explain()
    first = feed.run(query.df)
    feed.put(60, 0, 0)
    joins = millrace.sql(THREE, spark=streaming, tables=feed.tables(), options={"architecture": "joins"})
    assert {len(each.stateOperators) for each in first} == {1}
    found = [*figures(first), *figures(feed.run(joins))]
    want = feed.answer(THREE)
    assert feed.rows() == want and len(want) > 200
    assert [each.late for each in found] == [0] * len(found)
    # After the restart everything is read from the log, once; memory may hold a little more.
    assert 0.9 * found[1].held < found[2].restored <= found[1].held


def since(text: str, roles: int) -> str:
    """The query without the rows that are late, which are of another year."""
    return text.replace("clicks", "(SELECT * FROM clicks WHERE t >= to_timestamp(1600000000))", roles)


def test_ranges_alone_tables_and_late_rows(streaming, tmp_path):
    """One stream in two roles, without an equality but with a table; late rows are counted."""
    feed = Feed(streaming, tmp_path, ("clicks",))
    text = """
        SELECT a.k AS one, b.k AS other, names.name FROM clicks a, clicks b, names
        WHERE a.t < b.t AND b.t <= a.t + INTERVAL 1 SECOND AND names.g = b.g AND a.k <> b.k
            AND a.k IN (SELECT k FROM few)
    """
    feed.put(60, 0, 0, 9)  # the third micro-batch is the first that has a watermark
    names = streaming.sql("SELECT 'odd' AS g, 'an odd one' AS name UNION ALL SELECT 'even', 'an even one'")
    small = millrace.predicate(lambda k: k < 50, name="small")
    pq.write_table(pa.table({"k": range(0, 80, 3)}), tmp_path / "few.parquet")
    tables = {**feed.tables(), "names": names, "few": tmp_path / "few.parquet"}
    query = millrace.query(f"{text} AND small(a.k)", spark=streaming, tables=tables, predicates=[small])
    assert len(query.taken) == 1 and "small" in query.explain()
    found = figures(feed.run(query.df))
    assert sum(each.late for each in found) == 18  # in both roles
    names = (
        "WITH names AS (SELECT 'odd' AS g, 'an odd one' AS name), few AS (SELECT unnest(range(27)) * 3 AS k)"
    )
    assert feed.rows() == feed.answer(f"{names} {since(text, 2)} AND a.k < 50") != []


@pytest.mark.nightly
def test_what_is_late_is_late_to_sparks_own_join(streaming, tmp_path):
    """At the watermark, beside it, and before 1970; also in a cell that had no rows for a while."""
    steps = [
        {0: [-5, 0, 100]},
        {0: [50, 100, 200]},
        {0: [100, 100.000001, 150, 300]},
        {0: [300.001]},
        {k: [199, 200, 300, 300.0005, 300.001, 300.001001, 400] for k in range(6)},
        {k: [300, 300.001, 300.001001, 350, 500] for k in range(6)},
    ]
    feed = Feed(streaming, tmp_path, ("a", "b"))
    for step in steps:
        rows = [(k, round(t * SECOND)) for k, times in step.items() for t in times]
        keys, times = (pa.array(each) for each in zip(*rows, strict=True))
        for name in feed.names:
            feed.write(name, pa.table({"k": keys, "t": times.cast(pa.timestamp("us", "UTC"))}))
        feed.files += 1
    tables = feed.tables("k bigint, t timestamp", 0)
    text = """
        SELECT a.k, unix_micros(a.t) AS one, unix_micros(b.t) AS other FROM {a} a JOIN {b} b
            ON a.k = b.k AND b.t BETWEEN a.t - INTERVAL 1 HOUR AND a.t + INTERVAL 1 HOUR
    """
    late = []
    for name, df in (
        ("spark", streaming.sql(text, **tables)),
        ("millrace", millrace.sql(text.format(a="a", b="b"), spark=streaming, tables=tables)),
    ):
        progress = feed.run(df, name)
        dropped = sum(each.numRowsDroppedByWatermark for p in progress for each in p.stateOperators)
        late.append(dropped if name == "spark" else sum(each.late for each in figures(progress)))
    assert feed.rows("millrace") == feed.rows("spark") != []
    assert late[0] == late[1] > 20


def test_left_joins_with_tables_have_the_rows_of_spark_in_each_micro_batch(streaming, tmp_path):
    """Null keys, several matches, none; conditions beside the keys; one Spark joins above; a restart.

    A table that is written anew is seen by results to come.
    """
    feed = Feed(streaming, tmp_path, ("a", "b"))
    feed.put(60, 0, 9)
    levels = pa.table({"g": ["odd", "odd", None, "even"], "least": [0.25, 0.5, 0.0, 0.0], "n": [1, 2, 3, 4]})
    pq.write_table(levels, tmp_path / "levels.parquet")
    text = """
        SELECT a.k, a.t, b.v, l.n, w.word, x.word AS other, f.k AS few FROM {a} a
        LEFT JOIN {words} x ON x.n = a.k AND x.least < a.v
        JOIN {b} b ON a.k = b.k AND b.t BETWEEN a.t AND a.t + INTERVAL 8 SECONDS
        LEFT JOIN {levels} l ON l.g = a.g AND b.v > l.least
        LEFT JOIN {words} w ON w.n = l.n AND w.n <> b.k
        LEFT JOIN {few} f ON hash(f.k) = hash(b.k)
        WHERE b.v < 0.9 AND (l.n IS NULL OR l.n < 2)
    """
    words = streaming.sql(
        "SELECT id AS n, concat('w', id % 2) AS word, .4D AS least FROM range(30) UNION ALL SELECT 1, '', 0D"
    )
    few = streaming.range(20).withColumnRenamed("id", "k")
    found = {"spark": [], "millrace": []}
    for options in ({"architecture": "stems"}, {"architecture": "joins", "memory_budget": 1}):
        own = {**feed.tables(), "words": words, "few": few}
        spark = streaming.sql(text, **own, levels=streaming.read.parquet(str(tmp_path / "levels.parquet")))
        query = millrace.query(
            text.format(**{name: name for name in (*own, "levels")}),
            spark=streaming,
            tables={**own, "levels": tmp_path / "levels.parquet"},
            options=options,
        )
        assert len(query.taken) == 1 and "l: a table" in query.explain() and "w: a table" in query.explain()
        assert "LEFT JOIN f: only Spark evaluates" in query.explain()
        for name, df in (("spark", spark), ("millrace", query.df)):
            found[name].append(feed.batches(df, name))
        feed.put(60)
        pq.write_table(levels.slice(1), tmp_path / "levels.parquet")
    assert found["millrace"] == found["spark"]
    rows = [row for run in found["spark"] for batch in run.values() for row in batch]
    assert len({row[3:] for row in rows}) > 5 and all(found["spark"])


def test_a_left_join_of_streams_has_the_rows_of_spark_in_each_micro_batch(streaming, tmp_path):
    """Late rows, null keys, several matches, conditions beside the range, a restart.

    Nulls come when Spark has them, at the last millisecond, too, of the time for which it waits.
    """
    random, steps = (Feed(streaming, tmp_path / name, ("a", "b")) for name in ("random", "steps"))
    for ends in range(7):
        times = [1000 * n + more for n in range(4) for more in (0, 1, 999)] if ends == 0 else []
        rows = [*((1, time) for time in times), (2, SECOND * 5 + ends * 1000)]
        for name, kept in (("a", rows), ("b", rows[-1:])):
            keys, moments = (pa.array(each) for each in zip(*kept, strict=True))
            steps.write(name, pa.table({"k": keys, "t": moments.cast(pa.timestamp("us", "UTC"))}))
        steps.files += 1
    text = """
        SELECT a.k, unix_micros(a.t) AS one, a.v, unix_micros(b.t) AS other, b.v AS more, b.g
        FROM {a} a LEFT OUTER JOIN {b} b ON b.t BETWEEN a.t - INTERVAL 2 SECONDS AND a.t + INTERVAL 6 SECONDS
            AND a.k = b.k AND b.v > a.v AND b.g IS NOT NULL
        WHERE a.v < 0.8 AND (b.v IS NULL OR b.v > 0.1)
    """
    exact = """
        SELECT a.k, unix_micros(a.t) AS one, b.k AS other
        FROM {a} a LEFT JOIN {b} b ON a.k = b.k AND b.t >= a.t AND b.t <= a.t + INTERVAL 5 SECONDS
    """
    nulls = []
    random.put(60, 0, 9, 9)  # before there is a watermark old rows are in time, and out with it
    with changed(streaming, {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}):
        for architecture in ("stems", "stairs"):
            for feed, query, tables in (
                (random, text, random.tables()),
                (steps, exact, steps.tables("k bigint, t timestamp", 0)),
            ):
                spark = feed.batches(streaming.sql(query, **tables), "spark")
                joined = millrace.query(
                    query.format(a="a", b="b"),
                    spark=streaming,
                    tables=tables,
                    options={"architecture": architecture},
                )
                assert "rows of a without a match come out with nulls" in joined.explain()
                assert feed.batches(joined.df, "millrace") == spark
                nulls.append(sum(row[-1] is None for rows in spark.values() for row in rows))
            random.put(60, 0, 0)
    assert min(nulls[:3]) > 10


def test_event_times_that_are_equal_some_time_apart_join_as_in_spark(streaming, tmp_path):
    """In each micro-batch, by them alone and by another key: both tell the cell of a tuple. Some are late."""
    feed = Feed(streaming, tmp_path, ("a", "b"))
    for first in range(0, 50, 10):
        times = range(first, first + 14)
        moments = pa.array([time * SECOND for time in times], pa.timestamp("us", "UTC"))
        for name in feed.names:
            feed.write(name, pa.table({"k": [time % 3 for time in times], "t": moments}))
        feed.files += 1
    tables = feed.tables("k bigint, t timestamp", 2)
    for name, key in (("alone", ""), ("beside", "a.k = b.k AND")):
        text = f"SELECT a.k, a.t FROM {{a}} a JOIN {{b}} b ON {key} b.t = a.t + INTERVAL '6' SECOND"
        joined = millrace.sql(text.format(a="a", b="b"), spark=streaming, tables=tables)
        spark = feed.batches(streaming.sql(text, **tables), f"{name}_spark")
        assert feed.batches(joined, name) == spark and len(spark) > 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM a JOIN b ON a.k = b.k", r"how much later than 'a' a row of 'b' may be"),
        ("SELECT * FROM a JOIN b ON a.k = b.k AND b.t >= a.t", r"how much later than 'a' a row of 'b'"),
        (
            "SELECT * FROM a JOIN n ON a.k = n.k AND a.t = n.t",
            r"'n' needs one timestamp column with a watermark",
        ),
        (
            "SELECT x.k FROM (SELECT a.k FROM a JOIN b ON a.k = b.k AND a.t = b.t) x JOIN a ON x.k = a.k",
            r"joins streams, and its rows are joined with others again",
        ),
    ],
)
def test_what_has_no_bound_is_refused(streaming, tmp_path, text, message):
    """With the names of what lacks a range, and what would work."""
    feed = Feed(streaming, tmp_path, ("a", "b", "n"))
    tables = feed.tables()
    tables["n"] = streaming.readStream.schema(SCHEMA).parquet(str(tmp_path / "n"))
    with pytest.raises(InputError, match=message):
        millrace.sql(text, spark=streaming, tables=tables)


LEFT = "SELECT a.k FROM a LEFT JOIN b ON a.k = b.k AND b.t BETWEEN a.t AND a.t + INTERVAL 1 MINUTE"
PAIR = "SELECT a.k FROM a JOIN b ON a.k = b.k AND a.t = b.t"


def test_what_does_not_work_here_is_refused(streaming, tmp_path, monkeypatch):
    """Another state store; large DataFrames, which would travel with each task; no protobuf, or no google."""
    tables = Feed(streaming, tmp_path, ("a", "b")).tables()
    other = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB.replace("RocksDB", "HDFSBacked")}
    with (
        changed(streaming, other),
        pytest.raises(SetupError, match=r"run spark.conf.set\(.*RocksDBStateStoreProvider"),
    ):
        millrace.sql(PAIR, spark=streaming, tables=tables)
    with pytest.raises(SetupError, match=r"architecture is 'static', and .*expected 'stems'"):
        millrace.sql(PAIR, spark=streaming, tables=tables, options={"architecture": "static"})
    assert task_inputs.MOST_TABLE == 256 << 20
    monkeypatch.setattr(task_inputs, "MOST_TABLE", 99 * 8 - 1)
    more = {**tables, "d": streaming.range(99).withColumnRenamed("id", "k")}
    with pytest.raises(SetupError, match=r"'d' is a DataFrame of 792 bytes.*Parquet"):
        millrace.sql(f"{PAIR} JOIN d ON d.k = a.k", spark=streaming, tables=more)
    found = millrace.query(f"{PAIR} LEFT JOIN d ON d.k = a.k", spark=streaming, tables=more)
    assert len(found.taken) == 1 and "LEFT JOIN d: Spark estimates 792 bytes" in found.explain()
    more["d"] = streaming.createDataFrame([(n,) for n in range(99)], "k bigint")  # Spark estimates nothing
    found = millrace.query(f"{PAIR} LEFT JOIN d ON d.k = a.k", spark=streaming, tables=more)
    assert not found.taken and "'d' is a DataFrame of 792 bytes" in found.explain()
    for missing in ("google.protobuf", "google"):
        monkeypatch.delitem(sys.modules, "google.protobuf", raising=False)
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(SetupError, match=r"pip install 'millrace\[streams\]'"):
            millrace.sql(PAIR, spark=streaming, tables=tables)


def test_what_spark_joins_stays_with_spark(streaming, tmp_path):
    """One stream with tables keeps no state; other joins of streams are Spark's, as are aggregates above."""
    tables = Feed(streaming, tmp_path, ("a", "b")).tables()
    tables["d"] = streaming.range(9).withColumnRenamed("id", "k")
    alone = "keeps no state"
    for text, why in (
        ("SELECT a.k FROM a JOIN d ON a.k = d.k", alone),
        ("SELECT d.k FROM d JOIN (SELECT * FROM a WHERE k > 1) s ON d.k = s.k", alone),
        ("WITH q AS (SELECT k FROM a) SELECT d.k FROM d, q WHERE d.k = q.k", alone),
        (PAIR.replace("JOIN", "LEFT JOIN"), "LEFT JOIN b: its ON bounds event times"),
        (LEFT.replace("BETWEEN a.t AND", ">= a.t AND b.t <"), "its ON bounds event times"),
        (f"{LEFT} AND b.t = a.t + INTERVAL 5 SECONDS", "its ON bounds event times"),
        ("SELECT a.k FROM a LEFT JOIN b ON a.k = b.k", "how much later than 'a'"),
        (f"{LEFT} AND a.v > 0.5", "its ON asks something of a alone"),
        (f"{LEFT} AND hash(a.v) = hash(b.v)", "only Spark evaluates hash"),
        (LEFT.replace("a.k = b.k AND", ""), "no equality ties it"),
        (f"{LEFT} AND b.t <= a.t + INTERVAL 1 HOUR", "Spark tells otherwise"),
        (f"{LEFT} LEFT JOIN d ON d.k = a.k", "no two relations"),
        ("SELECT a.k FROM a JOIN b ON a.k = b.k LEFT JOIN d ON d.k = a.k", "how much later than 'a'"),
        (f"SELECT count(*) FROM ({LEFT}) q", "what Spark does above it"),
        (LEFT.replace("LEFT", "RIGHT"), "no two relations"),
        (LEFT.replace("LEFT", "FULL"), "no two relations"),
        (PAIR.replace("JOIN", "LEFT SEMI JOIN"), "no two relations"),
        (PAIR.replace("JOIN", "LEFT ANTI JOIN"), "no two relations"),
    ):
        found = millrace.query(text, spark=streaming, tables=tables)
        assert why in found.explain() and found.df.isStreaming and not found.taken, text
    for name in "ab":
        tables[name].createOrReplaceTempView(name)
    with millrace.enable(streaming):
        for text in (LEFT, PAIR):  # what comes after it there may be Spark's
            with pytest.raises(InputError, match="may need its watermark"):
                millrace.explain(streaming.sql(text))
        counted = streaming.sql(PAIR.replace("a.k", "a.t", 1)).groupBy("t").count()
        counted.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    assert millrace.sql("SELECT * FROM a WHERE k > 1", spark=streaming, tables=tables).isStreaming
    counted = millrace.sql(f"{PAIR} GROUP BY a.k", spark=streaming, tables=tables)
    with pytest.raises(AnalysisException, match="watermark"):
        counted.writeStream.format("noop").start()
    with pytest.raises(InputError, match=r"start it with df.writeStream"):
        list(millrace.query(PAIR, spark=streaming, tables=tables).to_batches())
