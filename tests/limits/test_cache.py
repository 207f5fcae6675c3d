"""Where answers are kept: rows outlive the run, no file makes one wrong, and all hear of what goes wrong."""

from __future__ import annotations

import asyncio
import math
import os
import pkgutil
import random
import re
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from millrace.errors import ExecutionError, InputError, MillraceError
from millrace.limits import answers
from millrace.limits.cache import check_cache, opened
from millrace.limits.chunk import Chunk, Failure
from millrace.limits.client import Client
from millrace.limits.clock import VirtualClock
from millrace.limits.coordinator import Coordinator
from millrace.limits.lookup_session import LookupSession
from millrace.limits.messages import Claim, Settle
from millrace.limits.registration import Registration
from millrace.lookups.threads import within
from tests.gate import sampled
from tests.limits import running
from tests.limits.running import PATIENCE, Calls, found, keys_of, rows_of, run, watch_claims
from tests.session import wait_for

KEYS = keys_of(50)
EVERY_ROW = {key: [key] for key in KEYS}
LARGE = Chunk.of(KEYS, [1] * len(KEYS), pa.table({"key": pa.array([key * 30_000 for key in KEYS])}))


@pytest.fixture
def calendar():
    """A calendar that stands still until it is told to go on."""
    return VirtualClock(1.7e9)


def offer(cache: Path, *, ttl: float | None = None, fingerprint: str = "f" * 32) -> Registration:
    return Registration("prices", cache=cache, ttl=ttl, fingerprint=fingerprint)


async def look_up(lookup, calendar, keys=KEYS, *, fail=(), after=0.0) -> tuple[list[bytes], dict]:
    """Run a job that wants keys, some time after it began; returns those it asked, and the rows it found."""
    with LookupSession(lookup, calendar) as session:
        client = Client.local(session)
        calendar.advance(after)
        claimed = await client.claim(keys)
        await client.fail({key: Failure("HTTP 404", "gone", 1) for key in fail})
        client.settle(rows_of([key for key in claimed.ask if key not in fail]))
        await client.close()
        assert session.progress().problem == ""
        assert session.progress().cached == len(found(claimed))
        return claimed.ask, found(claimed)


def test_nobody_else_can_read_a_cache(tmp_path, calendar):
    """Neither its folder nor its files, those of SQLite beside it included; a folder that was there stays."""
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    for cache in (tmp_path / "made", there, there / "file.sqlite"):
        check_cache(cache)
        with LookupSession(offer(cache), calendar):
            made = [*(tmp_path / "made").rglob("*"), *there.rglob("*")]
            assert made and {each.stat().st_mode & 0o777 for each in made} == {0o600}
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    assert there.stat().st_mode & 0o777 == 0o755


some_keys = st.lists(st.sampled_from(KEYS[:5]), unique=True)
JOBS = st.lists(
    st.tuples(
        st.sampled_from("ef"), st.sampled_from([None, 1, 2, 5]), st.integers(0, 3), some_keys, some_keys
    ),
    max_size=8,
)


@settings(max_examples=20, deadline=None, derandomize=True)
@example(
    "file.sqlite",
    [
        ("e", 5, 0, KEYS[:2], []),
        ("e", 1, 0, KEYS[:2], []),
        ("e", 5, 0, KEYS[:1], []),
        ("f", 5, 0, KEYS[1:2], []),
        ("f", 5, 0, KEYS[:2], []),
    ],
)
@given(st.sampled_from(["folder", "file.sqlite"]), JOBS)
def test_a_job_asks_only_what_is_not_there_or_has_expired(tmp_path_factory, name, jobs):
    """Rows count for the time to live of whoever wrote them and of who reads, as of the job's start.

    Failures outlive no job, and other definitions neither read rows nor overwrite them. What has expired, or
    is there anew, is removed.
    """
    cache, calendar = tmp_path_factory.mktemp("cache") / name, VirtualClock(1.7e9)
    kept: dict[tuple[str, bytes], tuple[float, float]] = {}  # when it was written, and when it expires
    for definition, ttl, seconds, keys, failing in jobs:
        now, oldest = calendar.now(), calendar.now() - (ttl or math.inf)
        known = [
            key for (of, key), (at, until) in kept.items() if of == definition and at > oldest and until > now
        ]
        lookup = offer(cache, ttl=ttl, fingerprint=32 * definition)
        asked, rows = asyncio.run(look_up(lookup, calendar, keys, fail=failing, after=seconds))
        assert asked == [key for key in keys if key not in known]
        assert rows == {key: [key] for key in keys if key in known}
        at = calendar.now()
        kept |= {(definition, key): (at, at + (ttl or math.inf)) for key in asked if key not in failing}
        if cache.is_file():
            left = [(of, at) for (of, _), (at, until) in kept.items() if until > now]
            assert counted(cache) == (len(set(left)), len(left))
        calendar.advance(1)


