"""Limits that many queries share by the name of a group."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

import millrace
from millrace.errors import BudgetError, ExecutionError, OptionError
from millrace.limits.budget import Budget
from millrace.limits.client import Client
from millrace.limits.registration import Registration
from tests.limits.running import Calls, heard, keys_of
from tests.limits.service import Service
from tests.session import write_stream
from tests.spark.test_limits import asking

DOWN = "HTTP 502"


async def call(client: Client, outcome: str = "") -> None:
    async with client.permit() as permit:
        permit.outcome = outcome
        await asyncio.sleep(0)


@pytest.fixture
def hasty(monkeypatch):
    """A source that fails is tried twice more, at once."""
    monkeypatch.setattr("millrace.limits.limiter.FIRST_PROBE_PAUSE", 0.001)
    monkeypatch.setattr("millrace.limits.limiter.MOST_PROBES", 2)


async def test_all_queries_have_one_cap_and_one_budget(coordinator, clients, monkeypatch):
    """Permits of a group are out at most as often as it says, whoever has them, and the budget is for all.

    It stays, however many runs there were, whose own permits are let go.
    """
    monkeypatch.setattr("millrace.limits.coordinator._MOST_RELEASED", 0)
    for name in ("one", "two", "three"):
        budget = Budget(max_requests=9)
        coordinator.register(name, [Registration("prices", 2, budget=budget, group="api")])
    coordinator.register("four", [Registration("prices", 2)])
    calls = Calls(at_once=2)
    *members, alone = await clients("one/0/0", "two/0/0", "three/0/0", "four/0/0")
    asking = [calls.ask(each, key) for each in members for key in keys_of(4)]
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert sum(isinstance(each, BudgetError) for each in results) == 3
    async with alone.permit():
        await clients.aclose()
    for number in range(5):
        coordinator.register(f"other{number}", [Registration("names", 1)])
        (other,) = await clients(f"other{number}/0/0")
        await call(other)
        await other.close()
        coordinator.release(f"other{number}")
    (later,) = await clients("one/1/0")
    with pytest.raises(BudgetError, match="9 of 9 requests"):
        await call(later)
    assert (calls.most, calls.asked.total()) == (2, 9)


async def test_a_group_has_the_limits_that_are_given_last_unless_it_is_in_use(coordinator, clients):
    """Other limits are refused with both, when a query is planned and when it runs."""
    one, two = (Registration("prices", number, group="api") for number in (1, 2))
    with pytest.raises(OptionError, match=r"'api' has different limits \(max_in_flight=1; max_in_flight=2\)"):
        coordinator.register("both", [one, two])
    coordinator.register("one", [one])
    (client,) = await clients("one/0/0")
    with pytest.raises(OptionError, match=r"'api' has max_in_flight=1, .* running.*'prices'.*flight=2"):
        await asyncio.to_thread(coordinator.register, "two", [two])
    await client.close()
    await asyncio.to_thread(coordinator.register, "two", [two])
    await clients("two/0/0")
    with pytest.raises(ExecutionError, match="'api' has max_in_flight=2"):
        await clients("one/1/0")


def test_queries_that_run_at_once_keep_the_limits_of_their_group(spark, tmp_path):
    """A query and a stream never have more calls under way than the group allows, over all micro-batches.

    What the stream has asked in one it does not ask in the next.
    """
    for number in range(3):
        some = spark.range(0, 20, 1, 1).selectExpr("id", "int(id % 10) AS x")
        some.write.parquet(str(tmp_path / "in" / str(number)))
    reader = spark.readStream.schema("id long, x int").option("maxFilesPerTrigger", 1)
    stream, rows = reader.parquet(str(tmp_path / "in" / "*")), spark.range(100, 180, 1, 4)
    with Service(lambda x, _: "yes" if x % 2 else "no") as service, ThreadPoolExecutor(1) as pool:
        limits = {"max_in_flight": 3, "limit_group": "two queries"}
        once, often = (asking(service.url, name=f"n{each}", dedupe=each, **limits) for each in (True, False))
        written = pool.submit(write_stream, millrace.where(stream, once("x")), tmp_path)
        assert millrace.where(rows.selectExpr("id", "int(id) AS x"), often("x")).count() == 40
        assert len(written.result(60).recentProgress) >= 3
    assert spark.read.parquet(str(tmp_path / "out")).count() == 30
    assert service.asked == dict.fromkeys([*range(10), *range(100, 180)], 1) and service.most <= 3


async def test_a_dead_source_ends_no_query_of_another_in_its_group(coordinator, clients, hasty):
    """Each has a breaker of its own, or none; the limits they share, so the healthy ones take all permits."""
    for name, threshold in (("dead", 3), ("well", 3), ("patient", None)):
        coordinator.register(name, [Registration(name, 2, circuit_breaker=threshold, group="api")])
    dead, well, patient = await clients("dead/0/0", "well/0/0", "patient/0/0")
    for number in range(5):
        await call(patient, DOWN)
        await call(dead, DOWN)
        if number < 4:
            await call(well)
            await heard(well)
    with pytest.raises(ExecutionError, match="'dead' does not answer: 5 requests in a row"):
        await heard(dead)
    async with well.permit(), patient.permit():
        for name in ("well", "patient"):
            (progress,) = await asyncio.to_thread(coordinator.progress, name)
            assert (progress.problem, progress.in_flight) == ("", 1)


async def test_a_source_that_is_held_holds_up_no_other(coordinator, clients, monkeypatch):
    """Requests of the one wait for its pause; those of the other, behind them, go on."""
    monkeypatch.setattr("millrace.limits.limiter.FIRST_PROBE_PAUSE", 600.0)
    monkeypatch.setattr("millrace.limits.limiter.LONGEST_PROBE_PAUSE", 600.0)
    for name in ("dead", "well"):
        coordinator.register(name, [Registration(name, 1, circuit_breaker=1, group="api")])
    dead, well = await clients("dead/0/0", "well/0/0")
    await call(dead, DOWN)
    probe = asyncio.create_task(call(dead))
    await heard(dead)
    assert DOWN in (await asyncio.to_thread(coordinator.progress, "dead"))[0].problem
    for _ in range(20):
        await call(well)
    assert not probe.done()
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)


async def test_a_session_that_has_ended_asks_no_more(coordinator, clients):
    """What it waited for goes to nobody; its call counts with its cost, and its clients leave at once.

    A query by the name of a view is of the same run, and nobody hears when it begins: it goes on.
    """
    coordinator.register("run", [Registration("prices", 2, budget=Budget(max_cost=100.0))])
    over, held = await clients(*["run/0/0"] * 2)
    async with over.permit() as first:
        waiting = [asyncio.create_task(each.permit().__aenter__()) for each in (over, held, held)]
        await heard(held)
        await asyncio.to_thread(coordinator.stop, {"run": 0.0})
        for each in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(each, ExecutionError)
        (later,) = await clients("run/1/0")
        second = later.permit()
        granted = asyncio.create_task(second.__aenter__())
        await heard(later)
        assert not granted.done(), "a second call whose price nobody knows"
        first.cost = 3.0
    await granted
    (spent,) = await asyncio.to_thread(coordinator.spent, "run")
    assert (spent.requests, spent.cost) == (2, 3.0)
    began = time.monotonic()
    (last,) = await clients("run/2/0")
    await asyncio.to_thread(coordinator.stop, {"run": began})  # not what was there before
    with pytest.raises(ExecutionError, match="stopped"):
        await heard(last)
    await call(later)
    await asyncio.to_thread(coordinator.stop, {"run": 0.0})
    await later.close()
    (last,) = await clients("run/3/0")
    async with last.permit(), last.permit():
        pass


@pytest.mark.parametrize(("execution", "calls"), [("1", 5), ("stream s/1", 1)])
@pytest.mark.parametrize("group", [None, "api"])
async def test_the_next_action_tries_a_source_anew(coordinator, clients, hasty, execution, calls, group):
    """A micro-batch of a stream does not: it goes on where the one before was."""
    coordinator.register("run", [Registration("prices", 2, circuit_breaker=3, group=group)])

    async def ask_in_vain(execution: str) -> int:
        (client,), made = await clients(f"run/{execution}/0"), 0
        with suppress(ExecutionError):
            while made < 100:
                await call(client, DOWN)
                made += 1
                await heard(client)
        await client.close()
        return made

    assert await ask_in_vain(execution) == 5
    assert await ask_in_vain(f"{execution}1") == calls
