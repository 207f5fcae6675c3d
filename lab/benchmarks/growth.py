"""How time and memory grow with the data: queries of TPC-H at one scale and at ten times that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lab.benchmarks import harness, side_by_side
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.show import Ticker
from lab.benchmarks.side_by_side import MILLRACE, Case
from lab.benchmarks.tpch_data import query_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = 10
"""How much larger the larger data are."""

QUERIES = (3, 5, 9, 18, 21)
"""Joins of several large relations, with aggregates, semi- and anti-joins above or beside them."""


def runs(queries: int, rounds: int) -> int:
    """Return how many single runs there will be, for the progress bar."""
    return side_by_side.runs(queries, rounds) + side_by_side.runs(queries, rounds, control=False)


def bench(
    spark: SparkSession,
    tables: Mapping[str, str],
    larger: Mapping[str, str],
    scale: float,
    queries: Sequence[int],
    rounds: int,
    ticker: Ticker,
) -> Outcome:
    """Run the benchmark.

    Args:
        spark: The session of all sides.
        tables: Paths by name, at ``scale``.
        larger: Paths by name, at ten times that.
        scale: TPC-H scale factor.
        queries: Their numbers.
        rounds: Timed rounds at each scale.
        ticker: Told of each run.

    Raises:
        OptionError: Too few rounds.
    """
    small, large = (
        [Case(f"q{number:02}", query_text(f"q{number:02}")) for number in queries] for _ in range(2)
    )
    side_by_side.run(spark, tables, small, rounds, ticker)
    side_by_side.run(spark, larger, large, rounds, ticker, control=False)
    rows = [_row(*pair) for pair in zip(small, large, strict=True)]
    figures = {
        "growth_ratio": harness.geomean([row["growth_ratio"] for row in rows]),
        "growth_worst_ratio": max(row["growth_ratio"] for row in rows),
        "memory_ratio": max(row["larger_mb"] for row in rows) / max(row["worker_mb"] for row in rows),
        "larger_ratio": harness.geomean([row["larger_ratio"] for row in rows]),
        "aa_ratio": harness.geomean([case.control for case in small]),
        "queries_equal": sum(row["equal"] for row in rows),
    }
    targets = {
        "growth_ratio": Target(high=1.0),
        "memory_ratio": Target(high=2.0),
        "aa_ratio": Target(0.9, 1.1, informational=True),
        "queries_equal": Target(len(rows), len(rows)),
    }
    notes = side_by_side.notes([*small, *large])
    return Outcome("growth", scale, rounds, figures, rows, targets, notes)


def _row(small: Case, large: Case) -> dict[str, Any]:
    """Return a query as a row of the table; ratios are over Spark's."""
    mine = harness.median(large.seconds[MILLRACE]) / harness.median(small.seconds[MILLRACE])
    spark = harness.median(large.spark) / harness.median(small.spark)
    return {
        "query": small.name,
        "growth_ratio": mine / spark,
        "growth": mine,
        "spark_growth": spark,
        "ratio": small.ratio(),
        "larger_ratio": large.ratio(),
        "larger_s": harness.median(large.seconds[MILLRACE]),
        "larger_spark_s": harness.median(large.spark),
        "worker_mb": small.peak_bytes / 1e6,
        "larger_mb": large.peak_bytes / 1e6,
        "equal": small.unequal is None and large.unequal is None,
    }
