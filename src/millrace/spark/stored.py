"""Tables by path: their files, which tasks read, and a DataFrame of their rows for what Spark runs itself.

Of local files, and of all formats but Parquet, the DataFrame is Spark's own reader. For object stores Spark
needs a connector in its class path; where it has none, or cannot open the path, tasks read the files for
Spark too.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf

from millrace.errors import InputError, first_line
from millrace.options import StorageOptions
from millrace.parquet.parquet import ParquetTable, Split, splits
from millrace.parquet.remote import Remote
from millrace.parquet.stores import DISKS, located
from millrace.spark.failures import is_sparks, shortened
from millrace.spark.readers import format_of, read
from millrace.spark.scans import table_at
from millrace.spark.session import SessionConf, default_parallelism, paths_are_local
from millrace.spark.task_inputs import Scan
from millrace.spark.tasks import number_of
from millrace.spark.types import spark_schema
from millrace.spark.worker import low_latency

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# As Spark cuts files for its own tasks.
_TASK_BYTES = 128 * 1024 * 1024
_BATCH_ROWS = 65_536
_NUMBER_BYTES = 8
# What Spark's connectors call some schemes.
_SPARKS = {"s3": "s3a", "gcs": "gs"}


@dataclass(frozen=True)
class Stored:
    """A table that was given by path.

    Attributes:
        files: Its files, None where only Spark can read them.
        read: Returns all its rows, for what Spark runs itself.
        why: Why only Spark can read it, for a table in an object store.
        how: For a table in an object store, who reads it for Spark, and why. Empty for others.
    """

    files: ParquetTable | None
    read: Callable[[], DataFrame]
    why: str = ""
    how: str = ""

    @cached_property
    def frame(self) -> DataFrame:
        """All its rows. Spark lists the files of a disk only when somebody asks for them."""
        return self.read()


@dataclass(frozen=True)
class _Known:
    """A DataFrame over files lists them when it is made; it is used again only while none has changed."""

    state: Any
    frame: DataFrame
    how: str


# Weak, so that a session can go.
_KNOWN: weakref.WeakKeyDictionary[Any, dict[str, _Known]] = weakref.WeakKeyDictionary()
# Why a session's Spark cannot open what is in a store, by the beginning of its paths.
_CLOSED: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class ReadTask:
    """Reads a table's files for Spark. The input is one row, a multiple of the task's number.

    Attributes:
        scan: The files, dealt to tasks.
        step: The multiple.
    """

    scan: Scan
    step: int

    @shortened
    @low_latency
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are the task's to read."""
        number = number_of(batches)
        if number is not None:
            yield from self.scan.read(number // self.step, _BATCH_ROWS)


def stored_at(
    spark: SparkSession,
    path: str,
    settings: SessionConf | None = None,
    storage: StorageOptions | None = None,
) -> Stored:
    """Return the table at a path.

    Args:
        spark: The session.
        path: As for :func:`millrace.spark.scans.table_at`.
        settings: The session's, where they are known.
        storage: How to reach object stores.

    Raises:
        InputError: There is no table, or neither the tasks nor Spark can read it.
        pyspark.errors.PySparkException: Spark alone can read a path of this machine, and does not.
    """
    form = format_of(path)
    if form is not None:
        return _made(read(spark, _absolute(spark, path), form))
    remote = isinstance(located(path, storage)[0], Remote)
    refusal: InputError | None = None
    try:
        table = table_at(spark, path, settings, storage)
    except InputError as error:
        if not remote:
            raise
        refusal, table = error, ParquetTable(path, (), pa.schema([]), (), str(error))
    if table.unsupported is None and not remote:
        return Stored(table, lambda: _frame(spark, path, table).frame)
    if table.unsupported is None:
        known = _frame(spark, path, table)
        return Stored(table, lambda: known.frame, how=known.how)
    if not remote:
        return _made(spark.read.parquet(_absolute(spark, path)))
    frame, why = _by_spark(spark, path, None)  # which may have credentials of its own
    if frame is None:
        raise refusal or InputError(
            f"cannot read {path}: tasks do not, because of this: {table.unsupported}; and Spark does not, "
            f"because {why}. Expected Parquet files of one schema, or a connector in Spark's class path "
            "(hadoop-aws for s3a)"
        )
    return _made(frame, table.unsupported, f"Spark reads it, because of this: {table.unsupported}")


def _made(frame: DataFrame, why: str = "", how: str = "") -> Stored:
    """Return a table that only Spark can read."""
    return Stored(None, lambda: frame, why, how)


def _frame(spark: SparkSession, path: str, table: ParquetTable) -> _Known:
    """Return the DataFrame over files, without the job that infers a schema."""
    state = (table.schema, table.store, table.states)
    try:
        known = _KNOWN.setdefault(spark, {})
    except TypeError:  # a session that cannot be referenced weakly
        known = {}
    if path not in known or known[path].state != state:
        known[path] = _Known(state, *_over(spark, path, table))
    return known[path]


def _over(spark: SparkSession, path: str, table: ParquetTable) -> tuple[DataFrame, str]:
    if table.store == DISKS:
        return spark.read.schema(spark_schema(table.schema)).parquet(_absolute(spark, path)), ""
    assert isinstance(table.store, Remote)
    frame, why = None, "storage_options are given, which Spark does not know"
    if not table.store.options:
        frame, why = _by_spark(spark, path, table)
    if frame is not None:
        return frame, "Spark reads it where it needs its rows"
    return by_tasks(spark, table), f"tasks read it where Spark needs its rows, because {why}"


def _absolute(spark: SparkSession, path: str) -> str:
    """Return a path as Spark finds it: its JVM may have been started in another folder."""
    store, place = located(path)
    local = store == DISKS and place == path and paths_are_local(spark)
    return os.path.abspath(path) if local else path  # noqa: PTH100  # resolve() would follow links


def _by_spark(spark: SparkSession, path: str, table: ParquetTable | None) -> tuple[DataFrame | None, str]:
    """Return Spark's reader of a path in a store, or why it has none; a store without one is remembered."""
    store, place = located(path)
    root = place if store is None else store.root
    closed = _CLOSED.setdefault(spark, {})
    if root in closed:
        return None, closed[root]
    scheme, _, rest = place.partition(":")
    why = ""
    for name in dict.fromkeys((scheme, _SPARKS.get(scheme, scheme))):
        reader = spark.read if table is None else spark.read.schema(spark_schema(table.schema))
        try:
            frame = reader.parquet(f"{name}:{rest}")
            frame.schema  # noqa: B018  # Spark Connect analyses only now
            return frame, ""
        except Exception as error:
            if not is_sparks(error):
                raise
            if "No FileSystem for scheme" not in str(error) and "ClassNotFoundException" not in str(error):
                return None, f"it cannot open the path ({first_line(error)})"
            why = why or f"Spark has no file system for {scheme}:"
    closed[root] = why
    return None, why


def by_tasks(spark: SparkSession, table: ParquetTable) -> DataFrame:
    """Return all rows of a table, read by tasks.

    Spark takes the result for as large as it is, and does not send a large one to every task of its own
    joins: its estimate is the size of the range below, of which a filter keeps one row in each partition.
    """
    own = splits(table)
    parts = _cut(own, default_parallelism(spark)) or [[]]
    step = max(1, sum(split.bytes for split in own) // _NUMBER_BYTES // len(parts))
    task = ReadTask(Scan.of(table.schema, (), parts), step)
    numbers = spark.range(0, len(parts) * step, 1, len(parts)).where(sf.col("id") % step == 0)
    return numbers.mapInArrow(task, spark_schema(table.schema))


def _cut(own: Sequence[Split], cores: int) -> list[list[Split]]:
    """Return splits in their order, in parts of about one size."""
    size = min(_TASK_BYTES, sum(split.bytes for split in own) // cores)
    parts: list[list[Split]] = []
    held = size + 1
    for split in own:
        if held >= size or held + split.bytes // 2 > size:
            parts.append([])
            held = 0
        parts[-1].append(split)
        held += split.bytes
    return parts
