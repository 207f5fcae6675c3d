"""The coordinator: limits hold across processes, and no client can break it for the others."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import socket
import ssl
import struct
from dataclasses import replace

import pytest

from millrace.errors import ExecutionError
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.registration import Address, Settings
from millrace.limits.tls import _made, context_of, server_context
from tests.limits.hammer import rows_of
from tests.limits.running import PATIENCE, run

SPAWN = multiprocessing.get_context("spawn")
ONE = Settings(max_in_flight=1)
KEY, OTHER = b"k" * 16, b"o" * 16


async def take_a_turn(address: Address, namespace: str = "n", settings: Settings = ONE) -> None:
    """Show that a client is served."""
    limits = await Client.limited(address, namespace, settings)
    async with limits.permit():
        pass
    await limits.close()


def raw(address: Address, *pieces: bytes, before_last: bytes = b"") -> bytes:
    """Send bytes on a connection of one's own, and return what comes until the other side closes it.

    The last piece is sent when ``before_last`` has come.
    """
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


def frame(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
        b"\x00\x00\x00\x05hello",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x02{}",
        b"\xff" * 100,
        frame("[" * 4000),
        frame('{"token": "\\ud800", "session": "n", "limits": [0, null, null, null, null]}'),
    ],
)
def test_strangers_are_shown_out(coordinator, garbage):
    """Whatever they send, their connection is closed and the others are served."""
    raw(coordinator.address, garbage)
    run(take_a_turn(coordinator.address))


def test_a_wrong_token_is_refused(coordinator):
    """The client gets an error that names the reason."""
    address = coordinator.address
    with pytest.raises(ExecutionError, match="refused to share limits and answers: wrong token"):
        run(take_a_turn(replace(address, token="0" * 32)))
    run(take_a_turn(address))


async def test_other_limits_for_the_same_namespace_are_refused(clients):
    """Two predicates cannot get into each other's limits unnoticed."""
    await clients("n", settings=ONE)
    with pytest.raises(ExecutionError, match=r"max_in_flight=1.*got"):
        await clients("n", settings=Settings(max_in_flight=2))


def test_a_driver_out_of_reach_is_an_error_that_says_what_to_do():
    """The message has the address, the reason and the option."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ExecutionError, match=rf"127\.0\.0\.1:{port}.*Refused.*`limits_host`"):
            run(take_a_turn(Address("127.0.0.1", port, "", server_context()[1])))


async def test_a_coordinator_that_ends_wakes_everyone_who_waits(coordinator, clients):
    """Waiting for a turn, for an answer and for a claim all fail with the reason, and nothing hangs."""
    one, other = await clients("n", "n", settings=ONE)
    await one.claim([KEY])
    await other.claim([KEY])
    async with one.permit():
        waiting = [
            asyncio.create_task(other.permit().__aenter__()),
            asyncio.create_task(other.notification()),
        ]
        await asyncio.sleep(0)  # sends the request
        await other.claim([OTHER])  # answered after the request has arrived
        await asyncio.to_thread(coordinator.close)
        for task in waiting:
            with pytest.raises(ExecutionError, match="has been closed"):
                await task
    with pytest.raises(ExecutionError, match="has been closed"):
        await other.claim([OTHER])
    one.settle(rows_of([KEY]))  # nobody hears it, which is no error
    with pytest.raises(ExecutionError, match="has been closed"):
        coordinator.progress("run")


async def test_what_finished_jobs_leave_behind_is_bounded(coordinator, clients):
    """The last sixteen namespaces are kept, and one that has clients in any case."""
    (staying,) = await clients("staying", settings=ONE)
    async with staying.permit():
        for number in range(40):
            await take_a_turn(coordinator.address, f"job {number}")
        assert coordinator.in_flight("staying") == 1
    await staying.close()
    await take_a_turn(coordinator.address)
    assert len(coordinator._sessions) <= 18


def test_one_coordinator_serves_a_process():
    """It is started once for each host, pickles as an address, and does not show its token."""
    address = Coordinator.started().address
    assert Coordinator.started().address is address
    assert Coordinator.started("127.0.0.2").address.port != address.port
    assert pickle.loads(pickle.dumps(address)) == address
    assert address.token not in repr(address)
    run(take_a_turn(address))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_coordinator_of_its_own():
    """The parent's thread is not there in the child, so its address is of no use."""
    parents = Coordinator.started().address
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = Coordinator.started().address
            run(take_a_turn(own))
            code = 0 if own.port != parents.port and own.token != parents.token else 2
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
    run(take_a_turn(replace(served.address, host="127.0.0.1")))
    served.close()


def test_a_token_opens_one_run_alone(coordinator):
    """The tasks of a run cannot get at what those of another share."""
    run(take_a_turn(coordinator.address_of("mine"), "mine/0"))
    with pytest.raises(ExecutionError, match="wrong token"):
        run(take_a_turn(coordinator.address_of("mine"), "another/0"))


def test_only_the_certificate_of_the_plan_is_accepted(coordinator):
    """A server that shows another one gets no token; a client without TLS gets no answer."""
    stranger = _made(-1)[1]
    with pytest.raises(ExecutionError, match="CERTIFICATE_VERIFY_FAILED"):
        run(take_a_turn(replace(coordinator.address, certificate=stranger)))
    with socket.create_connection((coordinator.address.host, coordinator.address.port), PATIENCE) as plain:
        limits = "[1, null, null, null, null, null]"
        hello = f'{{"token": "{coordinator.address.token}", "session": "n", "limits": {limits}}}'
        plain.sendall(frame(hello))
        assert b"limits" not in plain.recv(4096)
