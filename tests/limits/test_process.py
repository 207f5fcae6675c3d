"""Coordinators in processes of their own: beside the planning process, and elsewhere."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from millrace.errors import ExecutionError, InputError, OptionError
from millrace.limits.budget import Budget
from millrace.limits.cache import check_cache
from millrace.limits.client import Client
from millrace.limits.clock import VirtualClock
from millrace.limits.codec import frame
from millrace.limits.coordinator import Coordinator
from millrace.limits.drivers import DRIVERS, SECRET
from millrace.limits.messages import Claim, JoinDriver, MethodCall
from millrace.limits.process import CoordinatorProcess, JoinedCoordinator, RemoteCoordinator
from millrace.limits.registration import Registration
from millrace.limits.secrets import Secrets
from tests.limits.running import PATIENCE, SPAWN, keys_of, rows_of, run
from tests.limits.test_server import raw
from tests.session import wait_for

OURS, NINE = "s" * 40, Budget(max_requests=9)
KEYS = keys_of(9)


def plan(pipe: Connection, cache: Path) -> None:
    """Be a planning process, with a job that has a cache, until nobody is at the other end of a pipe."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    coordinator = CoordinatorProcess.get_or_start()
    coordinator.register("run", [Registration("prices", cache=cache, fingerprint="f" * 32)])
    pipe.send((coordinator.pid, coordinator.address_of("run")))
    with suppress(EOFError):
        pipe.recv()


@pytest.fixture
def coordinator():
    served = CoordinatorProcess()
    yield served
    served.close()


async def settled(address, keys, run="run") -> list[bytes]:
    """Look keys up as a task does; returns those that had to be asked."""
    client = await Client.connect(address, f"{run}/0/0")
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
    first = CoordinatorProcess.get_or_start("127.0.0.3")
    assert CoordinatorProcess.get_or_start("127.0.0.3") is first
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(ExecutionError, match=r"has ended \(exit code -9\)"):
        first.progress("run")
    second = CoordinatorProcess.get_or_start("127.0.0.3")
    assert second is not first and second.progress("run") == []
    second.close()
    assert not psutil.pid_exists(second.pid)


async def test_secrets_do_not_depend_on_the_locale(monkeypatch):
    """Tasks get what the planning process has, also bytes that are no text to it."""
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    served, secrets = CoordinatorProcess(), {"KEY": "schön \udcff"}
    served.register("run", [Registration("prices", secrets=secrets)])
    client = await Client.connect(served.address_of("run"), "run/0/0")
    assert client.secrets == secrets
    assert Secrets(secrets).scrub(f"key {secrets['KEY']}!") == "key ${KEY}!"
    await client.close()
    served.close()


@pytest.mark.parametrize("how", ["ends", "is killed", "is interrupted", "has lost it"])
def test_it_ends_with_the_planning_process(tmp_path, how):
    """However that ends, caches have what was answered, and no process stays."""
    cache = tmp_path / "cache.sqlite"
    ours, theirs = SPAWN.Pipe()
    planner = SPAWN.Process(target=plan, args=(theirs, cache))
    planner.start()
    theirs.close()
    pid, address = ours.recv()
    assert run(settled(address, KEYS)) == KEYS
    if how == "has lost it":
        os.kill(pid, signal.SIGKILL)
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


def test_it_ends_although_a_fork_of_the_planning_process_goes_on(monkeypatch):
    """The fork has what the child hears its end by."""
    monkeypatch.setattr("millrace.limits.process.END_SECONDS", PATIENCE / 2)
    going_on = multiprocessing.get_context("fork").Process(target=time.sleep, args=(2 * PATIENCE,))
    served = CoordinatorProcess()
    going_on.start()
    served.close()
    going_on.kill()
    going_on.join()
    assert served._child.returncode == 0


