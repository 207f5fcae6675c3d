"""Blocks run on Spark give DuckDB's rows in every placement, and their figures come back."""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from functools import reduce
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as hs
from pyspark.sql import DataFrame

import millrace
from millrace.engine.plan.expressions import Call, Column, ColumnRef, Compare, Exists
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.engine.policies import Decision
from millrace.errors import ExecutionError, InputError
from millrace.options import Options
from millrace.parquet.discovery import open_table
from millrace.predicates import PredicateSpec
from millrace.spark.block import Block, FrameInput, ParquetInput
from millrace.spark.exchange import Roles
from millrace.spark.execute import execute
from millrace.spark.session import explained
from tests.engine.eddy.oracle import Case, cases, cases_beside, multiset
from tests.gate import examples, sampled
from tests.session import changed
from tests.sql.compare import bag
from tests.sql.small_tables import register, write

TABLES = {"c": "customer", "o": "orders", "l": "lineitem"}
WHERE = {
    "c": "c_mktsegment = 'BUILDING'",
    "o": "o_orderdate < date '1995-03-15'",
    "l": "l_shipdate > date '1995-03-15'",
}
SQL = f"""
    select c_custkey, o_orderdate, l_orderkey, l_extendedprice, l_shipmode
    from customer c, orders o, lineitem l
    where c_custkey = o_custkey and l_orderkey = o_orderkey and {" and ".join(WHERE.values())}
"""


def block_of(spark, paths, frames: str = "") -> Block:
    """The query's block, some of whose relations are DataFrames."""
    (planned,) = millrace.query(SQL, spark=spark, tables=paths).blocks
    inputs = dict(planned.inputs)
    for alias in frames:
        frame = spark.read.parquet(paths[TABLES[alias]]).where(WHERE[alias])
        inputs[alias] = FrameInput(frame.select(*inputs[alias].columns), 1_000_000)
    return Block("b", planned.join, inputs)


@pytest.fixture(scope="module")
def expected(tpch_tiny) -> Counter:
    with duckdb.connect() as database:
        for name in TABLES.values():
            database.execute(f"create view {name} as from '{tpch_tiny[name]}'")
        return Counter(database.execute(SQL).fetchall())


CASES = [
    ("", {}, "in place, 1 cells"),
    ("", {"placement": "hypercube"}, "HyperCube, 2 cells"),
    ("", {"placement": "hypercube", "cells": 1}, "HyperCube, 1 cells"),
    ("", {"placement": "hypercube", "cells": 7, "block_bytes": 1024}, "HyperCube, 7 cells"),
    ("", {"replicate_bytes": 0}, "more than replicate_bytes"),
    ("c", {"placement": "in_place"}, "exchanged in blocks"),
    ("l", {}, "one cell a partition"),
    ("co", {"placement": "in_place"}, "in place"),
    ("lo", {"placement": "in_place"}, "in place"),
    ("col", {}, "HyperCube"),
    ("col", {"placement": "in_place"}, "no relation can be streamed in place"),
    ("cl", {"placement": "hypercube", "online": True}, "HyperCube"),
    # Large cells get their blocks sorted, which changes no row.
    ("o", {"placement": "hypercube", "cells": 3, "block_bytes": 10_000}, "sorted last"),
]


@pytest.mark.parametrize(("frames", "options", "plan"), sampled(CASES))
def test_every_placement_gives_the_same_rows(spark, tpch_tiny, expected, monkeypatch, frames, options, plan):
    """In place, by blocks, or both; from Parquet, from DataFrames, or both."""
    if plan == "sorted last":
        monkeypatch.setattr("millrace.spark.execute._SORTED_BYTES", 0)
    block = block_of(spark, tpch_tiny, frames)
    run = execute(spark, block, Options.of(options))
    assert plan in run.plan
    assert Counter(map(tuple, run.frame.collect())) == expected
    figures = run.reports.figures()
    assert sum(f.output_tuples for f in figures) == sum(expected.values())
    sent = sum(f.rows_exchanged for f in figures if f.cell < 0)
    assert sent == sum(f.rows_exchanged for f in figures if f.cell >= 0)
    assert (sent > 0) == ("exchanged in blocks" in run.plan)


