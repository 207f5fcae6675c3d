"""SQL queries with Millrace and with Spark, in one session on the same files.

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
from lab.benchmarks import harness
from lab.benchmarks.compare import difference
from lab.benchmarks.show import Ticker
from millrace.errors import ExecutionError
from millrace.reports.run_report import Totals

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from millrace.api.query import Query

MILLRACE, FRAMES, SPARK, AGAIN = "millrace", "millrace on DataFrames", "spark", "spark again"
_MEGABYTE = 1e6


@dataclass
class Case:
    """One query's measurements, seconds in lists of one a round.

    Attributes:
        name: What it is called.
        text: The query.
        blocks: How many joins Millrace took.
        unequal: How its rows differ from Spark's, None when they are equal.
        seconds: Of planning and running, by side.
        planning: What Millrace's planning takes beyond Spark's own analysis: first, and each time after.
        totals: What the eddies did.
        peak_bytes: The largest worker.
    """

    name: str
    text: str
    blocks: int = 0
    unequal: str | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)
    planning: list[float] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    peak_bytes: int = 0

    def ratio(self, side: str = MILLRACE) -> float:
        """Return a side's median over Spark's; both of Spark's runs count, being the same thing."""
        return harness.median(self.seconds[side]) / harness.median(self.spark)

    @property
    def spark(self) -> list[float]:
        """Both of Spark's runs, where there is a control."""
        return self.seconds[SPARK] + self.seconds.get(AGAIN, [])

    @property
    def control(self) -> float:
        """Spark's median over that of Spark's second runs."""
        return harness.median(self.seconds[SPARK]) / harness.median(self.seconds[AGAIN])


def runs(cases: int, rounds: int, *, frames: bool = False, control: bool = True) -> int:
    """Return how many single runs there will be, for the progress bar."""
    return cases * (2 + (2 + control + frames) * rounds)


def run(
    spark: SparkSession,
    tables: Mapping[str, str],
    cases: Sequence[Case],
    rounds: int,
    ticker: Ticker,
    *,
    frames: bool = False,
    control: bool = True,
) -> None:
    """Measure the cases.

    Args:
        spark: The session of all sides.
        tables: Paths by name.
        cases: They are given their measurements.
        rounds: Timed rounds; each case is run once before, by Millrace and by Spark.
        ticker: Told of each run.
        frames: Also run Millrace on DataFrames over the files, instead of the files themselves.
        control: Also run Spark a second time in each round.

    Raises:
        OptionError: Too few rounds.
    """
    harness.check_rounds(rounds)
    given = {name: spark.read.parquet(path) for name, path in tables.items()}
    for name, frame in given.items():
        frame.createOrReplaceTempView(name)
    sides: dict[str, Mapping[str, Any] | None] = {MILLRACE: tables, SPARK: None}
    if control:
        sides[AGAIN] = None
    if frames:
        sides[FRAMES] = given
    for case in cases:
        ticker.says(f"{case.name}, warm-up")
        _warm_up(case, spark, tables, ticker)
    for number in range(rounds):
        for case in cases:
            ticker.says(f"{case.name}, round {number + 1}")
            for side in harness.turned(list(sides), number):
                _measure(case, side, spark, sides[side])
                ticker.tick()


def _warm_up(case: Case, spark: SparkSession, tables: Mapping[str, str], ticker: Ticker) -> None:
    _analysis(spark, case.text)  # of a text that is new to it, Spark's analysis takes longer too
    query, ours, planned, _ = _run_ours(case.text, spark, tables)
    ticker.tick()
    case.planning.append(planned - _analysis(spark, case.text))
    theirs = spark.sql(case.text).collect()
    ticker.tick()
    case.blocks = len(query.blocks)
    case.unequal = difference(ours, theirs)


