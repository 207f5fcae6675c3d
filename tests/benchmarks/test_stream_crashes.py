"""The driver is killed at random times, and the query started again with another architecture."""

from __future__ import annotations

import pytest

from millrace.benchmarks import stream_crashes

pytestmark = pytest.mark.spark


def test_a_driver_that_is_killed_loses_and_doubles_nothing(streaming, tmp_path):
    """The sink has a part of the batch answer after each crash, and all of it in the end."""
    found = stream_crashes.crashes(streaming, tmp_path, 2, 3, 3, done=lambda side: None, ahead=4)
    assert found.crashes == found.sound == 2
    assert found.same and found.rows > 100
