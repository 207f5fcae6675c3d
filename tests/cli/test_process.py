"""The command as a user or a service starts it: a process of its own, with a Spark of its own or none."""

from __future__ import annotations

import os
import pty
import signal
import subprocess

import pyarrow.parquet as pq
import pytest

from millrace.limits.coordinator import Coordinator
from millrace.limits.drivers import SECRET
from millrace.limits.process import JoinedCoordinator
from millrace.limits.registration import Registration
from tests.cli.conftest import ANSWER, COMMAND, JOIN, LOCAL, PATIENCE, SCREEN
from tests.limits.running import keys_of, run
from tests.limits.test_process import settled


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.connect
def test_output_through_spark_connect(start, tables, tmp_path):
    target = tmp_path / "out.parquet"
    done = start("sql", JOIN, *tables, "--output", str(target), "--remote", "local[2]")
    assert done.returncode == 0, done.stderr
    assert pq.read_table(target).to_pydict() == ANSWER
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.slow
@pytest.mark.usefixtures("hearing")
def test_control_c_stops_cleanly(tmp_path):
    """Ctrl-C while Spark works: exit code 130, one word, no file, no process left."""
    endless = "select count(distinct id * id % 1000003) from range(100000000000)"
    process = subprocess.Popen(
        [*COMMAND, "sql", endless, "--engine", "spark", "--output", str(tmp_path / "out.parquet"), *LOCAL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **SCREEN},
        start_new_session=True,
    )
    with process:
        # The hidden folder is made just before the job starts.
        while not any(tmp_path.iterdir()):
            assert process.poll() is None, process.stderr.read()
            try:
                process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
        # A terminal sends the signal to every process of the group, the JVM included.
        os.killpg(process.pid, signal.SIGINT)
        _, messages = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert messages.strip() == "interrupted"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.nightly
def test_a_reader_that_goes_away_gets_no_trace(start, tables):
    """As with ``| head -1``: what is not read is not written, and nothing is said of it."""
    read, write = os.pipe()
    os.close(read)  # the first write already finds nobody
    done = start("sql", JOIN, *tables, "--json", "-", *LOCAL, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


# The coordinator.


KEYS = keys_of(9)


@pytest.mark.parametrize("given", ["", "g" * 40])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_coordinator_serves_until_it_is_told_to_end(monkeypatch, tmp_path, given, how):
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
