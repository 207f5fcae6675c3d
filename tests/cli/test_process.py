"""The command as a user starts it: a process of its own, with a Spark of its own."""

from __future__ import annotations

import os
import signal
import subprocess

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import ANSWER, COMMAND, JOIN, LOCAL, PATIENCE, SCREEN

pytestmark = pytest.mark.slow


@pytest.mark.nightly
@pytest.mark.connect
def test_output_through_spark_connect(start, tables, tmp_path):
    target = tmp_path / "out.parquet"
    done = start("sql", JOIN, *tables, "--output", str(target), "--remote", "local[2]")
    assert done.returncode == 0, done.stderr
    assert pq.read_table(target).to_pydict() == ANSWER
    assert list(tmp_path.iterdir()) == [target]


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


@pytest.mark.nightly
def test_a_reader_that_goes_away_gets_no_trace(start, tables):
    """As with ``| head -1``: what is not read is not written, and nothing is said of it."""
    read, write = os.pipe()
    os.close(read)  # the first write already finds nobody
    done = start("sql", JOIN, *tables, "--json", "-", *LOCAL, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
