"""Join state: static plans, EddyJoins, SteMs and STAIRs on the same files and the same order of arrival.

Deshpande & Hellerstein 2004, section 5. What each makes, probes and holds is counted, and timed with the
reading of the files, one thread each; where there is something to win in a plain query, Spark runs beside.
Every result is checked against DuckDB's. The A/A control is the best static plan a second time in each round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lab.benchmarks import budget, harness, state_migrate, state_sides
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.show import Ticker
from lab.benchmarks.state_cases import BUDGET, CASES, MIGRATE, Arriving, Case
from lab.benchmarks.state_migrate import Migration
from lab.benchmarks.state_plans import Plans
from lab.benchmarks.state_sides import Side
from millrace.engine.architectures.choice import architecture_of
from millrace.engine.migration import default_migration
from millrace.errors import SetupError
from millrace.options import ALGORITHMS, ARCHITECTURES, MIGRATIONS, Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEST, AGAIN, WORST = "static best", "static best again", "static worst"
JOINS, STEMS, STAIRS, DUCKDB = "joins", "stems", "stairs", "duckdb"
SPARK, ON_SPARK = "spark", "on spark"
OTHERS_ROUNDS = 2
"""Sides that no target is about run in the first rounds only."""

_TARGETS = {
    "drift_tuples_ratio": Target(high=0.1),
    "drift_time_ratio": Target(high=0.5),
    "drift_spark_ratio": Target(high=0.2),
    "drift_duckdb_ratio": Target(high=1.0),
    "fig7_static_ratio": Target(high=1.1),
    "star5_static_ratio": Target(high=1.15),
    "path5_static_ratio": Target(high=1.15),
    "eddyjoins_worst_ratio": Target(high=1.15),
    "auto_worst_ratio": Target(high=1.05),
    "migrate_ratio": Target(high=2.0),
    "budget_peak_ratio": Target(high=1.1),
    "aa_ratio": Target(0.9, 1.1, informational=True),
}
_SPILLING = (
    *((algorithm, "stems") for algorithm in ALGORITHMS),
    *(("hybrid", architecture) for architecture in ARCHITECTURES if architecture != "stems"),
)
"""Algorithms and architectures that run under a memory budget."""

_DRIFT = {"drift_5m": "", "drift_50k": "_50k"}
"""Endings of the figures."""


@dataclass(frozen=True)
class Race:
    """A case with its sides, by name.

    Attributes:
        case: The case.
        plans: Its static plans.
        sides: By name.
        others: Those that do not take part in every round.
        chosen: The one with the join state that is the default for such arrivals.
    """

    case: Case
    plans: Plans
    sides: Mapping[str, Side]
    others: frozenset[str]
    chosen: str

    def ratio(self, one: str, other: str) -> float:
        """Return the median of one side over that of another."""
        return self.sides[one].median / self.sides[other].median

    @property
    def static(self) -> float:
        """Seconds of the best static plan; both of its sides count as one, being the same thing."""
        return harness.median([*self.sides[BEST].seconds, *self.sides[AGAIN].seconds])

    @property
    def chosen_ratio(self) -> float:
        """The median with the join state that is chosen where none is asked for, over that of the best."""
        return max(self.ratio(self.chosen, each) for each in (STEMS, STAIRS))

    def figures(self) -> dict[str, float]:
        """Return what the case has figures of its own for."""
        stairs, static = self.sides[STAIRS], self.static
        if self.case.name not in _DRIFT:
            return {f"{self.case.name}_static_ratio": stairs.median / static}
        made = harness.median([work.made for work in stairs.works])
        found = {
            "drift_tuples_ratio": made / max(1, self.sides[BEST].works[0].made),
            "drift_time_ratio": stairs.median / static,
            "drift_spark_ratio": self.ratio(ON_SPARK, SPARK),
            "drift_spark_inprocess_ratio": self.ratio(STAIRS, SPARK),
            "drift_duckdb_ratio": self.ratio(STAIRS, DUCKDB),
        }
        return {f"{name}{_DRIFT[self.case.name]}": value for name, value in found.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each side."""
        return [{"case": self.case.name, **side.row()} for side in self.sides.values()]


def runs(names: Sequence[str], rounds: int, *, quick: bool = False) -> int:
    """Return how many single runs there will be, for the progress bar."""
    total = 0
    for name in names:
        if name in CASES:
            case = CASES[name]
            steady, others = _names(case, quick=quick)
            taking = _rounds(case, rounds)
            total += len(steady) + len(others) - 1
            total += case.repeats * (taking * len(steady) + min(taking, OTHERS_ROUNDS) * len(others))
        else:
            total += rounds + 1 if name == MIGRATE else len(_SPILLING)
    return total


def bench(
    spark: SparkSession | None,
    names: Sequence[str],
    scale: float,
    rounds: int,
    ticker: Ticker,
    *,
    quick: bool = False,
) -> Outcome:
    """Run the benchmark.

    Args:
        spark: A session, where one of the cases needs it.
        names: Of the cases.
        scale: TPC-H's scale factor, and the size of all other tables over their full size.
        rounds: Timed ones.
        ticker: Shows the progress.
        quick: Leave out the migration policies other than the default.

    Raises:
        OptionError: Too few rounds.
        SetupError: DuckDB is not installed.
        ExecutionError: A side's result differs from DuckDB's.
    """
    harness.check_rounds(rounds)
    if find_spec("duckdb") is None:
        raise SetupError("duckdb is not installed: pip install 'millrace[bench]'")
    races = [race(spark, CASES[n], scale, rounds, ticker, quick=quick) for n in names if n in CASES]
    migration = _migrate(scale, rounds, ticker) if MIGRATE in names else None
    measured = _budget(scale, ticker) if BUDGET in names else []
    return _outcome(races, migration, measured, scale, rounds)


