"""Cascades: a cheap score decides where it is sure, a costly predicate everywhere else.

Two thresholds are learned on a sample that both have judged: below the lower one the costly predicate keeps
next to nothing, above the upper one it rejects next to nothing. What a threshold promises holds for the rows
that the sample was drawn from, with a stated confidence, whatever the scores are like: only their order
counts.

* Recall. The lower threshold is the k-th smallest score among the sample's kept rows. The share of all kept
  rows below it is then distributed as the k-th order statistic of uniform numbers, so k follows from a
  binomial tail (distribution-free tolerance limits; Wilks 1941). No search over thresholds, so nothing to
  correct for.
* Precision. The upper threshold lies above the j-th largest score among the sample's rejected rows, and the
  same tail says how large the share of all rejected rows above it may be. Wrong are no others: rows between
  the thresholds are judged by the predicate itself. How many that may be follows from how many rows are kept,
  of which the sample gives a lower bound (Clopper & Pearson 1934).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import OptionError, PredicateError
from millrace.predicates.binomial import least_share, most_below
from millrace.predicates.calls import KEPT, Caller, Outcome, Values

Array = np.ndarray[Any, np.dtype[Any]]
ScoreKind = Literal["row", "pandas", "arrow"]


@dataclass(frozen=True)
class Score:
    """A cheap function from a row's values to a number; travels to the tasks.

    Attributes:
        function: Gets one value per argument and returns a number (kind ``row``), or a Series or an Arrow
            array per argument and returns one of numbers.
        kind: Which of these.
    """

    function: Callable[..., Any]
    kind: ScoreKind = "row"

    def of(self, columns: list[pa.Array], values: Values) -> Array:
        """Return the score of every row, ``float64``; NaN where it is null or no number.

        Raises:
            PredicateError: The function returned too many scores or too few, or something else.
        """
        rows = len(columns[0])
        try:
            if self.kind == "row":
                found: Any = list(map(self.function, *values.objects(columns)))
            else:
                made = values.series(columns) if self.kind == "pandas" else values.arrays(columns)
                found = self.function(*made)
            if isinstance(found, pa.ChunkedArray):
                found = found.combine_chunks()
            if isinstance(found, pa.Array):
                found = pc.cast(found, pa.float64()).to_numpy(zero_copy_only=False)
            scores = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise PredicateError(
                f"the score of a cascade failed or returned no numbers ({error}): expected a number for each "
                f"row from a function of kind {self.kind!r}"
            ) from error
        if scores.shape != (rows,):
            raise PredicateError(
                f"the score of a cascade returned {scores.shape} numbers for {rows} rows: expected one a row"
            )
        return scores


@dataclass(frozen=True)
class Thresholds:
    """What scores say.

    Attributes:
        low: Rows with less are rejected unseen; minus infinity for none.
        high: Rows with as much, or more, are kept unseen; infinity for none.
        sampled: Rows of the sample, ``kept`` of which the costly predicate kept.
        kept: See ``sampled``.
        asked: Share of the sample's rows that lie between, or have no score: what is asked of all rows.
    """

    low: float
    high: float
    sampled: int
    kept: int
    asked: float


def learned(scores: Array, kept: Array, *, recall: float, precision: float, confidence: float) -> Thresholds:
    """Return thresholds that keep both promises, together with the stated confidence.

    Args:
        scores: Of the sample's rows, NaN for none; shape ``(n,)``. The sample is drawn uniformly.
        kept: Whether the costly predicate keeps each; shape ``(n,)``.
        recall: Share of the rows that the costly predicate keeps which are to be kept, at least.
        precision: Share of the kept rows that it keeps, at least.
        confidence: Probability with which both hold.

    Raises:
        OptionError: A share is not between 0 and 1.
    """
    for name, share in (("recall", recall), ("precision", precision), ("confidence", confidence)):
        if not 0 < share < 1:
            raise OptionError(f"{name} of a cascade is {share!r}: expected a number above 0 and below 1")
    rows, right = len(scores), int(kept.sum())
    doubt = (1 - confidence) / 3  # in what is lost, in what is wrong, and in how many are kept
    known = ~np.isnan(scores)
    # Rows without a score are always asked: as kept ones they lie above, as rejected ones below everything.
    lost = most_below(right, 1 - recall, doubt)
    ascending = np.sort(scores[known & kept])
    low = float(ascending[lost - 1]) if 0 < lost <= len(ascending) else -math.inf
    least = least_share(right, rows, doubt)
    wrong = most_below(rows - right, (1 / precision - 1) * recall * least / (1 - least), doubt)
    descending = np.sort(scores[known & ~kept])[::-1]
    high = math.inf
    if wrong:
        high = math.nextafter(descending[wrong - 1], math.inf) if wrong <= len(descending) else -math.inf
    high = max(low, high)
    asked = float((~known | ((scores >= low) & (scores < high))).mean()) if rows else 1.0
    return Thresholds(low, high, rows, right, asked)


@dataclass(frozen=True)
class Maybe:
    """The first stage as a function of rows, Series or arrays: whether the score leaves a chance."""

    score: Score
    low: float

    def __call__(self, *arguments: Any) -> Any:
        """Return True where the score is not below the threshold, and where there is none."""
        found = self.score.function(*arguments)
        if self.score.kind == "row":
            return found is None or not found < self.low
        if self.score.kind == "pandas":
            return ~(np.asarray(found, np.float64) < self.low)  # of pandas' own types null would stay null
        return pc.fill_null(pc.invert(pc.less(found, self.low)), True)


class Surely:
    """Keeps rows of a high score unseen, and lets a caller decide about the others.

    Args:
        caller: Calls the costly predicate.
        score: The cheap one.
        high: The score from which rows are kept.
        values: Makes the score's arguments.
    """

    def __init__(self, caller: Caller, score: Score, high: float, values: Values) -> None:
        self._caller = caller
        self._score, self._high, self._values = score, high, values

    def call(self, columns: list[pa.Array]) -> Outcome:
        """Return the truth for every row; only those of a lower score are asked about."""
        unsure = ~(self._score.of(columns, self._values) >= self._high)
        if unsure.all():
            return self._caller.call(columns)
        truth = np.full(len(unsure), KEPT, np.int8)
        places = np.flatnonzero(unsure)
        if not len(places):
            return Outcome(truth, 0)
        asked = self._caller.call([column.take(pa.array(places)) for column in columns])
        truth[places] = asked.truth
        return Outcome(truth, asked.calls, {int(places[i]): each for i, each in asked.failures.items()})

    def close(self) -> None:
        """Let go of what the caller has."""
        self._caller.close()
