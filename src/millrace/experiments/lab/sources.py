"""Sources: batches as fast as they are read. One that comes by itself is a scan access module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa


def batches(table: pa.Table, size: int) -> list[pa.RecordBatch]:
    """Cut a table into batches of so many rows."""
    return [batch for batch in table.combine_chunks().to_batches(max_chunksize=size) if batch.num_rows]


def all_batches(tables: Mapping[str, pa.Table], size: int) -> dict[str, list[pa.RecordBatch]]:
    """Cut tables into batches, by alias."""
    return {alias: batches(table, size) for alias, table in tables.items()}


def watched(
    table: pa.Table, size: int, note: Callable[[int], None], step: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yield a table's batches as fast as they are read.

    Args:
        table: The tuples.
        size: Of a batch.
        note: Told how many tuples were read, before each batch that is the first after ``step`` more.
        step: In tuples.
    """
    read = told = 0
    for batch in batches(table, size):
        if read - told >= step:
            told = read
            note(read)
        yield batch
        read += batch.num_rows
    note(read)
