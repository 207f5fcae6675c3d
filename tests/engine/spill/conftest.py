"""A tight budget for each algorithm, and nothing left of it in the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.options import ALGORITHMS, Options

BUDGET = 3_000


@pytest.fixture(params=ALGORITHMS)
def options(request, tmp_path: Path) -> Iterator[Options]:
    """What a test does with it leaves no file behind."""
    yield Options(memory_budget=BUDGET, algorithm=request.param, spill_folder=str(tmp_path), batch_size=16)
    assert list(tmp_path.rglob("*")) == []
