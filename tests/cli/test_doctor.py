"""``millrace doctor``; on Spark Connect and several executors it runs in tests/spark/session_checks.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv

import pytest

from tests.cli.conftest import COMMAND, PATIENCE, SCREEN


def test_a_healthy_session(run):
    """Every finding is well, exit code 0, and the document says the same."""
    done = run("doctor", "--json", "-")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["well"] is True
    checks = [one["check"] for one in found["findings"]]
    for check in ("millrace on executors", "folder for compiled kernels", "coordinator reached by tasks"):
        assert check in checks
    assert not [one for one in found["findings"] if one["advice"]]
    assert "all is well" in done.stderr


def test_a_coordinator_that_tasks_do_not_reach(run):
    """What it is needed for, and the option to set; the rest is well."""
    done = run("doctor", "--limits-host", "no-such-host.invalid")
    assert done.exit_code == 1
    assert "TO DO  coordinator reached by tasks: no-such-host.invalid" in done.stdout
    assert "set the option limits_host" in done.stdout
    assert "1 thing to do" in done.stdout


def test_a_server_that_does_not_answer(run):
    """Said at once: Spark's own client would try for minutes."""
    done = run("doctor", "--remote", "sc://127.0.0.1:1")
    assert done.exit_code == 1
    assert "TO DO  Spark Connect server: 127.0.0.1:1 does not answer" in done.stdout
    assert "1 thing to do" in done.stdout


@pytest.mark.nightly
def test_executors_with_another_python(tmp_path):
    """Packages that they lack are named, with the version to install; a folder nobody can write is too."""
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    environment = {**os.environ, **SCREEN, "PYSPARK_PYTHON": str(python)}
    done = subprocess.run(
        [*COMMAND, "doctor", "--master", "local[2]", "--conf", "spark.driver.memory=1g"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 1, done.stderr
    assert f"executors: 1 seen, Python {sys.version.split()[0]}, {python}" in done.stdout
    for package in ("pyarrow", "numpy", "pandas", "numba"):
        assert f"TO DO  {package} on executors: missing" in done.stdout
    assert "Arrow batches: fails" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_folder_that_cannot_be_written_is_told():
    """Where compiled kernels are kept nowhere, the variable to set is named."""
    from millrace.cli.doctor import _folders

    assert _folders([{"kernels": "/a"}, {"kernels": "/b"}]).found == "/a, /b"
    told = _folders([{"kernels": "/a"}, {"kernels": ""}])
    assert not told.well and "NUMBA_CACHE_DIR" in told.advice