@pytest.mark.parametrize("frames", sampled(["o", "", "c"], 3))
def test_what_has_no_match_in_small_relations_is_not_sent(spark, tpch_tiny, expected, frames):
    """Orders meet the filter on customers in the map tasks, also as a DataFrame, if customers are files."""
    sent = {}
    for transfer in (True, False):
        block = block_of(spark, tpch_tiny, frames)
        run = execute(spark, block, Options(placement="hypercube", cells=3, transfer=transfer))
        assert Counter(map(tuple, run.frame.collect())) == expected
        filters = transfer and frames != "c"
        assert ("what has no match in c is not sent" in run.plan) == filters
        cells = run.reports.figures()
        modules = {m.name: m for cell in cells for m in cell.modules if cell.cell < 0}
        assert ("Filter(c on o)" in modules) == filters
        orders = sum(m.tuples_out for cell in cells for m in cell.modules if m.name == "Cut(o)")
        sent[transfer] = orders, sum(cell.bytes_exchanged for cell in cells)
    assert sent[True] == sent[False] if frames == "c" else sent[True][0] < 0.5 * sent[False][0]
    assert sent[True][1] <= sent[False][1]


SELF_JOINS = [
    ("SELECT a.k, a.v, b.w FROM t a JOIN t b ON a.k = b.k", {}, 1),
    ("SELECT a.k, a.v FROM t a JOIN t b ON a.k = b.k AND a.v < b.w WHERE a.v > 3 AND b.v > 3", {}, 1),
    ("SELECT a.v, b.v, c.w FROM t a JOIN t b ON a.k = b.k JOIN t c ON b.k = c.k", {"cells": 3}, 1),
    ("SELECT a.v, b.w FROM t a LEFT JOIN t b ON a.k = b.k AND a.v < b.w", {}, 1),
    ("SELECT a.v FROM t a WHERE NOT EXISTS (SELECT 1 FROM t b WHERE a.k = b.k AND a.v < b.w)", {}, 1),
    ("SELECT a.v, b.w FROM t a JOIN t b ON a.k = b.k", {"architecture": "static"}, 1),
    ("SELECT a.v, b.w FROM t a JOIN t b ON a.k = b.k", {"architecture": "stairs", "online": True}, 1),
    ("SELECT a.v, b.w FROM t a JOIN t b ON a.k = b.k", {"memory_budget": 50_000}, 2),
    ("SELECT a.v, b.w FROM t a JOIN t b ON a.k = b.v", {}, 2),
    ("SELECT a.v, b.w FROM t a JOIN t b ON a.k = b.k WHERE a.v > 3", {}, 1),
    ("SELECT a.v, b.w FROM t a JOIN t b ON a.k = b.k WHERE a.v > 3 AND b.w = 4", {}, 1),
    ("SELECT a.v, b.w FROM t a JOIN t b ON a.k = b.k WHERE a.i < 80", {}, 2),
    ("SELECT a.v, a.w, a.i, b.v FROM t a JOIN t b ON a.k = b.k WHERE a.v > 3", {}, 2),
    (
        "SELECT a.v, c.i FROM t a JOIN t b USING (k) JOIN t c USING (k) WHERE c.v > 5 AND a.v > 5",
        {},
        1,
    ),
    (
        "SELECT a.v, b.w, c.w FROM t a JOIN t b ON a.k = b.k JOIN t c ON b.k = c.k WHERE b.v > 5 AND c.v < 2",
        {},
        2,
    ),
    ("SELECT a.v, b.w FROM t a LEFT JOIN t b ON a.k = b.k AND b.v > 4 WHERE a.v < 2", {}, 1),
]


@pytest.mark.parametrize(("text", "options", "times"), SELF_JOINS)
def test_a_self_join_by_one_key_is_read_and_sent_once(spark, tmp_path, text, options, times):
    """Each role has its own columns, filters and part in the join; other keys or row groups keep it apart."""
    path = str(tmp_path / "t.parquet")
    rows = [(None if n % 11 == 0 else n % 23, n % 7, n % 5, n) for n in range(150)]
    table = pa.table([pa.array(each, pa.int64()) for each in zip(*rows, strict=True)], ["k", "v", "w", "i"])
    pq.write_table(table, path, row_group_size=40)
    block, run = check_a_self_join(spark, path, text, options)
    figures = run.reports.figures()
    cuts = {m.name for f in figures for m in f.modules if m.name.startswith("Cut(")}
    assert len(cuts) == times
    assert run.plan.count("read and sent once with") == len(block.join.sources) - times
    sent, received = (
        sum(f.rows_exchanged for f in figures if (f.cell < 0) is maps) for maps in (True, False)
    )
    assert sent == received > 0


FILTERS = [
    "",
    "v > 3",
    "v IS NULL",
    "NOT v > 3",
    "s = 'b'",
    "s IN ('a', 'c') AND v < w",
    "v < 2 OR s IS NULL",
]


