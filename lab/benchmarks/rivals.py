"""Other engines in this process, with tables of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def counted_by_duckdb(tables: Mapping[str, pa.Table], query: str) -> Iterator[Callable[[], int]]:
    """Give what runs a query that counts over tables by DuckDB, on one thread; they are copied first."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("PRAGMA threads=1")
        for name, table in tables.items():
            connection.register("arrived", table)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrived")
            connection.unregister("arrived")

        def run() -> int:
            row = connection.execute(query).fetchone()
            assert row is not None
            return int(row[0])

        yield run
