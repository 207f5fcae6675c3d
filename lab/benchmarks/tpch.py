"""The 22 queries of TPC-H with Millrace and with Spark SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lab.benchmarks import side_by_side
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.show import Ticker
from lab.benchmarks.side_by_side import Case
from lab.benchmarks.tpch_data import QUERIES, query_text
from millrace.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parse_queries(text: str | None) -> tuple[int, ...]:
    """Return the query numbers in ``"3,5,10"``; all 22 of None.

    Raises:
        OptionError: Something in it is no number from 1 to 22.
    """
    if text is None:
        return QUERIES
    numbers = []
    for part in text.split(","):
        if not part.strip().isdigit() or int(part) not in QUERIES:
            raise OptionError(f"queries has {part.strip()!r}: expected numbers from 1 to 22, as in 3,5,10")
        numbers.append(int(part))
    return tuple(dict.fromkeys(numbers))


def bench(
    spark: SparkSession,
    tables: Mapping[str, str],
    scale: float,
    queries: Sequence[int],
    rounds: int,
    ticker: Ticker,
    *,
    frames: bool = False,
) -> Outcome:
    """Run the benchmark.

    Raises:
        OptionError: Too few rounds.
    """
    cases = [Case(f"q{number:02}", query_text(f"q{number:02}")) for number in queries]
    side_by_side.run(spark, tables, cases, rounds, ticker, frames=frames)
    targets = {
        "geomean_ratio": Target(high=0.45),
        "worst_ratio": Target(high=1.0),
        "frames_geomean_ratio": Target(high=0.9),
        "aa_ratio": Target(0.9, 1.1, informational=True),
        "queries_equal": Target(len(cases), len(cases)),
        "planning_first_ms": Target(high=40),
        "planning_again_ms": Target(high=5),
        "peak_worker_mb": Target(high=1000),
    }
    rows = [side_by_side.row(case) for case in cases]
    figures = side_by_side.figures(cases)
    return Outcome("tpch", scale, rounds, figures, rows, targets, side_by_side.notes(cases))
