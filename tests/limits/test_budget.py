"""Hard budgets: whatever calls cost, whoever makes them or is killed, no more is spent than promised."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

import millrace
from millrace.errors import BudgetError, OptionError
from millrace.limits.budget import Budget, Spending, Spent, budget_of, cost_of
from millrace.limits.cache import check_cache, transaction
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.ledger import LastingSpending, Spendings
from millrace.limits.registration import Registration
from millrace.predicates import PredicateSpec, Values
from millrace.predicates.asynchronous import AsyncCaller
from millrace.predicates.spec import registration_of
from millrace.reports.run_report import RunReport
from tests.limits.running import run


@pytest.mark.parametrize(("most", "tasks"), [(1, 1), (5, 1), (7, 1), (25, 4)])
def test_what_is_counted_is_called(coordinator, most, tasks):
    """Calls come to their end, and are not cancelled with the one too many; all tasks spend it together."""
    ended = []

    async def slow(x):
        for _ in range(50):
            await asyncio.sleep(0)
        ended.append(x)
        return True

    spec = PredicateSpec("slow", slow, "async", max_requests=most)
    coordinator.register("run", [registration_of(spec)])

    def task(number: int) -> str:
        connect = partial(Client.connect, coordinator.address, f"run/{number % 2}/0") if tasks > 1 else None
        with closing(AsyncCaller(spec, Values(), connect)) as caller:
            try:
                caller.call([pa.array(range(10))])
            except BudgetError as error:
                return str(error)
        return ""

    with ThreadPoolExecutor(tasks) as pool:
        told = list(pool.map(task, range(tasks)))
    assert tasks == 1 or "25 of 25 requests" in task(0)
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


async def yes(x):
    return True


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: budget_of("one", 0, None, None), "max_requests is 0, expected a whole number above 0"),
        (lambda: budget_of("one", None, -1, 1), "max_cost is -1, expected a number above 0"),
        (lambda: budget_of("one", None, 5, None), "max_cost and cost go together"),
        (lambda: budget_of("one", None, 5, "a"), "cost is 'a', expected a number above 0, or a function"),
        (lambda: Registration("one", ttl=5.0), "'one'.*without a cache"),
        (lambda: Registration("one", cache=Path("c"), ttl=0.0, fingerprint="f"), "'one'.*above 0"),
        (lambda: Registration("one", cache=Path("c")), "'one'.*fingerprint"),
        (lambda: PredicateSpec("one", yes, "async", answers=3), "answers is 3"),
        (lambda: PredicateSpec("one", yes, "async", answers="a", deterministic=False), "deterministic"),
        (lambda: PredicateSpec("one", lambda x: x, "row", answers="a"), "kind='async'"),
        (lambda: PredicateSpec("one", yes, "async", limit_group=""), "limit_group is ''"),
        (lambda: PredicateSpec("one", yes, "async", limit_group="api"), "nothing to share"),
    ],
)
def test_limits_that_make_no_sense_are_refused(made, said):
    with pytest.raises(OptionError, match=said):
        made()


def test_costs_have_to_be_numbers():
    """What a user's function raises, or returns instead, ends the calls."""
    with pytest.raises(BudgetError, match="for cost raised KeyError"):
        cost_of(lambda request, answer: {}["tokens"], 1, 2)
    with pytest.raises(BudgetError, match="returned nan"):
        cost_of(lambda request, answer: math.nan, 1, 2)


def make_calls(spending: Spending, most: int, cost: float | None = None) -> int:
    """Make calls as long as they may begin; returns how many."""
    for made in count():
        if made == most or not spending.begin():
            return made
        spending.end(cost)
    raise AssertionError


@pytest.mark.parametrize("spoil", [lambda _: b"SQLite format 3\0" + 5000 * b"?", lambda whole: whole[:5000]])
def test_a_damaged_file_is_no_crash_and_no_new_budget(tmp_path, spoil):
    """No call is made until it is mended; the error names the file and what to do."""
    budget, path = Budget(max_requests=5), tmp_path / "answers.sqlite"
    spending = LastingSpending(budget, path, "one")
    make_calls(spending, 1)
    spending.settle()
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    for each in (spending, LastingSpending(budget, path, "one")):
        assert not each.may_begin and each.is_over
        assert str(path) in str(each) and "name another" in str(each)
    path.write_bytes(whole)
    assert spending.may_begin and spending.requests == 1


