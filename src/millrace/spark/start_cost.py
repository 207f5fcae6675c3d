"""What it costs to run a stage in Python at all, measured once a session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from millrace.spark.failures import translated
from millrace.spark.worker import prompt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_KNOWN: WeakKeyDictionary[SparkSession, float] = WeakKeyDictionary()
_RUNS = 2


def start_seconds(spark: SparkSession) -> float:
    """Return what a stage in Python takes beyond one in the JVM when both have next to nothing to do.

    The first call in a session runs a few tiny jobs; the workers that they start are there for later ones.
    """
    known = _KNOWN.get(spark)
    if known is None:
        one = spark.range(1)
        plain = min(_timed(one.selectExpr("id + 1 AS id")) for _ in range(_RUNS))
        known = _KNOWN[spark] = max(
            0.0, min(_timed(one.mapInArrow(_same, "id long")) for _ in range(_RUNS)) - plain
        )
    return known


@prompt
def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _timed(frame: DataFrame) -> float:
    start = time.perf_counter()
    try:
        frame.collect()
    except Exception as error:
        found = translated(error)  # the first that runs in the workers' Python, which may lack Millrace
        if found is error:
            raise
        raise found from error
    return time.perf_counter() - start
