"""Cascades over DataFrames: learn thresholds on a sample, then filter by both stages in one eddy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, functions as sf

from millrace.errors import ExecutionError, OptionError, PredicateError
from millrace.predicates.callers import caller_of
from millrace.predicates.cascade import Maybe, Score, Thresholds, learned
from millrace.predicates.outcome import KEPT, RAISED
from millrace.predicates.spec import PredicateSpec
from millrace.spark.predicates import Applied, Predicate, check_arity
from millrace.spark.values import spark_values

_LEAST, _MOST = 10, 1_000_000


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
        if type(sample) is not int or not _LEAST <= sample <= _MOST:
            raise OptionError(
                f"sample of a cascade is {sample!r}: expected a whole number from {_LEAST} to {_MOST:,}"
            )
        check_arity(self.costly.spec, len(columns))
        check_arity(PredicateSpec("score", self.score.function), len(columns))
        drawn = df.select(*columns).orderBy(sf.rand(seed)).limit(sample).toArrow()
        arrays = [_whole(column) for column in drawn.columns]
        values = spark_values(df.sparkSession)
        caller = caller_of(self.costly.spec, values, None, "cascade")
        try:
            outcome = caller.call(arrays)
        finally:
            caller.close()
        if (outcome.truth == RAISED).any() and self.costly.spec.on_error == "fail":
            first = next(iter(outcome.failures.values()), None)
            said = "" if first is None else f": {first.kind}: {first.message}"
            raise ExecutionError(
                f"predicate {self.costly.name!r} raised for {int((outcome.truth == RAISED).sum())} of "
                f"{drawn.num_rows} rows of the sample{said}. Handle that in the function, or set "
                "on_error='null'"
            )
        found = learned(
            self.score.of(arrays, values),
            outcome.truth == KEPT,
            recall=self.recall,
            precision=self.precision,
            confidence=self.confidence,
        )
        return FittedCascade(self, found)


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
        score, costly, found = self.cascade.score, self.cascade.costly.spec, self.thresholds
        first = PredicateSpec(f"{costly.name}_maybe", Maybe(score, found.low), score.kind)
        second = replace(costly, sure=(score, found.high))
        return Applied.of(first, columns, {}), Applied.of(second, columns, {})


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
