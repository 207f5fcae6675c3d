"""How much the order of joins matters: random fixed orders, with and without transfer of filters.

Each case is run in random orders that do not change, with the default policy, by DuckDB and by Spark. A
robust engine needs no statistics: its worst order is not much slower than its best one (the bar of "Robust
predicate transfer", 2025), and what it chooses by itself is about as fast as the best.

The joins are 20 acyclic and 5 cyclic ones over made-up data with fixed seeds: shapes of TPC-H with skew,
stars, snowflakes, chains that fan out, data in which the order decides by orders of magnitude how much is
made. Tables are what filters have left, so nobody has statistics of them but their numbers of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lab.bench.harness import Bench, Ran, Run, Target, geomean
from lab.joins import block, draw_orders, duckdb_counts, ends, run_block, sql
from millrace.engine.plan.spec import JoinSpec
from millrace.options import Options

Columns = Mapping[str, np.ndarray]
Made = tuple[dict[str, Columns], list[str]]
Draw = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A join that is counted: tables by alias, whose columns are all ``int64``, and equalities."""

    name: str
    tables: Mapping[str, pa.Table]
    joins: tuple[str, ...]

    @property
    def spec(self) -> JoinSpec:
        return block(self.tables, *self.joins)


def cases(size: float = 1.0, names: Collection[str] | None = None) -> Iterator[Case]:
    """Yield cases, each made when it is asked for.

    Args:
        size: Of the tables, 1 for a largest one of a million rows.
        names: Only these; all of None.
    """
    for seed, (name, (make, *parts)) in enumerate(CASES.items()):
        if names is not None and name not in names:
            continue
        columns, joins = make(np.random.default_rng([25_021, seed]), round(1_000_000 * size), *parts)
        tables = {
            alias: pa.table({name: np.asarray(values, np.int64) for name, values in each.items()})
            for alias, each in columns.items()
        }
        yield Case(name, tables, tuple(joins))


def _skewed(random: Draw, keys: int, rows: int, by: float) -> np.ndarray:
    """Return keys of which few are frequent: the share of key ``i`` falls with ``i ** -by``; 0 is uniform."""
    weights = np.arange(1, keys + 1) ** -by
    return random.permutation(keys)[random.choice(keys, rows, p=weights / weights.sum())]


def _kept(random: Draw, keys: int, share: float) -> np.ndarray:
    """Return the keys that a filter has left, in no order."""
    return random.permutation(keys)[: max(1, round(keys * share))]


