"""What rejects nulls, so that a LEFT join is an inner one; rows of LEFT joins are in ``cases/outer.sql``."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot
from hypothesis import example, given, settings, strategies as st

from millrace.sql.rewrite import outer_joins

DUCKDB = duckdb.connect()
VALUES = st.sampled_from(["a", "b", "a + b", "2", "coalesce(b, 2)", "CASE WHEN b IS NULL THEN 2 END"])
TERMS = st.one_of(
    st.builds("{} {} {}".format, VALUES, st.sampled_from(["=", "<>", "<", "IS NOT DISTINCT FROM"]), VALUES),
    st.builds("{} BETWEEN {} AND {}".format, VALUES, VALUES, VALUES),
    st.builds("{} IN ({}, {})".format, VALUES, VALUES, VALUES),
    st.builds("{} IN (SELECT b FROM rows WHERE a < {})".format, VALUES, st.integers(0, 3)),
    st.builds("{} IS {}NULL".format, VALUES, st.sampled_from(["", "NOT "])),
    st.builds("CAST({} AS STRING) LIKE '{}%'".format, VALUES, st.sampled_from(["", "2"])),
)
CONDITIONS = st.recursive(
    TERMS,
    lambda terms: st.one_of(
        st.builds("NOT ({})".format, terms),
        st.builds("({} {} {})".format, terms, st.sampled_from(["AND", "OR"]), terms),
    ),
    max_leaves=4,
)


@settings(max_examples=400, derandomize=True, database=None)
@example("(b = 2 OR coalesce(b, 2) = 2)")
@given(CONDITIONS)
def law_of_rejection(condition: str) -> None:
    """What is said to reject nulls is true of no row in which they are."""
    node = sqlglot.parse_one(condition, read="spark")
    if outer_joins.rejects_nulls(node, lambda column: column.name == "b"):
        rows = "WITH rows AS (SELECT a, NULL::INT AS b FROM unnest([1, 2, 3, NULL]) t(a))"
        assert DUCKDB.sql(f"{rows} SELECT * FROM rows WHERE {condition}").fetchall() == []


def test_a_condition_that_rejects_nulls_is_never_true_for_them():
    """DuckDB evaluates it."""
    law_of_rejection()


@pytest.mark.broken_rule
@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("is_strict", lambda node: True),
        ("disjuncts", lambda node: [node.this]),
        ("_is_unknown", lambda condition, is_null: any(map(is_null, condition.iter_expressions()))),
    ],
)
def test_a_broken_rule_of_rejection_is_noticed(monkeypatch, rule, broken):
    """What takes another value for null, a term of OR for all of it, or what is false for what is unknown."""
    monkeypatch.setattr(outer_joins, rule, broken)
    with pytest.raises(AssertionError):
        law_of_rejection()
