"""How much the order of joins matters: random fixed orders, with and without transfer of filters.

Each case is run with random orders that do not change, with the default policy, by DuckDB and by Spark. A
robust engine needs no statistics: its worst order is not much slower than its best one (the bar of "Robust
predicate transfer", 2025), and what it chooses by itself is about as fast as the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lab.benchmarks import harness
from lab.benchmarks.harness import Outcome, Target, parse_names
from lab.benchmarks.rivals import counted_by_duckdb
from lab.benchmarks.robust_cases import CASES, CYCLIC, Case, cases
from lab.benchmarks.show import Ticker
from millrace.engine.figures import CellFigures
from millrace.engine.runs.run_of import run_of
from millrace.errors import ExecutionError
from millrace.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = 20
_BATCH = 65_536
_DEFAULT, _AGAIN, _DUCKDB, _SPARK = "default", "default again", "DuckDB", "Spark"


def parse_cases(text: str | None) -> tuple[str, ...]:
    """Return the names in ``"star4,triangle"``; all of None.

    Raises:
        OptionError: There is no such case.
    """
    return tuple(CASES) if text is None else parse_names("cases", text, tuple(CASES))


def runs(names: Sequence[str], rounds: int, orders: int = ORDERS) -> int:
    """Return how many steps of progress there will be."""
    return len(names) * rounds * (2 * orders + 4)


def bench(
    spark: SparkSession, names: Sequence[str], size: float, rounds: int, ticker: Ticker, orders: int = ORDERS
) -> Outcome:
    """Run the benchmark, on one thread but for Spark, which takes what its session has.

    Args:
        spark: The session to compare with.
        names: Of the cases.
        size: Of the tables, 1 for a largest one of a million rows.
        rounds: Timed rounds of all sides.
        ticker: Told of each run.
        orders: How many random orders.

    Raises:
        OptionError: Too few rounds.
        ExecutionError: Two sides count differently.
    """
    harness.check_rounds(rounds)
    rows = [_measured(spark, case, rounds, orders, ticker) for case in cases(size, names)]
    figures = {
        "robust_worst_ratio": max(row["worst_ratio"] for row in rows),
        "robust_worst_ratio_without": max(row["worst_ratio_without"] for row in rows),
        "robust_default_ratio": harness.geomean([row["default_s"] / row["best_s"] for row in rows]),
        "robust_duckdb_ratio": harness.geomean([row["default_s"] / row["duckdb_s"] for row in rows]),
        "robust_spark_ratio": harness.geomean([row["default_s"] / row["spark_s"] for row in rows]),
        "robust_tuples_ratio": max(row["most_made"] / max(1, row["fewest_made"]) for row in rows),
        "aa_ratio": harness.geomean([row["control"] for row in rows]),
    }
    targets = {
        "robust_worst_ratio": Target(high=1.6),
        "robust_default_ratio": Target(high=1.1),
        "aa_ratio": Target(0.9, 1.1, informational=True),
    }
    return Outcome("robust", size, rounds, figures, rows, targets, ["one thread each, but for Spark"])


def _measured(spark: SparkSession, case: Case, rounds: int, orders: int, ticker: Ticker) -> dict[str, Any]:
    """Return a case as a row of the table."""
    made: dict[str, int] = {}
    sides: dict[str, Callable[[], int]] = {
        _DEFAULT: _side(case, Options(), made, _DEFAULT),
        _AGAIN: _side(case, Options(), made, _AGAIN),
    }
    for number, order in enumerate(case.orders(orders)):
        for transfer in (True, False):
            name = f"{'with' if transfer else 'without'} {number}"
            sides[name] = _side(case, Options(policy="fixed", order=order, transfer=transfer), made, name)
    with counted_by_duckdb(case.tables, case.sql()) as sides[_DUCKDB], _spark(spark, case) as sides[_SPARK]:
        ticker.says(f"{case.name}, warm-up")
        answers = {name: run() for name, run in sides.items()}
        if len(set(answers.values())) > 1:
            raise ExecutionError(f"different counts of {case.name}: {answers}")
        ticker.says(case.name)
        seconds = harness.interleave(sides, rounds, ticker.tick)
    medians = {name: harness.median(times) for name, times in seconds.items()}
    within = [s for name, s in medians.items() if name.startswith("with ")]
    without = [s for name, s in medians.items() if name.startswith("without ")]
    tuples = [count for name, count in made.items() if name.startswith("with ")]
    return {
        "case": case.name,
        "cyclic": case.name in CYCLIC,
        "rows": answers[_DEFAULT],
        "default_s": medians[_DEFAULT],
        "best_s": min(within),
        "worst_s": max(within),
        "worst_ratio": max(within) / min(within),
        "worst_ratio_without": max(without) / min(without),
        "duckdb_s": medians[_DUCKDB],
        "spark_s": medians[_SPARK],
        "control": medians[_DEFAULT] / medians[_AGAIN],
        "fewest_made": min(tuples),
        "most_made": max(tuples),
    }


def _side(case: Case, options: Options, made: dict[str, int], name: str) -> Callable[[], int]:
    """Return what counts a case's rows, and notes how many tuples were made on the way."""
    batches = {
        alias: table.combine_chunks().to_batches(max_chunksize=_BATCH) for alias, table in case.tables.items()
    }
    spec = case.spec

    def run() -> int:
        eddy = run_of(spec, {alias: iter(each) for alias, each in batches.items()}, options)
        count = sum(int(batch.column(0)[0].as_py()) for batch in eddy.run())
        figures: CellFigures = eddy.figures()
        made[name] = figures.intermediate_tuples
        return count

    return run


@contextmanager
def _spark(spark: SparkSession, case: Case) -> Iterator[Callable[[], int]]:
    """Give what counts a case's rows by Spark, from tables in memory."""
    frames: Mapping[str, Any] = {alias: spark.createDataFrame(table) for alias, table in case.tables.items()}
    for alias, frame in frames.items():
        frame.cache().count()
        frame.createOrReplaceTempView(alias)
    try:
        yield lambda: int(spark.sql(case.sql()).collect()[0][0])
    finally:
        for alias, frame in frames.items():
            spark.catalog.dropTempView(alias)
            frame.unpersist()
