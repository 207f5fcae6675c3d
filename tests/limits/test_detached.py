"""A coordinator beside an executor: who may call it, that calls are done once, and when it ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from multiprocessing.connection import Listener
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from millrace.errors import ExecutionError
from millrace.limits.detached import _MOST_CALLERS, Call, Seal, Started, _accept, call, start
from millrace.limits.registration import Registration
from tests.limits.running import run
from tests.limits.test_process import KEYS, settled

PATIENCE = 30.0
PARENT = """
import subprocess, sys
worker = '''
import sys, json
from millrace.limits.detached import start
told = start(bytes.fromhex(sys.argv[1]), "127.0.0.1", 0, None, 600.0)
print(json.dumps([told.host, told.port, told.public.hex(), told.sealed.hex()]), flush=True)
'''
subprocess.run([sys.executable, "-c", worker, sys.argv[1]])
sys.stdin.readline()
"""


class Caller:
    """The planning process's side, without Spark between."""

    def __init__(self, own: X25519PrivateKey, there: Started) -> None:
        self.place = (there.host, there.port)
        self.there = there
        self.seal = Seal(own, there.public)
        self.address = self.seal.open(there.sealed, "address")

    @classmethod
    def started(cls, idle: float = 600.0, host: str = "127.0.0.1") -> Caller:
        own = X25519PrivateKey.generate()
        return cls(own, start(own.public_key().public_bytes_raw(), host, 0, None, idle))

    def send(self, number: int, *methods):
        sealed = self.seal.seal(Call(number, methods), "call")
        return self.seal.open(call(*self.place, sealed), f"reply {number}")

    def ended(self) -> bool:
        """Whether nobody is there any more, in the end."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                call(*self.place, b"nonsense")
            except ExecutionError as error:
                if "ConnectionRefused" in str(error):
                    return True
            time.sleep(0.05)
        return False


def test_it_serves_who_started_it_and_nobody_else():
    """Calls with secrets are unreadable on their way, and done once however often they come."""
    caller = Caller.started()
    registered = ("register", ("run", (Registration("prices", 3, secrets={"KEY": "hush-hush"}),)))
    sealed, place = caller.seal.seal(Call(1, (registered,)), "call"), caller.place
    assert b"hush-hush" not in sealed and caller.address.token.encode() not in caller.there.sealed
    first, again = call(*place, sealed), call(*place, sealed)  # a task may run twice
    assert first == again and caller.seal.open(first, "reply 1") == (None, None)
    assert run(settled(caller.address.of("run"), KEYS)) == KEYS
    error, (progress,) = caller.send(2, ("ping", ()), ("progress", ("run",)))
    assert error is None and (progress.name, progress.keys, progress.done) == ("prices", 9, 9)
    assert isinstance(caller.send(3, ("register", ("run", ())))[0], ValueError)
    assert "no method" in str(caller.send(4, ("_call", ()))[0])

    stranger = Seal(X25519PrivateKey.generate(), caller.there.public)
    for wrong in (
        stranger.seal(Call(9, (("close", ()),)), "call"),
        caller.seal.seal(Call(9, (("close", ()),)), "reply 9"),
        sealed[:-1] + bytes([sealed[-1] ^ 1]),
        b"",
    ):
        with pytest.raises(ExecutionError, match="not there any more"):
            call(*place, wrong)
    for number in range(5, 75):
        assert caller.send(number, ("ping", ())) == (None, None)
    with pytest.raises(ExecutionError, match="not there any more"):
        call(*place, sealed)  # long ago
    assert caller.send(75, ("close", ())) == (None, None)
    assert caller.ended()


def test_it_ends_when_nobody_has_been_there_for_long():
    """A task that is connected is somebody; then it goes, though nobody tells it to."""
    assert Caller.started(idle=0.2).ended()


def test_it_ends_with_its_executor():
    """The process that starts tasks is its witness."""
    own = X25519PrivateKey.generate()
    public = own.public_key().public_bytes_raw().hex()
    command = [sys.executable, "-c", PARENT, public]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as executor:
        host, port, theirs, sealed = json.loads(executor.stdout.readline())
        caller = Caller(own, Started(host, port, bytes.fromhex(theirs), bytes.fromhex(sealed)))
        assert caller.send(1, ("ping", ())) == (None, None)
        executor.stdin.close()
    assert caller.ended()


def test_what_cannot_start_says_why():
    """An address that is not this machine's, with what to set."""
    with pytest.raises(ExecutionError, match=r"cannot listen.*192\.0\.2\.77"):
        Caller.started(host="192.0.2.77")


def test_strangers_get_few_places_and_little_time(monkeypatch):
    """Who says nothing, or begins and stops, has one of a few threads for a moment; calls come after."""
    monkeypatch.setattr("millrace.limits.detached._SAID_SECONDS", 0.2)

    before = threading.active_count()
    with ExitStack() as opened, Listener(("127.0.0.1", 0), backlog=64) as listener:
        _accept(listener, SimpleNamespace(to=lambda sealed: sealed[::-1]))
        for number in range(20):
            stranger = opened.enter_context(socket.create_connection(listener.address))
            stranger.sendall(b"\x00\x00\x01\x00half" if number % 2 else b"")
        assert threading.active_count() - before <= _MOST_CALLERS
        assert call(*listener.address, b"call") == b"llac"