def counted(cache: Path) -> tuple[int, int]:
    """The chunks and the keys in a file."""
    with closing(sqlite3.connect(cache)) as base:
        return base.execute("SELECT (SELECT count(*) FROM chunk), (SELECT count(*) FROM entry)").fetchone()


async def test_rows_that_come_after_a_stop_are_kept(tmp_path, calendar):
    """They were paid for; those that come when all is closed are no error."""
    chunk = rows_of(KEYS)
    settle = Settle(chunk.keys, chunk.counts, chunk.rows)
    with LookupSession(offer(tmp_path / "c.sqlite"), calendar) as session:
        client = session.join(lambda _: None)
        session.handle(client, Claim(0, KEYS))
        session.stop()
        session.handle(client, settle)
    session.handle(client, settle)
    assert await look_up(offer(tmp_path / "c.sqlite"), calendar) == ([], EVERY_ROW)


async def test_rows_that_another_process_removes_meanwhile_are_asked(tmp_path, calendar):
    """A key that was found in the cache and is gone is looked up after all, and counted once."""
    cache = tmp_path / "c.sqlite"
    await look_up(offer(cache), calendar)
    with LookupSession(offer(cache), calendar) as room:
        client = Client.local(room)
        assert (await client.claim(KEYS)).ask == []
        change(cache, "DELETE FROM entry", "DELETE FROM chunk")
        assert (await client.claim(KEYS)).ask == KEYS
        client.settle(rows_of(KEYS))
        assert found(await client.claim(KEYS)) == EVERY_ROW
        progress = room.progress()
        assert (progress.keys, progress.done, progress.cached) == (len(KEYS), len(KEYS), 0)
        await client.close()
    assert (await look_up(offer(cache), calendar))[0] == []


def test_jobs_share_a_cache_at_once(tmp_path, calendar):
    """Two write all the time to a file that was not there before; afterwards it has all rows."""
    cache, keys = tmp_path / "c.sqlite", keys_of(120)

    def ask(some: list[bytes]) -> tuple[list[bytes], dict]:
        return asyncio.run(look_up(offer(cache), calendar, some))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, [keys[low : low + 3] for low in range(0, 120, 3)]))
    assert ask(keys) == ([], {key: [key] for key in keys})


def test_a_new_cache_is_opened_by_many_at_once(tmp_path):
    """Whoever comes while another one makes its tables waits, and finds them."""
    together = threading.Barrier(3, timeout=PATIENCE)

    def make(name: int) -> None:
        together.wait()
        opened(tmp_path / f"{name}.sqlite").close()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(make, [name for name in range(100) for _ in range(3)]))


async def test_the_coordinator_writes_to_the_cache(coordinator, clients, tmp_path, calendar):
    """Before anybody hears of it; and what was said last when the process ends."""
    cache = tmp_path / "c.sqlite"
    coordinator.register("run", [offer(cache)])
    client, other = await clients(*["run/0/0"] * 2)
    assert (await client.claim(KEYS)).ask == KEYS
    assert (await other.claim(KEYS)).waiting == KEYS
    client.settle(rows_of(KEYS[:25]))
    assert len(found(await other.notification())) == counted(cache)[1] == 25
    client.settle(rows_of(KEYS[25:]))
    await client.claim(KEYS[:1])
    await asyncio.to_thread(coordinator.close)
    await clients.aclose()
    assert await look_up(offer(cache), calendar) == ([], EVERY_ROW)


