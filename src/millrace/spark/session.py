"""What a query asks of its Spark session: settings, cores, what a stage costs, what tasks reach, plans.

Questions that Millrace asks while it plans are marked by :func:`internal_query`. Spark's Python side logs
every error of its analyser as a record of some kilobytes, beside raising it. Millrace may ask several times
before the error reaches the user, who would see all these records. And a session that is enabled for Millrace
must not send Millrace's own questions through Millrace.

This process, Spark's driver and its tasks may run on different machines, and tasks may have other
credentials, or none. So what they reach is tried once a session, in the process that it is about.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from millrace.errors import InputError, MillraceError, OptionError, first_line, near
from millrace.spark.worker import is_sparks, translated, worker_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millrace.parquet.store import Store

_RUNS = 3
"""Runs of each job in :func:`start_seconds`, which takes the median: the first may start workers."""
_DOUBT = 4.0
"""How many times too long a measurement may be, of a machine that was busy."""
LASTING = 60.0
"""Seconds for which queries are left to Spark by one measurement of :func:`start_seconds`."""

T = TypeVar("T")

MOST_KEPT = 64
"""Entries of a memo of :class:`SessionFacts`."""
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_within: ContextVar[bool] = ContextVar("millrace_internal_query", default=False)
_FACTS = "_millrace_facts"


@dataclass
class SessionFacts:
    """What was found out about a session, once; kept as long as the session."""

    parallelism: int | None = None  # see :func:`default_parallelism`
    start_seconds: float = math.inf  # see :func:`start_seconds`
    measured: float = -math.inf  # when that was, by the clock of :func:`time.perf_counter`
    unreached: dict[Store, str | None] = field(default_factory=dict)  # why stores cannot be read directly
    finds_files: dict[bool, bool] = field(default_factory=dict)  # by whether paths come without a scheme
    # DataFrames of one number a partition, by how many these are, and out of how many in each.
    numbers: dict[tuple[int, int], DataFrame] = field(default_factory=dict)
    # Over files, by path: the files' state then, the DataFrame, and who reads it in a store. Spark lists
    # files when a DataFrame is made, so it is used again only while none has changed.
    frames: dict[str, tuple[object, DataFrame, str]] = field(default_factory=dict)
    # Why Spark cannot open what is in a store, by the beginning of its paths.
    closed_stores: dict[str, str] = field(default_factory=dict)
    # Why tasks do not reach a coordinator, by its address; empty where they do.
    coordinators: dict[tuple[str, int], str] = field(default_factory=dict)
    # On Spark Connect, the name of each predicate that was ever used, by its identity and name: Connect
    # analyses a query anew for each action, so names have to stay.
    functions: dict[tuple[int, str], tuple[object, str]] = field(default_factory=dict)
    # Relations of pipelines, the latest, by their files: those of a pipeline that is read again are the same
    # DataFrames, so that it is planned as before.
    relations: dict[tuple[object, ...], DataFrame] = field(default_factory=dict)
    # Why pipelines were left to Spark, the latest: they are not planned again to no purpose.
    left: dict[tuple[object, ...], str] = field(default_factory=dict)


def keep(memo: dict[Any, T], key: Any, value: T) -> T:
    """Keep a value as the latest of at most ``MOST_KEPT``, and return it."""
    memo.pop(key, None)
    memo[key] = value
    for old in [*memo][:-MOST_KEPT]:
        memo.pop(old, None)
    return value


def facts_of(spark: SparkSession) -> SessionFacts:
    """Return what was found out about a session so far, to be added to."""
    facts: SessionFacts = vars(spark).setdefault(_FACTS, SessionFacts())
    return facts


def session_of(spark: Any, tables: Mapping[Any, Any]) -> SparkSession:
    """Return the session given, that of a DataFrame among the tables, the active one, or a new one."""
    from pyspark.sql import DataFrame, SparkSession  # tasks load this module too, and need no session

    if spark is None:
        frames = [table for table in tables.values() if isinstance(table, DataFrame)]
        session = frames[0].sparkSession if frames else SparkSession.getActiveSession()
        if session is None:
            # Its workers run this Python: the one on the PATH may lack what they need.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            session = SparkSession.builder.getOrCreate()
        return session
    if not hasattr(spark, "sql") or not hasattr(spark, "conf"):
        raise InputError(
            f"spark is given as {type(spark).__name__}: expected a SparkSession; tables and options go by "
            "name, such as tables={'orders': 'orders.parquet'}"
        )
    return spark  # type: ignore[no-any-return]


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session talks to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def default_parallelism(spark: SparkSession) -> int:
    """Return Spark's default parallelism: on most clusters, the number of cores.

    Connect has no call for it, so a tiny job counts the partitions that Spark gives to a range;
    once a session. Classic Spark is asked when :func:`alive` is, which each query begins with.
    """
    facts = facts_of(spark)
    if not is_connect(spark):
        if facts.parallelism is None or not is_internal_query():
            facts.parallelism = max(1, spark.sparkContext.defaultParallelism)
    elif facts.parallelism is None:
        from pyspark.sql import functions as sf  # loaded by then; the command line asks for is_connect before

        parts = spark.range(1 << 20).select(sf.spark_partition_id().alias("part")).distinct()
        facts.parallelism = max(1, parts.count())
    return facts.parallelism


def alive(spark: SparkSession) -> SparkSession:
    """Return a session; InputError if it has stopped."""
    try:
        if is_connect(spark):
            spark.conf.get("spark.sql.session.timeZone")
        else:
            facts_of(spark).parallelism = max(1, spark.sparkContext.defaultParallelism)  # settings stay
    except Exception as error:
        raise InputError(
            f"the Spark session does not answer ({type(error).__name__}): if it was stopped, make a new one "
            "with SparkSession.builder.getOrCreate()"
        ) from error
    return spark


class SessionConf:
    """The settings of a session while one query is planned.

    Classic Spark is asked for them one by one, which takes less than copying all; Spark Connect once for
    all that are set, for each question is a request. ``asked`` are the values so far, by key and default.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.asked: dict[tuple[str, str | None], str] = {}

    @cached_property
    def _set(self) -> dict[str, str] | None:
        """All that are set, on Spark Connect; None elsewhere."""
        return dict(self._spark.conf.getAll) if is_connect(self._spark) else None

    def get(self, key: str, default: str | None = None) -> str:
        """Return a setting's value; where it is not set, ``default``, or without one Spark's own."""
        value = self.asked.get((key, default))
        if value is None:
            if default is None:
                value = str(self._spark.conf.get(key))
            elif self._set is not None:
                value = self._set.get(key, default)
            else:
                value = str(self._spark.conf.get(key, default))
            self.asked[key, default] = value
        return value

    def is_on(self, key: str, default: str = "false") -> bool:
        return self.get(key, default).lower() == "true"


