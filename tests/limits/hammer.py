"""What other processes do in the tests of the coordinator."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pyarrow as pa

from millrace.limits.chunk import Chunk
from millrace.limits.client import Client
from millrace.limits.clock import VirtualClock
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Address, Registration, Settings


def take_turns(
    address: Address, settings: Settings, turns: int, now: Synchronized[int], most: Synchronized[int]
) -> None:
    """Take many turns at once, and note how many processes have one at the same time."""

    async def one(limits: Client) -> None:
        async with limits.permit():
            with now.get_lock():
                now.value += 1
                most.value = max(most.value, now.value)
            for _ in range(5):
                await asyncio.sleep(0)
            with now.get_lock():
                now.value -= 1

    async def every() -> None:
        limits = await Client.limited(address, "hammer", settings)
        await asyncio.gather(*(one(limits) for _ in range(turns)))
        await limits.close()

    asyncio.run(every())


def look_up(address: Address, namespace: str, keys: list[bytes], asked: Connection) -> None:
    """Look up all keys as a task does, each row naming its key; say which were asked here."""

    async def every() -> None:
        client = await Client.connect(address, namespace)
        claimed = await client.claim(keys)
        mine, known, waiting = list(claimed.ask), set(claimed.failed), set(claimed.waiting)
        known.update(key for chunk in claimed.found for key in chunk.keys)
        client.settle(rows_of(mine))
        while waiting:
            news = await client.notification()
            got = [key for chunk in news.found for key in chunk.keys]
            for chunk in news.found:
                assert chunk.table() == rows_of(chunk.keys).table()
            mine += news.ask
            if news.ask:
                client.settle(rows_of(news.ask))
            known.update(got)
            waiting.difference_update([*got, *news.ask, *news.failed])
        assert known | set(mine) == set(keys)
        await client.close()
        asked.send(mine)

    asyncio.run(every())


def rows_of(keys: list[bytes]) -> Chunk:
    """One row for each key."""
    return Chunk.of(keys, [1] * len(keys), pa.table({"key": pa.array(keys, pa.binary())}))


def hold_keys(address: Address, namespace: str, keys: list[bytes], told: Connection) -> None:
    """Take a turn of a lookup and claim keys, say how many, and never give them back."""

    async def take() -> None:
        client = await Client.connect(address, namespace)
        async with client.permit():
            told.send(len((await client.claim(keys)).ask))
            await asyncio.Event().wait()

    asyncio.run(take())


def cache_keys(cache: Path, number: int, rounds: int) -> None:
    """Run jobs that each add a few keys to a cache."""

    async def job(keys: list[bytes]) -> None:
        with LookupSession(
            Registration("prices", cache=cache, fingerprint="f" * 32), VirtualClock(1.7e9)
        ) as room:
            client = Client.local(room)
            client.settle(rows_of((await client.claim(keys)).ask))
            await client.close()
            assert room.progress().problem == ""
            room.flush()
            assert room.progress().problem == ""

    for start in range(20 * number, 20 * number + rounds):
        asyncio.run(job([(3 * start % 120 + each).to_bytes(16, "big") for each in range(3)]))
