"""The watched join has the rows that DuckDB finds, and what is told accounts for every one of them."""

from __future__ import annotations

import pytest

from lab.joins import rows_of
from lab.trace import EQUALITIES, tables, trace
from millrace.options import Options

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("architecture", ["stems", "joins", "stairs"])
@pytest.mark.parametrize("policy", ["random", "lottery", "greedy"])
def test_every_row_is_told(architecture, policy):
    """Each result is told once, by a component of each table."""
    lines: list[str] = []
    options = Options(policy=policy, architecture=architecture, online=True, batch_size=1, reoptimize_every=1)
    rows = trace(options, 1, lines.append)
    assert rows == rows_of(tables(1), *EQUALITIES)
    results = [each for line in lines if "result " in line for each in line.split("result ")[1].split(", ")]
    assert len(results) == len(set(results)) == rows
    assert any("decide for" in line for line in lines)
