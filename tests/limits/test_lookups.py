"""Lookups over TCP and in one process: tasks share rows, failures and turns, whoever dies."""

from __future__ import annotations

import asyncio
import pickle
import struct
import threading
import time

import pyarrow as pa
import pytest

from millrace.errors import ExecutionError
from millrace.limits import codec, coordinator as coordinating
from millrace.limits.chunk import Chunk, Failure, Notification
from millrace.limits.client import Client
from millrace.limits.lookup_session import LookupSession
from millrace.limits.progress import FailedKey
from millrace.limits.registration import Registration
from tests.limits.hammer import rows_of
from tests.limits.test_server import PATIENCE, frame, raw

KEY, OTHER, THIRD = b"k" * 16, b"o" * 16, b"t" * 16
BUSY = Failure("HTTP 503", "busy", 3, '["a"]')
OFFER = Registration("prices", max_in_flight=1, secrets={"TOKEN": "hush"})


@pytest.fixture
def coordinator(coordinator):
    """One that has two lookups."""
    coordinator.register("run", [Registration("names"), OFFER])
    return coordinator


@pytest.fixture(params=["remote", "local"])
def tasks(request, clients):
    """Makes clients of one lookup, through the coordinator or in one process."""
    session = LookupSession(OFFER)

    async def some(number: int) -> list[Client]:
        if request.param == "local":
            return clients.local(session, number)
        return await clients(*["run/0/1"] * number)

    yield some
    session.close()


def found(told) -> dict[bytes, list]:
    """The rows that came, by key."""
    rows = {}
    for chunk in told.found:
        values = iter(chunk.table().to_pylist())
        for key, count in zip(chunk.keys, chunk.counts, strict=True):
            rows[key] = [next(values)["key"] for _ in range(count)]
    return rows


async def test_rows_failures_and_keys_given_up_reach_whoever_waits(tasks):
    """Each is told once and with its reason; later claims find rows and failures at once."""
    one, other, third = await tasks(3)
    assert (await one.claim([KEY, OTHER, THIRD])).ask == [KEY, OTHER, THIRD]
    assert (await one.claim([KEY])).ask == [KEY]
    assert set((await other.claim([OTHER, KEY, THIRD])).waiting) == {KEY, OTHER, THIRD}
    one.settle(rows_of([KEY]))
    assert found(await other.notification()) == {KEY: [KEY]}
    await one.fail({OTHER: BUSY})
    assert await other.notification() == Notification(failed={OTHER: BUSY})
    one.give_up([THIRD])
    assert await other.notification() == Notification(ask=[THIRD])
    other.settle(Chunk.of([THIRD], [0], pa.table({"key": pa.array([], pa.binary())})))
    await other.claim([])
    known = await third.claim([THIRD, OTHER, KEY])
    while known.waiting:  # the settling may still be on its way
        known = await third.claim([THIRD, OTHER, KEY])
    assert (found(known), known.failed, known.ask) == ({KEY: [KEY], THIRD: []}, {OTHER: BUSY}, [])


async def test_a_client_that_leaves_hands_its_keys_and_its_turn_on(tasks):
    """Without a word it gives all back; what nobody waits for is free for the next."""
    one, other = await tasks(2)
    await one.claim([KEY, OTHER])
    await other.claim([KEY])
    turn = one.permit()
    await turn.__aenter__()
    await one.close()
    assert await other.notification() == Notification(ask=[KEY])
    async with other.permit():
        assert (await other.claim([OTHER])).ask == [OTHER]


async def test_a_cancelled_wait_leaves_the_queue(tasks):
    """A task that stops waiting for its turn does not keep the next one from it."""
    one, other = await tasks(2)
    async with one.permit():
        waiting = asyncio.create_task(other.permit().__aenter__())
        await asyncio.sleep(0)  # sends the request
        await other.claim([KEY])  # answered after the request has arrived
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with one.permit():
        await other.claim([KEY])


@pytest.mark.parametrize("is_local", [False, True])
async def test_turns_are_spaced_by_the_rate(clients, is_local):
    """Starts of two clients together are not closer than the rate allows, up to a timer's precision."""
    starts, began = [], time.monotonic()

    async def take(client: Client) -> None:
        async with client.permit():
            starts.append(asyncio.get_running_loop().time())

    with LookupSession(Registration("rated", per_second=200)) as session:
        pair = clients.local(session, 2) if is_local else await clients("n", "n", settings=session.settings)
        await asyncio.gather(*(take(pair[i % 2]) for i in range(40)))
        await clients.close()
    assert max(starts) - began >= 39 / 200 * 0.95


async def test_secrets_are_handed_out_on_request_and_shown_nowhere(tasks, coordinator):
    """A client with the token gets them; no repr has them."""
    (one,) = await tasks(1)
    assert await one.secrets() == {"TOKEN": "hush"}
    assert "hush" not in repr(OFFER) + repr(coordinator.progress("run"))


