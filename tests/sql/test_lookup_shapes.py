"""The hunt for a wrong answer: many shapes of queries give Spark's rows, or are refused."""

from __future__ import annotations

import random
from itertools import product

import pytest

from millrace import query
from millrace.errors import InputError
from tests.gate import examples
from tests.sql import lookup_tables
from tests.sql.compare import bag

JOINS = ("join", "left join", "right join", "full join", "left semi join", "left anti join")
CONDITIONS = (
    "p.sku = o.sku",
    "lower(o.sku) = p.sku",
    "upper(o.sku) = upper(p.sku)",
    "p.sku = o.sku and p.price > 1.5",
    "p.sku = o.sku and o.id > 2",
    "p.sku = 'a'",
    "coalesce(o.sku, 'z') = p.sku or p.sku = 'b'",
    "p.sku = o.sku and p.region = 'EU'",
)
FILTERS = (
    "true",
    "p.sku in ('a', 'b')",
    "o.id < 4",
    "p.sku is null or o.id = 2",
    "p.sku in (select nxt from c)",
)
AROUND = (
    "select {items} from {left} {join} {right} on {on} where {where}",
    "select count(*) from {left} {join} {right} on {on} where {where}",
    "select d.* from (select {items} from {left} {join} {right} on {on}) d join o on d.id = o.id",
    (
        "with w as (select {items} from {left} {join} {right} on {on} where {where}) "
        "select v.id from w v, w where v.id = w.id"
    ),
    "select {items} from {left} {join} {right} on {on} left join o x on x.id = {left_alias}.k where {where}",
    "select {items} from c, {left} {join} {right} on {on} where c.k = 1 and {where}",
    "select id from o where o.id = 1 or exists (select 1 from prices p where {on} and p.price > 1)",
    "select id, (select count(*) from {table} p where {on}) n from o",
)


def shapes(seed, count):
    """A sample of all that the lists make, the same for the same seed."""
    rng = random.Random(seed)
    made = {}
    everything = list(product(AROUND, JOINS, CONDITIONS, FILTERS, (False, True), ("prices", "pairs")))
    for around, join, on, where, swapped, table in rng.sample(everything, 6 * count):
        left, right = ("o", f"{table} p") if not swapped else (f"{table} p", "o")
        semi = "semi" in join or "anti" in join
        items = "o.id, p.price" if not semi else ("p.price, p.k as id" if swapped else "o.id")
        if semi and (("o." in where and swapped) or ("p." in where and not swapped)):
            continue
        text = around.format(
            items=items, left=left, right=right, join=join, on=on, where=where, table=table,
            left_alias="p" if swapped else "p" if not semi else "o",
        )  # fmt: skip
        if semi and "o.k" in text:
            continue
        made[text] = None
    return list(made)[:count]


@pytest.fixture(scope="module")
def given(spark):
    """Lookup tables for Millrace; the same rows as views of the same names for Spark."""
    frames = lookup_tables.plain(spark)
    frames["c"] = frames["cats"]
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    yield lookup_tables.declared(spark) | {"c": frames["cats"]}
    for name in frames:
        spark.catalog.dropTempView(name)


@pytest.mark.law
@pytest.mark.slow
@pytest.mark.parametrize("text", shapes(7, examples(3, 60)))
def test_no_shape_gives_a_wrong_answer(spark, given, text):
    """Each gives the rows that Spark gives for the same tables, or an error that says what would work."""
    try:
        found = query(text, spark=spark, tables=given)
    except InputError as error:
        message = str(error)
    else:
        assert bag(found.df) == bag(spark.sql(text)), found.explain()
        return
    assert "What would work" in message
