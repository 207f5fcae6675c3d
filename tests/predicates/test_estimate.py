"""What a filter will cost, told by a sample: intervals, order, prices, and the real calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import millrace
from millrace.errors import InputError, OptionError, PredicateError, QueryError
from millrace.predicates import estimate
from millrace.predicates.estimate import Judged, estimated


def truths(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return what two predicates keep of 10,000 rows: a third; and of those three quarters, else a tenth."""
    draw = np.random.default_rng(seed)
    first = draw.random(10_000) < 1 / 3
    return first, draw.random(10_000) < np.where(first, 0.75, 0.1)


def within(seed: int) -> bool:
    """Whether the calls and the rows left lie within the intervals that 300 rows give."""
    first, second = truths(seed)
    sample = np.random.default_rng(seed + 1000).choice(10_000, 300, replace=False)
    found = estimated(10_000, [Judged("b", second[sample], 9.0), Judged("a", first[sample], 1.0)])
    assert [each.name for each in found.predicates] == ["a", "b"]
    assert found.predicates[0].calls[1:] == (10_000, 10_000)
    low, _, high = found.predicates[1].calls
    least, _, most = found.kept
    return low <= first.sum() <= high and least <= (first & second).sum() <= most


@pytest.mark.broken_rule
def test_an_interval_without_doubt_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two intervals of 95 % hold together in nine of ten samples; the sample as it is nearly never does."""
    assert sum(map(within, range(100))) >= 90
    monkeypatch.setattr(estimate, "least_share", lambda found, tries, _: found / tries)
    monkeypatch.setattr(estimate, "most_share", lambda found, tries, _: found / tries)
    assert sum(map(within, range(100))) < 20


def test_limits_prices_and_equal_arguments_count() -> None:
    """Of 6,000 calls 600 are of different arguments; at 10 a second they take a minute."""
    kept = np.arange(100) % 2 == 0
    found = estimated(6000, [Judged("ask", kept, 1.0, per_second=10.0, distinct=600, price=0.01, raised=2)])
    (ask,) = found.predicates
    assert (ask.calls, ask.minutes, ask.cost, found.cost) == ((533, 600, 686), 1.0, 6.0, 6.0)
    assert "ask: 600 (533 to 686) rows in 600 requests" in str(found)
    assert "raised for 2 rows of the sample" in str(found)


@pytest.mark.parametrize("distinct", [40, 200, 600, 5000])
def test_a_count_that_is_not_exact_widens_the_interval(distinct: int) -> None:
    """Spark's has a standard error of 5 %: the real number is within the interval in 95 of 100 draws."""
    kept = np.arange(100) % 2 == 0
    draw = np.random.default_rng(distinct)
    held = 0
    told = Counter(map(round, distinct * (1 + 0.05 * draw.standard_normal(400))))
    for number, times in told.items():
        (ask,) = estimated(60_000, [Judged("ask", kept, 1.0, distinct=number)]).predicates
        held += times * (ask.calls[0] <= distinct <= ask.calls[2])
    assert held >= 0.95 * 400


def test_a_request_of_several_rows_is_paid_once() -> None:
    """At its own price; where answers tell what they cost, by the rows that they were for."""
    kept = np.ones(100, np.bool_)
    of_price = Judged("ask", kept, 1.0, per_second=1.0, price=0.5, batch=20, asked=100, requests=5)
    (ask,) = estimated(1000, [of_price]).predicates
    assert (ask.calls[1], ask.requests, ask.cost) == (1000, 50, 25.0)
    assert (ask.minutes, ask.sample_requests, ask.sample_cost) == (50 / 60, 5, 2.5)
    by_answers = Judged("ask", kept, 1.0, batch=20, asked=40, requests=3, spent=80.0, distinct=400)
    (ask,) = estimated(1000, [by_answers]).predicates
    assert (ask.calls[1], ask.requests, ask.cost, ask.sample_cost) == (400, 20, 800.0, 80.0)
    assert "400 (355 to 458) rows in 20 requests" in str(ask)
    assert "costs 800.00 (the sample took 3 requests and cost 80.00)" in str(ask)