def _measure(case: Case, side: str, spark: SparkSession, tables: Mapping[str, Any] | None) -> None:
    seconds = case.seconds.setdefault(side, [])
    if tables is None:
        seconds.append(harness.timed(lambda: spark.sql(case.text).collect()))
        return
    analysis = _analysis(spark, case.text)
    query, _, planned, taken = _run_ours(case.text, spark, tables)
    seconds.append(taken)
    if side == MILLRACE:
        case.planning.append(planned - analysis)
        case.totals = _totals(query)
        case.peak_bytes = max(case.peak_bytes, case.totals.peak_bytes)


def _run_ours(
    text: str, spark: SparkSession, tables: Mapping[str, Any]
) -> tuple[Query, list[Row], float, float]:
    """Plan and run a query; return it with its rows, and the seconds of planning and of both."""
    gc.collect()
    start = time.perf_counter()
    query = millrace.query(text, spark, tables)
    planned = time.perf_counter() - start
    rows = query.df.collect()
    return query, rows, planned, time.perf_counter() - start


def _analysis(spark: SparkSession, text: str) -> float:
    """Return how long Spark needs to read and analyse a query, in seconds."""
    start = time.perf_counter()
    spark.sql(text).schema  # noqa: B018  # Spark Connect analyses only now
    return time.perf_counter() - start


def _totals(query: Query) -> Totals:
    """Return what the eddies did; nothing where Spark saw that a block need not run at all."""
    try:
        return query.report().totals
    except ExecutionError:
        return Totals()


def figures(cases: Sequence[Case], prefix: str = "") -> dict[str, float]:
    """Return the figures that all benchmarks of queries have; ratios are over cases with a block.

    Args:
        cases: Measured.
        prefix: Of the names of the ratios.
    """
    taken = [case for case in cases if case.blocks]
    found = {
        f"{prefix}geomean_ratio": harness.geomean([case.ratio() for case in taken]),
        f"{prefix}worst_ratio": max((case.ratio() for case in taken), default=float("nan")),
        "aa_ratio": harness.geomean([case.control for case in cases]),
        f"{prefix or 'queries_'}equal": sum(case.unequal is None for case in cases),
        "queries_taken": len(taken),
        "planning_first_ms": 1000 * harness.median([case.planning[0] for case in cases]),
        "planning_again_ms": 1000 * harness.median([harness.median(case.planning[1:]) for case in cases]),
        "peak_worker_mb": max((case.peak_bytes for case in cases), default=0) / _MEGABYTE,
        "intermediate_tuples": sum(case.totals.intermediate_tuples for case in cases),
        "tuples_routed": sum(case.totals.tuples_routed for case in cases),
        "blocks_sent": sum(case.totals.blocks_exchanged for case in cases),
        "bytes_sent": sum(case.totals.bytes_exchanged for case in cases),
    }
    if any(FRAMES in case.seconds for case in cases):
        found["frames_geomean_ratio"] = harness.geomean([case.ratio(FRAMES) for case in taken])
    return found


def notes(cases: Sequence[Case]) -> list[str]:
    """Return what the table does not say."""
    found = [f"{case.name} differs: {case.unequal}" for case in cases if case.unequal]
    if untaken := [case.name for case in cases if not case.blocks]:
        found.append(f"no join taken in {', '.join(untaken)}: left to Spark, not in the geometric mean")
    return found


def row(case: Case) -> dict[str, Any]:
    """Return a case as a row of the table."""
    found = {
        "query": case.name,
        "blocks": case.blocks,
        "millrace_s": harness.median(case.seconds[MILLRACE]),
        "spark_s": harness.median(case.spark),
        "ratio": case.ratio(),
        "spread": harness.spread(case.seconds[MILLRACE]),
        "spark_spread": harness.spread(case.spark),
        "control": case.control,
        "planning_ms": 1000 * harness.median(case.planning[1:]),
        "equal": case.unequal is None,
        "intermediate_tuples": case.totals.intermediate_tuples,
        "tuples_routed": case.totals.tuples_routed,
        "blocks_sent": case.totals.blocks_exchanged,
    }
    if FRAMES in case.seconds:
        found["frames_ratio"] = case.ratio(FRAMES)
    return found