@hs.composite
def self_joins(draw) -> str:
    """Draw a self-join of two or three roles, each with a filter of its own, by equal or by other keys."""
    roles = "abc"[: draw(hs.integers(2, 3))]
    keys = [draw(hs.sampled_from(["k", "k", "w"])) for _ in roles]
    where = [f"a.{keys[0]} = {role}.{key}" for role, key in zip(roles[1:], keys[1:], strict=True)]
    for role in roles:
        test = re.sub(r"\b([svw])\b", rf"{role}.\1", draw(hs.sampled_from(FILTERS)))
        where += [f"({test})"] if test else []
    columns = ", ".join(f"{role}.{draw(hs.sampled_from('svw'))}" for role in roles)
    return f"SELECT {columns} FROM {', '.join(f't {role}' for role in roles)} WHERE {' AND '.join(where)}"


def check_a_self_join(spark, path: str, text: str, options: dict):
    """Return the block of a text and its run with options; the rows are DuckDB's."""
    (block,) = millrace.query(text, spark=spark, tables={"t": path}, options={"take_all": True}).blocks
    run = execute(spark, block, Options.of({"placement": "hypercube", **options}))
    with duckdb.connect() as database:
        database.execute(f"CREATE VIEW t AS FROM '{path}'")
        expected = Counter(database.execute(text).fetchall())
    assert Counter(map(tuple, run.frame.collect())) == expected, text
    return block, run


@pytest.fixture(scope="module")
def self_joined(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("self") / "t.parquet")
    columns = {"k": (23, 11), "v": (7, 5), "w": (6, 13)}
    table = {name: [n % of if n % null else None for n in range(150)] for name, (of, null) in columns.items()}
    table["s"] = ["abcd"[n % 4] if n % 9 else None for n in range(150)]
    pq.write_table(pa.table(table), path, row_group_size=80)
    return path


