"""Runs: the batches that are read, an eddy taken to its end on the virtual clock, and what it did."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from millrace.engine.figures import CellFigures
from millrace.engine.runs.eddy_run import EddyRun
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock


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


@dataclass(frozen=True)
class Finished:
    """A run that has ended.

    Attributes:
        seconds: Of the virtual clock.
        rows: Of the result.
        figures: The eddy's own.
    """

    seconds: float
    rows: int
    figures: CellFigures

    def share(self, alias: str, first: str) -> float:
        """Return the share of a relation's tuples that went to one module before all others."""
        return share_of(self.figures, alias, first)


def finish(eddy: EddyRun, clock: VirtualClock, expected: int | None = None) -> Finished:
    """Run an eddy, whose block counts its rows, to its end.

    Raises:
        ExecutionError: It found another number of rows than expected.
    """
    began = clock.now()
    rows = sum(row for batch in eddy.run() for row in batch.column(0).to_pylist())
    if expected is not None and rows != expected:
        raise ExecutionError(f"the eddy found {rows} rows, expected {expected}")
    return Finished(clock.now() - began, rows, eddy.figures())


def share_of(figures: CellFigures, alias: str, first: str) -> float:
    """Return the share of a relation's tuples so far that went to one module before all others."""
    routed = [(order.split(" → "), count) for order, count in figures.orders]
    began = [(steps[1], count) for steps, count in routed if steps[0] == alias and len(steps) > 1]
    return sum(count for module, count in began if module == first) / max(1, sum(c for _, c in began))


def key(*words: str) -> str:
    """Return a name made of the letters and digits of some words, such as ``r_s_20_lottery``."""
    return re.sub(r"[^a-z0-9]+", "_", " ".join(words).lower()).strip("_")
