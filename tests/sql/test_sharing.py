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


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A predicate, and how many times it was asked since the last look, in whatever process."""
    log = tmp_path_factory.mktemp("sharing") / "asked"

    @millrace.predicate
    def told(x: int) -> bool:
        with log.open("a") as file:
            file.write(".")
        return x is not None and x < 100

    def count() -> int:
        found = len(log.read_text())
        log.write_text("")
        return found

    return told, count


@pytest.fixture(scope="module")
def once(spark, rows, asked) -> int:
    """How many times it is asked where the definition is read once."""
    told, count = asked
    text = f"with w as ({JOINED}) select * from w"
    millrace.sql(text, spark=spark, tables=rows, options=FIXED, predicates={"told": told}).collect()
    return count()


def _count(spark, views, asked, text: str) -> tuple[int, bool]:
    told, count = asked
    plain = spark.sql(text.replace("told(a.id)", "a.id < 100"))
    found = millrace.sql(text, spark=spark, tables=views, options=FIXED, predicates={"told": told})
    right = bag(found) == bag(plain)
    assert found.schema == plain.schema
    return count(), right


@pytest.mark.parametrize("text", sampled(pytest.param(text, id=name) for name, text in READ.items()))
def test_a_definition_that_is_read_several_times_is_computed_once(spark, views, asked, once, text):
    """Its block asks its predicate no more often than when the definition is read once."""
    assert _count(spark, views, asked, text) == (once, True)


@pytest.mark.broken_rule
def test_without_sharing_it_is_computed_for_each(spark, views, asked, once, monkeypatch):
    """What the test above counts does tell."""
    monkeypatch.setattr(CteMaterialization, "_share", lambda *_: None)
    assert _count(spark, views, asked, READ["in a subquery"]) == (2 * once, True)


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
