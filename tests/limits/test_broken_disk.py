"""Whatever goes wrong where answers are kept, everyone hears of it and nothing waits for ever."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from millrace.errors import ExecutionError, MillraceError
from millrace.limits.chunk import Failure
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.registration import Registration
from tests.gate import sampled
from tests.limits.hammer import rows_of
from tests.limits.test_server import PATIENCE, run

KEYS = [number.to_bytes(16, "big") for number in range(12)]
HALF = "bad \udcff text"


def bounded(function: Callable[..., Any], *arguments: object) -> Any:
    """Return what a blocking function returns, called in a thread, unless it hangs."""
    answer: Future[Any] = Future()

    def call() -> None:
        try:
            answer.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001  # the caller gets it
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return answer.result(PATIENCE)


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    """One with a lookup, whose end is not waited for without end."""
    served = Coordinator()
    served.register("run", [Registration("names")])
    yield served
    bounded(served.close)


async def test_failures_whose_texts_no_file_can_hold_are_listed(coordinator, clients):
    """Half of a character, as names of files have it, is written out."""
    one, other = await clients(*["run/0/0"] * 2)
    await one.claim(KEYS[:1])
    await other.claim(KEYS[:1])
    await one.fail({KEYS[0]: Failure(HALF, HALF, 1, HALF)})
    (told,) = (await other.notification()).failed.values()
    assert told == Failure(r"bad \udcff text", r"bad \udcff text", 1, r"bad \udcff text")
    await clients.close()
    (failed,) = bounded(coordinator.failed, "run")
    assert (failed.kind, failed.key) == (r"bad \udcff text", r"bad \udcff text")


@pytest.mark.parametrize("error", [pa.ArrowInvalid("no stream"), MemoryError("none left"), KeyError("x")])
@pytest.mark.parametrize("place", ["put", "fail", "find"])
async def test_an_error_beside_the_disk_ends_the_lookup_with_the_reason(
    coordinator, clients, monkeypatch, place, error
):
    """Whoever waits hears it; what is asked of the coordinator later is answered, and it ends."""

    def broken(*_: object) -> None:
        raise error

    one, other = await clients(*["run/0/0"] * 2)
    await one.claim(KEYS[:2])
    await other.claim(KEYS[:2])
    monkeypatch.setattr(f"millrace.limits.store.Store.{place}", broken)
    works: dict[str, Any] = {
        "put": lambda: one.settle(rows_of(KEYS[:1])),
        "fail": lambda: one.fail({KEYS[0]: Failure("kind", "message", 1)}),
        "find": lambda: one.claim(KEYS[3:]),
    }
    with suppress(ExecutionError):
        waiting = works[place]()
        if waiting is not None:
            await waiting
    for wait in (other.notification, lambda: one.claim(KEYS[5:])):
        with pytest.raises(ExecutionError, match=f"'names'.*{error}"):
            await wait()
    await clients.close()
    monkeypatch.undo()
    assert bounded(coordinator.failed, "run") == []
    bounded(coordinator.progress, "run")
    bounded(coordinator.forget, "run")


@pytest.mark.parametrize("error", [RuntimeError, OSError, MemoryError])
async def test_a_session_that_finds_no_thread_says_so(coordinator, clients, monkeypatch, error):
    """A machine that has no more threads ends the lookup; nobody waits for one."""

    def start(thread: threading.Thread) -> None:
        if thread.name == "millrace disk":
            raise error("can't start new thread")
        plain(thread)

    plain = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    (client,) = await clients("run/0/0")
    with pytest.raises(ExecutionError, match="start new thread"):
        await client.claim(KEYS)
    await client.close()
    assert bounded(coordinator.failed, "run") == []


class Faults:
    """Makes calls of what touches disk and network fail, one in so many, in an order that a seed decides."""

    KINDS: tuple[tuple[type[Exception], tuple[Any, ...]], ...] = (
        (OSError, (28, "No space left on device")),
        (sqlite3.OperationalError, ("disk I/O error",)),
        (pa.ArrowInvalid, ("no stream",)),
        (MemoryError, ()),
        (UnicodeEncodeError, ("utf-8", HALF, 4, 5, "surrogates not allowed")),
        (RuntimeError, ("can't start new thread",)),
        (KeyError, ("rows",)),
    )
    PLACES = (
        *(f"millrace.limits.store.{name}" for name in ("connect", "insert", "enter", "rows_of", "places")),
        *(
            f"millrace.limits.store.Store.{name}"
            for name in ("fail", "failure", "failures", "after", "close")
        ),
        *(
            f"millrace.limits.cache.Cache.{name}"
            for name in ("__init__", "find", "chunk", "upkeep", "finish")
        ),
        *(f"millrace.limits.codec.{name}" for name in ("frame", "write", "write_frame", "read", "cut")),
        "millrace.limits.disk_thread.threading.Thread.start",
    )

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._of = self._random.choice((3, 10, 40))
        self._places = self._random.sample(self.PLACES, self._random.choice((1, 2, 8)))
        self.active = False

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for place in self._places:
            owner, _, name = place.rpartition(".")
            target = _resolved(owner)
            monkeypatch.setattr(target, name, self._faulty(getattr(target, name)))

    def _faulty(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self.active and self._here() and self._random.randrange(self._of) == 0:
                kind, arguments = self._random.choice(self.KINDS)
                raise kind(*arguments)
            return plain(*args, **named)

        return call

    def _here(self) -> bool:
        """Whether this is the coordinator's side: a task that cannot speak has a fault of its own."""
        return threading.current_thread().name in ("millrace limits", "millrace disk")