def _star(random: Draw, rows: int, shares: list[float], skew: float) -> Made:
    """Return a star of filtered dimensions, of which each keeps a share."""
    keys = max(10, rows // 50)
    fact = {f"d{i}": _skewed(random, keys, rows, skew) for i in range(len(shares))}
    arms = {f"d{i}": {"k": _kept(random, keys, share)} for i, share in enumerate(shares)}
    return {"fact": fact, **arms}, [f"fact.d{i} = d{i}.k" for i in range(len(shares))]


def _snowflake(random: Draw, rows: int, shares: list[float], skew: float) -> Made:
    """Return a snowflake: each dimension has one of its own, and the filter is on that."""
    keys, outer = max(20, rows // 20), max(5, rows // 1000)
    tables: dict[str, Columns] = {
        "fact": {f"d{i}": _skewed(random, keys, rows, skew) for i in range(len(shares))}
    }
    joins = []
    for i, share in enumerate(shares):
        tables[f"d{i}"] = {"k": random.permutation(keys), "o": random.integers(0, outer, keys)}
        tables[f"o{i}"] = {"k": _kept(random, outer, share)}
        joins += [f"fact.d{i} = d{i}.k", f"d{i}.o = o{i}.k"]
    return tables, joins


def _chain(random: Draw, rows: int, fan: float, shares: list[float]) -> Made:
    """Return a chain of many-to-many joins, whose relations keep shares of the keys."""
    rows //= 10
    keys = max(4, round(rows / fan))
    tables: dict[str, Columns] = {}
    for i, share in enumerate(shares):
        size = max(4, round(rows * share))
        tables[f"r{i}"] = {
            "a": random.choice(_kept(random, keys, share), size),
            "b": random.integers(0, keys, size),
        }
    return tables, [f"r{i}.b = r{i + 1}.a" for i in range(len(shares) - 1)]


def _exploding(random: Draw, rows: int, factor: int, arms: int) -> Made:
    """Return a relation with arms that multiply its tuples, and one far away that drops nearly all."""
    rows //= 5
    keys = max(8, rows // 20)
    tables: dict[str, Columns] = {
        "hub": {f"a{i}": random.integers(0, keys, rows) for i in range(arms)}
        | {"l": random.integers(0, keys, rows)},
        "link": {"l": random.permutation(keys), "e": random.integers(0, keys, keys)},
        "last": {"e": _kept(random, keys, 0.01)},
    }
    tables |= {f"a{i}": {"k": np.repeat(random.permutation(keys), factor)} for i in range(arms)}
    joins = ["hub.l = link.l", "link.e = last.e", *(f"hub.a{i} = a{i}.k" for i in range(arms))]
    return tables, joins


def _orders(random: Draw, rows: int, skew: float, share: float, supply: float) -> Made:
    """Return customers, orders, lines and suppliers as in TPC-H 5, with skew."""
    orders, people, suppliers = max(8, rows // 4), max(4, rows // 40), max(4, rows // 600)
    tables: dict[str, Columns] = {
        "region": {"r": _kept(random, 5, share)},
        "nation": {"n": np.arange(25), "r": np.arange(25) % 5},
        "customer": {"c": random.permutation(people), "n": _skewed(random, 25, people, skew)},
        "orders": {"o": random.permutation(orders), "c": _skewed(random, people, orders, skew)},
        "supplier": {"s": _kept(random, suppliers, supply)},
        "lines": {"o": random.integers(0, orders, rows), "s": _skewed(random, suppliers, rows, skew)},
    }
    joins = ["region.r = nation.r", "nation.n = customer.n", "customer.c = orders.c"]
    return tables, [*joins, "orders.o = lines.o", "lines.s = supplier.s"]


def _cycle(random: Draw, rows: int, length: int, shares: list[float], tail: int = 0) -> Made:
    """Return a cycle of relations with two keys each; further ones hang at the first as a tail."""
    rows //= 20
    keys = max(4, rows // 6)
    tables: dict[str, Columns] = {}
    for i, share in enumerate(shares):
        size = max(4, round(rows * share))
        tables[f"r{i}"] = {"a": random.integers(0, keys, size), "b": random.integers(0, keys, size)}
    joins = [f"r{i}.b = r{(i + 1) % length}.a" for i in range(length)]
    for i in range(tail):
        tables[f"t{i}"] = {"k": _kept(random, keys, 0.1 + 0.3 * i)}
        joins.append(f"r{i}.a = t{i}.k")
    return tables, joins


CASES: Mapping[str, tuple[Any, ...]] = {
    "star4": (_star, [0.02, 0.2, 0.5, 0.9], 0.0),
    "star5_skewed": (_star, [0.05, 0.1, 0.3, 0.6, 0.9], 0.8),
    "star6": (_star, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8], 0.0),
    "star4_even": (_star, [0.5, 0.5, 0.5, 0.5], 0.4),
    "star5_one": (_star, [0.001, 1.0, 1.0, 1.0, 1.0], 0.0),
    "snowflake3": (_snowflake, [0.02, 0.3, 0.8], 0.0),
    "snowflake4": (_snowflake, [0.05, 0.2, 0.5, 1.0], 0.0),
    "snowflake3_skewed": (_snowflake, [0.05, 0.2, 0.9], 0.8),
    "snowflake4_even": (_snowflake, [0.4, 0.4, 0.4, 0.4], 0.3),
    "chain4": (_chain, 2.0, [1.0, 1.0, 1.0, 0.02]),
    "chain5": (_chain, 3.0, [0.05, 1.0, 1.0, 0.3, 0.5]),
    "chain5_ends": (_chain, 4.0, [0.02, 0.5, 1.0, 0.5, 0.02]),
    "chain6": (_chain, 2.0, [1.0, 0.5, 0.3, 0.3, 0.5, 0.01]),
    "exploding1": (_exploding, 20, 1),
    "exploding2": (_exploding, 6, 2),
    "exploding3": (_exploding, 3, 3),
    "exploding2_wide": (_exploding, 12, 2),
    "orders": (_orders, 0.0, 0.2, 1.0),
    "orders_skewed": (_orders, 0.9, 0.2, 0.5),
    "orders_supply": (_orders, 0.5, 0.6, 0.02),
    "triangle": (_cycle, 3, [1.0, 1.0, 1.0]),
    "triangle_small": (_cycle, 3, [0.05, 1.0, 1.0]),
    "cycle4": (_cycle, 4, [0.3, 1.0, 0.3, 0.1]),
    "triangle_tail": (_cycle, 3, [1.0, 1.0, 1.0], 2),
    "cycle5": (_cycle, 5, [0.1, 0.5, 0.1, 0.5, 0.1]),
}
"""By name: what makes tables and equalities, from a generator and the rows of a large table; and how."""


ORDERS = 20
_BATCH = 65_536
_DEFAULT, _DUCKDB, _SPARK = "default", "DuckDB", "Spark"


def measure(run: Run) -> None:
    """Run the benchmark, on one thread but for Spark, which takes what its session has."""
    run.rows = rows = [_row(run, case) for case in cases(run.scale, run.names)]
    run.figures = {
        "robust_worst_ratio": max(row["worst_ratio"] for row in rows),
        "robust_worst_ratio_without": max(row["worst_ratio_without"] for row in rows),
        "robust_default_ratio": geomean([row["default_s"] / row["best_s"] for row in rows]),
        "robust_default_worst_ratio": max(row["default_s"] / row["best_s"] for row in rows),
        "robust_duckdb_ratio": geomean([row["default_s"] / row["duckdb_s"] for row in rows]),
        "robust_spark_ratio": geomean([row["default_s"] / row["spark_s"] for row in rows]),
        "robust_tuples_ratio": max(row["most_made"] / max(1, row["fewest_made"]) for row in rows),
    }
    run.notes.append("one thread each, but for Spark")


def _row(run: Run, case: Case) -> dict[str, Any]:
    sides: dict[str, Callable[[], Any]] = {_DEFAULT: _by_millrace(case, Options())}
    orders = draw_orders(case.tables, [*map(ends, case.joins)], ORDERS, case.name)
    for number, order in enumerate(orders):
        for name, transfer in (("with", True), ("without", False)):
            options = Options(policy="fixed", order=order, transfer=transfer)
            sides[f"{name} {number}"] = _by_millrace(case, options)
    query = sql(case.tables, case.joins)
    with duckdb_counts(case.tables) as count, _by_spark(run, case, query) as sides[_SPARK]:
        sides[_DUCKDB] = lambda: count(query)
        rows = count(query)
        times = run.race(case.name, sides, control=_DEFAULT, answer=rows)
    within = [name for name in sides if name.startswith("with ")]
    without = [times.median(name) for name in sides if name.startswith("without ")]
    seconds, made = [[of(name) for name in within] for of in (times.median, lambda n: times.note(n, "made"))]
    return {
        "case": case.name,
        "rows": rows,
        "default_s": times.median(_DEFAULT),
        "best_s": min(seconds),
        "worst_s": max(seconds),
        "worst_ratio": max(seconds) / min(seconds),
        "worst_ratio_without": max(without) / min(without),
        "duckdb_s": times.median(_DUCKDB),
        "spark_s": times.median(_SPARK),
        "control": times.control(_DEFAULT),
        "fewest_made": min(made),
        "most_made": max(made),
    }


def _by_millrace(case: Case, options: Options) -> Callable[[], Ran]:
    """Return what counts a case's rows, and notes how many tuples were made on the way."""
    batches = {a: t.combine_chunks().to_batches(max_chunksize=_BATCH) for a, t in case.tables.items()}

    def call() -> Ran:
        rows, figures = run_block(case.spec, {alias: iter(each) for alias, each in batches.items()}, options)
        return Ran(rows, {"made": figures.intermediate_tuples})

    return call


@contextmanager
def _by_spark(run: Run, case: Case, query: str) -> Iterator[Callable[[], int]]:
    """Give what counts a case's rows by Spark, from tables in memory."""
    spark = run.spark
    frames: dict[str, Any] = {alias: spark.createDataFrame(table) for alias, table in case.tables.items()}
    for alias, frame in frames.items():
        frame.cache().count()
        frame.createOrReplaceTempView(alias)
    try:
        yield lambda: int(spark.sql(query).collect()[0][0])
    finally:
        for alias, frame in frames.items():
            spark.catalog.dropTempView(alias)
            frame.unpersist()


TARGETS = {"robust_worst_ratio": Target(high=1.6), "robust_default_ratio": Target(high=1.1)}
BENCH = Bench(measure, tuple(CASES), TARGETS, quick=("star4", "exploding2", "triangle"), master="local[1]")
