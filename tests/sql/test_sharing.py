"""A common table expression with a block is computed once, however often it is read."""

from __future__ import annotations

import pytest

import millrace
from millrace.sql.rewrite.sharing import CteMaterialization
from tests.gate import sampled
from tests.sql import cases
from tests.sql.compare import bag

JOINED = (
    "select a.k, a.s, count(*) n, max(b.v) m from a join b on a.id = b.id where told(a.id) group by a.k, a.s"
)
# What is measured of a predicate would decide how many rows come to be asked about.
FIXED = {"policy": "fixed"}
READ = {
    name: text.format(joined=JOINED, spaced=JOINED.replace("select", "select "))
    for name, text in cases.read("sharing")
}


def asked(spark, tables, text: str):
    """Return the answer of a text, and how many times that asks the predicate, in whatever process."""
    calls = spark.sparkContext.accumulator(0)
    told = millrace.predicate(lambda x: calls.add(1) or (x is not None and x < 100), name="told")
    found = millrace.sql(text, spark=spark, tables=tables, options=FIXED, predicates=[told])
    return found.schema, bag(found), calls.value


@pytest.fixture(scope="module")
def once(spark, rows) -> int:
    """How many times it is asked where the definition is read once."""
    return asked(spark, rows, f"with w as ({JOINED}) select * from w")[-1]


def count(spark, views, text: str) -> int:
    """Return how many times a text asks, whose answer is Spark's."""
    plain = spark.sql(text.replace("told(a.id)", "a.id < 100"))
    schema, found, calls = asked(spark, views, text)
    assert (schema, found) == (plain.schema, bag(plain))
    return calls


@pytest.mark.parametrize("text", sampled(pytest.param(text, id=name) for name, text in READ.items()))
def test_a_definition_that_is_read_several_times_is_computed_once(spark, views, once, text):
    """Its block asks its predicate no more often than when the definition is read once."""
    assert count(spark, views, text) == once


@pytest.mark.broken_rule
def test_without_sharing_it_is_computed_for_each(spark, views, once, monkeypatch):
    """What the test above counts does tell."""
    monkeypatch.setattr(CteMaterialization, "_share", lambda *_: None)
    assert count(spark, views, READ["in a subquery"]) == 2 * once


def test_explain_tells_what_is_computed_once(same):
    """Definitions without a block are Spark's own business."""
    found = same("""
        with w as (select a.id from a join b on a.id = b.id), o as (select k from c)
        select * from w where id in (select id from w) union all select k from o union all select k from o""")
    assert found.shared == ("w, read 2 times",)
    assert "computed once: w, read 2 times" in found.explain()


@pytest.mark.nightly
def test_structs_are_not_dealt(same):
    """Spark would take a field out below the exchange and look for it above in vain."""
    found = same("""
        with w as (select named_struct('id', a.id, 's', a.s) st, b.v from a join b on a.id = b.id)
        select x.* from w x join w y on x.st.id = y.st.id
        where not exists (select 1 from c where x.st.id = c.st.f) and y.st.s = 'x'""")
    assert found.shared == ()


@pytest.mark.nightly
def test_whether_a_subquery_has_rows_is_not_dealt(same):
    """Spark cannot compute that of structs' fields, and does not try where nobody reads it."""
    found = same("""
        with w as (
        select x.id, x.id in (select y.id from c y join b on y.id = b.id where y.st.g = x.st.g) found
        from c x join a on cast(x.id as string) = a.id) select v.id from w v join w u on v.id = u.id""")
    assert found.shared == ()
