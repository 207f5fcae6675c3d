"""``millrace.cascade``: learn thresholds on a sample, then filter by both stages in one eddy.

Samples are uniform, and judged in this process; estimates of what predicates cost use them too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as sf

from millrace.errors import BudgetError, ExecutionError, InputError, OptionError, PredicateError
from millrace.limits.budget import cost_of
from millrace.predicates.callers import caller_of
from millrace.predicates.calls import KEPT, RAISED, Outcome, Values
from millrace.predicates.cascade import Maybe, Score, ScoreKind, Thresholds, learned
from millrace.predicates.service import CallError, Service
from millrace.predicates.spec import PredicateSpec
from millrace.spark.predicates import Applied, Predicate, check_arity
from millrace.spark.values import spark_values

_LEAST, _MOST = 10, 1_000_000


def cascade(
    score: Callable[..., Any],
    costly: object,
    *,
    recall: float = 0.95,
    precision: float = 0.95,
    confidence: float = 0.95,
    kind: ScoreKind = "row",
) -> Cascade:
    """Put a cheap score before a costly predicate, which then decides only where the score is not sure.

    Thresholds are learned on a sample that both judge, and keep their promises with the stated confidence
    whatever the scores are like. Rows between them get the costly predicate's own answer.

    >>> cheap = millrace.cascade(length_of, is_complaint, recall=0.95)  # doctest: +SKIP
    >>> fitted = cheap.learn(reviews, "text", sample=1000)  # doctest: +SKIP
    >>> millrace.where(reviews, *fitted("text"))  # doctest: +SKIP

    Args:
        score: From a row's values to a number, the higher the likelier that the costly predicate keeps it. A
            null or NaN leaves the row to the costly predicate.
        costly: A function made by :func:`predicate` or by PySpark's ``udf``, ``pandas_udf`` or ``arrow_udf``.
        recall: Share of the rows that the costly predicate keeps which are to be kept, at least.
        precision: Share of the kept rows that the costly predicate keeps, at least.
        confidence: Probability with which both hold, over the samples that might have been drawn.
        kind: How the score is called: ``"row"``, ``"pandas"`` or ``"arrow"``, as for :func:`predicate`.

    Raises:
        MillraceError: The costly predicate is none; a share is out of range when thresholds are learned.
    """
    return Cascade(Score(score, kind), Predicate.of(costly), recall, precision, confidence)


@dataclass(frozen=True)
class Cascade:
    """A cheap score before a costly predicate, not fitted to any data yet; see :func:`cascade`."""

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
        arrays = draw_sample(df, [sf.col(name) for name in columns], sample, seed, "a cascade")
        return self.fit(arrays, spark_values(df.sparkSession))

    def fit(self, arrays: list[pa.Array], values: Values) -> FittedCascade:
        """Let both stages judge a uniform sample that was drawn before: an array for each argument."""
        outcome, _ = judge_sample(self.costly.spec, arrays, values)
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
    """

    cascade: Cascade
    thresholds: Thresholds

    def __call__(self, *columns: str) -> tuple[Applied, Applied]:
        """Return both stages applied to columns: two predicates, whose order the eddy finds."""
        if not columns:
            raise PredicateError("a cascade is applied to no column: write *fitted('column')")
        score, costly, thresholds = self.cascade.score, self.cascade.costly.spec, self.thresholds
        first = PredicateSpec(f"{costly.name}_maybe", Maybe(score, thresholds.low), score.kind)
        second = replace(costly, sure=(score, thresholds.high))
        return Applied.of(first, columns, {}), Applied.of(second, columns, {})


def draw_sample(
    df: DataFrame, columns: Sequence[Column], sample: int, seed: int, what: str
) -> list[pa.Array]:
    """Return columns of so many rows of a DataFrame, each set of rows as likely as any other.

    All rows are read. ``what`` needs the sample, for errors.
    """
    if type(sample) is not int or not _LEAST <= sample <= _MOST:
        raise OptionError(
            f"sample of {what} is {sample!r}: expected a whole number from {_LEAST} to {_MOST:,}"
        )
    if df.isStreaming:
        raise InputError(
            f"{what} needs a sample, and a streaming DataFrame has no end: give it a DataFrame of like rows"
        )
    named = [column.alias(f"_{place}") for place, column in enumerate(columns)]
    table = df.select(*named).orderBy(sf.rand(seed)).limit(sample).toArrow()
    return [pa.concat_arrays(c.chunks) if c.num_chunks else pa.nulls(0, c.type) for c in table.columns]


@dataclass
class SampleCost:
    """What a sample took: calls of an ``async`` predicate, repeated ones too, and rows of answered ones."""

    seconds: float = 0.0
    requests: int = 0
    asked: int = 0
    cost: float = 0.0


def judge_sample(spec: PredicateSpec, arrays: list[pa.Array], values: Values) -> tuple[Outcome, SampleCost]:
    """Return what a predicate says of the rows, and what that took; limits hold for it alone."""
    cost = SampleCost()
    caller = caller_of(_count_calls(spec, cost) if spec.kind == "async" else spec, values, None, "sample")
    began = time.perf_counter()
    try:
        outcome = caller.call(arrays)
    finally:
        caller.close()
    cost.seconds = time.perf_counter() - began
    return outcome, cost


def _count_calls(spec: PredicateSpec, total: SampleCost) -> PredicateSpec:
    """Return a predicate whose calls are counted; its kept answers are the same."""
    origin = spec.origin or spec.function
    price = spec.budget[1] or (origin.cost if isinstance(origin, Service) else None)

    def charge(arguments: tuple[Any, ...], answer: object) -> None:
        request = list(zip(*arguments, strict=True)) if spec.batch else arguments
        if price is not None:
            with suppress(BudgetError):  # nobody can tell
                total.cost += cost_of(price, request, answer)

    async def counted(*arguments: Any) -> Any:
        total.requests += 1
        try:
            answer = await spec.function(*arguments)
        except CallError as error:
            if error.usage is not None:
                charge(arguments, error)
            raise
        charge(arguments, answer)
        total.asked += len(arguments[0]) if spec.batch else 1
        return answer

    return replace(spec, function=counted, origin=origin)
