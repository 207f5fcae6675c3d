"""The 22 queries of TPC-H with Millrace and with Spark SQL, in one session on the same files.

Each side plans and runs the query anew and collects its result rows. Spark reads the files through
temporary views. The A/A control is Spark a second time in each round.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import millrace
from millrace.benchmarks import harness
from millrace.benchmarks.compare import difference
from millrace.benchmarks.harness import Outcome, Target
from millrace.benchmarks.show import Ticker
from millrace.benchmarks.tpch_data import QUERIES, query_text
from millrace.errors import ExecutionError, OptionError
from millrace.run_report import Totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.api.query import Query

MILLRACE, SPARK, AGAIN = "millrace", "spark", "spark again"
_MEGABYTE = 1e6


@dataclass
class Case:
    """One query's measurements."""

    name: str
    text: str
    blocks: int = 0
    unequal: str | None = None
    seconds: dict[str, list[float]] = field(default_factory=lambda: {MILLRACE: [], SPARK: [], AGAIN: []})
    totals: Totals = field(default_factory=Totals)
    peak_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Millrace's median over Spark's; both of Spark's runs count, being the same thing."""
        spark = self.seconds[SPARK] + self.seconds[AGAIN]
        return harness.median(self.seconds[MILLRACE]) / harness.median(spark)

    @property
    def control(self) -> float:
        """Spark's median over that of Spark's second runs."""
        return harness.median(self.seconds[SPARK]) / harness.median(self.seconds[AGAIN])


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


def runs(queries: Sequence[int], rounds: int) -> int:
    """Return how many single runs there will be, for the progress bar."""
    return len(queries) * (2 + 3 * rounds)


def bench(
    spark: SparkSession,
    tables: Mapping[str, str],
    scale: float,
    queries: Sequence[int],
    rounds: int,
    ticker: Ticker,
) -> Outcome:
    """Run the benchmark.

    Raises:
        OptionError: Too few rounds.
    """
    harness.check_rounds(rounds)
    for name, path in tables.items():
        spark.read.parquet(path).createOrReplaceTempView(name)
    cases = [Case(f"q{number:02}", query_text(f"q{number:02}")) for number in queries]
    for case in cases:
        ticker.says(f"{case.name}, warm-up")
        _warm_up(case, spark, tables, ticker)
    for number in range(rounds):
        for case in cases:
            ticker.says(f"{case.name}, round {number + 1}")
            for side in harness.turned((MILLRACE, SPARK, AGAIN), number):
                _measure(case, side, spark, tables)
                ticker.tick()
    return _outcome(cases, scale, rounds)


def _warm_up(case: Case, spark: SparkSession, tables: Mapping[str, str], ticker: Ticker) -> None:
    query = millrace.query(case.text, spark, tables)
    ours = query.df.collect()
    ticker.tick()
    theirs = spark.sql(case.text).collect()
    ticker.tick()
    case.blocks = len(query.blocks)
    case.unequal = difference(ours, theirs)


def _measure(case: Case, side: str, spark: SparkSession, tables: Mapping[str, str]) -> None:
    gc.collect()
    start = time.perf_counter()
    if side == MILLRACE:
        query = millrace.query(case.text, spark, tables)
        query.df.collect()
        case.seconds[side].append(time.perf_counter() - start)
        case.totals = _totals(query)
        case.peak_bytes = max(case.peak_bytes, case.totals.peak_bytes)
    else:
        spark.sql(case.text).collect()
        case.seconds[side].append(time.perf_counter() - start)


def _totals(query: Query) -> Totals:
    """Return what the eddies did; nothing where Spark saw that a block need not run at all."""
    try:
        return query.report().totals
    except ExecutionError:
        return Totals()


def _outcome(cases: Sequence[Case], scale: float, rounds: int) -> Outcome:
    taken = [case for case in cases if case.blocks]
    figures = {
        "geomean_ratio": harness.geomean([case.ratio for case in taken]),
        "worst_ratio": max((case.ratio for case in taken), default=float("nan")),
        "aa_ratio": harness.geomean([case.control for case in cases]),
        "queries_equal": sum(case.unequal is None for case in cases),
        "queries_taken": len(taken),
        "peak_worker_mb": max((case.peak_bytes for case in cases), default=0) / _MEGABYTE,
        "intermediate_tuples": sum(case.totals.intermediate_tuples for case in cases),
        "tuples_routed": sum(case.totals.tuples_routed for case in cases),
        "blocks_sent": sum(case.totals.blocks_exchanged for case in cases),
        "bytes_sent": sum(case.totals.bytes_exchanged for case in cases),
    }
    targets = {
        "geomean_ratio": Target(high=0.7),
        "worst_ratio": Target(high=1.3),
        "aa_ratio": Target(0.9, 1.1, informational=True),
        "queries_equal": Target(len(cases), len(cases)),
        "peak_worker_mb": Target(high=1500),
    }
    notes = [f"{case.name} differs: {case.unequal}" for case in cases if case.unequal]
    if untaken := [case.name for case in cases if not case.blocks]:
        notes.append(f"no join taken in {', '.join(untaken)}: left to Spark, not in the geometric mean")
    return Outcome("tpch", scale, rounds, figures, [_row(case) for case in cases], targets, notes)


def _row(case: Case) -> dict[str, Any]:
    spark = case.seconds[SPARK] + case.seconds[AGAIN]
    return {
        "query": case.name,
        "blocks": case.blocks,
        "millrace_s": harness.median(case.seconds[MILLRACE]),
        "spark_s": harness.median(spark),
        "ratio": case.ratio,
        "spread": harness.spread(case.seconds[MILLRACE]),
        "spark_spread": harness.spread(spark),
        "control": case.control,
        "equal": case.unequal is None,
        "intermediate_tuples": case.totals.intermediate_tuples,
        "tuples_routed": case.totals.tuples_routed,
        "blocks_sent": case.totals.blocks_exchanged,
    }
