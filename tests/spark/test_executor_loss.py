"""A lost executor costs time, not rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.session import run_script

SCRIPT = Path(__file__).with_name("executor_loss.py")


@pytest.mark.slow
@pytest.mark.cluster
def test_rows_are_right_when_map_tasks_run_again_in_the_middle_of_a_join(tmp_path):
    """A spread DataFrame whose rows come in another order the second time gives each row once."""
    outcome = json.loads(run_script(SCRIPT, folder=tmp_path, timeout=400))
    assert outcome["killed"] == 1
    assert "rows of big: 4" in outcome["plan"]
    assert (outcome["wrong"], outcome["rows"]) == (0, 20_000), outcome
