"""The demo: joins of TPC-H with Millrace and with Spark SQL on local Spark, side by side."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

import millrace
from lab.benchmarks import tpch_data
from lab.benchmarks.compare import difference
from millrace.cli.fitting import Column, Fitted
from millrace.reports.run_report import OrderShare, RunReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = {
    "stairs": "customers of one nation with their orders and items, by date",
    "q03": "TPC-H Q3: the ten unshipped orders worth most",
    "q05": "TPC-H Q5: revenue by nation, six tables",
    "q10": "TPC-H Q10: customers who returned items",
}
_RUNS = 3
_SHOWN_ORDERS = 3


@dataclass(frozen=True)
class Side:
    """One query on both engines: best times in seconds, rows, how they differ, and what the eddies did."""

    name: str
    rows: int
    millrace_seconds: float
    spark_seconds: float
    unequal: str | None
    orders: tuple[OrderShare, ...]
    report: RunReport


def prepare(scale: float, folder: Path | None, console: Console) -> dict[str, str]:
    """Return the tables' paths, making the data on the first run."""
    target = folder or tpch_data.cache_folder(scale)
    if not tpch_data.is_there(target):
        console.print(f"making TPC-H data of scale {scale:g} in {target} (once)")
    return tpch_data.ensure(scale, folder)


def run(spark: SparkSession, tables: Mapping[str, str], console: Console) -> list[Side]:
    """Run the demo, print its tables and where the page of its longest query is, and return both sides."""
    for name, path in tables.items():
        spark.read.parquet(path).createOrReplaceTempView(name)
    results = []
    for name, words in QUERIES.items():
        with console.status(f"{name}: {words}"):
            results.append(_compare(name, spark, tables))
    console.print(_times(results))
    console.print(_orders(results))
    for result in results:
        if result.unequal:
            console.print(Text(f"{result.name} differs: {result.unequal}", style="bold red"))
    console.print(
        Text(
            f"Times are the best of {_RUNS} runs after a warm-up, planning included. "
            "A ratio below 1 means that Millrace was faster.",
            style="dim",
        )
    )
    longest = max(results, key=lambda side: side.spark_seconds)
    folder = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    page = longest.report.save(folder / f"{longest.name}.html").as_uri()
    console.print(
        Text.assemble(f"What the eddies did in {longest.name}: ", (page, f"link {page}")), soft_wrap=True
    )
    return results


def _compare(name: str, spark: SparkSession, tables: Mapping[str, str]) -> Side:
    text = tpch_data.query_text(name)
    query = millrace.query(text, spark=spark, tables=tables)
    ours = query.df.collect()
    theirs = spark.sql(text).collect()
    best = {"millrace": float("inf"), "spark": float("inf")}
    sides: dict[str, Callable[[], Any]] = {
        "millrace": lambda: millrace.query(text, spark=spark, tables=tables).df.collect(),
        "spark": lambda: spark.sql(text).collect(),
    }
    for _ in range(_RUNS):
        for side, collect in sides.items():
            start = time.perf_counter()
            collect()
            best[side] = min(best[side], time.perf_counter() - start)
    report = query.report()
    unequal = difference(ours, theirs)
    orders = tuple(report.orders())
    return Side(name, len(theirs), best["millrace"], best["spark"], unequal, orders, report)


def _times(results: list[Side]) -> Fitted:
    columns = [
        Column("query", rank=0),
        Column("what it asks", rank=3),
        Column("rows", number=True, rank=2),
        Column("Millrace", number=True),
        Column("Spark SQL", number=True),
        Column("ratio", number=True, rank=0),
        Column("same rows", rank=0),
    ]
    rows = []
    for one in results:
        ratio = one.millrace_seconds / one.spark_seconds
        rows.append(
            (
                one.name,
                QUERIES[one.name],
                f"{one.rows:,}",
                f"{one.millrace_seconds:.2f} s",
                f"{one.spark_seconds:.2f} s",
                Text(f"{ratio:.2f}", style="green" if ratio < 1 else ""),
                Text("NO", style="bold red") if one.unequal else Text("yes", style="green"),
            )
        )
    return Fitted(columns, rows, "The same queries, the same files, two engines")


def _orders(results: list[Side]) -> Fitted:
    columns = [
        Column("query", rank=0),
        Column("order", rank=0),
        Column("tuples", number=True),
        Column("share", number=True, rank=0),
    ]
    rows = [
        (one.name, share.order, f"{share.tuples:,}", f"{share.share:.0%}")
        for one in results
        for share in one.orders[:_SHOWN_ORDERS]
    ]
    title = "The ways that tuples went: nobody planned them, the eddies found them while running"
    return Fitted(columns, rows, title)
