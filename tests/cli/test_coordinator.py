"""``millrace coordinator`` in a process of its own, as a service or a user in a terminal starts it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess

import pytest

from millrace.limits.coordinator import Coordinator
from millrace.limits.drivers import SECRET
from millrace.limits.joined import JoinedCoordinator
from millrace.limits.registration import Registration
from tests.cli.conftest import COMMAND
from tests.limits.running import keys_of, run
from tests.limits.test_process import settled

KEYS = keys_of(9)


@pytest.mark.parametrize("given", ["", "g" * 40])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(monkeypatch, tmp_path, given, how):
    """It says where it listens and, if it made it, its secret; at the end caches have what was answered."""
    cache = Registration("prices", cache=tmp_path / "cache.sqlite", fingerprint="f" * 32)
    monkeypatch.setenv(SECRET, given)
    command = [*COMMAND, "coordinator", "--listen=127.0.0.1:0", f"--json={tmp_path}/place"]
    ours, theirs = pty.openpty() if not given else os.pipe()
    with subprocess.Popen(command, stdout=theirs) as process, os.fdopen(ours) as said:
        os.close(theirs)
        try:
            place = said.readline().strip().removeprefix("listens on ")
            secret = given or said.readline().strip().removeprefix(f"export {SECRET}=")
            monkeypatch.setenv(SECRET, secret)
            joined = JoinedCoordinator("127.0.0.1", int(place.removeprefix("127.0.0.1:")))
            joined.register("run", [cache])
            assert run(settled(joined.address_of("run"), KEYS)) == KEYS
            process.send_signal(how)
            assert said.readline().strip() == "ends" and process.wait(60) == 0
        finally:
            process.kill()
    later = Coordinator()
    later.register("run", [cache])
    assert run(settled(later.address_of("run"), KEYS)) == []
    later.close()


def test_no_log_gets_a_secret(run_without_spark, monkeypatch):
    """One that is not given is made on a terminal alone: what goes elsewhere is kept."""
    monkeypatch.delenv(SECRET, raising=False)
    ended = run_without_spark("coordinator", "--listen=192.0.2.1:7077")
    assert (ended.exit_code, ended.stdout) == (1, "") and f"set {SECRET} here" in ended.stderr
