"""Times some interval later: what tasks and cells compute of them is what Spark computes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace
from millrace.engine.values import Later, Read, computed
from tests.sql.compare import bag

MINUTE = 60_000_000
DAY = 1440 * MINUTE
# Around changes of the clock in New York, ends of months, and a leap day.
MOMENTS = [0, 1_710_054_000_000_000, 1_730_613_600_000_000, 1_709_164_800_000_000, 4_107_542_400_000_000]
ENDS = [(1 << 63) - 1, (1 << 63) - 1 - MINUTE, -(1 << 63) + MINUTE, -(1 << 63), 0, None]
IN_TASKS = ["INTERVAL 90 MINUTES", "INTERVAL '23:59:59.999999' HOUR TO SECOND", "INTERVAL -7 SECONDS"]
CALENDAR = ["INTERVAL 1 DAY", "INTERVAL 36 HOURS", "INTERVAL 1 MONTH", "INTERVAL 48 MONTHS"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two files of times and of times without zones."""
    folder, random = tmp_path_factory.mktemp("times"), np.random.default_rng(5)
    paths = {}
    for name in "ab":
        near = np.concatenate([m + random.integers(-2 * DAY, 2 * DAY, 60) for m in MOMENTS])
        times = [*near.tolist(), *MOMENTS, None]
        columns = {
            "k": pa.array(random.integers(0, 3, len(times))),
            "t": pa.array(times, pa.timestamp("us", "UTC")),
            "n": pa.array(times, pa.timestamp("us")),
        }
        paths[name] = str(folder / f"{name}.parquet")
        pq.write_table(pa.table(columns), paths[name])
    return paths


@pytest.mark.parametrize("zone", ["America/New_York", "UTC"])
def test_ranges_of_time_are_sparks(spark, tables, zone):
    """Whoever adds the interval, for all lengths, with clocks that change and without."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for name, path in tables.items():
            spark.read.parquet(path).createOrReplaceTempView(f"times_{name}")
        # Where clocks do not change, days of a calendar have 24 hours; other lengths are the same everywhere.
        for length in CALENDAR[:2] if zone == "UTC" else (*IN_TASKS, *CALENDAR):
            for time in "tn":
                select = f"SELECT count(*), count(DISTINCT a.{time}), min(b.{time}), max(b.{time}) FROM"
                hour, begun = "INTERVAL 1 HOUR", f"ON a.k = b.k AND b.{time} BETWEEN"
                found = millrace.query(
                    f"{select} a JOIN b {begun} a.{time} - {hour} AND a.{time} + {length}",
                    spark=spark,
                    tables=tables,
                )
                want = spark.sql(
                    f"{select} times_a a JOIN times_b b {begun} a.{time} - {hour} AND a.{time} + {length}"
                )
                assert bag(found.df) == bag(want), (length, time, found.explain())
                exact = length in IN_TASKS or (length in CALENDAR[:2] and zone == "UTC")
                assert ("Spark evaluates above it" not in found.explain()) == exact, (length, time)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
        for name in "ab":
            spark.catalog.dropTempView(f"times_{name}")


@pytest.mark.parametrize("shift", [MINUTE, -MINUTE, MINUTE + 1, 0])
def test_beyond_the_ends_of_time_there_is_none(shift):
    """Such a row joins nothing, as with other arithmetic."""
    kind = pa.timestamp("us", "UTC")
    found = computed(Later(Read("t", kind), shift, kind), {"t": pa.array(ENDS, kind)}, len(ENDS))
    want = [
        None if each is None or not -(1 << 63) <= each + shift < 1 << 63 else each + shift for each in ENDS
    ]
    assert found.view(pa.int64()).to_pylist() == want
