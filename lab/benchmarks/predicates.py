"""Filters by expensive predicates: Millrace's policies against Spark's ``where`` and against the oracle.

The oracle is an eddy that is told the best order of each phase and decides nothing: what it calls is
known beforehand, and the run must agree with that. What every side keeps is checked against the
truth in every run. Calls are counted once for Spark (they are the same in every run), and by the
eddies themselves for Millrace. The A/A control is Spark's ``where`` a second time in each round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce, wraps
from operator import and_
from typing import TYPE_CHECKING, Any

import millrace
from lab.benchmarks import harness
from lab.benchmarks.costly import Function
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.predicate_cases import CASES, CHECKSUM, Case, Truth, weighted
from lab.benchmarks.show import Ticker
from millrace.engine.policies import default_policy
from millrace.errors import ExecutionError
from millrace.spark.patches import watch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SPARK, AGAIN, ORACLE, DEFAULT = "spark", "spark again", "oracle", "default"
STEADY = (SPARK, AGAIN, ORACLE, DEFAULT)
"""Sides of every round; the other policies run in the first ones only."""

OTHERS_ROUNDS = 2
FAMOUS = ("naive", "lottery", "windowed_lottery", "rank", "a_greedy", "bounded")


@dataclass
class Side:
    """One way to run a case.

    Attributes:
        run: Runs it and checks the answer.
        calls: Returns the calls of each predicate in the latest run.
        seconds: Of each round.
        called: Calls of each round.
    """

    run: Callable[[], object]
    calls: Callable[[], tuple[int, ...]]
    seconds: list[float] = field(default_factory=list)
    called: list[tuple[int, ...]] = field(default_factory=list)

    def measure(self) -> None:
        """Run it once more."""
        self.seconds.append(harness.timed(self.run))
        self.called.append(self.calls())


@dataclass(frozen=True)
class Race:
    """A case with its sides, by name."""

    case: Case
    truth: Truth
    sides: Mapping[str, Side]

    @property
    def oracle_work(self) -> float:
        """Cost-weighted calls of the best orders."""
        return weighted(self.case, self.truth.calls)

    def work(self, name: str) -> float:
        """Return a side's cost-weighted calls, the median over its rounds."""
        return harness.median([weighted(self.case, calls) for calls in self.sides[name].called])

    def seconds(self, name: str) -> float:
        """Return a side's median; both of Spark's count as one, being the same thing."""
        names = (SPARK, AGAIN) if name == SPARK else (name,)
        return harness.median([s for each in names for s in self.sides[each].seconds])

    @property
    def control(self) -> float:
        """Spark's median over that of its second runs."""
        return harness.median(self.sides[SPARK].seconds) / self.seconds(AGAIN)

    def figures(self) -> dict[str, float]:
        """Return what becomes of the default policy."""
        ours = self.seconds(DEFAULT)
        return {
            f"{self.case.name}_calls_oracle_ratio": self.work(DEFAULT) / self.oracle_work,
            f"{self.case.name}_time_oracle_ratio": ours / self.seconds(ORACLE),
            f"{self.case.name}_time_spark_ratio": ours / self.seconds(SPARK),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each side."""
        return [self._row(name, side) for name, side in self.sides.items()]

    def _row(self, name: str, side: Side) -> dict[str, Any]:
        row: dict[str, Any] = {
            "case": self.case.name,
            "side": name,
            "rounds": len(side.seconds),
            "median_s": harness.median(side.seconds),
            "spread": harness.spread(side.seconds),
            "vs_oracle": harness.median(side.seconds) / self.seconds(ORACLE),
            "vs_spark": harness.median(side.seconds) / self.seconds(SPARK),
            "work_vs_oracle": self.work(name) / self.oracle_work,
        }
        for place, counts in enumerate(zip(*side.called, strict=True), 1):
            row[f"calls_{place}"] = round(harness.median(counts))
        return row


def others(case: Case, *, quick: bool) -> tuple[str, ...]:
    """Return the policies to run beside the default; where there is one predicate none has a choice."""
    if quick or len(case.members) == 1:
        return ()
    return tuple(name for name in FAMOUS if name != default_policy(joins=False, predicates=True))


def runs(names: Sequence[str], rounds: int, *, quick: bool = False) -> int:
    """Return how many single runs there will be, for the progress bar."""
    # Before the rounds, Spark runs once to count and once to warm up, for both of its sides.
    steady = len(STEADY) * (1 + rounds)
    return sum(steady + OTHERS_ROUNDS * len(others(CASES[name], quick=quick)) for name in names)


def bench(
    spark: SparkSession,
    names: Sequence[str],
    scale: float,
    rounds: int,
    ticker: Ticker,
    *,
    quick: bool = False,
) -> Outcome:
    """Run the benchmark.

    Args:
        spark: A classic session, for its accumulators count Spark's calls.
        names: Of the cases.
        scale: Rows of each case over those at which Spark takes two seconds or more on two cores.
        rounds: Timed ones.
        ticker: Shows the progress.
        quick: Leave out the policies other than the default.

    Raises:
        OptionError: Too few rounds.
        ExecutionError: A side kept other rows than it should, or the oracle called what it should not.
    """
    harness.check_rounds(rounds)
    races = [
        race(spark, CASES[name].scaled(scale), others(CASES[name], quick=quick), rounds, ticker)
        for name in names
    ]
    return _outcome(races, scale, rounds)


def race(spark: SparkSession, case: Case, policies: Sequence[str], rounds: int, ticker: Ticker) -> Race:
    """Measure one case; see :func:`bench`."""
    ticker.says(f"({case.name}) {case.about}, warm-up")
    truth = Truth.of(case)
    calls = spark_calls(spark, case, truth)
    ticker.tick()
    sides = {name: _by_spark(spark, case, truth, calls) for name in (SPARK, AGAIN)}
    sides[ORACLE] = _by_oracle(spark, case, truth)
    sides[DEFAULT] = _by_policy(spark, case, truth, None)
    for name in STEADY:
        if name != AGAIN:
            sides[name].run()
            sides[name].calls()
            ticker.tick()
    sides |= {name: _by_policy(spark, case, truth, name) for name in policies}
    for number in range(rounds):
        ticker.says(f"({case.name}) {case.about}, round {number + 1}")
        taking = list(sides) if number < OTHERS_ROUNDS else list(STEADY)
        for name in harness.turned(taking, number):
            sides[name].measure()
            ticker.tick()
    return Race(case, truth, sides)


def spark_calls(spark: SparkSession, case: Case, truth: Truth) -> tuple[int, ...]:
    """Return how often Spark's ``where`` calls each predicate, counted by accumulators."""
    counters = [spark.sparkContext.accumulator(0) for _ in case.members]
    counted = [_counting(f, c) for f, c in zip(case.functions(free=True), counters, strict=True)]
    _check(case, SPARK, truth, _where(_ids(spark, case), case, _applied(case, counted)))
    return tuple(counter.value for counter in counters)


def _counting(function: Function, counter: Any) -> Function:
    @wraps(function)  # its annotations tell Spark what it takes
    def keep(identity: Any) -> Any:
        counter.add(len(identity) if hasattr(identity, "__len__") else 1)
        return function(identity)

    return keep


def _by_spark(spark: SparkSession, case: Case, truth: Truth, calls: tuple[int, ...]) -> Side:
    applied = _applied(case, case.functions())
    return Side(lambda: _check(case, SPARK, truth, _where(_ids(spark, case), case, applied)), lambda: calls)


def _by_policy(spark: SparkSession, case: Case, truth: Truth, policy: str | None) -> Side:
    names = [member.name for member in case.members]
    return _by_eddy(spark, case, truth, case.functions(), names, policy, policy or DEFAULT)


def _by_oracle(spark: SparkSession, case: Case, truth: Truth) -> Side:
    functions = truth.oracle(case)
    side = _by_eddy(spark, case, truth, functions, [f.__name__ for f in functions], "fixed", ORACLE)
    measured = side.calls

    def calls() -> tuple[int, ...]:
        if (found := measured()) != truth.stage_calls:
            raise ExecutionError(
                f"case ({case.name}): the oracle's predicates were called {found} times, expected "
                f"{truth.stage_calls}"
            )
        return truth.calls

    side.calls = calls
    return side


def _by_eddy(
    spark: SparkSession,
    case: Case,
    truth: Truth,
    functions: Sequence[Function],
    names: Sequence[str],
    policy: str | None,
    side: str,
) -> Side:
    applied = _applied(case, functions)
    latest: list[DataFrame] = []

    def run() -> None:
        native = [] if case.native is None else [case.native]
        filtered = millrace.where(_ids(spark, case), *native, *applied, policy=policy)
        latest[:] = [filtered]
        _check(case, side, truth, filtered)

    def calls() -> tuple[int, ...]:
        evaluated = {m.name: m.evaluated for _, m in millrace.report(latest[0]).modules() if m.evaluated}
        return tuple(evaluated.get(f"Predicate({name}(id))", 0) for name in names)

    return Side(run, calls)


def _ids(spark: SparkSession, case: Case) -> DataFrame:
    return spark.range(0, case.rows, 1, numPartitions=case.layout.partitions)


def _applied(case: Case, functions: Sequence[Function]) -> list[Column]:
    """Return functions as PySpark's own, applied to the ids: the same for Spark and for Millrace."""
    from pyspark.sql.functions import udf
    from pyspark.sql.pandas.functions import pandas_udf

    watch()  # in a process of its own nothing of Millrace has been used yet

    if case.kind == "pandas":
        of_pandas: Any = pandas_udf  # its stubs do not know functions that take what a Series holds
        return [of_pandas(function, "boolean")("id") for function in functions]
    # With Arrow is Spark's default too; said aloud, Spark does not look for types of pandas in the hints.
    return [udf(function, "boolean", useArrow=True)("id") for function in functions]


def _where(ids: DataFrame, case: Case, applied: Sequence[Column]) -> DataFrame:
    """Return Spark's filter, all conditions in one expression."""
    from pyspark.sql.functions import expr

    native = [] if case.native is None else [expr(case.native)]
    return ids.where(reduce(and_, [*native, *applied]))


def _check(case: Case, side: str, truth: Truth, filtered: DataFrame) -> None:
    """Run a filter and compare what it keeps with what it should keep."""
    found = filtered.selectExpr("count(*)", f"coalesce(sum({CHECKSUM}), 0)").collect()[0]
    if tuple(found) != (truth.kept, truth.checksum):
        raise ExecutionError(
            f"case ({case.name}), {side}: {found[0]} rows are kept with checksum {found[1]}, expected "
            f"{truth.kept} with {truth.checksum}"
        )


def _outcome(races: Sequence[Race], scale: float, rounds: int) -> Outcome:
    figures: dict[str, float] = {}
    targets: dict[str, Target] = {}
    for each in races:
        figures |= each.figures()
        targets |= {f"{each.case.name}_{tail}": target for tail, target in each.case.targets.items()}
    figures["aa_ratio"] = harness.geomean([each.control for each in races])
    targets["aa_ratio"] = Target(0.9, 1.1, informational=True)
    default = default_policy(joins=False, predicates=True)
    notes = [
        *(_described(each.case) for each in races),
        f"the default policy is {default}; the other policies run in the first {OTHERS_ROUNDS} rounds only",
        "calls: rows that each predicate, in the order as written, was called for; work: calls times costs",
    ]
    if scale < 1:
        notes.append("the targets are for scale 1: what a job and learning cost at first weighs more on less")
    rows = [row for each in races for row in each.rows()]
    return Outcome("predicates", scale, rounds, figures, rows, targets, notes)


def _described(case: Case) -> str:
    """Return what a case is, in a sentence."""
    members = ", ".join(
        f"{member.micros:g} µs keeping {' then '.join(f'{share:.0%}' for share in member.keeps)}"
        for member in case.members
    )
    return f"({case.name}) {case.rows:,} rows in {case.layout.partitions} partitions, {case.about}: {members}"