@settings(
    max_examples=examples(6, 40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(self_joins())
def test_roles_with_filters_of_their_own_give_duckdbs_rows(spark, self_joined, text):
    """Rows that several roles have, one role or none; nulls are unknown to every filter."""
    check_a_self_join(spark, self_joined, text, {"cells": 3})


@pytest.mark.broken_rule
@pytest.mark.parametrize(
    "make",
    [lambda tests, cuts: Roles(tests[::-1], cuts), lambda tests, cuts: Roles(tests, {**cuts, 3: cuts[1]})],
)
def test_a_row_that_goes_to_the_other_role_or_to_one_of_both_is_noticed(
    spark, self_joined, monkeypatch, make
):
    """Roles have each other's rows then, or the second one lacks those that pass both filters."""
    monkeypatch.setattr("millrace.spark.execute.Roles", make)
    text = "SELECT a.v, b.v FROM t a, t b WHERE a.k = b.k AND a.v > 2 AND b.v < 5"
    with pytest.raises(AssertionError):
        check_a_self_join(spark, self_joined, text, {"cells": 3})


def test_a_set_is_not_split(spark, tmp_path):
    """A relation with set semantics is neither streamed nor spread: its duplicates meet."""
    key = pa.int64()
    pq.write_table(pa.table({"k": pa.array(range(40), key)}), tmp_path / "a.parquet", row_group_size=10)
    many = pa.table({"k": pa.array([n % 60 for n in range(6000)], key)})
    pq.write_table(many, tmp_path / "s.parquet", row_group_size=500)
    tables = {name: open_table(tmp_path / f"{name}.parquet") for name in "as"}
    join = JoinSpec(
        tuple(RelationSpec(name, table.schema, distinct=name == "s") for name, table in tables.items()),
        (Equality(ColumnRef("a", "k"), ColumnRef("s", "k"), key),),
        output=(OutputColumn("k", ColumnRef("a", "k")),),
    )
    scans = {name: ParquetInput(table, ("k",)) for name, table in tables.items()}
    frame = FrameInput(spark.read.parquet(tables["s"].path), 50_000)
    for inputs in (scans, {**scans, "s": frame}):
        for options in (Options(placement="hypercube", cells=5), Options(placement="in_place"), Options()):
            run = execute(spark, Block("b", join, inputs), options)
            assert sorted(row[0] for row in run.frame.collect()) == list(range(40))


def test_what_a_budget_cannot_keep_is_refused_before_a_task_begins(spark, tmp_path):
    """EXISTS behind a predicate that is not deterministic: where that is planned, Spark can do it."""
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "a.parquet")
    table, own = open_table(tmp_path / "a.parquet"), Column(ColumnRef("a", "k"))
    asks = Exists("e", (Compare("=", own, Column(ColumnRef("e", "k")), pa.int64()),))
    pinned = Call(PredicateSpec("p", bool, "row", deterministic=False), (own,))
    join = JoinSpec(
        (RelationSpec("a", table.schema),),
        residuals=(pinned, asks),
        output=(OutputColumn("k", own.ref),),
        beside=(RelationSpec("e", table.schema),),
    )
    planned = Block("b", join, dict.fromkeys("ae", ParquetInput(table, ("k",))))
    assert execute(spark, planned, Options()).frame.count() == 2
    with pytest.raises(InputError, match="comes behind one that is not deterministic"):
        execute(spark, planned, Options(memory_budget=1 << 20))


def test_timestamps_and_nested_columns_pass_through(spark, tmp_path):
    """Payload of every kind, in another session time zone, through blocks and from DataFrames."""
    path = str(tmp_path / "t")
    frame = spark.sql(
        "select id as k, timestamp'2024-01-01 12:00:00' as t, timestamp_ntz'2024-01-01 12:00:00' as n, "
        "array(id, null) as a, named_struct('x', id, 'y', array('z')) as s, map('k', id) as m, "
        "cast(id as decimal(38, 10)) as d, cast('b' as binary) as b from range(20)"
    )
    frame.write.parquet(path)
    with changed(spark, {"spark.sql.session.timeZone": "America/Lima"}):
        given = spark.read.parquet(path)
        tables, options = {"p": given.where("k >= 0"), "q": path}, {"placement": "hypercube"}
        text = "select * from p join q on p.t = q.t"
        found = millrace.query(text, spark=spark, tables=tables, options=options)
        assert len(found.blocks) == 1
        text = text.replace("p join q", "{t} p join {t} q")
        assert bag(found.df) == bag(spark.sql(text, t=given))


def test_figures_never_wait(spark, tpch_tiny):
    """Before a run they are an error with a way out; after two runs they are those of the last."""
    block = block_of(spark, tpch_tiny)
    run = execute(spark, block, Options())
    with pytest.raises(ExecutionError, match="run an action"):
        run.reports.figures()
    run.frame.count()
    once = run.reports.figures()
    run.frame.createOrReplaceTempView("block")
    spark.sql(f"select * from block a join block b using ({run.frame.columns[2]})").count()
    again = run.reports.figures()
    assert [f.output_tuples for f in again] == [f.output_tuples for f in once]
    silent = execute(spark, block, Options(report=False))
    with pytest.raises(ExecutionError, match="report is off"):
        silent.reports.figures()


@pytest.mark.parametrize("placement", sampled(["hypercube", "in_place"]))
@pytest.mark.parametrize(("rows", "sent"), [(100_000, False), (1_000, True)])
def test_spark_sends_no_large_result_to_all_executors(spark, tmp_path, placement, rows, sent):
    """A result that is joined above its block passes the driver's memory only where it is small."""
    keys = pa.array(range(rows), pa.int64())
    tables = write(tmp_path, {name: pa.table({"k": keys, name: keys}) for name in "ab"}, rows)
    block = "(SELECT a.k, b.b FROM a JOIN b ON a.k = b.k)"
    text = f"SELECT c.id, x.b FROM c LEFT JOIN {block} x ON x.k = c.id AND hash(c.id) IS NOT NULL"
    options = {"take_all": True, "placement": placement}
    with changed(spark, {"spark.sql.autoBroadcastJoinThreshold": "1MB"}):
        many = spark.range(rows * 10)
        joined = millrace.sql(text, spark=spark, tables={**tables, "c": many}, options=options)
        assert ("BroadcastExchange" in explained(joined)) == sent
        assert joined.where("b IS NOT NULL").count() == rows


class Last:
    """A policy of a user's own: what is legal last."""

    def choose(self, signature, candidates):
        return Decision.of(candidates[-1])


SETTINGS = (
    Options(placement="hypercube", cells=1),
    Options(placement="hypercube", cells=4, batch_size=3, policy="random"),
    Options(placement="auto", cells=2, batch_size=2, policy=Last()),
    Options(architecture="stems", placement="hypercube", cells=4, online=True, policy="rank", batch_size=1),
    Options(architecture="joins", placement="hypercube", cells=1, online=True, policy="random"),
    Options(architecture="stairs", cells=3, online=True, migration="eager", batch_size=2, reoptimize_every=2),
    Options(architecture="static", placement="hypercube", cells=2),
    Options(memory_budget=50_000, placement="hypercube", cells=2, batch_size=3),
)
NUMBERS = itertools.count()


def test_astronomical_estimates_take_no_time(spark, tmp_path):
    """Spark takes a product of twelve relations for petabytes, of however few rows."""
    spark.range(5).write.parquet(f"{tmp_path}/a")
    few = [spark.range(2).toDF(f"c{n}") for n in range(12)]
    product = reduce(DataFrame.crossJoin, few)
    tables = {"a": f"{tmp_path}/a", "p": product}
    forced = {"take_all": True, "placement": "hypercube"}
    text = "SELECT a.id FROM a JOIN p ON a.id = p.c0"
    found = millrace.sql(text, spark=spark, tables=tables, options=forced).select("id")
    stop = threading.Timer(60, spark.sparkContext.cancelAllJobs)
    stop.start()
    try:
        assert len(found.collect()) == 1 << 12
    finally:
        stop.cancel()


@pytest.mark.slow
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cases(max_relations=4) | cases_beside())
def test_one_cell_and_many_cells_give_the_oracles_rows(spark, tmp_path: Path, case: Case) -> None:
    """Random graphs and keys through real files and real tasks, in every placement."""
    inputs = {}
    for alias, table in case.tables.items():
        path = tmp_path / f"{alias}-{next(NUMBERS)}.parquet"
        pq.write_table(table, path, row_group_size=3)
        inputs[alias] = ParquetInput(open_table(path), tuple(table.schema.names))
    expected = case.expected()
    for options in SETTINGS:
        frame = execute(spark, Block("b", case.spec, inputs), options).frame
        rows = frame.toArrow()
        if case.spec.count_only:
            count = sum(value for value in rows["__count"].to_pylist() if value is not None)
            assert count == sum(next(iter(key)) for key in expected), (options, case.sql())
        else:
            assert multiset(rows.cast(case.spec.output_schema)) == expected, (options, case.sql())


