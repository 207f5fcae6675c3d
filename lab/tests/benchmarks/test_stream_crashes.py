"""The driver is killed at a random time, and the query, or the hub, started again."""

from __future__ import annotations

import pytest

from lab.benchmarks.crashing import crashes
from lab.benchmarks.stream_crashes import JoinWork
from lab.benchmarks.stream_hub_crashes import HubWork

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("work_of", [JoinWork, lambda *given: HubWork(*given, seed=3)], ids=["join", "hub"])
def test_a_driver_that_is_killed_loses_and_doubles_nothing(streaming, tmp_path, work_of):
    """What is written is a part of the batch answer after the crash, and all of it in the end."""
    found = crashes(streaming, work_of(streaming, tmp_path), 1, 3, 3, done=lambda side: None, ahead=4)
    assert found.crashes == found.sound == 1
    assert found.same and found.rows > 100
