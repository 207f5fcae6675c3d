"""Connections that break: whoever comes back finds what was said, and nothing is asked or counted twice."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.client import Client
from millrace.limits.registration import Registration, Settings
from millrace.limits.seat import Outbox
from tests.limits.hammer import Calls, keys_of, look_up, rows_of
from tests.limits.running import run

KEYS = keys_of(400)


class Relay:
    """Between clients and a server: with a seed it breaks connections in the middle of what is sent."""

    def __init__(self, port: int, seed: int | None) -> None:
        self.port = port
        self.breaks = 0
        self._random = None if seed is None else random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._relaying: set[asyncio.Task[None]] = set()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._relaying.add(asyncio.current_task())
        self._writers.add(writer)
        try:
            answers, there = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(there)
        left = [self._random.randint(2_000, 40_000) if self._random else math.inf]
        await asyncio.gather(self._pipe(reader, there, left), self._pipe(answers, writer, left))

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[float]
    ) -> None:
        with suppress(OSError):
            while part := await reader.read(min(4096, max(1, left[0]))):
                writer.write(part)
                left[0] -= len(part)
                if left[0] <= 0:
                    self.breaks += 1
                    break
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
async def relayed(coordinator, seed: int | None = None):
    """The coordinator's address by way of a relay, and the relay."""
    relay = Relay(coordinator.address.port, seed)
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


@pytest.mark.parametrize("seed", range(4))
async def test_tasks_whose_connections_break_ask_each_key_once(coordinator, seed):
    """Rows, failures, permits and figures are those of a network that holds."""
    calls, mixed = Calls(), random.Random(seed)
    async with relayed(coordinator, seed) as (address, relay):
        clients = [await Client.connect(address, "run/0/0") for _ in range(4)]
        found = await asyncio.gather(*(look_up(each, mixed.sample(KEYS, 400), calls) for each in clients))
        for client in clients:
            await client.close()
        assert relay.breaks >= 4
    assert {frozenset(each) for each in found} == {frozenset(k for k in KEYS if k[-1] % 7)}
    assert calls.asked == Counter(KEYS) and calls.most <= 3
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
    async with relayed(coordinator) as (address, relay):
        client = await Client.connect(address, "run/0/0")
        claimed = await client.claim(KEYS)
        relay.cut()
        client.settle(rows_of(claimed.ask))
        await client.close()
        other = await Client.connect(coordinator.address, "run/0/0")
        claimed = await other.claim(KEYS)
        await other.close()
        assert sum(len(chunk.keys) for chunk in claimed.found) == len(KEYS), "keys are missing"


@pytest.mark.parametrize(
    ("faults", "why"),
    [(0, r"away for more than 0\.1 s"), (1, None), (2, None)],
    ids=["it stays away", "it hears why", "it hears nothing"],
)
async def test_who_is_not_let_in_again_loses_what_it_held(coordinator, clients, monkeypatch, faults, why):
    """Others get its permits and keys, when it is away for too long, or no reply to it can be written."""
    plain, left, one_permit = codec.write, [faults], Settings(max_in_flight=1)

    def write(writer: asyncio.StreamWriter, message: codec.Message) -> None:
        returning = message.keys() == {"read"} or "error" in message
        if returning and left[0]:
            left[0] -= 1
            raise MemoryError
        plain(writer, message)

    async with relayed(coordinator) as (address, relay):
        away = await Client.limited(address, "n", one_permit)
        (other,) = await clients("n", settings=one_permit)
        async with away.permit():
            assert len((await away.claim(KEYS[:2])).ask) == 2
            assert (await other.claim(KEYS[:2])).waiting == KEYS[:2]
            monkeypatch.setattr(codec, "write", write)
            if not faults:
                monkeypatch.setattr("millrace.limits.server.GRACE_SECONDS", 0.1)
                monkeypatch.setattr("millrace.limits.connection._FIRST_WAIT", 0.1)
                relay.port = 1  # nobody is there
            relay.cut()
            async with other.permit():
                assert (await other.notification()).ask == KEYS[:2]
            relay.port = coordinator.address.port
            with pytest.raises(ExecutionError, match=why):
                await away.notification()
        await away.close()
