"""Figures 7 and 9 on the wall clock: cases of ``millrace bench state``, with Spark SQL and DuckDB beside."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from rich.progress import Progress

from lab.benchmarks import state
from lab.benchmarks.show import Ticker
from lab.benchmarks.state_cases import CASES
from lab.experiments.experiment import Outcome, Panel, Settings
from millrace.errors import SetupError

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

_SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_NEVER = 2**31
"""Tuples after which routing is decided anew where a broken engine is to keep to its first decisions."""


def compared(name: str, title: str, settings: Settings) -> Outcome:
    """Run a case with Spark beside, on files that are made once and kept; the panel has medians.

    Raises:
        SetupError: Spark, DuckDB or tpchgen-cli is not there.
        ExecutionError: A side's result differs from DuckDB's.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    case = replace(CASES[name], on_spark=True)
    if settings.ablated:
        case = replace(case, every=_NEVER)
    running = SparkSession.getActiveSession()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("millrace experiment").master("local[*]").config(map={**_SETTINGS})
    try:
        spark = running or builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SetupError(f"Spark did not start, which needs Java 17 or later: {error}") from error
    try:
        silent = Ticker(Progress(disable=True), 0)
        found = state.race(spark, case, settings["scale"], settings["rounds"], silent, quick=True)
    finally:
        if running is None:
            spark.stop()
    medians = {side: found.sides[side].median for side in NAMES if side in found.sides}
    ours, best = found.sides[state.STAIRS], found.sides[state.BEST]
    figures = {
        "static_ratio": ours.median / found.static,
        "worst_ratio": found.ratio(state.STAIRS, state.WORST),
        "eddyjoins_ratio": found.ratio(state.STAIRS, state.JOINS),
        "made_ratio": ours.works[0].made / max(1, best.works[0].made),
        "spark_ratio": found.ratio(state.ON_SPARK, state.SPARK),
        "duckdb_ratio": found.ratio(state.STAIRS, state.DUCKDB),
        "aa_ratio": found.ratio(state.BEST, state.AGAIN),
    }
    seconds = {NAMES[side]: median for side, median in medians.items()}
    return Outcome([Panel.bars(f"{title}, reading included", "seconds", seconds, "median")], figures)


def fig7(settings: Settings) -> Outcome:
    """Run the TPC-H query."""
    return compared("fig7", "The TPC-H query", settings)


def fig9(settings: Settings) -> Outcome:
    """Run the join of two partitions."""
    return compared("drift_5m", "Two partitions", settings)
