"""The same code runs on Spark Connect and on several executor processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import millrace

SCRIPT = Path(__file__).with_name("small_join.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [pytest.param("connect", marks=pytest.mark.connect), pytest.param("cluster", marks=pytest.mark.cluster)],
)
def test_joins_and_filters_run_on_every_kind_of_session(kind, tmp_path):
    """Rows, figures and errors are right in place, through blocks, mixed, in SQL, for filters, for streams.

    Each session needs a process of its own: a Connect and a classic session exclude each other.
    """
    path = os.pathsep.join([str(Path(millrace.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), kind, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.strip().splitlines()[-1])
    assert {label: all(checks) for label, checks in outcome.items()} == dict.fromkeys(outcome, True), outcome
    assert len(outcome) == 11
