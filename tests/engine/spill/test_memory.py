"""The promise: peak memory stays below the budget and a quarter more, whatever the state would take."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from millrace.options import ALGORITHMS
from tests.engine.spill import budget

BYTES = 48 * budget.MEGABYTE


@pytest.fixture(scope="module")
def expected() -> tuple[int, int]:
    """DuckDB's number of rows and checksum."""
    rows = budget.sizes(BYTES)
    with duckdb.connect() as connection:
        for alias, schema in budget.SCHEMAS.items():
            connection.register(alias, pa.Table.from_batches(budget.source(alias, rows), schema))
        found = connection.execute(
            "SELECT count(*), sum(a.v + b.w + c.x + strlen(a.text))::BIGINT "
            "FROM a, b, c WHERE a.k = b.k AND b.j = c.j"
        ).fetchone()
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_peak_memory_stays_within_the_budget(algorithm, expected, tmp_path):
    """State of four times the budget, in a process of its own; the answer is DuckDB's."""
    found = budget.run(algorithm, BYTES, str(tmp_path))
    assert (found.rows, found.checksum) == expected
    assert found.written > BYTES
    assert found.ratio <= 1.25, found
