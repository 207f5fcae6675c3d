"""Coordinators in processes of their own: beside the planning process, and beside an executor."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from millrace.errors import ExecutionError, InputError
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.detached import _MOST_CALLERS, Call, Seal, Started, _accept, call, start
from millrace.limits.process import CoordinatorProcess
from millrace.limits.registration import Registration
from tests.limits.running import SPAWN, keys_of, rows_of, run
from tests.session import wait_for

KEYS = keys_of(9)


def plan(pipe: Connection, cache: Path) -> None:
    """Be a planning process, with a job that has a cache, until nobody is at the other end of a pipe."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    coordinator = CoordinatorProcess.started()
    coordinator.register("run", [Registration("prices", cache=cache, fingerprint="f" * 32)])
    pipe.send((coordinator.pid, coordinator.address_of("run")))
    with suppress(EOFError):
        pipe.recv()


@pytest.fixture
def coordinator():
    served = CoordinatorProcess()
    yield served
    served.close()


async def settled(address, keys) -> list[bytes]:
    """Look keys up as a task does; returns those that had to be asked."""
    client = await Client.connect(address, "run/0/0")
    claimed = await client.claim(keys)
    client.settle(rows_of(claimed.ask))
    await client.close()
    return claimed.ask


def test_it_serves_and_passes_errors_on(coordinator, tmp_path):
    """What is registered is served, figures come back, and what it raises is raised here."""
    coordinator.register("run", [Registration("prices", 3, secrets={"KEY": "hush"})])
    assert run(settled(coordinator.address_of("run"), KEYS)) == KEYS
    (progress,) = coordinator.progress("run")
    assert (progress.name, progress.keys, progress.done) == ("prices", 9, 9)
    assert coordinator.failed("run") == []
    (tmp_path / "file.txt").touch()
    with pytest.raises(InputError, match="is a file: name a folder"):
        coordinator.register("other", [Registration("p", cache=tmp_path / "file.txt", fingerprint="f")])
    with pytest.raises(ValueError, match="has other lookups"):
        coordinator.register("run", [])
    with pytest.raises(ExecutionError, match="cannot listen"):
        CoordinatorProcess("192.0.2.1")
    command = " ".join(psutil.Process(coordinator.pid).cmdline())
    assert "hush" not in command and coordinator.address.token not in command
    coordinator.close()
    with pytest.raises(ExecutionError, match="has been closed"):
        coordinator.progress("run")


def test_a_process_that_dies_is_an_error_and_is_replaced():
    """Calls say that it has ended; the next query starts another one."""
    first = CoordinatorProcess.started("127.0.0.3")
    assert CoordinatorProcess.started("127.0.0.3") is first
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(ExecutionError, match=r"has ended \(exit code -9\)"):
        first.progress("run")
    second = CoordinatorProcess.started("127.0.0.3")
    assert second is not first and second.progress("run") == []
    second.close()
    assert not psutil.pid_exists(second.pid)


@pytest.mark.parametrize("how", ["ends", "is killed", "is interrupted"])
def test_it_ends_with_the_planning_process(tmp_path, how):
    """However that ends, caches have what was answered, and no process stays."""
    cache = tmp_path / "cache.sqlite"
    ours, theirs = SPAWN.Pipe()
    planner = SPAWN.Process(target=plan, args=(theirs, cache))
    planner.start()
    theirs.close()
    pid, address = ours.recv()
    assert run(settled(address, KEYS)) == KEYS
    if how == "is killed":
        planner.kill()
    elif how == "is interrupted":
        os.killpg(planner.pid, signal.SIGINT)
    else:
        ours.close()
    planner.join(30)
    pids = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
    assert not psutil.wait_procs(pids, 30)[1]
    later = Coordinator()
    later.register("run", [Registration("prices", cache=cache, fingerprint="f" * 32)])
    assert run(settled(later.address_of("run"), KEYS)) == []
    later.close()


def test_calls_that_nobody_answers_are_errors_and_the_process_ends(coordinator, monkeypatch):
    """One that hangs is given up, and ended with its planning process."""
    for name in ("_CALL_SECONDS", "_END_SECONDS", "_EXIT_SECONDS"):
        monkeypatch.setattr(f"millrace.limits.process.{name}", 0.2)
    os.kill(coordinator.pid, signal.SIGSTOP)
    with pytest.raises(ExecutionError, match="has not answered 'progress'"):
        coordinator.progress("run")
    coordinator.close()
    assert not coordinator.running
    coordinator.release("run")


def test_it_ends_with_the_planning_process_whatever_it_is_doing(tmp_path):
    """A call that never returns, for a disk that is away, leaves no orphan behind."""
    os.mkfifo(tmp_path / ".millrace-key")  # reading it waits for ever
    ours, theirs = Pipe()
    begin = (
        f"import sys; sys.path[:] = {sys.path!r}; from millrace.limits import process; "
        "process._END_SECONDS = 0.2; process.serve()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", begin, "", str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    try:
        ours.send(("start", ("127.0.0.1", 0, None)))
        assert ours.recv()[0] is None
        ours.send(("register", ("run", (Registration("prices", cache=tmp_path, fingerprint="f" * 32),))))
        ours.close()
        child.wait(30)
    finally:
        child.kill()
        child.wait()


def execute(pipe: Connection, public: bytes) -> None:
    """Be an executor, with a task that starts a coordinator, until nobody is at the other end of a pipe."""
    task = SPAWN.Process(target=begin, args=(pipe, public))
    task.start()
    task.join()
    with suppress(EOFError):
        pipe.recv()


def begin(pipe: Connection, public: bytes) -> None:
    pipe.send(start(public, "127.0.0.1", 0, None, 600.0))


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

    def is_gone(self) -> bool:
        """Whether nobody is there any more."""
        with pytest.raises(ExecutionError) as told:
            call(*self.place, b"nonsense")
        return "ConnectionRefused" in str(told.value)


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
    wait_for(caller.is_gone)


def test_it_ends_when_nobody_has_been_there_for_long():
    """A task that is connected is somebody; then it goes, though nobody tells it to."""
    wait_for(Caller.started(idle=0.2).is_gone)


def test_it_ends_with_its_executor():
    """The process that starts tasks is its witness."""
    own = X25519PrivateKey.generate()
    ours, theirs = SPAWN.Pipe()
    executor = SPAWN.Process(target=execute, args=(theirs, own.public_key().public_bytes_raw()))
    executor.start()
    theirs.close()
    caller = Caller(own, ours.recv())
    assert caller.send(1, ("ping", ())) == (None, None)
    ours.close()
    executor.join(30)
    wait_for(caller.is_gone)


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
