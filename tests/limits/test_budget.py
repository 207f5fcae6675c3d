"""Hard budgets: whatever calls cost and whoever makes them, no more is spent than promised."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import millrace
from millrace.errors import BudgetError, OptionError
from millrace.limits.budget import Budget, Spending, Spent, budget_of, cost_of
from millrace.predicates import PlainValues, PredicateSpec
from millrace.predicates.asynchronous import AsyncCaller
from millrace.reports.run_report import RunReport


@pytest.mark.parametrize(("price", "more"), [(30.0, 2), (0.0, 9)])
def test_one_call_alone_tells_the_price(price, more):
    """Until then no other begins; what calls cost that say nothing is not known after them either."""
    spending = Spending(Budget(None, 100.0))
    for told in (None, price):
        assert spending.may_begin
        spending.begin()
        assert not spending.may_begin and not spending.is_over
        spending.end(told)
    begun = 0
    while spending.may_begin and begun < 9:
        spending.begin()
        begun += 1
    assert begun == more and not spending.is_over


@pytest.mark.parametrize(("most", "tasks"), [(1, 1), (5, 1), (7, 1), (25, 4)])
def test_what_is_counted_is_called(coordinator, most, tasks):
    """A budget is spent on calls that come to their end, and not cancelled with the one too many.

    Several tasks spend it together, and a later one of the same query has nothing left.
    """
    ended = []

    async def slow(x):
        for _ in range(50):
            await asyncio.sleep(0)
        ended.append(x)
        return True

    spec = PredicateSpec("slow", slow, "async", max_requests=most)
    address = coordinator.address if tasks > 1 else None

    def task(number: int) -> str:
        caller = AsyncCaller(spec, PlainValues(), address, f"run/{number % 2}/0")
        try:
            caller.call([pa.array(range(10))])
        except BudgetError as error:
            return str(error)
        finally:
            caller.close()
        return ""

    with ThreadPoolExecutor(tasks) as pool:
        told = list(pool.map(task, range(tasks)))
    assert address is None or "25 of 25 requests" in task(0)
    assert len(ended) == most and any(f"{most} of {most} requests (max_requests)" in each for each in told)


@pytest.mark.spark
def test_a_query_stops_at_its_budget(spark, tmp_path):
    """Of a filter and of a lookup; nothing is written. With enough of it all rows come."""

    async def fair(n):
        return n % 2 == 0

    numbers = spark.range(0, 200, 1, 4)

    def filtered(**budget):
        made = millrace.predicate(fair, kind="async", name="fair", **budget)
        return millrace.where(numbers, made("id"))

    with pytest.raises(BudgetError, match=r"50 of 50 requests \(max_requests\)"):
        filtered(max_requests=50).write.parquet(str(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("*.parquet"))
    with pytest.raises(BudgetError, match=r"\(max_cost\)"):
        filtered(max_cost=100, cost=lambda arguments, answer: 1 + arguments[0] % 3).count()
    enough = filtered(max_cost=200, cost=1)
    assert enough.count() == 100
    report = millrace.report(enough)
    assert report.budgets == (Spent("fair", 200, None, 200.0, 200),)
    assert "fair: 200 of 200 (max_cost) in 200 requests" in str(report)
    assert '<h2 id="budgets">' in report.to_html()
    assert RunReport.from_json(report.to_json()).budgets == report.budgets

    def joined(**budget):
        source = millrace.function(lambda key: {"name": f"n{key}"}, **budget)
        names = millrace.lookup("names", "id long, name string", bind=["id"], via=source)
        text = "SELECT name FROM numbers JOIN names ON numbers.id = names.id"
        return millrace.sql(text, spark=spark, tables={"numbers": numbers, "names": names})

    with pytest.raises(BudgetError, match=r"30 of 30 requests"):
        joined(max_requests=30).count()
    rows = joined(max_cost=400, cost=lambda keys, found: len(keys) + found.num_rows)
    assert rows.count() == 200
    (spent,) = millrace.report(rows).budgets
    assert (spent.name, spent.cost, spent.max_cost) == ("names", 400.0, 400)


@pytest.mark.parametrize(
    ("given_budget", "message"),
    [
        ((0, None, None), "max_requests is 0, expected a whole number above 0"),
        ((None, -1, 1), "max_cost is -1, expected a number above 0"),
        ((None, 5, None), "max_cost and cost go together"),
        ((None, 5, "a"), "cost is 'a', expected a number above 0, or a function"),
    ],
)
def test_budgets_that_make_no_sense_are_refused(given_budget, message):
    """With what would."""
    with pytest.raises(OptionError, match=message):
        budget_of("a lookup", *given_budget)
    with pytest.raises(BudgetError, match="for cost raised KeyError"):
        cost_of(lambda request, answer: {}["tokens"], 1, 2)
    with pytest.raises(BudgetError, match="returned nan"):
        cost_of(lambda request, answer: math.nan, 1, 2)
