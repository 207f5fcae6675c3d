"""What a task says that tries something: to reach a store, or the coordinator."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.errors import first_line
from millrace.spark.failures import is_sparks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class _Attempt:
    """Runs in a task."""

    attempt: Callable[[], str | None]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: why it failed."""
        for _ in batches:
            pass  # Spark wants all to be read
        yield pa.RecordBatch.from_arrays([pa.array([self.attempt()], pa.string())], ["why"])


def tried(spark: SparkSession, attempt: Callable[[], str | None]) -> str | None:
    """Let a task try something, and return why that failed: what it says itself, or Spark of its job."""
    try:
        one = spark.range(0, 1, 1, 1).mapInArrow(_Attempt(attempt), "why string")
        return one.collect()[0][0]  # type: ignore[no-any-return]
    except Exception as error:
        if not is_sparks(error):
            raise
        return first_line(error)


def own_address(driver: str) -> str:
    """Return this machine's address on the way to Spark's driver."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((driver, 9))  # sends nothing: it only chooses the way
        return str(probe.getsockname()[0])
