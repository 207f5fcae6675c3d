"""Results as they come: every row once, the result's columns, errors, and an end when nobody wants more."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice, permutations, product

import pyarrow as pa
import pytest

from millrace import function, lookup, query, to_batches
from millrace.errors import InputError, OptionError, QueryError
from tests.gate import sampled
from tests.session import wait_for
from tests.sql import cases
from tests.sql.compare import bag
from tests.sql.small_tables import register, write


def rows_of(batches) -> Counter[str]:
    columns = ([column.to_pylist() for column in batch.columns] for batch in batches)
    return Counter(repr(row) for each in columns for row in zip(*each, strict=True))


@pytest.mark.parametrize(
    ("source", "text"), [(head, text) for head, texts in cases.lines("batches").items() for text in texts]
)
def test_every_row_comes_once(spark, views, source, text):
    """Plain columns of a block come from it; anything more is Spark's to do."""
    found = query(text, spark=spark, tables=views)
    assert (found.direct is not None) == (source == "block")
    batches = list(found.to_batches())
    assert rows_of(batches) == bag(spark.sql(text))
    assert all(batch.schema.names == spark.sql(text).columns for batch in batches)


def test_batches_have_a_size_at_most(spark):
    """None leaves them as they come."""
    frame = spark.range(0, 1000, 1, 2)
    batches = list(to_batches(frame, 64))
    assert max(batch.num_rows for batch in batches) <= 64
    assert sorted(pa.Table.from_batches(batches)["id"].to_pylist()) == list(range(1000))
    for wrong in (0, True, 1.5):
        with pytest.raises(OptionError, match="expected a whole number above 0"):
            to_batches(frame, wrong)


def test_a_failure_comes_out(spark):
    """What the job raised is raised where rows are read."""
    frame = spark.sql("select cast(raise_error('broken on purpose') as int) as x from range(3)")
    with pytest.raises(Exception, match="broken on purpose"):
        list(to_batches(frame))


def test_rows_come_while_the_job_runs_and_closing_cancels_it(spark):
    """A job of endless rows gives the first ones, and ends when the iterator is closed."""

    def endless(batches):
        for batch in batches:
            while True:
                yield batch

    stream = to_batches(spark.range(0, 8, 1, 1).mapInArrow(endless, "id long"))
    first = list(islice(stream, 3))
    stream.close()
    assert wait_for(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())
    assert [batch.num_rows > 0 for batch in first] == [True] * 3
    assert sum(batch.num_rows for batch in to_batches(spark.range(1))) == 1


REGIONS = ("AF", "AS", "EU", "US")
SHOP = "SELECT o.id, o.region, o.total, c.name FROM orders o JOIN customers c ON o.customer = c.customer"


