"""What tasks do in the tests of the coordinator, in this process or another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.limits.chunk import Chunk
from millrace.limits.client import Client
from millrace.limits.clock import VirtualClock
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration


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


def cache_keys(cache: Path, number: int, rounds: int) -> None:
    """Run jobs that each add a few keys to a cache."""

    async def job(keys: list[bytes]) -> None:
        registration = Registration("prices", cache=cache, fingerprint="f" * 32)
        with LookupSession(registration, VirtualClock(1.7e9)) as room:
            client = Client.local(room)
            client.settle(rows_of((await client.claim(keys)).ask))
            await client.close()
            assert room.progress().problem == ""
            room.flush()
            assert room.progress().problem == ""

    for start in range(20 * number, 20 * number + rounds):
        asyncio.run(job([keys_of(120)[(3 * start + each) % 120] for each in range(3)]))
