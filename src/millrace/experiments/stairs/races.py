"""Figures 7 and 9 on the wall clock: cases of ``millrace bench state``, with Spark SQL and DuckDB beside."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.progress import Progress

from millrace.benchmarks import state
from millrace.benchmarks.show import Ticker
from millrace.benchmarks.state_cases import CASES
from millrace.errors import SetupError
from millrace.experiments.experiment import Outcome, Panel, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = {
    state.BEST: "SHJ, best plan",
    state.WORST: "SHJ, worst plan",
    state.JOINS: "EddyJoins",
    state.STEMS: "SteMs",
    state.STAIRS: "STAIRs",
    state.DUCKDB: "DuckDB, one thread",
    state.SPARK: "Spark SQL",
    state.ON_SPARK: "STAIRs on Spark",
}
"""What the sides of a race are called here, in the order of the figure."""


_NEVER = 2**31
"""Tuples after which routing is decided anew where a broken engine is to keep to its first decisions."""


class _Told(Ticker):
    """Tells how far a race is instead of showing it."""

    def __init__(self, total: int, progress: Callable[[float], None]) -> None:
        super().__init__(Progress(disable=True), total)
        self._total = total
        self._done = 0
        self._tell = progress

    def tick(self) -> None:
        """Count one finished run."""
        self._done += 1
        self._tell(min(1.0, self._done / self._total))


def race(name: str, settings: Settings) -> state.Race:
    """Run a case with Spark beside, on files that are made once and kept.

    Args:
        name: Of the case.
        settings: With ``scale`` and ``rounds``.

    Raises:
        SetupError: Spark, DuckDB or tpchgen-cli is not there.
        ExecutionError: A side's result differs from DuckDB's.
    """
    case = replace(CASES[name], on_spark=True)
    if settings.ablated:
        case = replace(case, every=_NEVER)
    rounds = settings.whole("rounds")
    sides = len(NAMES) + 1
    ticker = _Told(sides + case.repeats * rounds * sides, settings.progress)
    with session() as spark:
        return state.race(spark, case, settings["scale"], rounds, ticker, quick=True)


def compared(name: str, title: str, settings: Settings) -> Outcome:
    """Run a case; the panel has the median of each side."""
    found = race(name, settings)
    medians = {side: found.sides[side].median for side in NAMES if side in found.sides}
    ours = medians[state.STAIRS]
    figures = {
        "static_ratio": ours / found.static,
        "worst_ratio": ours / medians[state.WORST],
        "eddyjoins_ratio": ours / medians[state.JOINS],
        "made_ratio": found.sides[state.STAIRS].works[0].made / max(1, found.sides[state.BEST].works[0].made),
        "spark_ratio": found.ratio(state.ON_SPARK, state.SPARK),
        "duckdb_ratio": ours / medians[state.DUCKDB],
        "aa_ratio": found.ratio(state.BEST, state.AGAIN),
    }
    seconds = {NAMES[side]: median for side, median in medians.items()}
    return Outcome([Panel.bars(f"{title}, reading included", "seconds", seconds, "median")], figures)


@contextmanager
def session() -> Iterator[SparkSession]:
    """Give the Spark session that runs, or a local one that is stopped at the end.

    Raises:
        SetupError: None can be started.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("millrace experiment").master("local[*]")
    for key, value in (("driver.memory", "4g"), ("ui.enabled", "false"), ("ui.showConsoleProgress", "false")):
        builder = builder.config(f"spark.{key}", value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SetupError(f"Spark did not start, which needs Java 17 or later: {error}") from error
    try:
        yield spark
    finally:
        spark.stop()


def fig7(settings: Settings) -> Outcome:
    """Run the TPC-H query."""
    return compared("fig7", "The TPC-H query", settings)


def fig9(settings: Settings) -> Outcome:
    """Run the join of two partitions."""
    return compared("drift_5m", "Two partitions", settings)