def shuffle_partitions(spark: SparkSession) -> int:
    """Return how many partitions Spark shuffles DataFrames into."""
    return int(SessionConf(spark).get("spark.sql.shuffle.partitions", "200"))


def is_internal_query() -> bool:
    """Return whether this thread is within :func:`internal_query`."""
    return _within.get()


def _is_wanted(_record: logging.LogRecord) -> bool:
    return not is_internal_query()


@contextmanager
def internal_query() -> Iterator[None]:
    """Ask Spark without its log, and as it is, in this thread, while the body runs."""
    from pyspark.logger import PySparkLogger  # makes loggers of its own class, before ours does

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_is_wanted)  # once, however often
    before = _within.set(True)
    try:
        yield
    finally:
        _within.reset(before)


def start_seconds(spark: SparkSession, saved: float) -> float:
    """Return what a stage in Python takes beyond one in the JVM when both have next to nothing to do.

    The first call in a session runs a few tiny jobs; the workers that they start are there for later ones.
    They run again where an old measurement would leave a query to Spark that saves ``saved`` seconds, and
    a quarter of it would not: the machine may have been busy then.
    """
    facts = facts_of(spark)
    is_new = facts.measured == -math.inf
    is_doubtful = facts.start_seconds / _DOUBT < saved < facts.start_seconds
    if is_new or (is_doubtful and time.perf_counter() - facts.measured > LASTING):
        row = spark.range(1)
        plain = _median_seconds(row.selectExpr("id + 1 AS id"))
        staged = _median_seconds(row.mapInArrow(_same, "id long"))
        facts.start_seconds, facts.measured = max(0.0, staged - plain), time.perf_counter()
    return facts.start_seconds