def race(
    spark: SparkSession | None, case: Case, scale: float, rounds: int, ticker: Ticker, *, quick: bool = False
) -> Race:
    """Measure one case; see :func:`bench`."""
    ticker.says(f"{case.name}: {case.about}, data")
    arriving = Arriving(case.scaled(scale), case.files(scale))
    with ExitStack() as stack:
        connection = stack.enter_context(state_sides.connected(arriving.paths))
        ticker.says(f"{case.name}: {case.about}, warm-up")
        plans = Plans.of(arriving.case, lambda query: state_sides.counted(connection, query))
        steady, others = _names(case, quick=quick)
        sides: dict[str, Side] = {}
        for name in (*steady, *others):
            if name == DUCKDB:
                sides[name] = state_sides.by_duckdb(name, arriving, connection)
            elif name in (SPARK, ON_SPARK):
                assert spark is not None, f"case {case.name} needs a Spark session"
                make = state_sides.by_spark if name == SPARK else state_sides.by_millrace_on_spark
                sides[name] = make(name, arriving, spark)
            else:
                sides[name] = _ours(name, arriving, plans)
            if name != AGAIN:
                sides[name].warm()
                ticker.tick()
        for number in range(_rounds(case, rounds)):
            ticker.says(f"{case.name}: {case.about}, round {number + 1}")
            taking = [*steady, *others] if number < OTHERS_ROUNDS else list(steady)
            for name in harness.turned(taking, number):
                for _ in range(case.repeats):
                    sides[name].measure(plans.rows)
                    ticker.tick()
    chosen = architecture_of(arriving.spec, Options(), side_by_side=True).name
    return Race(case, plans, sides, frozenset(others), chosen)


def _names(case: Case, *, quick: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sides of every round, and those of the first rounds only."""
    steady = [BEST, AGAIN, JOINS, STAIRS]
    others = [WORST, STEMS]
    if case.on_spark:
        steady += [DUCKDB, SPARK, ON_SPARK]
    else:
        others.append(DUCKDB)
    if case.policies and not quick:
        others += [f"{STAIRS} {name}" for name in MIGRATIONS if name != default_migration()]
    return tuple(steady), tuple(others)


def _rounds(case: Case, rounds: int) -> int:
    return rounds if case.rounds is None else min(rounds, case.rounds)


def _ours(name: str, arriving: Arriving, plans: Plans) -> Side:
    if name in (BEST, AGAIN, WORST):
        order = plans.worst if name == WORST else plans.best
        return state_sides.by_millrace(name, arriving, "static", order)
    architecture, *migration = name.split()
    return state_sides.by_millrace(name, arriving, architecture, migration=next(iter(migration), None))


def _migrate(scale: float, rounds: int, ticker: Ticker) -> Migration:
    ticker.says("migrate: settling over routing, warm-up")
    rows = max(10, round(state_migrate.ROWS * scale))
    Migration.of(min(rows, 10_000)).measure()
    ticker.tick()
    migration = Migration.of(rows)
    for number in range(rounds):
        ticker.says(f"migrate: settling over routing, round {number + 1}")
        migration.measure()
        ticker.tick()
    return migration


def _budget(scale: float, ticker: Ticker) -> list[budget.Measured]:
    """Run each algorithm and each architecture once, in memory as large as the scale, 128 MB at most."""
    most = 128 * budget.MEGABYTE
    measured = []
    for algorithm, architecture in _SPILLING:
        ticker.says(f"budget: four times the memory, {algorithm}, {architecture}")
        size = round(most * min(1.0, max(0.03, scale)))
        measured.append(budget.run(algorithm, size, architecture=architecture))
        ticker.tick()
    return measured


def _outcome(
    races: Sequence[Race],
    migration: Migration | None,
    measured: Sequence[budget.Measured],
    scale: float,
    rounds: int,
) -> Outcome:
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for each in races:
        figures |= each.figures()
        rows += each.rows()
    if races:
        figures["eddyjoins_worst_ratio"] = max(each.ratio(STAIRS, JOINS) for each in races)
        figures["auto_worst_ratio"] = max(each.chosen_ratio for each in races)
    if migration is not None:
        figures["migrate_ratio"] = migration.ratio
        rows += [{"case": MIGRATE, **row} for row in migration.rows()]
    if measured:
        figures["budget_peak_ratio"] = max((one.ratio for one in measured), default=math.nan)
        rows += [
            {
                "case": BUDGET,
                "side": f"{one.algorithm}, {one.architecture}",
                "runs": 1,
                "median_s": one.seconds,
                "rows": one.rows,
                "peak_ratio": one.ratio,
                "written_mb": one.written / budget.MEGABYTE,
            }
            for one in measured
        ]
    if races:
        figures["aa_ratio"] = harness.geomean([each.ratio(BEST, AGAIN) for each in races])
    targets = {name: target for name, target in _TARGETS.items() if name in figures}
    return Outcome("state", scale, rounds, figures, rows, targets, _notes(races, scale))


def _notes(races: Sequence[Race], scale: float) -> list[str]:
    notes = [
        f"{each.case.name}: {each.case.about}; best plan {', '.join(each.plans.best)}, "
        f"worst {', '.join(each.plans.worst)}"
        for each in races
    ]
    notes += [
        "made: intermediate tuples and those recomputed while state was moved; peak state: most tuples held",
        f"stairs move state by the policy {default_migration()}",
        f"sides that no target is about run in the first {OTHERS_ROUNDS} rounds only",
        "the best and the worst static plan are told from the exact sizes of what their joins make",
        "what is timed is count(*), the reading of the files included",
    ]
    if scale < 1:
        notes.append("the targets are for scale 1: fixed costs weigh more on less")
    return notes
