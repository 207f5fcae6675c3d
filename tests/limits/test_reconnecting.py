"""Connections that break: whoever comes back finds what was said, and nothing is asked or counted twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.chunk import Failure
from millrace.limits.client import Client
from millrace.limits.registration import Registration, Settings
from millrace.limits.seat import Outbox
from tests.limits.hammer import rows_of
from tests.limits.running import run

KEYS = [number.to_bytes(16, "big") for number in range(400)]


class Breaking:
    """A relay between clients and a server that breaks connections in the middle of what is sent."""

    def __init__(self, port: int, seed: int, most: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._most = most
        self._writers: set[asyncio.StreamWriter] = set()
        self._relaying: set[asyncio.Task[None]] = set()
        self.breaks = 0
        self.whole = False

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._relaying.add(asyncio.current_task())
        self._writers.add(writer)
        try:
            there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(there[1])
        left = [self._random.randint(2_000, self._most)]
        await asyncio.gather(self._pipe(reader, there[1], left), self._pipe(there[0], writer, left))

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]
    ) -> None:
        try:
            while part := await reader.read(min(4096, max(1, left[0]))):
                writer.write(part)
                if not self.whole:
                    left[0] -= len(part)
                    if left[0] <= 0:
                        self.breaks += 1
                        break
        except OSError:
            pass
        writer.transport.abort()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        self.cut()
        await asyncio.gather(*self._relaying)
        for writer in self._writers:
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def relayed(coordinator, seed: int, most: int = 40_000):
    """The coordinator's address by way of a relay, and the relay."""
    relay = Breaking(coordinator.address.port, seed, most)
    server = await asyncio.start_server(relay.relay, "127.0.0.1", 0)
    try:
        yield replace(coordinator.address, port=server.sockets[0].getsockname()[1]), relay
    finally:
        server.close()
        await relay.close()


@pytest.fixture
def coordinator(coordinator):
    """One that has a lookup."""
    coordinator.register("run", [Registration("prices", max_in_flight=3)])
    return coordinator


async def look_up(client: Client, keys: list[bytes], asked: Counter[bytes], now: Counter[str]) -> set[bytes]:
    """Look keys up as a task does, one a request, every seventh in vain; returns those that have rows."""
    got: set[bytes] = set()
    failed: set[bytes] = set()
    waiting: set[bytes] = set()

    async def ask(key: bytes) -> None:
        async with client.permit():
            now["calls"] += 1
            assert now["calls"] <= 3
            asked[key] += 1
            client.count(requests=1)
            await asyncio.sleep(0)
            now["calls"] -= 1
        if key[-1] % 7 == 0:
            await client.fail({key: Failure("HTTP 500", "no", 1, "")})
            failed.add(key)
        else:
            client.settle(rows_of([key]))
            got.add(key)

    async def hear(found, failures, due) -> None:
        for chunk in found:
            assert chunk.table() == rows_of(chunk.keys).table()
            got.update(chunk.keys)
        failed.update(failures)
        await asyncio.gather(*map(ask, due))

    for start in range(0, len(keys), 50):
        claimed = await client.claim(keys[start : start + 50])
        waiting.update(claimed.waiting)
        await hear(claimed.found, claimed.failed, claimed.ask)
    while waiting := waiting - got - failed:
        news = await client.notification()
        await hear(news.found, news.failed, news.ask)
    assert got | failed == set(keys) and not got & failed
    return got