# Row groups and partitions that joins leave out.


DAYS = "SELECT s.id, s.day, d.name FROM sales s JOIN dates d ON s.day = d.day WHERE d.month = 3"


@pytest.fixture(scope="module")
def calendar(tmp_path_factory):
    """Sales in folders by day, or in one file in the order of days, and a calendar."""
    folder = tmp_path_factory.mktemp("ranges")
    days = [n // 50 for n in range(5000)]
    sales = pa.table({"id": range(5000), "day": pa.array(days, pa.int32())})
    pq.write_table(sales, folder / "sales.parquet", row_group_size=100)
    pq.write_to_dataset(sales, folder / "by_day", partition_cols=["day"])
    dates = pa.table(
        {"day": range(100), "month": [d // 10 for d in range(100)], "name": [f"d{d}" for d in range(100)]}
    )
    pq.write_table(dates, folder / "dates.parquet")
    return {name: str(folder / name) for name in ("sales.parquet", "by_day", "dates.parquet")}


def ask(spark, text, tables, placement):
    """Return a query and its rows, which are Spark's."""
    options = {"placement": placement, "take_all": True, "cells": 2}
    query = millrace.query(text, spark=spark, tables=tables, options=options)
    found = bag(query.df)
    register(spark, tables)
    assert found == bag(spark.sql(text))
    return query, found.total()


@pytest.mark.parametrize("sales", sampled(["by_day", "sales.parquet"]))
@pytest.mark.parametrize("placement", ["auto", "hypercube"])
def test_what_no_key_reaches_is_not_read(spark, calendar, sales, placement):
    """Neither in place nor on the map side of an exchange."""
    query, rows = ask(spark, DAYS, {"sales": calendar[sales], "dates": calendar["dates.parquet"]}, placement)
    assert rows == 500
    (pruned,) = [m for _, m in query.report().modules() if m.action == "prune"]
    assert pruned.name == "RowGroups(s)" and pruned.tuples_out < pruned.tuples_in / 2


@pytest.mark.parametrize("placement", sampled(["hypercube", "auto"]))
def test_keys_that_python_does_not_have_are_keys(spark, tmp_path, placement):
    """The greatest keys are a date of year 10183 and bytes that are no UTF-8."""
    days = pa.array([3_000_000 - n % 7 for n in range(700)], pa.int32()).view(pa.date32())
    texts = pa.array([b"\xff" * (n % 5) for n in range(700)]).view(pa.string())
    large = pa.table({"n": range(700), "day": days, "text": texts})
    tables = write(tmp_path, {"large": large, "small": large.slice(0, 9)}, 100)
    for key in ("day", "text"):
        sql = f"SELECT l.n, s.n AS m FROM large l JOIN small s ON l.{key} = s.{key} WHERE s.n < 3"
        assert ask(spark, sql, tables, placement)[1] >= 300
