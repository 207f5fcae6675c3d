"""Planning asks Spark little: each question is a trip to its JVM, and each DataFrame is analysed there."""

from __future__ import annotations

import pytest

from lab.bench.tpch_data import query_texts
from lab.bench.trips import counted
from millrace import query
from millrace.sql import kept

TEXTS = query_texts()
FIRST = {"q05": (144, 17), "q08": (128, 17), "q16": (107, 11)}
"""The most trips and DataFrames of a text that is new."""
AGAIN = (39, 3)
"""The same of one that was planned before."""


@pytest.mark.parametrize("name", FIRST)
def test_planning_a_text_takes_few_trips(spark, tpch_tiny, name):
    """Tables by path, in a session that knows its files and disks already."""
    query(TEXTS["stairs"], spark=spark, tables=tpch_tiny)
    kept._kept.clear()
    for most in (FIRST[name], AGAIN):
        with counted() as trips:
            query(TEXTS[name], spark=spark, tables=tpch_tiny)
        assert trips.calls <= most[0]
        assert trips.frames <= most[1]
