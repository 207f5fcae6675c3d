"""Filters by expensive predicates: Millrace's policies against Spark's ``where`` and against the oracle.

The oracle is an eddy that is given the best order of each phase and decides nothing: what it calls is known
beforehand, and the run must agree with that. What every side keeps is compared with the truth in every run.
Accumulators count Spark's calls once, for they are the same in every run; eddies count their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce, wraps
from operator import and_
from typing import TYPE_CHECKING, Any

import millrace
from lab.bench.costly import CHECKSUM, FILTERS, Filter, Function, Truth
from lab.bench.harness import FEW_ROUNDS, Bench, Ran, Run, Target, timed
from millrace.engine.policies import default_policy
from millrace.errors import ExecutionError
from millrace.spark.patches import watch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPARK, ORACLE, DEFAULT = "spark", "oracle", "default"
POLICIES = ("naive", "lottery", "windowed_lottery", "rank", "a_greedy", "bounded")
"""Those of the papers; they run in the first rounds only."""


def measure(run: Run) -> None:
    """Run the benchmark."""
    default = default_policy(joins=False, predicates=True)
    for name in run.names:
        case = FILTERS[name].scaled(run.scale)
        truth = Truth.of(case)
        sides = {
            SPARK: _by_spark(run, case, truth),
            ORACLE: _by_eddy(run, case, truth, "fixed", oracle=True),
            DEFAULT: _by_eddy(run, case, truth, None),
        }
        few = [] if run.quick or len(case.members) == 1 else [each for each in POLICIES if each != default]
        sides |= {policy: _by_eddy(run, case, truth, policy) for policy in few}
        times = run.race(name, sides, control=SPARK, answer=truth.kept, few=few)
        for row in times.rows(about=case.about):
            side = row["side"]
            row |= {"vs_oracle": times.ratio(side, ORACLE), "vs_spark": times.ratio(side, SPARK)}
            run.rows.append(row)
        run.figures |= {
            f"{name}_calls_oracle_ratio": times.note(DEFAULT, "work_vs_oracle"),
            f"{name}_time_oracle_ratio": times.ratio(DEFAULT, ORACLE),
            f"{name}_time_spark_ratio": times.ratio(DEFAULT, SPARK, f"{SPARK} again"),
        }
    run.notes = [
        f"the default policy is {default}; the other policies run in the first {FEW_ROUNDS} rounds only",
        "calls: rows that each predicate, in the order as written, was called for; work: calls times costs",
        "the targets are for scale 1: what a job and learning cost at first weighs more on less",
    ]


def _note(case: Filter, truth: Truth, calls: Sequence[int]) -> dict[str, float]:
    counts = {f"calls_{place}": count for place, count in enumerate(calls, 1)}
    return {"work_vs_oracle": case.work(calls) / case.work(truth.calls), **counts}


def _by_spark(run: Run, case: Filter, truth: Truth) -> Callable[[], Ran]:
    """Return what filters by Spark's ``where``, whose calls are counted beforehand."""
    counters = [run.spark.sparkContext.accumulator(0) for _ in case.members]

    def counting(function: Function, counter: Any) -> Function:
        @wraps(function)  # its annotations tell Spark what it takes
        def keep(identity: Any) -> Any:
            counter.add(len(identity) if hasattr(identity, "__len__") else 1)
            return function(identity)

        return keep

    counted = [counting(f, c) for f, c in zip(case.functions(free=True), counters, strict=True)]
    _kept(_where(_ids(run, case), case, _applied(case, counted)))
    note = _note(case, truth, [counter.value for counter in counters])
    applied = _applied(case, case.functions())
    return lambda: Ran(_kept(_where(_ids(run, case), case, applied)), note)


def _by_eddy(
    run: Run, case: Filter, truth: Truth, policy: str | None, *, oracle: bool = False
) -> Callable[[], Ran]:
    """Return what filters by a policy; the calls of the oracle must be those of the truth."""
    functions = truth.oracle(case) if oracle else case.functions()
    names, applied = [function.__name__ for function in functions], _applied(case, functions)

    def call() -> Ran:
        def keep() -> tuple[DataFrame, tuple[int, int]]:
            filtered = millrace.where(_ids(run, case), *case.native, *applied, policy=policy)
            return filtered, _kept(filtered)

        seconds, (filtered, kept) = timed(keep)
        evaluated = {m.name: m.evaluated for _, m in millrace.report(filtered).modules() if m.evaluated}
        calls = tuple(evaluated.get(f"Predicate({name}(id))", 0) for name in names)
        if oracle and calls != truth.stage_calls:
            raise ExecutionError(f"the oracle called {calls} times, expected {truth.stage_calls}")
        return Ran(kept, _note(case, truth, truth.calls if oracle else calls), seconds)

    return call


def _ids(run: Run, case: Filter) -> DataFrame:
    return run.spark.range(0, case.rows, 1, numPartitions=case.partitions)


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


TARGETS = {f"{name}_time_oracle_ratio": Target(high=1.1) for name in "abcdeg"} | {
    "a_calls_oracle_ratio": Target(high=1.05),
    "b_calls_oracle_ratio": Target(high=1.05),
    "c_calls_oracle_ratio": Target(high=1.1),
    "d_calls_oracle_ratio": Target(high=1.1),
    "a_time_spark_ratio": Target(high=0.15),
    "f_time_spark_ratio": Target(high=1.05),
    "g_time_spark_ratio": Target(high=1.0),
}
BENCH = Bench(measure, tuple(FILTERS), TARGETS, quick=("a", "c", "f"))
