"""Limits that many queries share by the name of a group."""

from __future__ import annotations

import asyncio
import threading

import pytest

import millrace
from millrace.budget import Budget
from millrace.coordination import Client, Coordinator, Registration, Settings
from millrace.errors import BudgetError, ExecutionError, OptionError
from tests.coordination.service import Service
from tests.coordination.test_server import run
from tests.spark.test_limits import asking


@pytest.fixture
def coordinator():
    served = Coordinator()
    yield served
    served.close()


def test_lookups_and_predicates_of_all_queries_have_one_cap_and_one_budget(coordinator):
    """Permits of a group are out at most as often as it says, whoever has them, and the budget is for all."""
    limits = Settings(max_in_flight=2, budget=Budget(max_requests=9))
    for name in ("one", "two"):
        registration = Registration("prices", 2, budget=limits.budget, group="api")
        coordinator.register(name, [registration])
    out, most, made = 0, 0, 0

    async def call(client: Client) -> None:
        nonlocal out, most, made
        async with client.permit():
            out, made = out + 1, made + 1
            most = max(most, out)
            await asyncio.sleep(0.001)
            out -= 1

    async def play() -> None:
        clients = [await Client.connect(coordinator.address, f"{name}/0/0") for name in ("one", "two")]
        clients.append(await Client.limited(coordinator.address, "three/0/0", limits, group="api"))
        alone = await Client.limited(coordinator.address, "four/0/0", Settings(max_in_flight=2))
        results = await asyncio.gather(
            *(call(client) for client in clients for _ in range(4)), return_exceptions=True
        )
        assert sum(isinstance(each, BudgetError) for each in results) == 3
        async with alone.permit():
            for client in clients:
                await client.close()
        await alone.close()
        later = await Client.connect(coordinator.address, "one/1/0")
        with pytest.raises(BudgetError, match="9 of 9 requests"):
            await call(later)
        await later.close()

    run(play())
    assert (most, made) == (2, 9)


def test_a_group_has_the_limits_that_are_given_last_unless_it_is_in_use(coordinator):
    """Other limits are refused when a query is planned, with both."""
    one, two = (Registration("prices", number, group="api") for number in (1, 2))
    with pytest.raises(OptionError, match=r"'api' has different limits \(max_in_flight=1; max_in_flight=2\)"):
        coordinator.register("both", [one, two])
    coordinator.register("one", [one])

    async def play() -> None:
        client = await Client.connect(coordinator.address, "one/0/0")
        with pytest.raises(OptionError, match=r"'api' has max_in_flight=1, .* running.*'prices'.*flight=2"):
            await asyncio.to_thread(coordinator.register, "two", [two])
        with pytest.raises(ExecutionError, match="'api' has max_in_flight=1"):
            await Client.limited(coordinator.address, "n", Settings(max_in_flight=2), group="api")
        await client.close()
        await asyncio.to_thread(coordinator.register, "two", [two])
        await (await Client.connect(coordinator.address, "two/0/0")).close()

    run(play())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"limit_group": ""}, "limit_group is ''"), ({"limit_group": "api"}, "nothing to share")],
)
def test_settings_that_cannot_be(options, message):
    """They are told where the predicate is made."""
    with pytest.raises(OptionError, match=message):
        asking("http://nowhere", **options)


def test_queries_that_run_at_once_keep_the_limits_of_their_group(spark):
    """Two of them, each with another predicate, never have more calls under way than the group allows."""
    with Service(lambda *_: "yes") as service:
        frames = []
        for number in range(2):
            ask = asking(service.url, max_in_flight=3, limit_group="two queries", name=f"ask{number}")
            rows = spark.range(100 * number, 100 * number + 80, 1, 4).selectExpr("id", "int(id) AS x")
            frames.append(millrace.where(rows, ask("x")))
        counts: list[int] = []
        threads = [threading.Thread(target=lambda f=f: counts.append(f.count())) for f in frames]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == [80, 80]
    assert service.most <= 3 and sum(service.asked.values()) == 160


def test_answers_and_limits_last_over_the_micro_batches_of_a_stream(spark, tmp_path):
    """What was asked in one is not asked in the next, and the calls of all of them keep their distance."""
    for number in range(3):
        spark.range(0, 20, 1, 1).selectExpr("id", "int(id % 10) AS x").write.parquet(
            str(tmp_path / "in" / str(number))
        )
    with Service(lambda x, _: "yes" if x % 2 else "no") as service:
        ask = asking(service.url, dedupe=True, max_in_flight=2)
        stream = (
            spark.readStream.schema("id long, x int")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(tmp_path / "in" / "*"))
        )
        query = (
            millrace.where(stream, ask("x"))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        assert len(query.recentProgress) >= 3
    assert spark.read.parquet(str(tmp_path / "out")).count() == 30
    assert service.asked == dict.fromkeys(range(10), 1)


def test_a_group_has_the_lowest_breaker_of_its_lookups(coordinator):
    """Whoever came first, and whether that one has a breaker at all."""
    coordinator.register("one", [Registration("prices", 9, group="api")])
    coordinator.register("two", [Registration("stock", 9, circuit_breaker=3, group="api")])

    async def play() -> None:
        one = await Client.connect(coordinator.address, "one/0/0")
        two = await Client.connect(coordinator.address, "two/0/0")
        for _ in range(3):
            async with one.permit() as permit:
                permit.outcome = "HTTP 502"
        for client in (one, two):
            await client.secrets()  # what was said before has been heard
        problems = [
            (await asyncio.to_thread(coordinator.progress, name))[0].problem for name in ("one", "two")
        ]
        assert all("HTTP 502" in problem for problem in problems)
        await one.close()
        await two.close()

    run(play())
