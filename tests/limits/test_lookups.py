"""Lookups over TCP: tasks share rows, failures and turns, whoever dies."""

from __future__ import annotations

import asyncio
import math
import tempfile
import threading

import pyarrow as pa
import pytest

from millrace.errors import ExecutionError
from millrace.limits import messages as m
from millrace.limits.answers import Answers
from millrace.limits.chunk import Chunk, Claimed, Failure
from millrace.limits.codec import frame
from millrace.limits.lookup_session import LookupSession
from millrace.limits.progress import FailedKey
from millrace.limits.registration import STREAM, Registration
from tests.limits.running import PATIENCE, found, heard, keys_of, rows_of
from tests.limits.test_server import raw
from tests.session import wait_for

KEY, OTHER, THIRD = b"k" * 16, b"o" * 16, b"t" * 16
# Names of files can have half of a character, and errors of users' functions have such names.
BUSY = Failure("HTTP 503 \udcff", "busy \udcff", 3, '["\udcff"]')
FAILED = FailedKey("prices", r'["\udcff"]', r"HTTP 503 \udcff", r"busy \udcff", 3)
OFFER = Registration("prices", max_in_flight=1, secrets={"TOKEN": "hush"})


@pytest.fixture
def coordinator(coordinator):
    coordinator.register("run", [Registration("names"), OFFER])
    return coordinator


async def test_who_leaves_or_stops_waiting_hands_on_what_it_has(clients):
    """Without a word it gives keys, turns and places in the queue back; others get them, or the next one."""
    one, other = await clients(*["run/0/1"] * 2)
    await one.claim([KEY, OTHER])
    await other.claim([KEY])
    async with other.permit():
        waiting = asyncio.create_task(one.permit().__aenter__())
        await asyncio.sleep(0)  # sends the request
        await heard(one)  # answered after the request has arrived
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with other.permit():
        await heard(other)
    await one.permit().__aenter__()
    await one.close()
    assert await other.notification() == Claimed(ask=[KEY])
    async with other.permit():
        assert (await other.claim([OTHER])).ask == [OTHER]


async def test_what_no_message_holds_comes_in_several(clients):
    """Rows, chunks and failures are split on their way, and are whole all the same; texts are bounded."""
    one, other = await clients(*["run/0/1"] * 2)
    keys = keys_of(1300)
    rows, failed = keys[:300], keys[300:]
    await one.claim(keys)
    large = [key * 4096 for key in rows]  # 64 KiB each, 19 MB together
    one.settle(Chunk.of(rows, [1] * 300, pa.table({"key": pa.array(large, pa.binary())})))
    await one.fail({key: Failure("E" * 9000, "m" * 9000, 1, "b" * 9000) for key in failed})
    await one.fail({THIRD: BUSY})  # not its to fail: passed over
    await one.claim([KEY])
    known = await other.claim([*keys, THIRD])
    assert (known.ask, known.waiting, set(known.failed)) == ([THIRD], [], set(failed))
    assert found(known) == {key: [value] for key, value in zip(rows, large, strict=True)}
    assert len(known.found) > 3
    sizes = {tuple(map(len, (each.kind, each.message, each.binding))) for each in known.failed.values()}
    assert sizes == {(100, 4000, 4000)}


async def test_news_wait_until_the_claim_has_returned(clients, monkeypatch):
    """Nobody hears of a key before it knows that it waits for it, and a cancelled wait loses no news."""
    monkeypatch.setattr("millrace.limits.client.KEYS_A_MESSAGE", 1)
    one, other = await clients(*["run/0/1"] * 2)
    await one.claim([KEY, OTHER])
    cancelled, listening = [asyncio.create_task(other.notification()) for _ in range(2)]
    ask = other._ask

    async def ask_slowly(name, message):
        reply = await ask(name, message)
        one.give_up([KEY])
        await heard(one)  # the coordinator has done it when this is answered
        await ask(-1, m.Fail(-1, {}))  # and the news have come when this is
        cancelled.cancel()
        return reply

    monkeypatch.setattr(other, "_ask", ask_slowly)
    claimed = await other.claim([KEY, OTHER])
    assert (claimed.waiting, cancelled.cancelled(), listening.done()) == ([KEY, OTHER], True, False)
    assert await listening == Claimed(ask=[KEY])


async def test_progress_and_failed_keys_are_told_by_run_and_lookup(coordinator, clients):
    """Over all executions, and as clients gave them; secrets are not told."""
    for execution in range(2):
        (one,) = await clients(f"run/{execution}/1")
        await one.claim([KEY, OTHER, THIRD])
        for retried in (True, False, False):
            async with one.permit() as permit:
                permit.seconds, permit.retried = 0.5, retried
        await one.fail({OTHER: BUSY})
        one.settle(rows_of([KEY]))
        async with one.permit():
            await one.claim([KEY])
            now = coordinator.progress("run")[1]
            assert (now.name, now.in_flight, now.keys) == ("prices", 1, 3 + 2 * execution)
        one.give_up([THIRD])
        assert one.secrets == {"TOKEN": "hush"}
        await one.close()
    names, prices = coordinator.progress("run")
    assert "hush" not in f"{OFFER!r} {prices!r}"
    assert (names.keys, names.seconds) == (0, 0)
    # Nobody waited for the third key when it was given up: it is not wanted any more.
    assert (prices.keys, prices.done, prices.failed, prices.cached) == (4, 2, 2, 0)
    assert (prices.requests, prices.retried, prices.failures) == (6, 2, ((FAILED.kind, 2),))
    assert coordinator.failed("run") == [FAILED]
    assert coordinator.progress("another") == coordinator.failed("another") == []