def test_calls_that_nobody_answers_are_errors_and_the_process_ends(coordinator, monkeypatch):
    """One that hangs is given up, and ended with its planning process."""
    for name in ("CALL_SECONDS", "END_SECONDS", "_EXIT_SECONDS"):
        monkeypatch.setattr(f"millrace.limits.process.{name}", 0.2)
    os.kill(coordinator.pid, signal.SIGSTOP)
    with pytest.raises(ExecutionError, match="has not answered 'progress'"):
        coordinator.progress("run")
    coordinator.close()
    assert not coordinator.running
    coordinator.release("run")


def test_it_ends_with_the_planning_process_whatever_it_is_doing(tmp_path, monkeypatch):
    """A call that does not return, for another process writes all the time, leaves no orphan behind."""
    cache = tmp_path / "cache.sqlite"
    check_cache(cache)
    begin = (
        "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from millrace.limits import process; "
        "process.END_SECONDS = 0.2; process.serve()"
    )
    monkeypatch.setattr("millrace.limits.process._BEGIN", begin)
    planned = CoordinatorProcess()
    child = psutil.Process(planned.pid)
    threads = child.num_threads()
    with closing(sqlite3.connect(cache, isolation_level=None)) as writes, ThreadPoolExecutor(1) as pool:
        writes.execute("BEGIN IMMEDIATE")
        waiting = [Registration("prices", cache=cache, fingerprint="f" * 32)]
        registering = pool.submit(planned.register, "run", waiting)
        wait_for(lambda: child.num_threads() > threads)  # the one that does it
        planned._child.stdin.close()
        planned._child.wait(PATIENCE)
        with pytest.raises(ExecutionError, match="has ended"):
            registering.result(PATIENCE)
    planned.close()


@pytest.fixture
def clock():
    """The time by which planning processes are away."""
    return VirtualClock()


@pytest.fixture
def elsewhere(monkeypatch, clock):
    """A coordinator that planning processes with the secret can join."""
    monkeypatch.setenv(SECRET, OURS)
    served = Coordinator(secret=OURS, clock=clock)
    yield served
    served.close()


@pytest.fixture
def join(elsewhere):
    """Be another planning process, until the test is over."""
    with ExitStack() as over:
        yield lambda clock=None: over.enter_context(
            closing(JoinedCoordinator("127.0.0.1", elsewhere.address.port, clock=clock))
        )


def known(elsewhere: Coordinator, *runs: str) -> list[str]:
    """Return the runs that are there after a look at who is away."""
    elsewhere._within(elsewhere._look)
    return [each for each in runs if elsewhere.progress(each)]


def test_several_planning_processes_join_one_elsewhere(elsewhere, join, tmp_path):
    """Budgets, secrets, answers and groups are there for the tasks; figures and errors come back."""
    one, other = join(), join()
    cache = tmp_path / "cache.sqlite"
    kept = Registration("prices", 3, 50.0, cache, 60.0, "f" * 32, {"KEY": "hush \udcff"}, 5, NINE, 9.5, "api")
    one.register("run", [kept])
    assert elsewhere._registrations["run"] == (kept,)
    assert run(settled(one.address_of("run"), KEYS)) == KEYS
    (progress,), (spent,) = one.progress("run"), one.spent("run")
    assert (progress.name, progress.keys, progress.done) == ("prices", 9, 9)
    assert (spent.name, spent.max_requests) == ("limit_group api", 9)
    assert one.failed("run") == [] == other.failed("another")
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # one whose machine is gone is not waited for
        assert one._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    other.register("another", [Registration("prices", cache=cache, fingerprint="f" * 32)])
    assert run(settled(other.address_of("another"), KEYS, "another")) == []
    with pytest.raises(OptionError, match="give all of a group the same"):
        other.register("third", [Registration("p", 1, group="api"), Registration("p", 2, group="api")])
    with pytest.raises(ValueError, match="has other lookups"):
        other.register("run", [])


