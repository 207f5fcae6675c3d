"""What a filter will cost, from a sample that is really judged."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, functions as sf

from millrace.errors import OptionError, PredicateError, near
from millrace.predicates import PredicateSpec
from millrace.predicates.calls import KEPT, RAISED
from millrace.predicates.estimate import Estimate, Judged, estimated
from millrace.spark.filter import conditions_of
from millrace.spark.judging import drawn, judged
from millrace.spark.predicates import Applied
from millrace.spark.values import spark_values


def estimate(
    df: DataFrame,
    *predicates: object,
    sample: int = 200,
    seed: int = 0,
    prices: Mapping[str, float] | None = None,
) -> Estimate:
    """Return what a filter is expected to take; see :func:`millrace.estimate`."""
    conditions = conditions_of(predicates)
    applied = [each for each in conditions if isinstance(each, Applied)]
    if not applied:
        raise PredicateError("there is no predicate of Python to estimate: Spark evaluates all conditions")
    names = [each.spec.name for each in applied]
    for name, price in (prices or {}).items():
        if name not in names:
            raise OptionError(f"prices have a predicate {name!r}: {near(name, names)}")
        if not price >= 0:
            raise OptionError(f"the price of {name!r} is {price!r}: expected a number that is not negative")
    for condition in conditions:
        if not isinstance(condition, Applied):
            df = df.where(condition)
    arrays = drawn(df, [c for each in applied for c in each.columns()], sample, seed, "an estimate")
    totals = [sf.count(sf.lit(1))]
    totals += [sf.approx_count_distinct(sf.struct(*each.columns())) for each in applied if each.spec.dedupe]
    rows, *distinct = df.agg(*totals).collect()[0]
    values, found = spark_values(df.sparkSession), list[Judged]()
    for each in applied:
        mine, arrays = arrays[: len(each.arguments)], arrays[len(each.arguments) :]
        outcome, bill = judged(each.spec, mine, values)
        found.append(
            Judged(
                each.spec.name,
                outcome.truth == KEPT,
                bill.seconds,
                each.spec.per_second,
                distinct.pop(0) if each.spec.dedupe else None,
                float((prices or {}).get(each.spec.name, _price(each.spec))),
                int((outcome.truth == RAISED).sum()),
                each.spec.batch or 1,
                bill.asked,
                bill.requests,
                0.0 if each.spec.name in (prices or {}) else bill.cost,
            )
        )
    return estimated(rows, found)


def _price(spec: PredicateSpec) -> float:
    """Return what a call costs by the predicate's own word, where that is a number."""
    return float(spec.cost) if isinstance(spec.cost, int | float) else 0.0
