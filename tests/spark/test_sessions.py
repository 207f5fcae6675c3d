"""The same code runs on Spark Connect and on several executor processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millrace
from tests.gate import PROFILE

CHECKS = Path(__file__).with_name("session_checks.py")
ROOTS = (Path(__file__).parents[2], Path(millrace.__file__).parents[1])


@pytest.mark.slow
@pytest.mark.connect
@pytest.mark.cluster
@pytest.mark.parametrize(
    "kind",
    [
        "connect to a cluster",
        pytest.param("connect", marks=pytest.mark.nightly),
        pytest.param("cluster", marks=pytest.mark.nightly),
    ],
)
def test_every_kind_of_session(kind, tmp_path):
    """All checks pass there, in a process of their own, on one session; the gate runs the shorter ones."""
    path = os.pathsep.join([*map(str, ROOTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    left = [mark for mark in ("connect", "cluster") if mark not in kind]
    if PROFILE != "nightly":
        left.append("nightly")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [*command, "-m", f"not ({' or '.join(left)})", f"--basetemp={tmp_path / 'checks'}", str(CHECKS)],
        env={**os.environ, "PYTHONPATH": path, "MILLRACE_SESSION": kind},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-3000:]
