"""Filters by expensive predicates: Millrace's policies against Spark's ``where`` and against the oracle.

The oracle is an eddy that is given the best order of each phase and decides nothing: what it calls is known
beforehand, and the run must agree with that. What every side keeps is compared with the truth in every run.
Accumulators count Spark's calls once, for they are the same in every run; eddies count their own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from operator import and_
from typing import TYPE_CHECKING, Any

import millrace
from lab.bench.costly import CHECKSUM, FILTERS, Filter, Function, Truth
from lab.bench.harness import CONTROL, FEW_ROUNDS, Bench, Outcome, Ran, Run, geomean, race, timed
from millrace.engine.policies import default_policy
from millrace.errors import ExecutionError
from millrace.spark.patches import watch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPARK, AGAIN, ORACLE, DEFAULT = "spark", "spark again", "oracle", "default"
POLICIES = ("naive", "lottery", "windowed_lottery", "rank", "a_greedy", "bounded")
"""Those of the papers; they run in the first rounds only."""


def measure(run: Run) -> Outcome:
    """Run the benchmark."""
    outcome, controls = Outcome(), []
    default = default_policy(joins=False, predicates=True)
    for name in run.names:
        case = FILTERS[name].scaled(run.scale)
        truth = Truth.of(case)
        spark = _by_spark(run, case, _spark_calls(run, case))
        oracle, members = truth.oracle(case), [member.name for member in case.members]
        sides = {
            SPARK: spark,
            AGAIN: spark,
            ORACLE: _by_eddy(run, case, oracle, [f.__name__ for f in oracle], "fixed", truth),
            DEFAULT: _by_eddy(run, case, case.functions(), members, None),
        }
        few = [] if run.quick or len(members) == 1 else [policy for policy in POLICIES if policy != default]
        sides |= {policy: _by_eddy(run, case, case.functions(), members, policy) for policy in few}
        times = race(run, f"{name}, {case.about}", sides, answer=truth.kept, few=few)
        best = case.work(truth.calls)
        for row in times.rows(case=name):
            calls = times.notes[row["side"]]
            row["vs_oracle"] = times.ratio(row["side"], ORACLE)
            row["vs_spark"] = times.ratio(row["side"], SPARK)
            row["work_vs_oracle"] = statistics.median(map(case.work, calls)) / best
            for place, counts in enumerate(zip(*calls, strict=True), 1):
                row[f"calls_{place}"] = round(statistics.median(counts))
            outcome.rows.append(row)
        outcome.figures |= {
            f"{name}_calls_oracle_ratio": statistics.median(map(case.work, times.notes[DEFAULT])) / best,
            f"{name}_time_oracle_ratio": times.ratio(DEFAULT, ORACLE),
            f"{name}_time_spark_ratio": times.ratio(DEFAULT, SPARK, AGAIN),
        }
        outcome.targets |= {f"{name}_{tail}": target for tail, target in case.targets.items()}
        controls.append(times.ratio(SPARK, AGAIN))
    outcome.figures["aa_ratio"] = geomean(controls)
    outcome.targets["aa_ratio"] = CONTROL
    outcome.notes = [
        f"the default policy is {default}; the other policies run in the first {FEW_ROUNDS} rounds only",
        "calls: rows that each predicate, in the order as written, was called for; work: calls times costs",
        "the targets are for scale 1: what a job and learning cost at first weighs more on less",
    ]
    return outcome


def _spark_calls(run: Run, case: Filter) -> tuple[int, ...]:
    """Return how often Spark's ``where`` calls each predicate."""
    counters = [run.spark.sparkContext.accumulator(0) for _ in case.members]

    def counting(function: Function, counter: Any) -> Function:
        @wraps(function)  # its annotations tell Spark what it takes
        def keep(identity: Any) -> Any:
            counter.add(len(identity) if hasattr(identity, "__len__") else 1)
            return function(identity)

        return keep

    counted = [counting(f, c) for f, c in zip(case.functions(free=True), counters, strict=True)]
    _kept(_where(_ids(run, case), case, _applied(case, counted)))
    return tuple(counter.value for counter in counters)


def _by_spark(run: Run, case: Filter, calls: tuple[int, ...]) -> Callable[[], Ran]:
    applied = _applied(case, case.functions())
    return lambda: Ran(_kept(_where(_ids(run, case), case, applied)), calls)


def _by_eddy(
    run: Run,
    case: Filter,
    functions: Sequence[Function],
    names: Sequence[str],
    policy: str | None,
    truth: Truth | None = None,
) -> Callable[[], Ran]:
    """Return what filters by a policy; the calls must be those of the ``truth``, where it is given."""
    applied = _applied(case, functions)

    def call() -> Ran:
        kept: list[tuple[int, int]] = []
        filtered: list[DataFrame] = []

        def keep() -> None:
            filtered.append(millrace.where(_ids(run, case), *case.native, *applied, policy=policy))
            kept.append(_kept(filtered[0]))

        seconds = timed(keep)
        evaluated = {m.name: m.evaluated for _, m in millrace.report(filtered[0]).modules() if m.evaluated}
        calls = tuple(evaluated.get(f"Predicate({name}(id))", 0) for name in names)
        if truth is None:
            return Ran(kept[0], calls, seconds)
        if calls != truth.stage_calls:
            raise ExecutionError(
                f"case {case.name}: the oracle's predicates were called {calls} times, expected "
                f"{truth.stage_calls}"
            )
        return Ran(kept[0], truth.calls, seconds)

    return call


def _ids(run: Run, case: Filter) -> DataFrame:
    return run.spark.range(0, case.rows, 1, numPartitions=case.layout.partitions)


def _applied(case: Filter, functions: Sequence[Function]) -> list[Column]:
    """Return functions as PySpark's own, applied to the ids: the same for Spark and for Millrace."""
    from pyspark.sql.functions import udf
    from pyspark.sql.pandas.functions import pandas_udf

    watch()  # in a process of its own nothing of Millrace has been used yet
    if case.kind == "pandas":
        of_pandas: Any = pandas_udf  # its stubs do not know functions that take what a Series holds
        return [of_pandas(function, "boolean")("id") for function in functions]
    # With Arrow is Spark's default too; said aloud, Spark does not look for types of pandas in the hints.
    return [udf(function, "boolean", useArrow=True)("id") for function in functions]


def _where(ids: DataFrame, case: Filter, applied: Sequence[Column]) -> DataFrame:
    """Return Spark's filter, all conditions in one expression."""
    from pyspark.sql.functions import expr

    return ids.where(reduce(and_, [*map(expr, case.native), *applied]))


def _kept(filtered: DataFrame) -> tuple[int, int]:
    """Run a filter; return how many rows it keeps, and their checksum."""
    rows, checksum = filtered.selectExpr("count(*)", f"coalesce(sum({CHECKSUM}), 0)").collect()[0]
    return rows, checksum


BENCH = Bench(measure, tuple(FILTERS), quick=("a", "c", "f"))
