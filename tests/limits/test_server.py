"""Connections of the coordinator: strangers are shown out, and one that breaks costs its task alone."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import random
import socket
import ssl
import struct
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.messages import VERSION, Bye, Join, Message, Noted, Welcome
from millrace.limits.registration import Address, Registration
from millrace.limits.tls import _made, context_of
from tests.limits.running import PATIENCE, Calls, heard, keys_of, look_up, run, watch_claims

PRICES = [Registration("prices", max_in_flight=3)]


@pytest.fixture
def coordinator(coordinator):
    coordinator.register("run", PRICES)
    return coordinator


async def take_a_turn(address: Address, run: str = "run") -> None:
    """Show that a client is served."""
    client = await Client.connect(address, f"{run}/0/0")
    async with client.permit():
        pass
    await client.close()


def a_turn_of(served: Coordinator) -> None:
    """Show that one that has no run yet serves at this machine's address."""
    served.register("run", PRICES)
    run(take_a_turn(replace(served.address, host="127.0.0.1")))


def raw(address: Address, *pieces: bytes, before_last: bytes = b"") -> bytes:
    """Send bytes, the last piece when ``before_last`` has come; return all that comes back."""
    plain = socket.create_connection((address.host, address.port), PATIENCE)
    with context_of(address).wrap_socket(plain) as connection:
        try:
            for piece in pieces[:-1]:
                connection.sendall(piece)
            answer = b""
            while before_last not in answer:
                answer += connection.recv(4096)
            connection.sendall(pieces[-1])
            while received := connection.recv(4096):
                answer += received
        except (ConnectionResetError, ssl.SSLError):
            return b""
        return answer


HELLO = codec.frame(Join("no token", "run/0/0"))
OTHER_VERSION = f"version '9' of the messages, and this is version '{VERSION}'"


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n", "expected at most 4096"),
        (b"\x00\x00\x00\x05hello", "Refusal"),
        (struct.pack(">I", 4000) + b"[" * 4000, "Refusal"),
        (HELLO, "wrong token"),
        (codec.frame(Join("no token", "n" * 5000)), "expected at most 4096"),
        (HELLO.replace(b"Join %d" % VERSION, b"Join 9"), OTHER_VERSION),
        (HELLO.replace(b"Join %d" % VERSION, b"Some 9"), OTHER_VERSION),
        (codec.frame(Bye()), "did not introduce itself"),
    ],
)
def test_strangers_are_shown_out(coordinator, garbage, why):
    """Whatever they send, they hear why, their connection is closed and the others are served."""
    told = raw(coordinator.address, bytes(garbage))
    assert why.encode() in told and b"Welcome" not in told
    run(take_a_turn(coordinator.address))


def test_a_token_opens_one_run_alone(coordinator):
    """The tasks of a run cannot get at what those of another share; the error names the reason."""
    address = coordinator.address_of("run")
    run(take_a_turn(address))
    for wrong, of in ((address, "another"), (replace(address, token="0" * 32), "run")):
        with pytest.raises(ExecutionError, match="refused to share limits and answers: wrong token"):
            run(take_a_turn(wrong, of))
    for message in (Join(address.token, "run/0/0"), Welcome(secrets={"KEY": b"hush"})):
        assert address.token not in f"{message!r}" and "hush" not in f"{message!r}"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_one_coordinator_serves_a_process():
    """It is started once a host, and anew in a forked child; an address pickles and hides its token."""
    served = Coordinator.get_or_start()
    address = served.address
    assert Coordinator.get_or_start().address is address
    assert Coordinator.get_or_start("127.0.0.2").address.port != address.port
    assert pickle.loads(pickle.dumps(address)) == address
    assert address.token not in repr(address)
    a_turn_of(served)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            served = Coordinator.get_or_start()
            own = served.address
            a_turn_of(served)
            code = 0 if own.port != address.port and own.token != address.token else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "::1%none"])
def test_nothing_listens_on_more_than_the_address_that_was_asked_for(host):
    """An address of another machine, or a name that is none, is an error that names the options."""
    with pytest.raises(ExecutionError, match=rf"cannot listen.*{host}.*`limits_host`.*`limits_bind`"):
        Coordinator(host)