@pytest.mark.spark
def test_an_estimate_of_a_frame_is_near_what_comes(spark: Any) -> None:
    """A sample that holds all rows says exactly what they are."""
    df = spark.range(2000).selectExpr("id", "CAST(id % 50 AS INT) AS k")
    third = millrace.predicate(lambda x: x % 3 == 0, name="third")

    async def small(k: int) -> bool:
        return k < 10

    asked = millrace.predicate(small, kind="async", name="small", dedupe=True, max_in_flight=8)
    given = third("id"), asked("k"), "id < 1000"
    found = millrace.estimate(df, *given, sample=5000, prices={"small": 2})
    kept = millrace.where(df, *given).count()
    assert (found.rows, found.sampled, found.kept) == (1000, 1000, (kept, kept, kept))
    by_name = {each.name: each for each in found.predicates}
    assert by_name["third"].passed == 0.334
    assert by_name["small"].calls[1] in range(45, 56), "about so many values, as Spark estimates"
    assert found.cost == 2 * by_name["small"].calls[1]
    part = millrace.estimate(df, third("id"), sample=300, seed=1)
    assert part.sampled == 300
    assert part.kept[0] <= 667 <= part.kept[2]


@pytest.mark.spark
def test_an_estimate_of_a_query_is_that_of_its_rows_before(spark: Any) -> None:
    """Of a join with other conditions, whatever is done with its rows afterwards."""
    left = spark.range(400).selectExpr("id", "id % 7 AS k")
    right = spark.range(7).selectExpr("id AS k", "'n' || id AS name")
    third = millrace.predicate(lambda x: x % 3 == 0, name="third")
    long = millrace.predicate(lambda s, n: len(s) + n > 4, name="long")
    tables, predicates = {"l": left, "r": right}, [third, long]
    text = (
        "WITH s AS (SELECT * FROM l WHERE id < 300) SELECT r.name, count(*) n FROM s JOIN r ON s.k = r.k "
        "WHERE third(s.id + 1) AND ((r.k > 0) AND (long(r.name, s.k))) GROUP BY r.name ORDER BY n LIMIT 3"
    )
    found = millrace.query(text, spark=spark, tables=tables, predicates=predicates).estimate(sample=1000)
    before = [(n, n % 7) for n in range(300) if n % 7 > 0]
    kept = sum((n + 1) % 3 == 0 and len(f"n{k}") + k > 4 for n, k in before)
    assert (found.rows, found.sampled, found.kept) == (len(before), len(before), (kept, kept, kept))
    assert {each.name for each in found.predicates} == {"third", "long"}
    for refused in (
        "SELECT third(id) FROM l",
        "SELECT id FROM l WHERE third(id) OR id = 1",
        "SELECT id FROM (SELECT id FROM l WHERE third(id)) WHERE third(id)",
        "SELECT id FROM l WHERE third(id) UNION ALL SELECT 1",
    ):
        with pytest.raises(QueryError, match=r"(?s)third\(id\) does not.*millrace\.estimate\(df"):
            millrace.query(refused, spark=spark, tables=tables, predicates=predicates).estimate()
    with pytest.raises(QueryError, match="calls no predicate"):
        millrace.query("SELECT id FROM l WHERE id > 1", spark=spark, tables=tables).estimate()


@pytest.mark.spark
def test_what_cannot_be_estimated_is_said(spark: Any) -> None:
    df = spark.range(10)
    fine = millrace.predicate(lambda x: x > 5, name="fine")
    with pytest.raises(PredicateError, match="no predicate of Python to estimate"):
        millrace.estimate(df, "id > 5")
    with pytest.raises(OptionError, match="did you mean 'fine'"):
        millrace.estimate(df, fine("id"), prices={"fin": 1})
    with pytest.raises(OptionError, match="price of 'fine' is -1"):
        millrace.estimate(df, fine("id"), prices={"fine": -1})
    with pytest.raises(OptionError, match="sample of an estimate is 5"):
        millrace.estimate(df, fine("id"), sample=5)
    with pytest.raises(InputError, match="streaming"):
        millrace.estimate(spark.readStream.format("rate").load(), fine("value"))
