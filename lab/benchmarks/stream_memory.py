"""Memory of worker processes over many micro-batches of one size, with tuples that expire all the time.

A micro-batch spans more event time than tuples are kept for, so each one lets go of what the one before
brought: memory that grows is memory that leaks. Taken is the resident memory of the largest worker process
after each micro-batch, so that it matters neither which process Spark gave a cell to nor how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import psutil

from lab.benchmarks.stream_cases import Case
from lab.benchmarks.stream_sides import Side, own_folder
from millrace.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 200
_ROWS = 5_000


def memory(
    spark: SparkSession, scale: float, done: Callable[[str], object], batches: int = BATCHES
) -> dict[str, float]:
    """Run the case.

    Args:
        spark: A session for streams, in whose process tree the workers are.
        scale: 1 for micro-batches of 5,000 rows.
        done: Called with a side's name after each micro-batch.
        batches: Micro-batches, 20 at least.

    Returns:
        The named figures: most memory in the last tenth over the second one, and most of all in MB.

    Raises:
        ExecutionError: The stream stopped, or has no worker process on this machine.
    """
    case = Case(3, _ROWS).scaled(scale)
    resident = []
    with own_folder() as folder:
        side = Side(spark, case, "millrace", folder)
        case.write([folder], 0, batches)
        side.start()
        try:
            for batch in range(batches):
                if batch:
                    case.write([folder], batch, batches)
                side.work()
                resident.append(_largest_worker())
                done("millrace")
        finally:
            side.stop()
        expired, held = side.figure("expired"), side.figure("held")
    return {
        "memory_flat": flatness(resident),
        "memory_mb": max(resident) / 1e6,
        "memory_state_flat": flatness(held),
        "memory_expired_rows": sum(expired),
    }


def flatness(values: Sequence[float]) -> float:
    """Return the largest of the last tenth over the largest of the second tenth."""
    tenth = len(values) // 10
    return max(values[-tenth:]) / max(values[tenth : 2 * tenth])


def _largest_worker() -> int:
    """Return the resident bytes of the largest worker process of this process' Spark."""
    found = [0]
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in process.cmdline():
                found.append(process.memory_info().rss)
        except psutil.Error:  # it has just ended
            continue
    if not max(found):
        raise ExecutionError("no worker process of Spark runs below this one; use a local master")
    return max(found)
