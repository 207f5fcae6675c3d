"""Figure 7 on the wall clock: the TPC-H query on Parquet files, with Spark SQL and DuckDB beside."""

from __future__ import annotations

from millrace.benchmarks import state
from millrace.experiments.experiment import Outcome, Parameter, Settings
from millrace.experiments.stairs import races
from millrace.experiments.stated import stated


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    race = races.race("fig7", settings)
    seconds = races.seconds_of(race)
    ours = race.sides[state.STAIRS].median
    static, worst = race.static, race.sides[state.WORST].median
    figures = {
        "static_ratio": ours / static,
        "worst_ratio": ours / worst,
        "eddyjoins_ratio": ours / race.sides[state.JOINS].median,
        "spark_ratio": race.ratio(state.ON_SPARK, state.SPARK),
        "duckdb_ratio": ours / race.sides[state.DUCKDB].median,
        "aa_ratio": race.ratio(state.BEST, state.AGAIN),
    }
    return Outcome([races.panel("The TPC-H query, reading included", seconds)], figures)


EXPERIMENT = stated(
    "stairs-fig7-wall",
    (
        Parameter("scale", 1.0, 0.01, 10.0, "", "TPC-H's scale factor"),
        Parameter("rounds", 3, 2, 50, "", "timed runs of each side"),
    ),
    run,
    wall=True,
)
