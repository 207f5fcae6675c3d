"""Times some interval later: what tasks and cells compute of them is what Spark computes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import millrace
from millrace.engine.plan.evaluation import compute
from millrace.engine.plan.expressions import Column, ColumnRef, Function
from tests.session import changed
from tests.sql.compare import bag
from tests.sql.small_tables import register, write

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
    random, made = np.random.default_rng(5), {}
    for name in "ab":
        near = np.concatenate([m + random.integers(-2 * DAY, 2 * DAY, 60) for m in MOMENTS])
        times = [*near.tolist(), *MOMENTS, None]
        columns = {
            "k": pa.array(random.integers(0, 3, len(times))),
            "t": pa.array(times, pa.timestamp("us", "UTC")),
            "n": pa.array(times, pa.timestamp("us")),
        }
        made[name] = pa.table(columns)
    return write(tmp_path_factory.mktemp("times"), made, 1 << 20)


@pytest.mark.parametrize("zone", ["UTC", pytest.param("America/New_York", marks=pytest.mark.nightly)])
def test_ranges_of_time_are_sparks(spark, tables, zone):
    """Whoever adds the interval, for all lengths, with clocks that change and without, in one query.

    Where clocks do not change, days of a calendar have 24 hours; other lengths are the same everywhere.
    """
    lengths = CALENDAR[:2] if zone == "UTC" else (*IN_TASKS, *CALENDAR)
    texts = {
        (length, time): f"""
            SELECT '{time}' AS time, {number} AS length, count(*), count(DISTINCT a.{time}), min(b.{time}),
                max(b.{time})
            FROM a JOIN b ON a.k = b.k
                AND b.{time} BETWEEN a.{time} - INTERVAL 1 HOUR AND a.{time} + {length}"""
        for number, length in enumerate(lengths)
        for time in "tn"
    }
    with changed(spark, {"spark.sql.session.timeZone": zone}):
        plain = spark.newSession()
        plain.conf.set("spark.sql.session.timeZone", zone)
        register(plain, tables)
        for (length, time), text in texts.items():
            shown = millrace.query(text, spark=spark, tables=tables).explain()
            exact = length in IN_TASKS or (length in CALENDAR[:2] and zone == "UTC")
            assert ("Spark evaluates above it" not in shown) == exact, (length, time)
        whole = " UNION ALL ".join(texts.values())
        found = millrace.query(whole, spark=spark, tables=tables)
        assert len(found.blocks) == len(texts)
        assert bag(found.df) == bag(plain.sql(whole))


@pytest.mark.parametrize("shift", [MINUTE, -MINUTE, MINUTE + 1, 0])
def test_beyond_the_ends_of_time_there_is_none(shift):
    """Such a row joins nothing, as with other arithmetic."""
    kind = pa.timestamp("us", "UTC")
    found = compute(
        Function("timestamp_add", kind, (Column(ColumnRef("", "t")),), (shift,)),
        {"t": pa.array(ENDS, kind)},
        len(ENDS),
    )
    want = [
        None if each is None or not -(1 << 63) <= each + shift < 1 << 63 else each + shift for each in ENDS
    ]
    assert found.view(pa.int64()).to_pylist() == want