async def test_a_file_that_others_write_holds_up_its_lookup_alone(coordinator, clients, tmp_path, calendar):
    """What is said meanwhile is kept when the other one has done."""
    cache = tmp_path / "c.sqlite"
    await look_up(offer(cache), calendar, KEYS[:10])
    coordinator.register("run", [offer(cache, fingerprint="e" * 32), Registration("names", max_in_flight=1)])
    other = sqlite3.connect(cache, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    client, names = await clients("run/0/0", "run/0/1")
    client.settle(rows_of((await client.claim(KEYS)).ask))
    again = asyncio.create_task(client.claim(KEYS))
    async with names.permit():
        assert (await names.claim(KEYS)).ask == KEYS
    assert coordinator.progress("run")[0].problem == "" and not again.done()
    other.execute("ROLLBACK")
    assert len(found(await again)) == len(KEYS)
    assert counted(cache)[1] == 10 + len(KEYS)
    other.close()
    await clients.aclose()
    assert (await look_up(offer(cache, fingerprint="e" * 32), calendar))[0] == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are listed on Linux")
async def test_threads_and_files_of_jobs_that_are_over_are_given_back(
    coordinator, clients, tmp_path, monkeypatch
):
    """After a dozen jobs there are no more of them than after one."""
    monkeypatch.setattr("millrace.limits.coordinator._MOST_RELEASED", 0)

    async def job(number: int) -> None:
        coordinator.register(f"run{number}", [offer(tmp_path)])
        (client,) = await clients(f"run{number}/0/0")
        client.settle(rows_of((await client.claim(KEYS)).ask))
        await client.claim(KEYS)
        await client.close()
        coordinator.release(f"run{number}")
        assert coordinator.progress(f"run{number}") == []
        wait_for(lambda: not coordinator._closing, 10)

    def held() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    await job(0)
    before = held()
    for number in range(1, 12):
        await job(number)
    # The last thread may be about to end.
    wait_for(lambda: all(now <= then + 1 for now, then in zip(held(), before, strict=True)), 10)


async def test_a_file_is_read_from_end_to_end_once_a_process(tmp_path, calendar):
    """Not for each query; a file in its place is read again, and in a folder only the one that is meant."""
    cache = tmp_path / "c.sqlite"
    await look_up(offer(cache), calendar)
    told = []
    plain = sqlite3.connect

    def watched(*arguments, **options) -> sqlite3.Connection:
        base = plain(*arguments, **options)
        base.set_trace_callback(told.append)
        return base

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", watched)
        for _ in range(3):
            check_cache(cache)
    assert sum("quick_check" in each for each in told) == 1
    damage(tmp_path / "new")
    (tmp_path / "new").replace(cache)
    with pytest.raises(InputError, match="damaged"):
        check_cache(cache)
    check_cache(tmp_path)
    damage(tmp_path / "new")
    (tmp_path / "new").replace(tmp_path / "answers.sqlite")
    with pytest.raises(InputError, match=r"answers\.sqlite.*damaged"):
        check_cache(tmp_path)


def damage(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + os.urandom(5000))


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as base, base:
        for each in statements:
            base.execute(each)


@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        ("c.sqlite", damage, "damaged.*delete it"),
        ("c.sqlite", lambda path: path.write_text("a,b\n" * 3000), "damaged, or no database.*delete it"),
        ("c.sqlite", "CREATE TABLE entry (mine TEXT)", "no cache of Millrace's: name another file"),
        ("made.sqlite", "PRAGMA user_version = 99", "another version.*format 99.*delete it"),
        ("c.sqlite", Path.mkdir, "is a folder, but its name ends in .sqlite"),
        ("file", Path.touch, "is a file: name a folder"),
        ("file/cache", lambda path: path.parent.touch(), "cannot be used"),
    ],
)
def test_what_can_be_no_cache_is_an_error_before_the_job(coordinator, tmp_path, name, spoil, reason):
    """It says what to do and leaves the file alone, also when the lookup is offered."""
    check_cache(tmp_path / "made.sqlite")
    path = tmp_path / name
    change(path, spoil) if isinstance(spoil, str) else spoil(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(InputError, match=reason):
        check_cache(path)
    with pytest.raises(InputError, match=reason):
        coordinator.register("run", [offer(path)])
    assert before is None or path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_an_error_before_the_job(tmp_path, monkeypatch):
    """Where this user has no permission, and where less than a few megabytes are free."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        as_root = os.geteuid() == 0
        if as_root:  # may write everywhere
            os.seteuid(65534)
        try:
            with pytest.raises(InputError, match="may not write there"):
                check_cache(Path(folder))
        finally:
            if as_root:
                os.seteuid(0)
            Path(folder).chmod(0o755)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(InputError, match="only 1000 bytes are free"):
        check_cache(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [("PRAGMA max_page_count = 20", "full.*make room"), ("DROP TABLE entry", "no such table")],
)
async def test_a_cache_that_breaks_while_a_job_runs_costs_no_row(tmp_path, calendar, spoil, reason):
    """All rows are found; the lookup's progress says why they are not cached, and what to do."""
    cache = tmp_path / "c.sqlite"
    await look_up(offer(cache), calendar, KEYS[:20])
    with LookupSession(offer(cache), calendar) as session:
        client = Client.local(session)
        session._answers._file.base.execute(spoil)
        assert (await client.claim(KEYS)).ask
        client.settle(LARGE)
        assert set(found(await client.claim(KEYS))) == set(KEYS)
        await client.close()
        assert re.search(f"c.sqlite.*{reason}", session.progress().problem)


async def test_a_read_that_fails_once_costs_no_request(tmp_path, calendar, monkeypatch):
    """The file is opened anew, and counts as of the job's start: what was paid for is not asked again."""
    plain, faults = answers.select, [sqlite3.OperationalError("disk I/O error")]

    def select(*given: Any) -> Any:
        if faults and "chunk" in given[1]:
            raise faults.pop()
        return plain(*given)

    lookup = offer(tmp_path / "c.sqlite", ttl=10.0)
    await look_up(lookup, calendar, KEYS[:20])
    with LookupSession(lookup, calendar) as session:
        client = Client.local(session)
        client.settle(rows_of((await client.claim(KEYS)).ask))
        calendar.advance(100.0)
        monkeypatch.setattr(answers, "select", select)
        again = await client.claim(KEYS)
        assert (again.ask, found(again), faults) == ([], EVERY_ROW, [])
        client.give_up(again.ask)
        progress = session.progress()
        assert (progress.keys, progress.done, progress.cached) == (50, 50, 20)
        assert progress.problem == ""
        await client.close()


async def test_a_job_without_a_cache_leaves_no_file(tmp_path, monkeypatch, calendar):
    """The temporary database is gone from its folder while it is used."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with LookupSession(Registration("prices"), calendar) as room:
        client = Client.local(room)
        await client.claim(KEYS)
        client.settle(LARGE)
        assert list(tmp_path.iterdir()) == []
        await client.close()


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("put", sqlite3.OperationalError("disk is full")),
        ("fail", MemoryError("none left")),
        ("find", pa.ArrowInvalid("no stream")),
        ("start", RuntimeError("can't start new thread")),
    ],
)
async def test_an_error_beside_the_disk_ends_the_lookup(coordinator, clients, monkeypatch, place, error):
    """Whoever waits hears it; what is asked of the coordinator later is answered, and it ends."""

    def broken(*_: object) -> None:
        raise error

    coordinator.register("run", [Registration("names")])
    one, other = await clients(*["run/0/0"] * 2)
    if place == "start":  # of the thread that the first key needs
        monkeypatch.setattr("millrace.limits.session.threading.Thread.start", broken)
    else:
        await one.claim(KEYS[:2])
        await other.claim(KEYS[:2])
        monkeypatch.setattr(f"millrace.limits.answers.Answers.{place}", broken)
    with suppress(ExecutionError):
        if place == "put":
            one.settle(rows_of(KEYS[:1]))
        elif place == "fail":
            await one.fail({KEYS[0]: Failure("kind", "message", 1)})
        else:
            await one.claim(KEYS[3:])
    for wait in (other.notification, lambda: one.claim(KEYS[5:])):
        with pytest.raises(ExecutionError, match=f"'names'.*{error}"):
            await wait()
    await clients.aclose()
    monkeypatch.undo()
    assert within(PATIENCE, partial(coordinator.failed, "run")) == []
    within(PATIENCE, partial(coordinator.progress, "run"))
    within(PATIENCE, coordinator.close)


KINDS: list[tuple[type[Exception], tuple[Any, ...]]] = [
    (OSError, (28, "No space left on device")),
    (sqlite3.OperationalError, ("disk I/O error",)),
    (pa.ArrowInvalid, ("no stream",)),
    (MemoryError, ()),
    (UnicodeEncodeError, ("utf-8", "bad \udcff text", 4, 5, "surrogates not allowed")),
    (RuntimeError, ("can't start new thread",)),
    (KeyError, ("rows",)),
]
PLACES = [
    f"millrace.limits.{owner}.{name}"
    for owner, names in {
        "answers": "connect select transaction opened remove_chunks",
        "answers.Rows": "__init__ put add_to prune",
        "answers.Answers": "open_file find put fail failures close",
        "codec": "frame write",
        "codec.Reader": "receive feed_data",
        "messages": "cut",
        "session.threading.Thread": "start",
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


async def look_up_all(
    coordinator: Coordinator, seed: int, calls: tuple[Calls, Calls]
) -> list[BaseException | None]:
    """Have four tasks look all keys up, two of each lookup; returns what each has raised."""

    async def task(number: int) -> None:
        lookup = number % 2
        keys = KEYS[12 * lookup : 12 * (lookup + 1)]
        client = await Client.connect(coordinator.address, f"run/0/{lookup}")
        try:
            await running.look_up(client, random.Random(seed + number).sample(keys, 12), calls[lookup])
        finally:
            await client.close()

    raised = await asyncio.gather(*map(task, range(4)), return_exceptions=True)
    # Who gave up just as TLS had begun says goodbye for a moment more, and nobody else waits for that.
    transports = asyncio.get_running_loop()._transports
    while any(each._sock is not None for each in list(transports.values())):
        await asyncio.sleep(0.01)
    return raised


@pytest.mark.parametrize("seeds", sampled([range(low, low + 50) for low in range(0, 300, 50)], 6), ids=str)
def test_no_fault_of_disk_or_network_makes_anybody_wait_for_ever(seeds, tmp_path, monkeypatch):
    """Three hundred runs with faults: each task, each question and the end come to an answer or an error.

    No key is asked again but what was under way where a connection ended, and what a broken cache has lost.
    """
    ended, failed = run_with_faults(seeds, tmp_path, monkeypatch)
    assert ended and failed


def run_with_faults(seeds: Iterable[int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many tasks ended and failed; raises where one hangs, loses rows or asks for a key again."""
    monkeypatch.setattr("millrace.limits.server._LOOK_SECONDS", 0.05)
    monkeypatch.setattr("millrace.limits.connection.BYE_SECONDS", 1.0)
    ended = failed = 0
    for seed in seeds:
        with monkeypatch.context() as patched:
            coordinator = Coordinator()
            cached = Registration("names", 2, cache=folder / f"{seed % 5}.sqlite", fingerprint="f" * 32)
            coordinator.register("run", [Registration("names", 2), cached])
            calls, under_way = (Calls(), Calls()), watch_claims(patched)
            break_places(patched, seed)
            outcomes = run(look_up_all(coordinator, seed, calls))
            problems = [each.problem for each in coordinator.progress("run")]
            for ask in (coordinator.failed, coordinator.progress, coordinator.spent):
                with suppress(MillraceError):
                    within(PATIENCE, partial(ask, "run"))
            within(PATIENCE, coordinator.close)
            assert all(each is None or isinstance(each, MillraceError) for each in outcomes), outcomes
            for lookup, problem in zip(calls, problems, strict=True):
                again = lookup.asked - Counter(KEYS)
                assert problem or again <= under_way, f"asked again: {again}, lost: {under_way}, {outcomes}"
            failed += sum(each is not None for each in outcomes)
            ended += sum(each is None for each in outcomes)
    return ended, failed
