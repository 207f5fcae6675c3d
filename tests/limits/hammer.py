"""What other processes do in the tests of the coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa

from millrace.limits.chunk import Chunk
from millrace.limits.client import Client
from millrace.limits.clock import VirtualClock
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration


def rows_of(keys: list[bytes]) -> Chunk:
    """One row for each key."""
    return Chunk.of(keys, [1] * len(keys), pa.table({"key": pa.array(keys, pa.binary())}))


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