def test_no_planning_process_pushes_out_what_another_one_has(elsewhere, join, monkeypatch):
    """Neither runs that nothing refers to any more, nor answers of executions that are over."""
    monkeypatch.setattr("millrace.limits.coordinator._MOST_RELEASED", 1)
    monkeypatch.setattr("millrace.limits.coordinator._MOST_EMPTY_SESSIONS", 1)
    one, other = join(), join()
    for joined, name in ((one, "kept"), (other, "first"), (other, "last")):
        joined.register(name, [Registration("prices")])
        assert run(settled(joined.address_of(name), KEYS, name)) == KEYS
        joined.release(name)
        joined.spent("")  # what was said before is done
    assert known(elsewhere, "kept", "first", "last") == ["kept", "last"]
    assert run(settled(one.address_of("kept"), KEYS, "kept")) == []


def test_a_connection_that_breaks_costs_a_planning_process_nothing(elsewhere, join, clock):
    """It has five minutes to join again, and has what it had; what is of others that do not come goes."""
    joined, gone = join(), join()
    joined.register("run", [Registration("prices", budget=NINE)])
    gone.register("gone", [Registration("prices")])
    assert run(settled(joined.address_of("run"), KEYS)) == KEYS
    gone.close()
    elsewhere._within(lambda: [each.transport.abort() for each in elsewhere._connections.values()])
    wait_for(lambda: elsewhere._drivers[gone._driver].empty)
    clock.advance(299.0)
    assert known(elsewhere, "run", "gone") == ["run", "gone"]
    assert joined.progress("run")[0].done == 9
    clock.advance(2.0)
    assert known(elsewhere, "run", "gone") == ["run"]
    with pytest.raises(ExecutionError, match=r"away for long.*plan it again"):
        run(settled(elsewhere.address_of("gone"), KEYS, "gone"))
    clock.advance(1000.0)
    assert known(elsewhere, "run") == ["run"]


def test_what_is_let_go_while_the_connection_is_down_is_forgotten(elsewhere, join, monkeypatch):
    """With its secrets, as soon as there is a connection again, though nobody asks for anything."""
    monkeypatch.setattr("millrace.limits.coordinator._MOST_RELEASED", 0)
    monkeypatch.setattr(JoinedCoordinator, "look_seconds", 0.01)
    joined = join()
    joined.register("run", [Registration("prices", secrets={"KEY": "hush"})])
    with monkeypatch.context() as outage:
        outage.setattr("millrace.limits.process.dial", Mock(side_effect=OSError))
        elsewhere._within(lambda: [each.transport.abort() for each in elsewhere._connections.values()])
        joined.release("run")
        with pytest.raises(ExecutionError, match="is not reached"):
            joined.spent("")
        assert elsewhere.progress("run")
    wait_for(lambda: not elsewhere.progress("run"))
    assert joined.progress("run") == []


def test_nobody_has_to_wait_for_a_coordinator_that_does_not_answer(join, monkeypatch):
    """Who leaves ends the call that is under way; who does not hears it when the time is up."""
    called, gate = threading.Event(), threading.Event()

    def hang(self, run):
        called.set()
        gate.wait(PATIENCE)
        return []

    monkeypatch.setattr(Coordinator, "progress", hang)
    leaving, staying = join(), join()
    with ThreadPoolExecutor(1) as pool:
        try:
            waiting = pool.submit(leaving.progress, "run")
            assert called.wait(PATIENCE)
            leaving.close()
            with pytest.raises(ExecutionError, match="was lost"):
                waiting.result(PATIENCE)
            monkeypatch.setattr("millrace.limits.process.CALL_SECONDS", 0.2)
            with pytest.raises(ExecutionError, match=r"not answered 'progress'|lost \(TimeoutError"):
                staying.progress("run")
        finally:
            gate.set()