async def test_a_slow_disk_holds_up_what_needs_it_alone(coordinator, clients, monkeypatch):
    """Permits go round, and who leaves has left when all it said is done."""
    keys, disk = keys_of(20), threading.Event()
    for name in ("find", "put"):
        plain = getattr(Answers, name)
        monkeypatch.setattr(Answers, name, lambda *given, plain=plain: disk.wait(PATIENCE) and plain(*given))
    one, other = await clients(*["run/0/1"] * 2)
    claims = [asyncio.create_task(each.claim(keys)) for each in (one, other)]
    async with one.permit():
        assert coordinator.progress("run")[1].in_flight == 1
    async with other.permit():
        assert not any(claim.done() for claim in claims)
    disk.set()
    # Either may have come first.
    (asks, one), (_, other) = sorted(
        zip(await asyncio.gather(*claims), (one, other), strict=True), key=lambda each: each[0].waiting
    )
    assert asks.ask == keys
    disk.clear()
    async with one.permit() as permit:
        for key in keys:
            one.settle(rows_of([key]))
        permit.seconds = 0.5
    leaving = asyncio.create_task(one.close())
    for _ in range(5):
        async with other.permit():
            assert not leaving.done()
    disk.set()
    await leaving
    prices = coordinator.progress("run")[1]
    assert (prices.keys, prices.done, prices.requests) == (20, 20, 1)


@pytest.mark.parametrize("is_ready", [False, True])
async def test_what_was_said_before_leaving_is_heard(coordinator, clients, monkeypatch, is_ready):
    """Answers that are sent right before a task ends are kept, though it has left when they are read."""
    late = asyncio.Event()

    async def wait_until_it_left(self, client):
        await late.wait()

    monkeypatch.setattr(LookupSession, "ready", wait_until_it_left)
    monkeypatch.setattr(LookupSession, "is_ready", lambda self, client: is_ready)
    monkeypatch.setattr("millrace.limits.connection.BYE_SECONDS", 0.1)
    keys = keys_of(50)
    (one,) = await clients("run/0/0")
    claiming = asyncio.create_task(one.claim(keys))
    coordinator._loop.call_soon_threadsafe(late.set)
    await claiming
    coordinator._loop.call_soon_threadsafe(late.clear)
    for key in keys:
        one.settle(rows_of([key]))
    await one.close()
    coordinator._loop.call_soon_threadsafe(late.set)
    (other,) = await clients("run/0/0")
    claimed = await other.claim(keys)
    while claimed.waiting:
        assert (await other.notification()).ask == []
        claimed = await other.claim(keys)
    assert claimed.ask == []


@pytest.mark.parametrize(
    "garbage",
    [
        m.Granted(0, 0.0),
        m.MethodCall(1, "close", b"[]"),
        m.Request("a"),
        m.Request(0),  # which is its ticket already
        *map(m.Pause, (1e9, -1.0, math.inf, math.nan)),
        m.Permit(0, math.nan),
        m.Claim(1, [b"short"]),
        m.Claim(True, [KEY]),
        m.Settle([], [], b""),
        m.Settle([KEY], [], b""),
        m.Settle([KEY, KEY], [1, 1], b""),
        m.Settle([KEY], [-1], b""),
        m.Fail(1, [KEY]),
        m.Fail(1, {KEY: ("a", "b", -1, "")}),
        m.Permit(0, seconds=-1.0),
        m.GiveUp("text"),
        b"\xff" * 100,
    ],
)
async def test_a_client_that_talks_nonsense_loses_what_it_held(coordinator, clients, garbage):
    """It is told so and shown out; its turn and its keys go to the next one."""
    hello = frame(m.Join(coordinator.address.token, "run/0/1"))
    said = garbage if isinstance(garbage, bytes) else frame(garbage)
    asked = frame(m.Request(0)) + frame(m.Claim(0, [KEY]))
    assert b"Lost" in raw(coordinator.address, hello, asked, said, before_last=b"ClaimReply")
    (one,) = await clients("run/0/1")
    async with one.permit():
        assert (await one.claim([KEY])).ask == [KEY]


