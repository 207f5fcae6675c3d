"""The 22 queries of TPC-H, and the query of the STAIRs paper, at scale 0.01."""

from __future__ import annotations

import pytest

from lab.bench.tpch_data import query_texts
from millrace import query
from tests.sql.answers import answer_of
from tests.sql.compare import taken

BLOCKS = {
    "q01": "",
    "q02": "partsupp supplier nation region+|part supplier partsupp nation region",
    "q03": "customer orders lineitem+",
    "q04": "orders +lineitem+",
    "q05": "customer orders lineitem supplier nation region+",
    "q06": "",
    "q07": "supplier lineitem orders customer n1 n2+",
    "q08": "part supplier lineitem orders customer n1 n2 region+",
    "q09": "part supplier lineitem partsupp orders nation+",
    "q10": "customer orders lineitem nation+",
    "q11": "partsupp supplier nation+|partsupp supplier nation+",
    "q12": "orders lineitem+",
    "q13": "",
    "q14": "lineitem part+",
    "q15": "supplier revenue",
    "q16": "partsupp part -supplier+",
    "q17": "lineitem part+",
    "q18": "customer orders lineitem +subquery+",
    "q19": "lineitem part+",
    "q20": "supplier nation +subquery",
    "q21": "supplier l1 orders nation +l2 -l3+",
    "q22": "customer -orders+",
    "stairs": "customer orders lineitem",
}


TEXTS = query_texts()


@pytest.mark.parametrize("name", BLOCKS)
def test_rows_and_blocks(spark, tpch_tiny, oracle, name):
    """Every query gives Spark's rows, and its joins are taken."""
    found = query(TEXTS[name], spark=spark, tables=tpch_tiny)
    assert taken(found) == BLOCKS[name], found.reasons
    assert answer_of(found.df) == oracle("tpch", TEXTS[name]), found.explain()


def test_filters_follow_from_an_or(spark, tpch_tiny):
    """Query 19: what all branches of an OR share joins and filters; the OR itself stays too."""
    block = query(TEXTS["q19"], spark=spark, tables=tpch_tiny).blocks[0]
    assert [str(e) for e in block.join.equalities] in (
        [["part.p_partkey = lineitem.l_partkey"], ["lineitem.l_partkey = part.p_partkey"]]
    )
    assert len(block.inputs["lineitem"].filters) == 3
    assert len(block.inputs["part"].filters) == 1
    assert len(block.join.residuals) == 1


def test_counting_gathers_nothing(spark, tpch_tiny):
    """``count(*)`` over a block has no output column."""
    join = query(TEXTS["stairs"], spark=spark, tables=tpch_tiny).blocks[0].join
    assert join.count_only and join.output == ()
    assert join.relation("customer").schema.names == ["c_custkey"]


def test_only_needed_columns_are_read(spark, tpch_tiny):
    """Columns that nobody reads are neither scanned nor given out."""
    block = query(TEXTS["q03"], spark=spark, tables=tpch_tiny).blocks[0]
    assert [o.source.column for o in block.join.output] == [
        "o_orderdate",
        "o_shippriority",
        "l_orderkey",
        "l_extendedprice",
        "l_discount",
    ]
    assert block.join.relation("customer").schema.names == ["c_custkey"]