def test_a_network_that_swallows_all_holds_up_nobody_twice(join, monkeypatch):
    """Calls fail for as long as one has waited, and who needs nothing from there does not wait at all."""
    clock, dialled, entered, gate = VirtualClock(), [], threading.Event(), threading.Event()

    def swallow(address: Any, *_: object, **__: object) -> None:
        dialled.append(address.port)
        entered.set()
        assert gate.wait(PATIENCE)
        clock.advance(10.0)
        raise TimeoutError

    monkeypatch.setattr("millrace.limits.process.dial", swallow)
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(JoinedCoordinator.get_or_start, "127.0.0.1", 1)
        assert entered.wait(PATIENCE)
        (dialling,) = [each for each in JoinedCoordinator.all() if each.address.port == 1]
        gate.set()
        with pytest.raises(ExecutionError, match="is not reached"):
            started.result(PATIENCE)
    dialling.close()
    joined = join(clock)
    for tries, seconds in ((1, 9.0), (1, 2.0), (2, 0.0)):
        with pytest.raises(ExecutionError, match="is not reached"):
            joined.spent("")
        assert dialled.count(joined.address.port) == tries  # the other one may have looked once more
        clock.advance(seconds)


async def test_what_an_action_wants_no_more_is_not_asked(elsewhere):
    """Times are those of the planning process, whatever the clock of the other machine says."""
    joined = await asyncio.to_thread(JoinedCoordinator.get_or_start, "127.0.0.1", elsewhere.address.port)
    joined._ahead -= 1000.0
    await asyncio.to_thread(joined.register, "run", [Registration("prices", 3)])
    client = await Client.connect(joined.address_of("run"), "run/0/0")
    for began in (1060.0, 990.0):
        assert (await client.claim(KEYS)).ask == KEYS
        RemoteCoordinator.stop({"run": time.monotonic() + began})
        await asyncio.to_thread(joined.progress, "run")  # what was said before is done
    with pytest.raises(ExecutionError, match="stopped"):
        await client.notification()
    await client.close()
    joined.close()


def test_who_has_not_the_secret_does_not_get_in(elsewhere, monkeypatch):
    """Neither with another one, nor with what tasks have; a short one could be guessed."""
    place = "127.0.0.1", elsewhere.address.port
    joined = JoinedCoordinator.get_or_start(*place)
    joined.register("run", [Registration("prices", secrets={"KEY": "hush"})])
    address = joined.address_of("run")
    for token in (address.token, ""):
        assert b"Welcome" not in raw(address, frame(JoinDriver(token, "d")))
    assert OURS not in f"{elsewhere.address}{address}{address.token}"
    hello = frame(JoinDriver(elsewhere.address.of(DRIVERS).token, "d"))
    for garbage in (MethodCall(1, "close", b"[]"), MethodCall(1, "_trim", b"[]"), Claim(1, [])):
        assert b"Lost" in raw(address, hello, frame(garbage))
    with pytest.raises(ExecutionError, match="ValidationError"):
        joined._call("register", "run", (1,))
    assert joined.progress("run")[0].name == "prices"
    joined.close()
    for secret, why in (("t" * 40, "has another secret"), ("short", "expected 32 or more"), ("", "set MILL")):
        monkeypatch.setenv(SECRET, secret)
        with pytest.raises(InputError, match=why):
            JoinedCoordinator.get_or_start(*place)
    monkeypatch.setenv(SECRET, OURS)
    JoinedCoordinator.get_or_start(*place).close()


def test_a_coordinator_elsewhere_that_is_started_again_is_joined_again(elsewhere, monkeypatch):
    """Whoever asks meanwhile hears that it is gone; then tasks find their run, though nobody asks."""
    monkeypatch.setattr(JoinedCoordinator, "look_seconds", 0.01)
    place = "127.0.0.1", elsewhere.address.port
    joined = JoinedCoordinator.get_or_start(*place)
    joined.register("run", [Registration("prices")])
    elsewhere.close()
    for ask in (lambda: joined.progress("run"), lambda: JoinedCoordinator.get_or_start(*place)):
        with pytest.raises(ExecutionError, match=r"127\.0\.0\.1:\d+ is not reached .*does `millrace coord"):
            ask()
    again = Coordinator("127.0.0.1", place[1], secret=OURS)
    wait_for(lambda: again.progress("run"))
    assert run(settled(joined.address_of("run"), KEYS)) == KEYS
    assert JoinedCoordinator.get_or_start(*place) is joined
    joined.close()
    again.close()
