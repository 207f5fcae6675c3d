"""Cascades: what thresholds promise, who is asked, and the rows of both stages in one eddy."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millrace
from millrace.errors import ExecutionError, MillraceError, OptionError, PredicateError
from millrace.predicates import cascade
from millrace.predicates.binomial import tail
from millrace.predicates.callers import caller_of
from millrace.predicates.calls import KEPT, REJECTED, Values
from millrace.predicates.cascade import Maybe, Score, learned
from millrace.predicates.spec import PredicateSpec

SHARES = {"recall": 0.9, "precision": 0.9, "confidence": 0.9}


def promises(seed: int) -> tuple[bool, bool, float]:
    """Return whether recall and precision hold on 10,000 rows, and the share that is asked."""
    draw = np.random.default_rng(seed)
    kept = draw.random(10_000) < 0.3
    scores = np.where(kept, draw.beta(5, 2, 10_000), draw.beta(2, 5, 10_000))
    scores[draw.random(10_000) < 0.01] = np.nan
    sample = draw.choice(10_000, 500, replace=False)
    found = learned(scores[sample], kept[sample], **SHARES)
    passed = ~(scores < found.low) & (kept | (scores >= found.high))
    both = (passed & kept).sum()
    asked = ~(scores < found.low) & ~(scores >= found.high)
    return both >= 0.9 * kept.sum(), both >= 0.9 * passed.sum(), float(asked.mean())


def test_thresholds_keep_their_promises() -> None:
    """In at least 90 of 100 samples both hold, and two fifths of the rows are asked about."""
    found = [promises(seed) for seed in range(100)]
    assert sum(recall and precision for recall, precision, _ in found) >= 90
    assert np.mean([asked for *_, asked in found]) <= 0.3


@pytest.mark.broken_rule
@pytest.mark.parametrize("place", ["low", "high"])
def test_thresholds_that_look_at_the_sample_alone_are_caught(place, monkeypatch) -> None:
    """Without the margin for chance the share is right in the sample, and wrong in half of all data."""
    monkeypatch.setattr(cascade, "most_below", lambda tries, share, _: int(tries * share))
    monkeypatch.setattr(cascade, "least_share", lambda found, tries, _: found / tries)
    held = [promises(seed)[0 if place == "low" else 1] for seed in range(100)]
    assert sum(held) < 85


@pytest.mark.parametrize(("tries", "chance"), [(1, 0.5), (7, 0.2), (40, 0.05), (40, 0.95)])
def test_tails_are_those_of_the_binomial_distribution(tries: int, chance: float) -> None:
    """Compared with exact fractions."""
    share = Fraction(chance)
    for least in range(-1, tries + 3):
        exact = sum(
            math.comb(tries, k) * share**k * (1 - share) ** (tries - k)
            for k in range(max(0, least), tries + 1)
        )
        assert tail(least, tries, chance) == pytest.approx(float(exact), abs=1e-12)


def test_too_small_a_sample_promises_nothing() -> None:
    """Then every row is asked about; so it is where nothing is kept, and where nothing has a score."""
    few = learned(np.arange(20.0), np.arange(20) >= 10, recall=0.95, precision=0.95, confidence=0.95)
    assert (few.low, few.high, few.asked) == (-math.inf, math.inf, 1.0)
    assert learned(np.arange(99.0), np.zeros(99, np.bool_), **SHARES).low == -math.inf
    assert learned(np.full(99, np.nan), np.arange(99) % 2 == 0, **SHARES).asked == 1.0
    with pytest.raises(OptionError, match="recall of a cascade is 1: expected a number above 0 and below 1"):
        learned(np.arange(9.0), np.ones(9, np.bool_), recall=1, precision=0.9, confidence=0.9)


@pytest.mark.parametrize("kind", ["row", "pandas", "nullable", "arrow"])
def test_only_unsure_rows_are_asked_about(kind: Any) -> None:
    """The costly predicate sees rows of low scores and of none; its failures keep their places."""
    scores: dict[str, Callable[[Any], Any]] = {
        "row": lambda x: None if x is None else x / 10,
        "pandas": lambda x: x / 10,
        "nullable": lambda x: x.astype("Float64") / 10,
        "arrow": lambda x: pc.divide(pc.cast(x, pa.float64()), 10.0),
    }
    called = "pandas" if kind == "nullable" else kind
    score, seen = Score(scores[kind], called), list[Any]()

    def costly(x: int | None) -> bool:
        seen.append(x)
        if x == 3:
            raise ValueError("three")
        return x is None

    column = pa.array([9, 3, None, 8, 1], pa.int64())
    maybe = caller_of(PredicateSpec("maybe", Maybe(score, 0.3), called), Values())
    assert maybe.call([column]).truth.tolist() == [KEPT] * 4 + [REJECTED]
    caller = caller_of(PredicateSpec("costly", costly, sure=(score, 0.8)), Values())
    found = caller.call([column])
    assert (seen, found.calls) == ([3, None, 1], 3)
    assert found.truth[[0, 2, 3, 4]].tolist() == [KEPT, KEPT, KEPT, REJECTED]
    assert {place: each.message for place, each in found.failures.items()} == {1: "three"}
    assert caller.call([column.take(pa.array([0, 3]))]).calls == 0


@pytest.mark.parametrize("wrong", [lambda x: "much", lambda x: [1.0, 2.0]])
def test_a_score_has_to_be_a_number(wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(PredicateError, match=r"expected a number for each row|expected one a row"):
        Score(wrong, "row").of([pa.array([1, 2])], Values())


@pytest.mark.spark
def test_a_cascade_filters_a_frame(spark: Any) -> None:
    """Rows are those of thresholds and predicate, and rows that the score is sure of are not asked about."""
    df = spark.range(4000).selectExpr("id", "CAST(id % 100 AS DOUBLE) AS score")
    costly = millrace.predicate(lambda s: s >= 30 and (s >= 70 or int(s) % 2 == 0), name="costly")
    made = millrace.cascade(lambda s: s, costly, recall=0.9, precision=0.9, confidence=0.9)
    fitted = made.learn(df, "score", sample=400, seed=3)
    low, high = fitted.thresholds.low, fitted.thresholds.high
    assert 0 < low < high < 100
    kept = millrace.where(df, *fitted("score"))
    rows = {row.id for row in kept.collect()}
    wanted = {
        i for i in range(4000) if (s := i % 100) >= low and (s >= high or costly.spec.function(float(s)))
    }
    assert rows == wanted
    asked = next(m for _, m in millrace.report(kept).modules() if m.name == "Predicate(costly(score))")
    # Until it is known which stage drops more for its cost, some rows meet the costly one first.
    below, unsure = (sum(each <= i % 100 < high for i in range(4000)) for each in (0, low))
    assert unsure <= asked.evaluated <= below < 4000


@pytest.mark.spark
def test_what_is_wrong_with_a_cascade_is_said(spark: Any) -> None:
    """Before anything is filtered."""
    df = spark.range(100)
    broken = millrace.predicate(lambda x: 1 / (x - 7) > 0, name="broken")
    with pytest.raises(ExecutionError, match="raised for 1 of 100 rows of the sample: ZeroDivision"):
        millrace.cascade(float, broken).learn(df, "id", sample=100)
    fine = millrace.cascade(float, millrace.predicate(lambda x: x > 5, name="fine"))
    with pytest.raises(OptionError, match="sample of a cascade is 3"):
        fine.learn(df, "id", sample=3)
    with pytest.raises(PredicateError, match="no column"):
        fine.learn(df, "id", sample=50)()
    with pytest.raises(MillraceError, match="is no predicate"):
        millrace.cascade(float, lambda x: True)
