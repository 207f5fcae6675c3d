"""A lost executor costs time, not rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import millrace

SCRIPT = Path(__file__).with_name("executor_loss.py")


@pytest.mark.slow
@pytest.mark.cluster
def test_rows_are_right_when_map_tasks_run_again_in_the_middle_of_a_join(tmp_path):
    """A spread DataFrame whose rows come in another order the second time gives each row once."""
    path = os.pathsep.join([str(Path(millrace.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.strip().splitlines()[-1])
    assert outcome["killed"] == 1
    assert "rows of big: 4" in outcome["plan"]
    assert (outcome["wrong"], outcome["rows"]) == (0, 20_000), outcome
