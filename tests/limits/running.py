"""Tests that are coroutines, each in an event loop of its own and not for ever, and what tasks do in them."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from typing import Any

import pyarrow as pa
import pytest

from millrace.limits.answers import Claims, Keys
from millrace.limits.chunk import Chunk, Failure
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.messages import Fail

PATIENCE = 20
"""Seconds until a test that hangs fails."""

SPAWN = multiprocessing.get_context("spawn")


def run(work: Awaitable[Any], seconds: float = PATIENCE) -> Any:
    """Run a coroutine to its end, but not for ever."""

    async def limited() -> Any:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(limited())


class Clients(AsyncExitStack):
    """Makes clients of a coordinator, which leave when the test is over; those that have left stay away."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__()
        self._coordinator = coordinator

    async def __call__(self, *namespaces: str) -> list[Client]:
        made = [await Client.connect(self._coordinator.address, each) for each in namespaces]
        for client in made:
            self.push_async_callback(client.close)
        return made


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def test() -> None:
        async with pyfuncitem.funcargs.get("clients", nullcontext()):
            await pyfuncitem.obj(**given)

    run(test(), 3 * PATIENCE)  # it may start processes
    return True


NO = Failure("HTTP 500", "no", 1, '["a"]')


def keys_of(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(count)]


def rows_of(keys: list[bytes]) -> Chunk:
    return Chunk.of(keys, [1] * len(keys), pa.table({"key": pa.array(keys, pa.binary())}))


def found(told: Any) -> dict[bytes, list[Any]]:
    rows = {}
    for chunk in told.found:
        values = iter(chunk.table().to_pylist())
        for key, count in zip(chunk.keys, chunk.counts, strict=True):
            rows[key] = [next(values)["key"] for _ in range(count)]
    return rows


async def heard(client: Client) -> None:
    """Wait until the coordinator has done all that a client has said."""
    await client._ask(-1, Fail(-1, {}))


class Calls:
    """What tasks ask of a service that has no rows for every seventh key, and the most calls at once.

    The first calls last until ``at_once`` are under way. Clients that are not ``counted`` when a call begins
    have no part in the most.
    """

    def __init__(self, at_once: int = 1, counted: Callable[[Client], bool] = lambda client: True) -> None:
        self.asked: Counter[bytes] = Counter()
        self.most = 0
        self._now: list[Client] = []
        self._at_once, self._counted, self._met = at_once, counted, asyncio.Event()

    async def ask(self, client: Client, key: bytes) -> bool:
        """Ask for a key when it is the client's turn, and tell the others; returns whether it has rows."""
        async with client.permit() as permit:
            permit.seconds = 0.0
            self._now.append(client)
            self.most = max(self.most, sum(map(self._counted, self._now)))
            self.asked[key] += 1
            if len(self._now) >= self._at_once:
                self._met.set()
            try:
                await self._met.wait()
                await asyncio.sleep(0)
            finally:
                self._now.remove(client)
        has_rows = key[-1] % 7 != 0
        if has_rows:
            client.settle(rows_of([key]))
        else:
            await client.fail({key: NO})
        return has_rows


async def look_up(client: Client, keys: list[bytes], calls: Calls) -> set[bytes]:
    """Look keys up as a task does, one a request; returns those that have rows."""
    got: set[bytes] = set()
    failed: set[bytes] = set()
    waiting: set[bytes] = set()

    async def ask(key: bytes) -> None:
        (got if await calls.ask(client, key) else failed).add(key)

    async def hear(told: Any) -> None:
        assert set(told.failed.values()) <= {NO}
        for chunk in told.found:
            assert chunk.table() == rows_of(chunk.keys).table()
            got.update(chunk.keys)
        failed.update(told.failed)
        await asyncio.gather(*map(ask, told.ask))

    for start in range(0, len(keys), 50):
        claimed = await client.claim(keys[start : start + 50])
        waiting.update(claimed.waiting)
        await hear(claimed)
    while waiting := waiting - got - failed:
        await hear(await client.notification())
    assert got | failed == set(keys) and not got & failed
    return got


def watch_claims(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """Return what will have the keys that clients are asking when their connections end."""
    under_way, drop = Counter[bytes](), Claims.drop

    def counted(claims: Claims, owner: int) -> Keys:
        under_way.update(claims.of(owner))
        return drop(claims, owner)

    monkeypatch.setattr(Claims, "drop", counted)
    return under_way