@pytest.fixture(scope="module")
def shop(spark, tmp_path_factory) -> dict[str, str]:
    """Orders by region in small row groups, and who ordered; views of the same names are scans of them."""
    draw = random.Random(7)
    customers = {"customer": range(40), "name": [f"{'ABCD'[n % 4]}{n}" for n in range(40)]}
    orders = {
        "id": range(4000),
        "region": [REGIONS[n // 1000] for n in range(4000)],
        "customer": [draw.choice([None, n % 50]) for n in range(4000)],
        "total": [draw.choice([None, n % 90]) for n in range(4000)],
    }
    marks = {"id": range(0, 4000, 10), "mark": [n == 3100 for n in range(0, 4000, 10)]}
    tables = {"customers": pa.table(customers), "orders": pa.table(orders), "marks": pa.table(marks)}
    return register(spark, write(tmp_path_factory.mktemp("shop"), tables, 500))


def regions(batches) -> str:
    """The order in which regions come, by the first letters of their names."""
    names = (name for batch in batches for name in batch["region"].to_pylist())
    return "".join(dict.fromkeys(name[0] + name[1] for name in names))


WISHES = (
    "o.region = 'EU'", "region IN ('AF', 'US')", "o.total > 40", "total IS NULL", "c.name LIKE 'A%'",
    "NOT o.id BETWEEN 100 AND 3900",
)  # fmt: skip


PLACES = ({}, {"placement": "hypercube"}, {"online": True}, {"policy": "random"})


@pytest.mark.parametrize(("seed", "options"), sampled(product(range(3), PLACES), every=3))
def test_a_preference_changes_no_rows(spark, shop, seed, options):
    """Whatever is wanted first, and whatever is wanted later, while the query runs."""
    draw = random.Random(seed)
    found = query(SHOP, spark=spark, tables=shop, options={"take_all": True, "batch_size": 64, **options})
    rows = found.to_batches(prefer=draw.sample(WISHES, draw.randint(0, 3)))
    batches = []
    for batch in rows:
        batches.append(batch)
        rows.prefer(*draw.sample(WISHES, draw.randint(0, 2)))
    assert rows_of(batches) == bag(spark.sql(SHOP))


def test_wanted_rows_come_first(spark, shop):
    """Row groups that have them are read first; of streamed tuples also those that join to wanted ones."""
    found = query(SHOP, spark=spark, tables=shop, options={"take_all": True, "cells": 1})
    for first, second in permutations(REGIONS, 2):
        wanted = [f"o.region = '{first}'", f"O.Region = '{second}'"]
        assert regions(found.to_batches(prefer=wanted)).startswith(first + second)
    for rows in (found.to_batches(prefer="name LIKE 'A%'"), found.to_batches(prefer=[])):
        if rows.prefer("c.name LIKE 'A%'") is None:  # before the first row is asked for
            is_wanted = [name[0] == "A" for batch in rows for name in batch["name"].to_pylist()]
            assert is_wanted == sorted(is_wanted, reverse=True) and any(is_wanted)
    # The rows beside a wanted one come next, for its row group has been read before all others.
    text = "SELECT o.id, m.mark FROM orders o JOIN marks m ON o.id = m.id"
    found = query(text, spark=spark, tables=shop, options={"take_all": True, "cells": 1})
    ids = [n for batch in found.to_batches(prefer="m.mark") for n in batch["id"].to_pylist()]
    assert (ids[0], {n // 500 for n in ids[:50]}, len(ids)) == (3100, {3100 // 500}, 400)


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        ("o.regoin = 'EU'", InputError, "did you mean 'o.region'"),
        ("x.region = 'EU'", InputError, "there is 'c', 'o'"),
        ("region = name", InputError, "columns of one relation"),
        ("o.id = o.total OR c.name = 'A'", InputError, "columns of one relation"),
        ("upper(o.region) = 'EU'", QueryError, "tasks cannot evaluate"),
        ("o.id = 1) GROUP BY (o.id", QueryError, "cannot be read"),
        (" ", QueryError, "cannot be read"),
        (3, OptionError, "prefer is .*3.*expected a text"),
    ],
)
def test_what_nobody_can_prefer_is_refused(spark, shop, wanted, error, says):
    """By its text at once; while rows come what was wanted before still is."""
    found = query(SHOP, spark=spark, tables=shop, options={"take_all": True})
    with pytest.raises(error, match=says):
        found.to_batches(prefer=[wanted])
    rows = found.to_batches(prefer=[])
    with pytest.raises(error, match=says):
        rows.prefer(wanted)
    rows.close()


def test_a_preference_that_would_do_nothing_is_refused(spark, shop):
    """Where Spark gives out the rows, where a way is fixed, and where nobody has asked for one."""
    for text in (f"{SHOP} ORDER BY id", f"SELECT count(*) FROM ({SHOP})", "SELECT * FROM orders"):
        with pytest.raises(QueryError, match="above it nothing but columns"):
            query(text, spark=spark, tables=shop, options={"take_all": True}).to_batches(prefer=[])
    with pytest.raises(QueryError, match="above it nothing but columns"):
        to_batches(spark.range(3), prefer=[])
    for options in ({"memory_budget": 1 << 20}, {"architecture": "static"}):
        with pytest.raises(OptionError, match="expected one of the two"):
            query(SHOP, spark=spark, tables=shop, options={"take_all": True, **options}).to_batches(prefer=[])
    rows = query(SHOP, spark=spark, tables=shop, options={"take_all": True}).to_batches()
    with pytest.raises(QueryError, match="without a preference"):
        rows.prefer("o.id = 1")
    rows.close()


def name_of(customer: int) -> list[dict[str, object]]:
    return [{"customer": customer, "name": f"{'ABCD'[customer % 4]}{customer}"}] if customer < 40 else []


@pytest.mark.parametrize("kind", ["lookup", "files"])
def test_rows_come_before_they_are_complete(spark, shop, kind):
    """Those of the other relations, marked; without them there are Spark's rows."""
    by_key = lookup("c", "customer bigint, name string", bind=["customer"], via=function(name_of))
    tables = shop if kind == "files" else {"orders": shop["orders"], "customers": by_key}
    found = query(SHOP, spark=spark, tables=tables, options={"take_all": True, "batch_size": 64})
    for rows in (found.to_batches(partial="C"), found.to_batches(prefer=["o.region = 'US'"], partial=["c"])):
        batches = list(rows)
        whole = [batch for batch in batches if batch["__missing"].null_count]
        early = [batch for batch in batches if not batch["__missing"].null_count]
        assert rows_of(batch.select(batch.schema.names[:-1]) for batch in whole) == bag(spark.sql(SHOP))
        others = rows_of(batch.select(["id", "region", "total"]) for batch in early)
        orders = bag(spark.sql("SELECT id, region, total FROM orders WHERE customer IS NOT NULL"))
        assert others <= orders and (others or kind == "files")
        lacking = rows_of(batch.select(["name", "__missing"]) for batch in early)
        assert {*lacking} <= {"(None, ['c'])"}
    if kind == "lookup":
        with pytest.raises(InputError, match="bind those"):
            found.to_batches(partial="o")


def test_partial_rows_that_nobody_can_show_are_refused(spark, shop):
    """A relation that is not there, other join state, and rows that come from Spark."""
    for error, says, text, wrong, options in (
        (InputError, "there is 'c', 'o'", SHOP, "customers", {}),
        (InputError, "partial results without ''", SHOP, "", {}),
        (InputError, "hold the other", SHOP, ["c", "o"], {}),
        (OptionError, "partial is 3: expected a text", SHOP, 3, {}),
        (OptionError, "expected 'stems'", SHOP, "c", {"architecture": "joins"}),
        (QueryError, "above it nothing but columns", f"{SHOP} ORDER BY id", "c", {}),
    ):
        found = query(text, spark=spark, tables=shop, options={"take_all": True, **options})
        with pytest.raises(error, match=says):
            found.to_batches(partial=wrong)