@pytest.mark.parametrize("told", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("over", [False, True])
def test_a_call_that_ends_late_takes_nothing_back(tmp_path, told, over):
    """Not even where another process has gone on with the stream, or goes on with it."""
    kept = Registration("prices", cache=tmp_path, fingerprint="f", budget=Budget(max_cost=1000.0))
    old, new, session = Spendings(), Spendings(), "run/stream s/1/0"
    late = old.of(session, kept)
    make_calls(late, 1, 2.0)
    late.begin()  # two are reserved
    old.settle(session, kept)
    calls = make_calls(new.of(session, kept), 40, 2.0)
    if over:
        new.settle(session, kept)
    late.end(told)
    old.close()
    if not over:
        calls += make_calls(new.of(session, kept), 10, 2.0)
        new.close()
    found = Spendings().of(session, kept)
    assert (calls, found.requests) == (40 if over else 50, 2 + calls)
    assert 2.0 * (1 + calls) + told <= found.cost <= 2.0 * (1 + calls) + max(told, 2.0)


def test_a_budget_is_of_a_stream_whichever_plan_and_process_it_runs_in(tmp_path):
    """Two plans and two processes spend one; another stream and a job that is none have their own."""
    kept = Registration("prices", cache=tmp_path, fingerprint="f", budget=Budget(max_requests=100))

    async def spend(process: Coordinator, session: str, calls: int) -> None:
        client = await Client.connect(process.address, session)
        try:
            for _ in range(calls):
                async with client.permit():
                    pass
        finally:
            await client.close()

    with closing(Coordinator()) as one, closing(Coordinator()) as other:
        for process, run_of, execution, calls, spent in (
            (one, "run", "stream s/1", 10, 10),
            (one, "again", "stream s/2", 30, 40),
            (other, "run", "stream s/3", 40, 80),
            (one, "run", "stream t/1", 60, 60),
            (one, "run", "12", 100, 100),
            (one, "run", "stream s/4", 20, 100),
        ):
            process.register(run_of, [kept])
            run(spend(process, f"{run_of}/{execution}/0", calls))
            assert Spent("prices", spent, 100, 0.0, None) in process.spent(run_of)
            if spent == 100:
                with pytest.raises(BudgetError, match=r"100 of 100 requests \(max_requests\)"):
                    run(spend(process, f"{run_of}/{execution}/0", 1))
    with closing(Coordinator()) as later:
        later.register("run", [kept])
        run(spend(later, "run/stream t/2/0", 40))
        assert later.spent("run") == [Spent("prices", 100, 100, 0.0, None)]
    for _ in range(2):  # that of a group begins anew with each process
        with closing(Coordinator()) as process:
            process.register("run", [replace(kept, group="api")])
            run(spend(process, "run/stream u/1/0", 100))
            assert process.spent("run") == [Spent("limit_group api", 100, 100, 0.0, None)]


@pytest.mark.parametrize("budget", [Budget(max_requests=5), Budget(max_cost=5.0, price=1.0)])
def test_two_that_spend_in_turn_spend_no_more_than_there_is(tmp_path, budget):
    """Each writes a call down before it is made, and sees what the other has written."""
    both = [LastingSpending(budget, tmp_path / "answers.sqlite", "one") for _ in range(2)]
    begun = [each.begin() for _ in range(5) for each in both]
    for each in both:
        each.settle()  # what was written ahead is free again
        begun += [each.begin() for _ in range(5)]
    assert begun.count(True) == 5


def test_two_that_write_at_once_lose_nothing(tmp_path):
    """What both have made is in the file, each call once."""
    path = tmp_path / "answers.sqlite"

    def spend() -> None:
        spending = LastingSpending(Budget(max_requests=6400), path, "one")
        for _ in range(30):
            assert make_calls(spending, 1) == 1
            spending.settle()

    with ThreadPoolExecutor(2) as pool:  # each has opened the file itself, as two processes have
        for each in [pool.submit(spend) for _ in range(2)]:
            each.result()
    assert LastingSpending(Budget(max_requests=6400), path, "one").requests == 60
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("price", [None, 1.0])
def test_a_budget_of_money_is_written_a_share_at_a_time(tmp_path, monkeypatch, price):
    """Not for each call: the event loop waits for the disk meanwhile."""
    written, path = Mock(wraps=transaction), tmp_path / "answers.sqlite"
    monkeypatch.setattr("millrace.limits.ledger.transaction", written)
    spending = LastingSpending(Budget(max_cost=6400.0, price=price), path, "one")
    assert make_calls(spending, 3200, 1.0) == 3200
    assert 1 < written.call_count <= 64
    spending.settle()
    assert LastingSpending(spending.budget, path, "one").requests == 3200


def test_a_file_that_can_be_read_and_not_written_ends_the_calls(tmp_path, monkeypatch):
    """Until it is written again, the error says why; so it does where there is no folder any more."""
    monkeypatch.setattr("millrace.limits.ledger._PATIENCE", 0.0)
    path = tmp_path / "answers.sqlite"
    check_cache(path)
    spending = LastingSpending(Budget(max_requests=100), path, "one")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert make_calls(spending, 2) == 0
        for _ in range(2):
            assert not spending.may_begin and "has been writing to it" in str(spending)
            spending.settle()
    spending.settle()
    assert spending.may_begin and "has been writing to it" not in str(spending)
    assert LastingSpending(spending.budget, path, "one").requests == 0
    nowhere = LastingSpending(spending.budget, tmp_path / "gone" / "answers.sqlite", "one")
    assert make_calls(nowhere, 2) == 0 and "cannot be written" in str(nowhere)