@pytest.mark.parametrize("seed", range(4))
async def test_tasks_whose_connections_break_ask_each_key_once(coordinator, seed):
    """Rows, failures, permits and figures are those of a network that holds."""
    asked, now = Counter[bytes](), Counter[str]()
    mixed = random.Random(seed)
    async with relayed(coordinator, seed) as (address, relay):
        clients = [await Client.connect(address, "run/0/0") for _ in range(4)]
        work = [look_up(each, mixed.sample(KEYS, len(KEYS)), asked, now) for each in clients]
        found = await asyncio.gather(*work)
        for client in clients:
            await client.close()
        assert relay.breaks >= 4
    assert {frozenset(each) for each in found} == {frozenset(k for k in KEYS if k[-1] % 7)}
    assert asked == Counter(KEYS)
    (progress,) = await asyncio.to_thread(coordinator.progress, "run")
    in_vain = sum(key[-1] % 7 == 0 for key in KEYS)
    assert (progress.keys, progress.done, progress.requests) == (400, 400 - in_vain, 400)
    assert (progress.failed, progress.in_flight) == (in_vain, 0)


@pytest.mark.broken_rule
def test_what_is_not_said_again_is_missed(coordinator, monkeypatch):
    """The test before sees a client that comes back and says nothing of what was lost."""
    monkeypatch.setattr(Outbox, "unread", ())
    monkeypatch.setattr("millrace.limits.connection.BYE_SECONDS", 0.2)
    with pytest.raises(AssertionError, match="keys are missing"):
        run(_one_break(coordinator))


def test_a_break_that_nobody_has_noticed_costs_nothing(coordinator):
    """What is sent into a dead connection is said again."""
    run(_one_break(coordinator))


async def _one_break(coordinator) -> None:
    async with relayed(coordinator, 0) as (address, relay):
        relay.whole = True
        client = await Client.connect(address, "run/0/0")
        claimed = await client.claim(KEYS)
        relay.cut()
        client.settle(rows_of(claimed.ask))
        await client.close()
        other = await Client.connect(coordinator.address, "run/0/0")
        claimed = await other.claim(KEYS)
        await other.close()
        assert sum(len(chunk.keys) for chunk in claimed.found) == len(KEYS), "keys are missing"


async def test_who_stays_away_loses_what_it_held(coordinator, monkeypatch):
    """Others get its permits and keys; when it comes back at last, it hears so."""
    monkeypatch.setattr("millrace.limits.server.GRACE_SECONDS", 0.1)
    one_permit = Settings(max_in_flight=1)
    async with relayed(coordinator, 0) as (address, relay):
        relay.whole = True
        away = await Client.limited(address, "n", one_permit)
        claimed = await away.claim(KEYS[:2])
        monkeypatch.setattr("millrace.limits.connection._FIRST_WAIT", 0.1)
        other = await Client.limited(coordinator.address, "n", one_permit)
        async with away.permit():
            assert len(claimed.ask) == 2 and (await other.claim(KEYS[:2])).waiting == KEYS[:2]
            relay._port = 1  # nobody is there
            relay.cut()
            async with other.permit():
                assert (await other.notification()).ask == KEYS[:2]
            relay._port = coordinator.address.port
            with pytest.raises(ExecutionError, match=r"away for more than 0\.1 s"):
                await away.notification()
        await away.close()
        await other.close()


@pytest.mark.parametrize("times", [1, 2], ids=["it hears why", "it hears nothing"])
async def test_who_cannot_be_let_in_again_loses_what_it_held(coordinator, monkeypatch, times):
    """A reply that cannot be written ends one task's part, and others get its keys."""
    plain, left = codec.write, [times]

    def write(writer: asyncio.StreamWriter, message: codec.Message) -> None:
        returning = message.keys() == {"read"} or "error" in message
        if returning and left[0]:
            left[0] -= 1
            raise MemoryError
        plain(writer, message)

    async with relayed(coordinator, 0) as (address, relay):
        relay.whole = True
        away = await Client.connect(address, "run/0/0")
        other = await Client.connect(coordinator.address, "run/0/0")
        await away.claim(KEYS[:2])
        assert (await other.claim(KEYS[:2])).waiting == KEYS[:2]
        monkeypatch.setattr(codec, "write", write)
        relay.cut()
        assert (await other.notification()).ask == KEYS[:2]
        with pytest.raises(ExecutionError):
            await away.notification()
        await away.close()
        await other.close()
