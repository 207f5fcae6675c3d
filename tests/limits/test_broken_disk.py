"""Whatever goes wrong where answers are kept, everyone hears of it and nothing waits for ever."""

from __future__ import annotations

import asyncio
import pkgutil
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from millrace.errors import ExecutionError, MillraceError
from millrace.limits.chunk import Failure
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.registration import Registration
from millrace.lookups.threads import within
from tests.gate import sampled
from tests.limits.hammer import Calls, keys_of, look_up, rows_of
from tests.limits.running import PATIENCE, run

KEYS = keys_of(12)
HALF = "bad \udcff text"


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    """One with a lookup, whose end is not waited for without end."""
    served = Coordinator()
    served.register("run", [Registration("names")])
    yield served
    within(PATIENCE, served.close)


ERRORS = [sqlite3.OperationalError("disk is full"), MemoryError("none left"), pa.ArrowInvalid("no stream")]
NO_THREAD = [kind("can't start new thread") for kind in (RuntimeError, OSError, MemoryError)]


@pytest.mark.parametrize(
    ("place", "error"),
    [*product(["put", "fail", "find"], ERRORS), *product(["start"], NO_THREAD)],
)
async def test_an_error_beside_the_disk_ends_the_lookup_with_the_reason(
    coordinator, clients, monkeypatch, place, error
):
    """Whoever waits hears it; what is asked of the coordinator later is answered, and it ends."""

    def broken(*_: object) -> None:
        raise error

    async def settle() -> None:
        one.settle(rows_of(KEYS[:1]))

    one, other = await clients(*["run/0/0"] * 2)
    if place == "start":  # of the thread that the first key needs
        monkeypatch.setattr("millrace.limits.disk_thread.threading.Thread.start", broken)
    else:
        await one.claim(KEYS[:2])
        await other.claim(KEYS[:2])
        monkeypatch.setattr(f"millrace.limits.store.Store.{place}", broken)
    with suppress(ExecutionError):
        await {
            "put": settle,
            "fail": lambda: one.fail({KEYS[0]: Failure("kind", "message", 1)}),
        }.get(place, lambda: one.claim(KEYS[3:]))()
    for wait in (other.notification, lambda: one.claim(KEYS[5:])):
        with pytest.raises(ExecutionError, match=f"'names'.*{error}"):
            await wait()
    await clients.close()
    monkeypatch.undo()
    assert within(PATIENCE, partial(coordinator.failed, "run")) == []
    for ask in (coordinator.progress, coordinator.forget):
        within(PATIENCE, partial(ask, "run"))


KINDS: list[tuple[type[Exception], tuple[Any, ...]]] = [
    (OSError, (28, "No space left on device")),
    (sqlite3.OperationalError, ("disk I/O error",)),
    (pa.ArrowInvalid, ("no stream",)),
    (MemoryError, ()),
    (UnicodeEncodeError, ("utf-8", HALF, 4, 5, "surrogates not allowed")),
    (RuntimeError, ("can't start new thread",)),
    (KeyError, ("rows",)),
]
PLACES = [
    f"millrace.limits.{owner}.{name}"
    for owner, names in {
        "store": "connect insert enter rows_of places",
        "store.Store": "fail failure failures after close",
        "cache.Cache": "__init__ find chunk upkeep finish",
        "codec": "frame write write_frame read cut",
        "disk_thread.threading.Thread": "start",
    }.items()
    for name in names.split()
]


def break_places(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Make calls of what touches disk and network fail, one in so many, in an order that the seed decides."""
    chance = random.Random(seed)
    one_in = chance.choice((3, 10, 40))

    def faulty(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            # The coordinator's side alone: a task that cannot speak has a fault of its own.
            is_here = threading.current_thread().name in ("millrace limits", "millrace disk")
            if is_here and chance.randrange(one_in) == 0:
                kind, arguments = chance.choice(KINDS)
                raise kind(*arguments)
            return plain(*args, **named)

        return call

    for place in chance.sample(PLACES, chance.choice((1, 2, 8))):
        monkeypatch.setattr(place, faulty(pkgutil.resolve_name(place)))


async def look_up_all(coordinator: Coordinator, seed: int) -> list[BaseException | None]:
    """Have four tasks look all keys up; returns what each has raised."""

    async def task(number: int) -> None:
        client = await Client.connect(coordinator.address, f"run/0/{number % 2}")
        try:
            await look_up(client, random.Random(seed + number).sample(KEYS, len(KEYS)), Calls())
        finally:
            await client.close()

    return await asyncio.gather(*map(task, range(4)), return_exceptions=True)


@pytest.mark.parametrize("seeds", sampled([range(low, low + 50) for low in range(0, 300, 50)], 6), ids=str)
def test_no_fault_of_disk_or_network_makes_anybody_wait_for_ever(seeds, tmp_path, monkeypatch):
    """Three hundred runs with faults: each task, each question and the end come to an answer or an error."""
    monkeypatch.setattr("millrace.limits.connection.GRACE_SECONDS", 0.2)
    monkeypatch.setattr("millrace.limits.server.GRACE_SECONDS", 0.2)
    monkeypatch.setattr("millrace.limits.server._LOOK_SECONDS", 0.05)
    monkeypatch.setattr("millrace.limits.connection.BYE_SECONDS", 1.0)
    ended = failed = 0
    for seed in seeds:
        with monkeypatch.context() as patched:
            coordinator = Coordinator()
            cached = Registration("names", 2, cache=tmp_path / f"{seed % 5}.sqlite", fingerprint="f" * 32)
            coordinator.register("run", [Registration("names", 2), cached])
            break_places(patched, seed)
            outcomes = run(look_up_all(coordinator, seed))
            for ask in (coordinator.failed, coordinator.progress, coordinator.spent, coordinator.forget):
                with suppress(MillraceError):
                    within(PATIENCE, partial(ask, "run"))
            within(PATIENCE, coordinator.close)
            assert all(each is None or isinstance(each, MillraceError) for each in outcomes), outcomes
            failed += sum(each is not None for each in outcomes)
            ended += sum(each is None for each in outcomes)
    assert ended and failed
