"""A block that is ready to run: what :func:`millrace.spark.execute.execute` and streams return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from millrace.engine.figures import CellFigures
from millrace.limits.budget import Spent
from millrace.limits.progress import FailedKey, LookupProgress


@dataclass(frozen=True)
class PreparedBlock:
    """A block that is ready to run.

    Attributes:
        name: Identifies it, in Spark's plans too.
        frame: Its result: a DataFrame with the columns of ``Block.schema``.
        plan: What will happen, as text.
        figures: Returns the figures of the latest run of ``frame``, and never waits; see
            :meth:`millrace.spark.reports.Reports.figures`.
        stream: Runs it and returns its result as it comes, without Spark in between.
        progress: Returns how far the lookups are, at any time.
        failed: Returns the keys that could not be looked up.
        weaker: What is promised less of limits and lookups because tasks do not reach the coordinator.
        spent: Returns what was spent of budgets.
        calls: Returns what calls of predicates with limits have come to.
        tasks: How many tasks tell figures, at most; None where Spark alone knows.
        forget: Forgets the figures of runs so far.
    """

    name: str
    frame: DataFrame
    plan: str
    figures: Callable[..., list[CellFigures]]
    stream: Callable[[], Iterator[pa.RecordBatch]]
    progress: Callable[[], list[LookupProgress]] = list
    failed: Callable[[], list[FailedKey]] = list
    weaker: tuple[str, ...] = ()
    spent: Callable[[], list[Spent]] = list
    calls: Callable[[], list[LookupProgress]] = list
    tasks: int | None = None
    forget: Callable[[], object] = list