@worker_task
def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _median_seconds(frame: DataFrame) -> float:
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        try:
            frame.collect()
        except Exception as error:
            ours = translated(error)  # the first that runs in the workers' Python, which may lack Millrace
            if ours is error:
                raise
            raise ours from error
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def try_in_task(spark: SparkSession, attempt: Callable[[], str | None]) -> str | None:
    """Let a task try something, and return why that failed: what it says itself, or Spark of its job."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from millrace.engine.arrays import array_of

        for _ in batches:
            pass  # Spark wants all to be read
        yield pa.RecordBatch.from_arrays([array_of([attempt()], pa.string())], ["why"])

    try:
        why: str | None = spark.range(0, 1, 1, 1).mapInArrow(run, "why string").collect()[0]["why"]
    except Exception as error:
        if not is_sparks(error):
            raise
        return first_line(error)
    return why


def own_address(driver: str) -> str:
    """Return this machine's address on the way to Spark's driver."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((driver, 9))  # sends nothing: it only chooses the way
        return str(probe.getsockname()[0])


def why_unreached(spark: SparkSession, store: Store, path: str) -> str | None:
    """Return why a store cannot be read directly, None where it can; each store is tried once a session.

    A task tries it too, unless storage options give the tasks all that this process has. ``path`` is anything
    in the store.
    """
    unreached = facts_of(spark).unreached
    if store not in unreached:
        who, why = "this process does", _why(store, path)
        if why is None and not store.options:
            who, why = "tasks do", try_in_task(spark, partial(_why, store, path))
        unreached[store] = f"{who} not reach {store.root}: {why}" if why else None
    return unreached[store]


def _why(store: Store, path: str) -> str | None:
    from millrace.parquet.store import NoConnection

    try:
        store.info(path)
    except (MillraceError, NoConnection) as error:
        return str(error)
    return None


def finds_files(spark: SparkSession, *, schemeless: bool) -> bool:
    """Return whether Spark finds a new file of this machine, by a path with or without a scheme.

    Asked once a session: a Spark Connect server may run elsewhere, and paths may mean another file system.
    """
    from pyspark.errors import PySparkException

    if not schemeless and not is_connect(spark):
        return True
    facts = facts_of(spark).finds_files
    if schemeless not in facts:
        with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
            file = Path(folder) / "seen.txt"
            file.touch()
            path = str(file) if schemeless else file.as_uri()
            try:
                uris = spark.read.text(path).inputFiles()
            except PySparkException:
                uris = []
        facts[schemeless] = any(uri.startswith("file:") for uri in uris)
    return facts[schemeless]


# Plans

SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
"""What Spark gives sizes in, each 1,024 of the one before."""


def explained(frame: DataFrame, mode: str = "", *, uncached: bool = False) -> str:
    """Return Spark's plan of a DataFrame, by the public EXPLAIN statement.

    ``mode`` is what EXPLAIN takes: ``"EXTENDED"``, ``"COST"``, …; empty for the physical plan. ``uncached``
    says that it is known that Spark does not keep the rows.
    """
    query = frame if uncached else kept_in_cache(frame)
    text = f"EXPLAIN {mode} SELECT * FROM {{q}}"  # noqa: S608  # SQL is what this function writes
    return str(frame.sparkSession.sql(text, {}, q=query).collect()[0][0])


Mode = Literal["simple", "extended", "cost"]


def planned(frame: DataFrame, mode: Mode) -> str:
    """Return Spark's plan in one of the forms that users ask for; OptionError if the mode is none of them."""
    if mode not in get_args(Mode):
        raise OptionError(f"mode of explain is {mode!r}: {near(str(mode), get_args(Mode))}")
    if frame.isStreaming:
        return "none before the stream starts"
    return explained(frame, "" if mode == "simple" else mode.upper())


def kept_in_cache(frame: DataFrame) -> DataFrame:
    """Return the same rows as a DataFrame of which a view can be made and dropped.

    Dropping a view of a DataFrame takes its rows out of Spark's cache. A Spark Connect server makes and drops
    views of the DataFrames that a text names. A filter that is always true makes it another one, which reads
    the cache.
    """
    return frame.where("true") if is_cached(frame) else frame


def is_cached(frame: DataFrame) -> bool:
    """Return whether Spark keeps the rows of just this DataFrame."""
    level = frame.storageLevel
    return bool(level.useMemory or level.useDisk)