def test_host_port_and_where_to_listen_are_told_apart():
    """A driver behind an address translation cannot bind what the tasks connect to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = Coordinator("192.0.2.1", port, "127.0.0.1")
    assert (served.address.host, served.address.port) == ("192.0.2.1", port)
    a_turn_of(served)
    served.close()


def test_only_the_certificate_of_the_plan_is_accepted(coordinator):
    """A server that shows another one gets no token; a client without TLS gets no answer."""
    stranger = _made(-1)[1]
    with pytest.raises(ExecutionError, match="CERTIFICATE_VERIFY_FAILED"):
        run(take_a_turn(replace(coordinator.address, certificate=stranger)))
    with socket.create_connection((coordinator.address.host, coordinator.address.port), PATIENCE) as plain:
        plain.sendall(codec.frame(Join(coordinator.address.token, "run/0/0")))
        assert b"Welcome" not in plain.recv(4096)


KEYS = keys_of(400)


@pytest.mark.parametrize("seed", range(4))
async def test_tasks_whose_connections_break_are_run_again_and_find_all_answers(
    coordinator, monkeypatch, seed
):
    """Nothing is asked again, nor beyond a limit, but what was under way at the break.

    Rows, failures and figures are whole.
    """
    mixed, plain, under_way = random.Random(seed), asyncio.StreamWriter.write, watch_claims(monkeypatch)
    broken: set[object] = {None}  # names of connections; those that are closed have none
    calls = Calls(counted=lambda client: client._link._writer.get_extra_info("sockname") not in broken)
    left: defaultdict[asyncio.StreamWriter, float] = defaultdict(
        lambda: mixed.randint(2_000, 20_000) if len(left) < 16 else math.inf
    )

    def write(writer: asyncio.StreamWriter, data: bytes) -> None:
        plain(writer, data[: int(min(len(data), max(0, left[writer])))])  # in the middle of what is sent
        left[writer] -= len(data)
        if left[writer] <= 0:
            broken.update(map(writer.get_extra_info, ("sockname", "peername")))
            writer.transport.abort()

    async def attempts(keys: list[bytes]) -> set[bytes]:
        for _ in range(20):
            with suppress(ExecutionError):
                client = await Client.connect(coordinator.address, "run/0/0")
                try:
                    return await look_up(client, keys, calls)
                finally:
                    await client.close()
        raise AssertionError("a task has failed for good")

    monkeypatch.setattr(asyncio.StreamWriter, "write", write)
    found = await asyncio.gather(*(attempts(mixed.sample(KEYS, 400)) for _ in range(4)))
    assert sum(each <= 0 for each in left.values()) >= 4
    assert {frozenset(each) for each in found} == {frozenset(k for k in KEYS if k[-1] % 7)}
    assert set(calls.asked) == set(KEYS) and calls.asked - Counter(KEYS) <= under_way
    assert calls.most <= 3
    (progress,) = await asyncio.to_thread(coordinator.progress, "run")
    in_vain = sum(key[-1] % 7 == 0 for key in KEYS)
    assert (progress.keys, progress.done, progress.failed) == (400, 400 - in_vain, in_vain)
    assert progress.in_flight == 0 and 400 <= progress.requests <= calls.asked.total()


@pytest.mark.parametrize("how", ["it breaks", "nothing can be said to it"])
async def test_who_is_cut_off_loses_what_it_held_at_once(coordinator, clients, monkeypatch, how):
    """Others get its permits and keys; its calls are cancelled, and all it waits for says why."""
    plain = codec.write

    def write(writer: asyncio.StreamWriter, message: Message) -> None:
        if isinstance(message, Noted):
            raise MemoryError  # noqa: TRY004  # as where there is no room
        plain(writer, message)

    async def call_for_ever() -> None:
        async with away.permit():
            under_way.append(1)
            await asyncio.Event().wait()

    coordinator.register("one", [Registration("prices", max_in_flight=1)])
    away, other = await clients("one/0/0", "one/0/0")
    under_way: list[int] = []
    calls = [asyncio.create_task(call_for_ever()) for _ in range(2)]
    await asyncio.sleep(0)  # sends the requests
    assert len((await away.claim(KEYS[:2])).ask) == 2
    assert (await other.claim(KEYS[:2])).waiting == KEYS[:2]
    if how == "it breaks":
        away._link._writer.transport.abort()
    else:
        monkeypatch.setattr(codec, "write", write)
        with pytest.raises(ExecutionError, match="was lost"):
            await heard(away)
    async with other.permit():
        assert (await other.notification()).ask == KEYS[:2]
    assert len(under_way) == 1
    for late in (*calls, away.notification(), away.claim(KEYS), away.permit().__aenter__()):
        with pytest.raises(ExecutionError, match=r"127\.0\.0\.1:\d+.* was lost .*This task fails"):
            await late


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel's own times hold there")
async def test_a_machine_that_is_gone_without_a_word_is_noticed_within_two_minutes(coordinator, clients):
    """On both sides, whether something was sent to it or not; one that waits 30 s for a disk is not gone."""
    (one,) = await clients("run/0/0")
    for writer in (one._link._writer, *coordinator._connections.values()):
        connection = writer.get_extra_info("socket")
        option = partial(connection.getsockopt, socket.IPPROTO_TCP)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        probes = option(socket.TCP_KEEPINTVL) * option(socket.TCP_KEEPCNT)
        assert option(socket.TCP_KEEPIDLE) + probes <= 60
        assert 60_000 < option(socket.TCP_USER_TIMEOUT) <= 110_000