def _resolved(name: str) -> Any:
    import importlib

    module, rest = name, []
    while True:
        with suppress(ModuleNotFoundError):
            found = importlib.import_module(module)
            break
        module, _, last = module.rpartition(".")
        rest.insert(0, last)
    for each in rest:
        found = getattr(found, each)
    return found


async def _task(coordinator: Coordinator, namespace: str, seed: int) -> None:
    """Look all keys up as a task does: some are given up or fail, all others are settled."""
    chance = random.Random(seed)
    client = await Client.connect(coordinator.address, namespace)
    try:
        claimed = await client.claim(chance.sample(KEYS, len(KEYS)))
        ask, waiting = claimed.ask, set(claimed.waiting)
        while True:
            for key in ask:
                async with client.permit():
                    client.count(requests=1)
                if chance.random() < 0.2:
                    await client.fail({key: Failure("kind", HALF, 1)})
                else:
                    client.settle(rows_of([key]))
            if not waiting:
                break
            told = await client.notification()
            waiting -= {*told.failed, *told.ask, *(key for chunk in told.found for key in chunk.keys)}
            ask = told.ask
        await client.claim(KEYS)
    finally:
        await client.close()


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
            faults = Faults(seed)
            coordinator = Coordinator()
            cached = Registration("names", 2, cache=tmp_path / f"{seed % 5}.sqlite", fingerprint="f" * 32)
            coordinator.register("run", [Registration("names", 2), cached])
            faults.patch(patched)
            faults.active = True

            async def tasks(of: Coordinator = coordinator, seed: int = seed) -> list[Any]:
                return await asyncio.gather(
                    *(_task(of, f"run/0/{number % 2}", seed + number) for number in range(4)),
                    return_exceptions=True,
                )

            outcomes = run(tasks())
            for ask in (coordinator.failed, coordinator.progress, coordinator.spent, coordinator.forget):
                with suppress(MillraceError):
                    bounded(ask, "run")
            bounded(coordinator.close)
            assert all(each is None or isinstance(each, MillraceError) for each in outcomes), outcomes
            failed += sum(each is not None for each in outcomes)
            ended += sum(each is None for each in outcomes)
    assert ended and failed
