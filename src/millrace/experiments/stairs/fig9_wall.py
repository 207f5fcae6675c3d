"""Figure 9 on the wall clock: two partitions in Parquet files, with Spark SQL and DuckDB beside."""

from __future__ import annotations

from millrace.benchmarks import state
from millrace.experiments.experiment import Outcome, Parameter, Settings
from millrace.experiments.stairs import races
from millrace.experiments.stated import stated


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    race = races.race("drift_5m", settings)
    seconds = races.seconds_of(race)
    ours = race.sides[state.STAIRS]
    best = race.static
    on_spark = race.ratio(state.ON_SPARK, state.SPARK)
    figures = {
        "static_ratio": ours.median / best,
        "made_ratio": ours.works[0].made / max(1, race.sides[state.BEST].works[0].made),
        "eddyjoins_ratio": race.sides[state.JOINS].median / best,
        "spark_ratio": on_spark,
        "duckdb_ratio": ours.median / race.sides[state.DUCKDB].median,
        "aa_ratio": race.ratio(state.BEST, state.AGAIN),
    }
    return Outcome([races.panel("Two partitions, reading included", seconds)], figures)


EXPERIMENT = stated(
    "stairs-fig9-wall",
    (
        Parameter("scale", 1.0, 0.01, 4.0, "", "of the tables, 5,000,000 tuples each at 1"),
        Parameter("rounds", 3, 2, 50, "", "timed runs of each side"),
    ),
    run,
    wall=True,
)
