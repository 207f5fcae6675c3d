"""A PostgreSQL server for the tests of database lookups, one for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.benchmarks.postgres import Postgres, postgres as serving


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of its own in a temporary folder."""
    with serving() as server:
        yield server
