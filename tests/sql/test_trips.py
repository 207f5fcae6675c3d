"""Planning asks Spark little: each question is a trip to its JVM, and each DataFrame is analysed there."""

from __future__ import annotations

import pytest

from lab.bench.tpch_data import query_texts
from lab.bench.trips import count_trips
from millrace import query
from millrace.sql.blocks import cost_model
from millrace.sql.planner import plan_cache

TEXTS = query_texts()
FIRST = {"q05": (55, 4), "q08": (55, 4), "q16": (55, 4)}
"""The most trips and DataFrames of a text that is new."""
AGAIN = (20, 2)
"""The same of one that was planned before."""


@pytest.mark.parametrize("name", FIRST)
def test_planning_a_text_takes_few_trips(spark, tpch_tiny, name):
    """Tables by path, in a session that knows its files and disks already."""
    query(TEXTS["stairs"], spark=spark, tables=tpch_tiny)
    plan_cache._kept.clear()
    for most in (FIRST[name], AGAIN):
        with count_trips() as trips:
            query(TEXTS[name], spark=spark, tables=tpch_tiny)
        assert trips.calls <= most[0]
        assert trips.frames <= most[1]


@pytest.mark.parametrize(
    ("text", "tables"), [("SELECT count(*) FROM nation", 1), ("SELECT n_name FROM nation, region", 2)]
)
def test_a_text_left_to_spark_is_analysed_once_more_at_most(spark, tpch_tiny, monkeypatch, text, tables):
    """Beside the DataFrames of its tables, which Spark would need too."""
    plan_cache._kept.clear()
    monkeypatch.setattr(cost_model, "start_seconds", lambda spark, saved: 1.0)
    with count_trips() as trips:
        found = query(text, spark=spark, tables=tpch_tiny)
    assert not found.blocks
    assert trips.frames <= tables + 2
