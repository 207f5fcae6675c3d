"""What tasks do in the tests of the coordinator."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pyarrow as pa

from millrace.limits.chunk import Chunk, Failure
from millrace.limits.client import Client

NO = Failure("HTTP 500", "no", 1, '["a"]')


def keys_of(count: int) -> list[bytes]:
    """So many keys."""
    return [number.to_bytes(16, "big") for number in range(count)]


def rows_of(keys: list[bytes]) -> Chunk:
    """One row for each key."""
    return Chunk.of(keys, [1] * len(keys), pa.table({"key": pa.array(keys, pa.binary())}))


def found(told: Any) -> dict[bytes, list[Any]]:
    """The rows that came, by key."""
    rows = {}
    for chunk in told.found:
        values = iter(chunk.table().to_pylist())
        for key, count in zip(chunk.keys, chunk.counts, strict=True):
            rows[key] = [next(values)["key"] for _ in range(count)]
    return rows


class Calls:
    """What tasks ask of a service that has no rows for every seventh key, and the most calls at once."""

    def __init__(self) -> None:
        self.asked: Counter[bytes] = Counter()
        self.most = self._now = 0

    async def ask(self, client: Client, key: bytes) -> bool:
        """Ask for a key when it is the client's turn, and tell the others; returns whether it has rows."""
        async with client.permit():
            self._now += 1
            self.most = max(self.most, self._now)
            self.asked[key] += 1
            client.count(requests=1)
            await asyncio.sleep(0)
            self._now -= 1
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
