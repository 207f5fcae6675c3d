"""The figure of memory over many micro-batches."""

from __future__ import annotations

import pytest

from lab.benchmarks.stream_memory import flatness


def test_growth_shows_and_the_start_does_not_count():
    """The last tenth is compared with the second one: the first is for workers to start."""
    assert flatness([1.0] * 20 + [100.0] * 180) == 1
    assert flatness([500.0] * 20 + [100.0] * 180) == 1
    assert flatness([100.0 + each for each in range(200)]) == pytest.approx(299 / 139)