async def test_many_rows_come_in_several_messages(tasks):
    """A claim of more than a message holds is whole all the same, and a chunk is split on its way there."""
    one, other = await tasks(2)
    keys = [number.to_bytes(16, "big") for number in range(300)]
    await one.claim(keys)
    large = [key * 4096 for key in keys]  # 64 KiB each, 19 MB together
    one.settle(Chunk.of(keys, [1] * 300, pa.table({"key": pa.array(large, pa.binary())})))
    await one.fail({THIRD: BUSY})  # not its to fail: passed over
    await one.claim([KEY])
    known = await other.claim([*keys, THIRD])
    assert known.ask == [THIRD] and known.waiting == []
    assert found(known) == {key: [value] for key, value in zip(keys, large, strict=True)}
    assert len(known.found) > 3


async def test_news_wait_until_the_claim_has_returned(clients, monkeypatch):
    """Nobody hears of a key before it knows that it waits for it, also when claims take several messages."""
    monkeypatch.setattr("millrace.limits.client.KEYS_A_MESSAGE", 1)
    one, other = await clients(*["run/0/1"] * 2)
    await one.claim([KEY, OTHER])
    heard = []

    async def listen() -> None:
        heard.append(await other.notification())

    listening = asyncio.create_task(listen())
    ask = other._ask

    async def ask_slowly(name, message):
        reply = await ask(name, message)
        one.give_up([KEY])
        await one.secrets()  # the coordinator has done it when this is answered
        await ask("secrets", {"secrets": True})  # and the news have come when this is
        for _ in range(10):
            await asyncio.sleep(0)
        return reply

    monkeypatch.setattr(other, "_ask", ask_slowly)
    claimed = await other.claim([KEY, OTHER])
    assert (claimed.waiting, heard) == ([KEY, OTHER], [])
    await listening
    assert heard == [Notification(ask=[KEY])]


async def test_news_survive_a_cancelled_wait(clients):
    """Whoever listens next hears them."""
    one, other = await clients(*["run/0/1"] * 2)
    await one.claim([KEY])
    await other.claim([KEY])
    one.settle(rows_of([KEY]))
    await one.secrets()
    await other.secrets()
    async with other._claiming:
        listening = asyncio.create_task(other.notification())
        await asyncio.sleep(0)
        listening.cancel()
        await asyncio.wait([listening])
    assert found(await other.notification()) == {KEY: [KEY]}


async def test_many_failures_come_in_several_messages(tasks):
    """Their texts are bounded each, and so is a reply."""
    one, other = await tasks(2)
    keys = [number.to_bytes(16, "big") for number in range(1000)]
    await one.claim(keys)
    await one.fail({key: Failure("E" * 9000, "m" * 9000, 1, "b" * 9000) for key in keys})
    await one.claim([KEY])
    known = await other.claim(keys)
    assert set(known.failed) == set(keys)
    assert {tuple(map(len, (each.kind, each.message, each.binding))) for each in known.failed.values()} == {
        (100, 4000, 4000)
    }


async def test_a_key_with_too_many_rows_is_an_error_that_says_so(tasks, monkeypatch):
    """It cannot be cut; the others in the chunk are sent."""
    monkeypatch.setattr(codec, "USUAL_ATTACHMENT", 1000)
    monkeypatch.setattr(codec, "LARGEST_ATTACHMENT", 10_000)
    (one,) = await tasks(1)
    await one.claim([KEY, OTHER])
    rows = pa.table({"key": pa.array([b"x", b"y" * 20_000], pa.binary())})
    with pytest.raises(ExecutionError, match="10000"):
        one.settle(Chunk.of([KEY, OTHER], [1, 1], rows))
    assert found(await one.claim([KEY])) == {KEY: [b"x"]}


async def test_progress_and_failed_keys_are_told_by_run_and_lookup(coordinator, clients):
    """Over all executions; names, counts, kinds and bindings are those that clients gave."""
    for execution in range(2):
        (one,) = await clients(f"run/{execution}/1")
        await one.claim([KEY, OTHER, THIRD])
        one.count(requests=5, retried=2)
        await one.fail({OTHER: BUSY})
        one.settle(rows_of([KEY]))
        async with one.permit():
            await one.claim([KEY])
            now = coordinator.progress("run")[1]
            assert (now.name, now.in_flight, now.keys) == ("prices", 1, 3 + 2 * execution)
        one.give_up([THIRD])
        await one.claim([KEY])
        await one.close()
    names, prices = coordinator.progress("run")
    assert (names.keys, names.seconds) == (0, 0)
    # Nobody waited for the third key when it was given up: it is not wanted any more.
    assert (prices.keys, prices.done, prices.failed, prices.cached) == (4, 2, 2, 0)
    assert (prices.requests, prices.retried, prices.failures) == (10, 4, (("HTTP 503", 2),))
    assert coordinator.failed("run") == [FailedKey("prices", '["a"]', "HTTP 503", "busy", 3)]
    assert coordinator.progress("another") == coordinator.failed("another") == []


