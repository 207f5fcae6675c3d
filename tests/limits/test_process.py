"""The coordinator's own process: it serves, passes errors on, and ends when the planning process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import Pipe

import psutil
import pytest

from millrace.errors import ExecutionError, InputError
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.process import CoordinatorProcess
from millrace.limits.registration import Address, Registration
from tests.limits.hammer import keys_of, rows_of
from tests.limits.running import run

KEYS = keys_of(9)
PLANNER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.path[:0] = {path!r}
from millrace.limits.process import CoordinatorProcess
from millrace.limits.registration import Registration
from multiprocessing import Pipe
from pathlib import Path
if __name__ == "__main__":
    coordinator = CoordinatorProcess.started()
    coordinator.register("run", [Registration("prices", cache=Path({cache!r}), fingerprint="f" * 32)])
    address = coordinator.address_of("run")
    print(coordinator.pid, address.port, address.token, address.certificate.replace(chr(10), "|"), flush=True)
    sys.stdin.readline()
"""


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
    assert CoordinatorProcess.at(first.address) is first
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
    script = tmp_path / "planner.py"
    script.write_text(PLANNER.format(path=sys.path, cache=str(cache)), encoding="utf-8")
    planner = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with planner:
        pid, port, token, certificate = planner.stdout.readline().split(" ", 3)
        address = Address("127.0.0.1", int(port), token, certificate.strip().replace("|", "\n"))
        assert run(settled(address, KEYS)) == KEYS
        if how == "is killed":
            planner.kill()
        elif how == "is interrupted":
            os.killpg(planner.pid, signal.SIGINT)
        else:
            planner.stdin.close()
        planner.wait(30)
    _, alive = psutil.wait_procs([psutil.Process(int(pid))] if psutil.pid_exists(int(pid)) else [], 30)
    assert not alive
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
