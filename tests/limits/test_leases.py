"""Leases: who is silent holds nothing for longer than thirty seconds, on a virtual clock."""

from __future__ import annotations

import asyncio
import threading

from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration, Settings
from tests.limits.hammer import rows_of
from tests.limits.test_server import PATIENCE, run

KEY, OTHER = b"k" * 16, b"o" * 16


async def test_what_was_said_before_leaving_is_heard(monkeypatch):
    """Answers that are sent right before a task ends are kept, though it has left when they are read."""
    late = asyncio.Event()

    async def wait_until_it_left(self, client):
        await late.wait()

    monkeypatch.setattr(LookupSession, "ready", wait_until_it_left)
    monkeypatch.setattr("millrace.limits.connection.BYE_SECONDS", 0.1)
    coordinator = Coordinator()
    keys = [number.to_bytes(16, "big") for number in range(50)]
    one = await Client.limited(coordinator.address, "n", Settings())
    claiming = asyncio.create_task(one.claim(keys))
    coordinator._loop.call_soon_threadsafe(late.set)
    await claiming
    coordinator._loop.call_soon_threadsafe(late.clear)
    for key in keys:
        one.settle(rows_of([key]))
    await one.close()
    coordinator._loop.call_soon_threadsafe(late.set)
    other = await Client.limited(coordinator.address, "n", Settings())
    claimed = await other.claim(keys)
    while claimed.waiting:
        told = await other.notification()
        assert told.ask == []
        claimed = await other.claim(keys)
    assert claimed.ask == []
    await other.close()
    coordinator.close()


def test_a_slow_disk_takes_no_permit_away(monkeypatch):
    """While its jobs wait for the disk, a client's releases are read, and its silence is not its own."""
    go_on = threading.Event()
    plain = LookupSession._settle

    def slowly(session, *arguments) -> None:
        assert go_on.wait(PATIENCE)
        plain(session, *arguments)

    monkeypatch.setattr(LookupSession, "_settle", slowly)
    coordinator = Coordinator()
    coordinator.register("run", [Registration("names", max_in_flight=1)])

    async def play() -> None:
        one, other = [await Client.connect(coordinator.address, "run/0/0") for _ in range(2)]
        keys = [number.to_bytes(16, "big") for number in range(20)]
        await one.claim(keys)
        async with one.permit():
            for key in keys:
                one.settle(rows_of([key]))
        async with other.permit():
            session = coordinator._sessions["run/0/0"]
            coordinator._within(lambda: session._heard.update(dict.fromkeys(session._heard, -1e9)))
            coordinator._within(session.expire)
            assert len(session._claims) == 20
            go_on.set()
        await one.claim(keys)
        assert coordinator.progress("run")[0].done == 20
        await one.close()
        await other.close()

    try:
        run(play())
    finally:
        go_on.set()
        coordinator.close()


def test_connections_between_calls_are_shared_out_to_the_last():
    """However many clients there are: eight kept open in all, by eight of the sixteen, never more."""

    async def play() -> None:
        session = LookupSession(Registration("stock", max_in_flight=8))
        shares: dict[int, int] = {}

        def joined(name: int) -> int:
            return session.join(lambda message: shares.update({name: message.get("share", shares.get(name))}))

        numbers = {}
        for name in range(16):
            numbers[name] = joined(name)
            assert sum(shares.values()) <= 8
        assert sorted(shares.values()) == [0] * 8 + [1] * 8
        for name in range(12):
            session.leave(numbers[name])
            del shares[name]
            assert sum(shares.values()) <= 8 and sum(shares.values()) >= min(8, len(shares))
        assert list(shares.values()) == [2] * 4
        session.close()

    asyncio.run(play())