async def test_who_has_left_is_counted_whole(coordinator, clients, monkeypatch):
    """The disk may be behind: a client has not left before all that it said is done."""
    plain = LookupSession._settle

    def slowly(*arguments) -> None:
        time.sleep(0.2)
        plain(*arguments)

    monkeypatch.setattr(LookupSession, "_settle", slowly)
    (one,) = await clients("run/0/1")
    await one.claim([KEY])
    one.settle(rows_of([KEY]))
    one.count(requests=1)
    await one.close()
    prices = coordinator.progress("run")[1]
    assert (prices.keys, prices.done, prices.requests) == (1, 1, 1)


@pytest.mark.parametrize(
    ("namespace", "reason"),
    [("other/0/0", "not known, or is over"), ("run/0/2", "has 2 lookups"), ("run/0/x", "has 2 lookups")],
)
async def test_a_lookup_that_was_not_offered_is_refused(clients, namespace, reason):
    """The error names what was asked for."""
    with pytest.raises(ExecutionError, match=reason):
        await clients(namespace)


@pytest.mark.parametrize(
    "garbage",
    [
        frame("{}"),
        frame("[]"),
        frame('{"request": "a"}'),
        frame('{"permit": 0}'),
        *(frame(f'{{"pause": {seconds}}}') for seconds in ("1e9", "-1", "Infinity", "NaN")),
        frame('{"claim": 1, "attached": 5}') + b"short",
        frame('{"claim": 1, "attached": -1}'),
        frame('{"claim": 1, "attached": 999999999999}'),
        frame('{"claim": 1, "attached": true}'),
        frame('{"settle": {"keys": 0}}'),
        frame('{"settle": {"keys": 9}, "attached": 16}') + KEY,
        frame('{"settle": {"keys": 2}, "attached": 48}') + KEY + KEY + bytes(16),
        frame('{"settle": {"keys": 1}, "attached": 24}') + KEY + struct.pack("<q", -1),
        frame('{"fail": [], "attached": 16}') + KEY,
        frame('{"fail": [["a", "b", -1, ""]], "attached": 16}') + KEY,
        frame('{"count": [1]}'),
        frame('{"count": [-1, 0]}'),
        frame('{"give_up": true, "attachment": "text", "attached": 1}') + b"x",
        b"\xff" * 100,
    ],
)
async def test_a_client_that_talks_nonsense_loses_what_it_held(coordinator, clients, garbage):
    """It is shown out; its turn and its keys go to the next one."""
    hello = frame(f'{{"token": "{coordinator.address.token}", "session": "run/0/1"}}')
    claim = frame('{"claim": 0, "attached": 16}') + KEY
    raw(coordinator.address, hello, frame('{"request": 0}'), claim, garbage, before_last=b"claimed")
    (one,) = await clients("run/0/1")
    async with one.permit():
        assert (await one.claim([KEY])).ask == [KEY]


def test_nothing_is_attached_to_a_hello(coordinator):
    """A stranger cannot make the coordinator read much before it has shown the token."""
    hello = frame(f'{{"token": "{coordinator.address.token}", "session": "run/0/1", "attached": 1}}')
    assert raw(coordinator.address, hello, b"x") == b""


async def test_a_run_that_is_forgotten_wakes_everyone(coordinator, clients):
    """Whoever waits is told that the run is over, also those who come later."""
    one, other = await clients(*["run/0/0"] * 2)
    await one.claim([KEY])
    await other.claim([KEY])
    waiting = asyncio.create_task(other.notification())
    await asyncio.to_thread(coordinator.forget, "run")
    for _ in range(2):
        with pytest.raises(ExecutionError, match="'names'"):
            await waiting
        waiting = asyncio.create_task(other.notification())
    with pytest.raises(ExecutionError, match="is over"):
        await waiting
    with pytest.raises(ExecutionError, match="is over"):
        await clients("run/0/0")


async def test_runs_that_nothing_refers_to_are_let_go(coordinator, clients, monkeypatch):
    """Secrets, answers and files of the latest are kept, and those of runs whose tasks still work."""
    monkeypatch.setattr("millrace.limits.coordinator._MOST_RELEASED", 3)
    for number in range(10):
        coordinator.register(f"old{number}", [Registration("names", secrets={"TOKEN": f"t{number}"})])
    (working,) = await clients("old1/0/0")
    await working.claim([KEY])
    for number in range(9):
        coordinator.release(f"old{number}")
    await asyncio.to_thread(coordinator.progress, "run")
    assert list(coordinator._registrations) == ["run", "old1", "old7", "old8", "old9"]
    assert {session.partition("/")[0] for session in coordinator._sessions} == {"old1"}
    await working.close()
    with pytest.raises(ExecutionError, match="keep what millrace returned while DataFrames derived"):
        await clients("old0/0/0")
    coordinator.release("nobody")
    coordinator.release("old9")
    await asyncio.to_thread(coordinator.progress, "run")
    assert list(coordinator._registrations) == ["run", "old7", "old8", "old9"]


