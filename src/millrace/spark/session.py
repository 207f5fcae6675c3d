"""What a query asks of its Spark session: whether it lives, its settings, its cores, what a stage costs.

Questions that Millrace asks while it plans are marked by :func:`internal_query`. Spark's Python side logs
every error of its analyser as a record of some kilobytes, beside raising it. Millrace may ask several times
before the error reaches the user, who would see all these records. And a session that is enabled for Millrace
must not send Millrace's own questions through Millrace.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from millrace.errors import InputError
from millrace.spark.failures import translated
from millrace.spark.worker import low_latency

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_PARALLELISM: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()
_START_SECONDS: WeakKeyDictionary[SparkSession, float] = WeakKeyDictionary()

_STARTS = 2
"""Runs of each job in :func:`start_seconds`, which takes the shortest."""

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
# Within internal_query, the sessions' parallelism by their identities, as far as it was asked for.
_within: ContextVar[dict[int, int] | None] = ContextVar("millrace_internal_query", default=None)


def session_of(spark: Any, tables: Mapping[Any, Any]) -> SparkSession:
    """Return the session given, that of a DataFrame among the tables, the active one, or a new one."""
    from pyspark.sql import DataFrame, SparkSession  # tasks load this module too, and need no session

    if spark is None:
        frames = [each for each in tables.values() if isinstance(each, DataFrame)]
        found = frames[0].sparkSession if frames else SparkSession.getActiveSession()
        return found or _new_session()
    if not hasattr(spark, "sql") or not hasattr(spark, "conf"):
        raise InputError(
            f"spark is given as {type(spark).__name__}: expected a SparkSession; tables and options go by "
            "name, such as tables={'orders': 'orders.parquet'}"
        )
    session: SparkSession = spark
    return session


def _new_session() -> SparkSession:
    """Make a session whose workers run this Python: the one on the PATH may lack what they need."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.getOrCreate()


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session talks to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def default_parallelism(spark: SparkSession) -> int:
    """Return Spark's default parallelism: on most clusters, the number of cores.

    Connect has no call for it, so a tiny job counts the partitions that Spark gives to a range;
    once a session. Classic Spark is asked once in :func:`internal_query`.
    """
    if not is_connect(spark):
        return (_within.get() or {}).get(id(spark)) or _parallelism(spark)
    known = _PARALLELISM.get(spark)
    if known is None:
        from pyspark.sql import functions as sf  # loaded by then; the command line asks for is_connect before

        parts = spark.range(1 << 20).select(sf.spark_partition_id().alias("part")).distinct()
        known = _PARALLELISM[spark] = max(1, parts.count())
    return known


def _parallelism(spark: SparkSession) -> int:
    """Ask classic Spark."""
    found: int = max(1, spark.sparkContext.defaultParallelism)
    asked = _within.get()
    if asked is not None:
        asked[id(spark)] = found
    return found


def alive(spark: SparkSession) -> SparkSession:
    """Return a session unless it has stopped.

    Raises:
        InputError: It has.
    """
    try:
        if is_connect(spark):
            spark.conf.get("spark.sql.session.timeZone")
        else:
            _parallelism(spark)  # settings outlive the rest
    except Exception as error:
        raise InputError(
            f"the Spark session does not answer ({type(error).__name__}): if it was stopped, make a new one "
            "with SparkSession.builder.getOrCreate()"
        ) from error
    return spark


class SessionConf:
    """The settings of a session while one query is planned.

    Classic Spark is asked for them one by one, which takes less than copying all; Spark Connect once for
    all that are set, for each question is a request.

    Args:
        spark: The session.

    Attributes:
        asked: What was asked for so far: the values by key and default.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.asked: dict[tuple[str, str | None], str] = {}
        self._set = dict(spark.conf.getAll) if is_connect(spark) else None

    def get(self, key: str, default: str | None = None) -> str:
        """Return a setting's value, where it is not set ``default``, or without one Spark's own."""
        value = self.asked.get((key, default))
        if value is None:
            if default is not None and self._set is not None:
                value = self._set.get(key, default)
            else:
                value = str(
                    self._spark.conf.get(key) if default is None else self._spark.conf.get(key, default)
                )
            self.asked[key, default] = value
        return value

    def is_on(self, key: str, default: str = "false") -> bool:
        """Tell whether a setting is true."""
        return self.get(key, default).lower() == "true"


class _Filter(logging.Filter):
    """Drops records of threads that are within :func:`internal_query`."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _within.get() is None


_filter = _Filter()


def is_internal_query() -> bool:
    """Return whether this thread is within :func:`internal_query`."""
    return _within.get() is not None


@contextmanager
def internal_query() -> Iterator[None]:
    """Ask Spark without its log, and as it is, in this thread, while the body runs."""
    from pyspark.logger import PySparkLogger  # makes loggers of its own class, before ours does

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_filter)  # once, however often
    before = _within.set({})
    try:
        yield
    finally:
        _within.reset(before)


def start_seconds(spark: SparkSession) -> float:
    """Return what a stage in Python takes beyond one in the JVM when both have next to nothing to do.

    The first call in a session runs a few tiny jobs; the workers that they start are there for later ones.
    """
    known = _START_SECONDS.get(spark)
    if known is None:
        one = spark.range(1)
        plain = min(_timed(one.selectExpr("id + 1 AS id")) for _ in range(_STARTS))
        known = _START_SECONDS[spark] = max(
            0.0, min(_timed(one.mapInArrow(_same, "id long")) for _ in range(_STARTS)) - plain
        )
    return known


@low_latency
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
