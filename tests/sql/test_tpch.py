"""The 22 queries of TPC-H, and the query of the STAIRs paper, at scale 0.01."""

from __future__ import annotations

import pytest

from lab.bench.tpch_data import query_texts
from lab.bench.trips import count_trips
from millrace import query
from millrace.sql.blocks import cost_model
from millrace.sql.planner import plan_cache
from tests.sql import cases
from tests.sql.answers import answer_of
from tests.sql.compare import taken

TEXTS = query_texts()
# Each question is a trip to the JVM of Spark, and each DataFrame is analysed there.
FIRST = {"q05": (55, 4), "q08": (55, 4), "q16": (55, 4)}
"""The most trips and DataFrames of a text that is new."""
AGAIN = (20, 2)
"""The same of one that was planned before."""


@pytest.mark.parametrize(("blocks", "name"), cases.read("tpch"))
def test_rows_and_blocks(spark, tpch_tiny, oracle, blocks, name):
    """Every query gives Spark's rows, and its joins are taken."""
    found = query(TEXTS[name], spark=spark, tables=tpch_tiny)
    assert (taken(found) or "none") == blocks, found.reasons
    assert answer_of(found.df) == oracle("tpch", TEXTS[name]), found.explain()


def test_filters_follow_from_an_or(spark, tpch_tiny):
    """Query 19: what all branches of an OR share joins and filters; the OR itself stays too."""
    block = query(TEXTS["q19"], spark=spark, tables=tpch_tiny).blocks[0]
    (equality,) = block.join.equalities
    assert {str(end) for end in equality.ends} == {"part.p_partkey", "lineitem.l_partkey"}
    assert len(block.inputs["lineitem"].filters) == 3
    assert len(block.inputs["part"].filters) == 1
    assert len(block.join.residuals) == 1


def test_only_needed_columns_are_read(spark, tpch_tiny):
    """Columns that nobody reads are neither scanned nor given out; ``count(*)`` gives out none."""
    block = query(TEXTS["q03"], spark=spark, tables=tpch_tiny).blocks[0]
    read = " ".join(o.source.column for o in block.join.output)
    assert read == "o_orderdate o_shippriority l_orderkey l_extendedprice l_discount"
    assert block.join.relation("customer").schema.names == ["c_custkey"]
    join = query(TEXTS["stairs"], spark=spark, tables=tpch_tiny).blocks[0].join
    assert join.count_only and join.output == ()


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
