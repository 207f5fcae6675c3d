"""What other processes do in the tests of the coordinator."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

from millrace.limits import Address, RemoteLimits, Settings


def take_turns(
    address: Address, settings: Settings, turns: int, now: Synchronized[int], most: Synchronized[int]
) -> None:
    """Take many turns at once, and note how many processes have one at the same time."""

    async def one(limits: RemoteLimits) -> None:
        async with limits.turn():
            with now.get_lock():
                now.value += 1
                most.value = max(most.value, now.value)
            for _ in range(5):
                await asyncio.sleep(0)
            with now.get_lock():
                now.value -= 1

    async def every() -> None:
        limits = await RemoteLimits.connect(address, "hammer", settings)
        await asyncio.gather(*(one(limits) for _ in range(turns)))
        await limits.close()

    asyncio.run(every())


def hold(address: Address, settings: Settings, namespace: str, keys: list[bytes], told: Connection) -> None:
    """Take a turn and claim keys, say so, and never give them back."""

    async def take() -> None:
        limits = await RemoteLimits.connect(address, namespace, settings)
        async with limits.turn():
            claim = await limits.claim(keys)
            told.send(len(claim.ask))
            await asyncio.Event().wait()

    asyncio.run(take())
