"""A common table expression with a block is computed once, however often it is read."""

from __future__ import annotations

import pytest

import millrace
from millrace.sql.rewrite.sharing import CteMaterialization
from tests.gate import sampled
from tests.sql.compare import bag

JOINED = (
    "select a.k, a.s, count(*) n, max(b.v) m from a join b on a.id = b.id where told(a.id) group by a.k, a.s"
)
READ = {
    "beside itself": f"""
        with w as ({JOINED}) select v.k, u.m from w v join w u on v.k = u.k + 10 where u.n > 0""",
    "through another": f"""
        with w as ({JOINED}), z as (select k, row_number() over (order by k, s) r from w where n < 9)
        select v.k from z v left join z u on v.r = u.r + 1""",
    "in a subquery": f"with w as ({JOINED}) select k from w where n = (select max(n) from w) and k > 5",
    "by another block": f"""
        with w as ({JOINED}) select c.id, w.n from c join w on c.k = w.k
        union all select k, m from w where s in (select s from w where k = 10)""",
    "as derived tables": f"""
        select v.k, u.m from ({JOINED}) v join ({JOINED.replace("select", "select ")}) u on v.k = u.k + 10
        where u.n > 0""",
    "as subqueries": f"""
        select id, (select max(n) from ({JOINED})) most from c
        where k in (select k from ({JOINED})) or id < (select max(n) from ({JOINED}))""",
    "inside repeated queries": f"""
        select x.k from (select k, n from ({JOINED}) where n > 0) x
        join (select k, n from ({JOINED}) where n > 0) y on x.k = y.k left join ({JOINED}) z on z.k = x.k""",
    "with names of its own": f"with w(p, p2, q, q2) as ({JOINED}) select p from w union all select q from w",
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
    options = {"policy": "fixed"}
    millrace.sql(text, spark=spark, tables=rows, options=options, predicates={"told": told}).collect()
    return count()


def _count(spark, views, asked, text: str) -> tuple[int, bool]:
    told, count = asked
    plain = text.replace("told(a.id)", "a.id < 100")
    # In a fixed order: what is measured of a predicate would decide how many rows come to be asked about.
    found = millrace.query(
        text, spark=spark, tables=views, options={"policy": "fixed"}, predicates={"told": told}
    )
    right = bag(found.df) == bag(spark.sql(plain))
    assert found.df.schema == spark.sql(plain).schema
    return count(), right


@pytest.mark.spark
@pytest.mark.parametrize("text", sampled(pytest.param(text, id=name) for name, text in READ.items()))
def test_a_definition_that_is_read_several_times_is_computed_once(spark, views, asked, once, text):
    """Its block asks its predicate no more often than when the definition is read once."""
    assert _count(spark, views, asked, text) == (once, True)


@pytest.mark.broken_rule
@pytest.mark.spark
def test_without_sharing_it_is_computed_for_each(spark, views, asked, once, monkeypatch):
    """What the test above counts does tell."""
    monkeypatch.setattr(CteMaterialization, "_share", lambda *_: None)
    assert _count(spark, views, asked, READ["in a subquery"]) == (2 * once, True)


@pytest.mark.spark
def test_explain_tells_what_is_computed_once(same):
    """Definitions without a block are Spark's own business."""
    text = "with w as (select a.id from a join b on a.id = b.id), o as (select k from c) "
    found = same(
        text
        + "select * from w where id in (select id from w) union all select k from o union all select k from o"
    )
    assert found.shared == ("w, read 2 times",)
    assert "computed once: w, read 2 times" in found.explain()


@pytest.mark.nightly
@pytest.mark.spark
def test_structs_are_not_dealt(same):
    """Spark would take a field out below the exchange and look for it above in vain."""
    found = same("""
        with w as (select named_struct('id', a.id, 's', a.s) st, b.v from a join b on a.id = b.id)
        select x.* from w x join w y on x.st.id = y.st.id
        where not exists (select 1 from c where x.st.id = c.st.f) and y.st.s = 'x'""")
    assert found.shared == ()
