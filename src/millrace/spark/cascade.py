"""Cascades over DataFrames: learn thresholds on a sample, then filter by both stages in one eddy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, functions as sf

from millrace.errors import ExecutionError, PredicateError
from millrace.predicates.calls import KEPT, RAISED, Values
from millrace.predicates.cascade import Maybe, Score, Thresholds, learned
from millrace.predicates.spec import PredicateSpec
from millrace.spark.judging import drawn, judged
from millrace.spark.predicates import Applied, Predicate, check_arity
from millrace.spark.values import spark_values


@dataclass(frozen=True)
class Cascade:
    """A cheap score before a costly predicate, not fitted to any data yet.

    Attributes:
        score: Cheap.
        costly: Decides where the score is not sure.
        recall: Share of the rows that the costly predicate keeps which are to be kept, at least.
        precision: Share of the kept rows that it keeps, at least.
        confidence: Probability with which both hold.
    """

    score: Score
    costly: Predicate
    recall: float
    precision: float
    confidence: float

    def learn(self, df: DataFrame, *columns: str, sample: int = 1000, seed: int = 0) -> FittedCascade:
        """Let both stages judge a uniform sample of a DataFrame, and find the thresholds.

        The sample is judged in this process, by so many calls of the costly predicate.

        Args:
            df: The rows to be filtered, or others like them.
            columns: Names of the arguments.
            sample: Rows to judge. To lose at most a share of 0.05 with a confidence of 0.95 the predicate has
                to keep 80 rows of it, or nothing is rejected unseen.
            seed: Of the sample.

        Raises:
            OptionError: The size of the sample is out of range.
            ExecutionError: The costly predicate raised.
            PredicateError: A function takes other arguments, or returns something else than it should.
        """
        check_arity(self.costly.spec, len(columns))
        check_arity(PredicateSpec("score", self.score.function), len(columns))
        arrays = drawn(df, [sf.col(name) for name in columns], sample, seed, "a cascade")
        return self.fit(arrays, spark_values(df.sparkSession))

    def fit(self, arrays: list[pa.Array], values: Values) -> FittedCascade:
        """Let both stages judge a uniform sample that was drawn before: an array for each argument."""
        outcome, _ = judged(self.costly.spec, arrays, values)
        if (outcome.truth == RAISED).any() and self.costly.spec.on_error == "fail":
            first = next(iter(outcome.failures.values()), None)
            said = "" if first is None else f": {first.kind}: {first.message}"
            raise ExecutionError(
                f"predicate {self.costly.name!r} raised for {int((outcome.truth == RAISED).sum())} of "
                f"{len(outcome.truth)} rows of the sample{said}. Handle that in the function, or set "
                "on_error='null'"
            )
        thresholds = learned(
            self.score.of(arrays, values),
            outcome.truth == KEPT,
            recall=self.recall,
            precision=self.precision,
            confidence=self.confidence,
        )
        return FittedCascade(self, thresholds)


@dataclass(frozen=True)
class FittedCascade:
    """A cascade with its thresholds: apply it to columns, and give both stages to ``where``.

    >>> millrace.where(df, *fitted("text"))  # doctest: +SKIP

    Attributes:
        cascade: What was fitted.
        thresholds: What was found on the sample.
    """

    cascade: Cascade
    thresholds: Thresholds

    def __call__(self, *columns: str) -> tuple[Applied, Applied]:
        """Return both stages applied to columns: two predicates, whose order the eddy finds.

        Raises:
            PredicateError: No column, or too many.
        """
        if not columns:
            raise PredicateError("a cascade is applied to no column: write *fitted('column')")
        score, costly, thresholds = self.cascade.score, self.cascade.costly.spec, self.thresholds
        first = PredicateSpec(f"{costly.name}_maybe", Maybe(score, thresholds.low), score.kind)
        second = replace(costly, sure=(score, thresholds.high))
        return Applied.of(first, columns, {}), Applied.of(second, columns, {})
