"""How many tasks Spark runs at once, on classic Spark and on Spark Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KNOWN: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session talks to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def default_parallelism(spark: SparkSession) -> int:
    """Return Spark's default parallelism: on most clusters, the number of cores.

    Connect has no call for it, so a tiny job counts the partitions that Spark gives to a range;
    once a session.
    """
    if not is_connect(spark):
        return max(1, spark.sparkContext.defaultParallelism)
    known = _KNOWN.get(spark)
    if known is None:
        from pyspark.sql import functions as sf  # loaded by then; the command line asks for is_connect before

        parts = spark.range(1 << 20).select(sf.spark_partition_id().alias("part")).distinct()
        known = _KNOWN[spark] = max(1, parts.count())
    return known