async def test_a_full_disk_ends_the_job_with_what_to_do(coordinator, clients):
    """Answers that cannot be kept are an error to all, and never a wrong or a missing row."""
    one, other = await clients(*["run/0/0"] * 2)
    await one.claim([KEY])
    await other.claim([KEY])
    room = coordinator._sessions["run/0/0"]
    coordinator._within(lambda: room._answers._store._base.execute("PRAGMA max_page_count = 8"))
    one.settle(Chunk.of([KEY], [1], pa.table({"key": pa.array([b"x" * 200_000])})))
    for waiting in (other.notification(), one.claim([OTHER])):
        with pytest.raises(ExecutionError, match=r"'names'.*full"):
            await waiting


def test_a_run_has_one_set_of_lookups(coordinator):
    """Offering the same again is no error, other ones are."""
    coordinator.register("run", [Registration("names"), OFFER])
    with pytest.raises(ValueError, match="other lookups"):
        coordinator.register("run", [OFFER])
    with pytest.raises(ValueError, match="slash"):
        coordinator.register("a/b", [])


def test_chunks_say_what_does_not_fit():
    """Counts that do not fit the keys or the rows, and what does travels by pickle."""
    rows = pa.table({"key": [1, 2]})
    with pytest.raises(ValueError, match="2 keys, 1 counts of 2 rows, but 2 rows"):
        Chunk.of([KEY, OTHER], [2], rows)
    with pytest.raises(ValueError, match="1 counts of 3 rows"):
        Chunk.of([KEY], [3], rows)
    chunk = Chunk.of([KEY, OTHER], [0, 2], rows)
    assert pickle.loads(pickle.dumps(chunk)) == chunk
    assert chunk.only({OTHER}).table() == rows and chunk.only({KEY}).table().num_rows == 0


async def test_answers_of_jobs_long_gone_are_let_go_and_their_figures_stay(coordinator, clients, monkeypatch):
    """After many later jobs, as of a stream, a key is asked again; what was asked and failed stays told."""
    monkeypatch.setattr(coordinating, "_MOST_ENDED", 2)
    for execution in range(40):
        (one,) = await clients(f"run/{execution}/1")
        await one.claim([KEY, OTHER])
        one.settle(rows_of([KEY]))
        await one.fail({OTHER: BUSY})
        await one.claim([KEY])
        await one.close()
    latest, first = await clients("run/39/1", "run/0/1")
    assert (await latest.claim([KEY])).ask == []
    assert (await first.claim([KEY])).ask == [KEY]
    _, prices = coordinator.progress("run")
    assert (prices.done, prices.failed) == (40, 40)
    assert coordinator.failed("run") == [FailedKey("prices", '["a"]', "HTTP 503", "busy", 3)]


async def test_what_was_said_before_leaving_is_heard(coordinator, clients, monkeypatch):
    """Answers that are sent right before a task ends are kept, though it has left when they are read."""
    late = asyncio.Event()

    async def wait_until_it_left(self, client):
        await late.wait()

    monkeypatch.setattr(LookupSession, "ready", wait_until_it_left)
    monkeypatch.setattr("millrace.limits.connection.BYE_SECONDS", 0.1)
    keys = [number.to_bytes(16, "big") for number in range(50)]
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


async def test_a_slow_disk_takes_no_permit_away(coordinator, clients, monkeypatch):
    """While its jobs wait for the disk, a client's releases are read, and its silence is not its own."""
    go_on, plain = threading.Event(), LookupSession._settle

    def slowly(session, *arguments) -> None:
        assert go_on.wait(PATIENCE)
        plain(session, *arguments)

    monkeypatch.setattr(LookupSession, "_settle", slowly)
    one, other = await clients(*["run/0/1"] * 2)
    keys = [number.to_bytes(16, "big") for number in range(20)]
    await one.claim(keys)
    async with one.permit():
        for key in keys:
            one.settle(rows_of([key]))
    async with other.permit():
        session = coordinator._sessions["run/0/1"]
        coordinator._within(lambda: session._heard.update(dict.fromkeys(session._heard, -1e9)))
        coordinator._within(session.expire)
        asking = len(session._claims)
        go_on.set()
    await one.claim(keys)
    assert (asking, coordinator.progress("run")[1].done) == (20, 20)
