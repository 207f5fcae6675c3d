"""The coordinator: limits hold across processes, and no client can break it for the others."""

from __future__ import annotations

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
from millrace.limits.tls import _made, context_of
from tests.limits.running import PATIENCE, run

SPAWN = multiprocessing.get_context("spawn")


async def take_a_turn(address: Address, namespace: str = "n") -> None:
    """Show that a client is served."""
    limits = await Client.limited(address, namespace, Settings(max_in_flight=1))
    async with limits.permit():
        pass
    await limits.close()


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


def test_a_token_opens_one_run_alone(coordinator):
    """The tasks of a run cannot get at what those of another share; the error names the reason."""
    address = coordinator.address_of("mine")
    run(take_a_turn(address, "mine/0"))
    for wrong, namespace in ((address, "another/0"), (replace(address, token="0" * 32), "mine/0")):
        with pytest.raises(ExecutionError, match="refused to share limits and answers: wrong token"):
            run(take_a_turn(wrong, namespace))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_one_coordinator_serves_a_process():
    """It is started once a host, and anew in a forked child; an address pickles and hides its token."""
    address = Coordinator.started().address
    assert Coordinator.started().address is address
    assert Coordinator.started("127.0.0.2").address.port != address.port
    assert pickle.loads(pickle.dumps(address)) == address
    assert address.token not in repr(address)
    run(take_a_turn(address))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = Coordinator.started().address
            run(take_a_turn(own))
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
    run(take_a_turn(replace(served.address, host="127.0.0.1")))
    served.close()


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
