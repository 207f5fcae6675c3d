"""The driver is killed at a random time, and the query started again."""

from __future__ import annotations

import pytest

from millrace.benchmarks import stream_crashes

pytestmark = pytest.mark.spark


def test_a_driver_that_is_killed_loses_and_doubles_nothing(streaming, tmp_path):
    """The sink has a part of the batch answer after the crash, and all of it in the end."""
    found = stream_crashes.crashes(streaming, tmp_path, 1, 3, 3, done=lambda side: None, ahead=4)
    assert found.crashes == found.sound == 1
    assert found.same and found.rows > 100
