"""The same code runs on Spark Connect and on several executor processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.session import run_script

SCRIPT = Path(__file__).with_name("small_join.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [pytest.param("connect", marks=pytest.mark.connect), pytest.param("cluster", marks=pytest.mark.cluster)],
)
def test_joins_and_filters_run_on_every_kind_of_session(kind, tmp_path):
    """Rows, figures and errors are right in place, through blocks, mixed, in SQL, for filters, for streams.

    On a cluster workers run the Python of an archive that was sent, on Connect from the end on. Each session
    needs a process of its own: a Connect and a classic session exclude each other.
    """
    outcome = json.loads(run_script(SCRIPT, kind, str(tmp_path), folder=tmp_path, timeout=600))
    assert {label: all(checks) for label, checks in outcome.items()} == dict.fromkeys(outcome, True), outcome
    assert len(outcome) == 21