async def test_the_end_wakes_everyone(coordinator, clients):
    """Whoever waits for a turn, an answer or a claim is told the reason, also those who come later."""
    one, other = await clients(*["run/0/1"] * 2)
    await one.claim([KEY])
    await other.claim([KEY])
    held = one.permit()
    await asyncio.create_task(held.__aenter__())
    turn = asyncio.create_task(other.permit().__aenter__())
    news = asyncio.create_task(other.notification())
    await asyncio.sleep(0)  # sends the request
    await other.claim([OTHER])  # answered after the request has arrived
    await asyncio.to_thread(coordinator.close)
    late = asyncio.to_thread(coordinator.progress, "run")
    for waiting in (turn, news, other.notification(), other.claim([OTHER]), late):
        with pytest.raises(ExecutionError, match="has been closed"):
            await waiting
    one.settle(rows_of([KEY]))  # nobody hears it, which is no error


@pytest.mark.parametrize(
    ("namespace", "reason"),
    [("other/0/0", "not known, or is over"), ("run/0/2", "has 2 lookups"), ("run/0/x", "has 2 lookups")],
)
async def test_a_lookup_that_was_not_offered_is_refused(coordinator, clients, namespace, reason):
    """The error names what was asked for. Offering the same lookups again is no error, other ones are."""
    with pytest.raises(ExecutionError, match=reason):
        await clients(namespace)
    coordinator.register("run", [Registration("names"), OFFER])
    with pytest.raises(ValueError, match="other lookups"):
        coordinator.register("run", [OFFER])
    with pytest.raises(ValueError, match="slash"):
        coordinator.register("a/b", [])


async def test_runs_that_nothing_refers_to_are_let_go(coordinator, clients, monkeypatch):
    """Secrets, answers and files of the latest are kept, and those of runs whose tasks still work."""
    monkeypatch.setattr("millrace.limits.coordinator._MOST_RELEASED", 3)
    for number in range(10):
        coordinator.register(f"old{number}", [Registration("names", secrets={"TOKEN": f"t{number}"})])

    async def known() -> list[str]:
        """The runs that are there, after all that was released before."""
        runs = ["run", *(f"old{number}" for number in range(10))]
        return [run for run in runs if await asyncio.to_thread(coordinator.progress, run)]

    (working,) = await clients("old1/0/0")
    await working.claim([KEY])
    for number in range(9):
        coordinator.release(f"old{number}")
    assert await known() == ["run", "old1", "old7", "old8", "old9"]
    await working.close()
    with pytest.raises(ExecutionError, match="keep what millrace returned while DataFrames derived"):
        await clients("old0/0/0")
    coordinator.release("nobody")
    coordinator.release("old9")
    assert await known() == ["run", "old7", "old8", "old9"]


async def test_what_streams_ask_outlives_their_micro_batches(coordinator, clients, monkeypatch, tmp_path):
    """Between them nobody asks, and other queries come and go.

    Its answers are those of its run, in a folder that goes with the run.
    """
    monkeypatch.setattr("millrace.limits.coordinator._MOST_RELEASED", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def run(batch: int, asked: list[bytes]) -> None:
        for query in ("one", "other"):
            (client,) = await clients(f"{query}/{STREAM}1/{batch}/0")
            assert (await client.claim([KEY])).ask == asked
            client.settle(rows_of([KEY]))
            await client.close()

    for query in ("one", "other"):
        coordinator.register(query, [Registration("names", fingerprint="f" * 32)])
    await run(0, [KEY])
    for number in range(3):
        coordinator.register(f"old{number}", [Registration("names")])
        coordinator.release(f"old{number}")
    await run(1, [])
    assert len(list(tmp_path.glob("millrace-stream-*"))) == 2
    for query in ("one", "other"):
        coordinator.release(query)
    wait_for(lambda: not list(tmp_path.glob("millrace-stream-*")), 10)


async def test_what_a_stream_has_scanned_goes_when_a_later_micro_batch_reads_again(clients):
    """It has no cache, and is not kept on the disk for sixteen micro-batches."""

    async def ask(batch: int) -> list[bytes]:
        (client,) = await clients(f"run/{STREAM}1/{batch}/0")
        if asked := (await client.claim([KEY])).ask:
            client.settle(rows_of(asked))
        await client.close()
        return asked

    assert [await ask(0), await ask(0), await ask(1), await ask(1)] == [[KEY], [], [KEY], []]
    while not await ask(0):  # it is closed in its turn
        pass


async def test_answers_of_jobs_long_gone_are_let_go_and_their_figures_stay(coordinator, clients):
    """After many later jobs a key is asked again, unless its job has clients; sums and failures stay."""
    (staying,) = await clients("run/staying/1")
    await staying.claim([THIRD])
    staying.settle(rows_of([THIRD]))
    for execution in range(40):
        (one,) = await clients(f"run/{execution}/1")
        await one.claim([KEY, OTHER])
        one.settle(rows_of([KEY]))
        await one.fail({OTHER: BUSY})
        await one.close()
    latest, first = await clients("run/39/1", "run/0/1")
    assert (await latest.claim([KEY])).ask == []
    assert (await first.claim([KEY])).ask == [KEY]
    assert (await staying.claim([THIRD])).ask == []
    _, prices = coordinator.progress("run")
    assert (prices.done, prices.failed) == (41, 40)
    assert coordinator.failed("run") == [FAILED]
