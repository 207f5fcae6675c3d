"""Tables by path: their files, which tasks read, and a DataFrame of their rows for what Spark runs itself.

Of local files, and of all formats but Parquet, the DataFrame is Spark's own reader. For object stores Spark
needs a connector in its class path; where it has none, or cannot open the path, tasks read the files for
Spark too.

A name says the format. CSV files are expected to begin with the names of their columns (``header``). Their
types are found out by reading them (``inferSchema``), which is a job of its own. Texts in quotes may have
line ends and doubled quotes (``multiLine``, ``escape``), as RFC 4180 says, so that one task reads a file.
JSON files have an object a line, or one array or object in the whole file (``multiLine``). If you need other
settings, give a DataFrame.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException

from millrace.errors import InputError, first_line
from millrace.options import StorageOptions
from millrace.parquet.discovery import open_table
from millrace.parquet.read_ahead import ReadAhead
from millrace.parquet.store import DISKS, locate
from millrace.parquet.tables import ParquetTable, splits, unsupported_table
from millrace.spark.scan_detection import LENIENT, unusual
from millrace.spark.session import (
    SessionConf,
    default_parallelism,
    facts_of,
    finds_files,
    keep,
    why_unreached,
)
from millrace.spark.task_inputs import WORD, Scan, deal, number_of, task_numbers
from millrace.spark.types import spark_schema
from millrace.spark.worker import is_sparks, worker_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".orc": "orc",
}  # fmt: skip
"""Spark's readers by the end of a name; ``.gz`` and the like may stand behind it."""

_PACKED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
_OTHERS = (".txt", ".xml", ".avro", ".xlsx", ".feather", ".arrow")
_CORRUPT = "_corrupt_record"
# Settings that decide what columns of some types are in files, with what they are in a new session.
_OF_TYPES: tuple[tuple[str, str, Callable[[pa.DataType], bool]], ...] = (
    ("spark.sql.parquet.binaryAsString", "false", pa.types.is_binary),
    ("spark.sql.parquet.int96AsTimestamp", "true", pa.types.is_timestamp),
    ("spark.sql.parquet.inferTimestampNTZ.enabled", "true", pa.types.is_timestamp),
    ("spark.sql.parquet.int96RebaseModeInRead", "corrected", pa.types.is_timestamp),
    ("spark.sql.parquet.datetimeRebaseModeInRead", "corrected", pa.types.is_temporal),
)
_OF_FOLDERS = "spark.sql.sources.partitionColumnTypeInference.enabled"
# As Spark cuts files for its own tasks.
_TASK_BYTES = 128 * 1024 * 1024
_BATCH_ROWS = 65_536
# What Spark's connectors call some schemes.
_SPARKS = {"s3": "s3a", "gcs": "gs"}


@dataclass(frozen=True)
class PathTable:
    """A table by path, opened once; ``why`` is why only Spark can read it in an object store, if so."""

    path: str
    files: ParquetTable | None  # None where only Spark can read them
    read: Callable[[], DataFrame]  # all rows, for what Spark runs itself
    why: str = ""
    how: str = ""  # who reads it for Spark, and why

    @cached_property
    def frame(self) -> DataFrame:
        """All its rows. Spark lists the files of a disk only when somebody asks for them."""
        return self.read()

    @property
    def columns(self) -> list[str]:
        return self.frame.columns if self.files is None else list(self.files.schema.names)


def open_path(
    spark: SparkSession,
    path: str | Path,
    settings: SessionConf | None = None,
    storage: StorageOptions | None = None,
) -> PathTable:
    """Return the table at a path: a file, a folder or a glob; or a file or a folder in an object store.

    Raises:
        InputError: There is no table, or neither the tasks nor Spark can read it.
        pyspark.errors.PySparkException: Spark alone can read a path of this machine, and does not.
    """
    path = os.path.expanduser(str(path))  # noqa: PTH111  # globs and URIs are kept as they are
    if (form := _format_of(path)) is not None:
        return _left_to_spark(path, _in_format(spark, _absolute(spark, path), form))
    store, _ = locate(path, storage)
    is_remote = store is not None and store.is_remote
    refusal: InputError | None = None
    try:
        table = files_at(spark, path, settings, storage)
    except InputError as error:
        if not is_remote:
            raise
        refusal, table = error, unsupported_table(path, str(error))
    if table.unsupported is None:
        how = _frame(spark, path, table)[1] if is_remote else ""
        return PathTable(path, table, lambda: _frame(spark, path, table)[0], how=how)
    if not is_remote:
        return _left_to_spark(path, spark.read.parquet(_absolute(spark, path)))
    frame, why = _by_spark(spark, path, None)  # which may have credentials of its own
    if frame is None:
        raise refusal or InputError(
            f"cannot read {path}: tasks do not, because of this: {table.unsupported}; and Spark does not, "
            f"because {why}. Expected Parquet files of one schema, or a connector in Spark's class path "
            "(hadoop-aws for s3a)"
        )
    why = table.unsupported
    return _left_to_spark(path, frame, why, f"Spark reads it, because of this: {why}")


def _left_to_spark(path: str, frame: DataFrame, why: str = "", how: str = "") -> PathTable:
    return PathTable(path, None, lambda: frame, why, how)


# Files that tasks read


def files_at(
    spark: SparkSession,
    path: str,
    settings: SessionConf | None = None,
    storage: StorageOptions | None = None,
) -> ParquetTable:
    """Return the Parquet files at a path; the table is unsupported where Spark has to read it.

    InputError if the path is of this machine or of a store that answers, and there is no table.
    """
    settings = settings or SessionConf(spark)
    if (why := unusual(settings, LENIENT)) is not None:
        return unsupported_table(path, why)
    if locate(path, storage)[0] == DISKS and not finds_files(spark, schemeless=True):
        return unsupported_table(path, "Spark looks for paths on another file system")
    table = open_table(path, storage)
    kinds = [kind for field in table.schema for kind in _kinds(field.type)]
    usual = {key: value for key, value, concerns in _OF_TYPES if any(map(concerns, kinds))}
    why = unusual(settings, usual | ({_OF_FOLDERS: "true"} if table.partition_columns else {}))
    if why is None and table.store.is_remote and table.files:
        why = why_unreached(spark, table.store, table.files[0].path)
    return table if why is None else unsupported_table(path, why)


def _kinds(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all that it is made of."""
    yield kind
    for place in range(kind.num_fields):
        yield from _kinds(kind.field(place).type)


# DataFrames for what Spark runs itself


def _frame(spark: SparkSession, path: str, table: ParquetTable) -> tuple[DataFrame, str]:
    """Return a DataFrame over files, without the job that infers a schema, and who reads it in a store."""
    state = (table.schema, table.store, table.states)
    frames = facts_of(spark).frames
    known = frames.get(path)
    if known is not None and known[0] == state:
        return known[1:]
    how, frame = "", None
    if not table.store.is_remote:
        frame = spark.read.schema(spark_schema(table.schema)).parquet(_absolute(spark, path))
    else:
        why = "storage_options are given, which Spark does not know"
        if not table.store.options:
            frame, why = _by_spark(spark, path, table)
        how = "Spark reads it where it needs its rows"
        if frame is None:
            frame, how = by_tasks(spark, table), f"tasks read it where Spark needs its rows, because {why}"
    return keep(frames, path, (state, frame, how))[1:]


def _absolute(spark: SparkSession, path: str) -> str:
    """Return a path as Spark finds it: its JVM may have been started in another folder."""
    store, place = locate(path)
    local = store == DISKS and place == path and finds_files(spark, schemeless=True)
    return os.path.abspath(path) if local else path  # noqa: PTH100  # resolve() would follow links


def _by_spark(spark: SparkSession, path: str, table: ParquetTable | None) -> tuple[DataFrame | None, str]:
    """Return Spark's reader of a path in a store, or why it has none; a store without one is remembered."""
    store, place = locate(path)
    root = place if store is None else store.root
    closed = facts_of(spark).closed_stores
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


@dataclass(frozen=True)
class ReadTask:
    """Reads a table's files for Spark. The input is one row: the task's number."""

    scan: Scan

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number = number_of(batches)
        if number is not None:
            with ReadAhead(1) as ahead:
                own = ahead if self.scan.is_remote else None
                yield from self.scan.read(number, _BATCH_ROWS, ahead=own, waits=True)


def by_tasks(spark: SparkSession, table: ParquetTable) -> DataFrame:
    """Return all rows of a table, read by tasks; Spark takes them for as large as they are."""
    own = splits(table)
    size = sum(split.bytes for split in own)
    tasks = max(1, min(len(own), max(default_parallelism(spark), size // _TASK_BYTES)))
    task = ReadTask(Scan.of(table.schema, (), deal(own, [0] * tasks)))
    numbers = task_numbers(spark, tasks, max(1, size // WORD // tasks))
    return numbers.mapInArrow(task, spark_schema(table.schema))


# Other formats than Parquet


def suffix_of(path: str) -> str:
    """Return the end of a path's name that tells its format, in lower case."""
    name = Path(path)
    return (Path(name.stem) if name.suffix.lower() in _PACKED else name).suffix.lower()


def _format_of(path: str) -> str | None:
    """Return which of Spark's readers a path needs, None for Parquet.

    A folder counts by its name too, as Spark writes them (``out.csv/part-….csv``), if it has such files.
    """
    suffix = suffix_of(path)
    is_folder = Path(path).is_dir()
    if suffix in _OTHERS and not is_folder:
        raise InputError(
            f"{path!r} is no table by its name: expected Parquet, {', '.join(FORMATS)} (also compressed); "
            "read anything else with Spark and give the DataFrame"
        )
    form = FORMATS.get(suffix)
    if form is None or not is_folder:
        return form
    return form if any(FORMATS.get(suffix_of(str(file))) == form for file in Path(path).iterdir()) else None


def _in_format(spark: SparkSession, path: str, form: str) -> DataFrame:
    try:
        if form == "csv":
            separator = "\t" if suffix_of(path) == ".tsv" else ","
            frame = spark.read.csv(
                path, header=True, inferSchema=True, sep=separator, multiLine=True, escape='"'
            )
        elif form == "json":
            frame = spark.read.json(path)
            if _CORRUPT in frame.columns and not _begins_with_object(spark, path):
                # The file as a whole may be an object, or an array of them.
                whole = spark.read.json(path, multiLine=True)
                frame = frame if _CORRUPT in whole.columns else whole
        else:
            frame = spark.read.orc(path)
        frame.schema  # noqa: B018  # Spark Connect looks for the path only now
    except PySparkException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise InputError(f"there is no {path}: expected a file, a folder or a glob") from None
    return frame


def _begins_with_object(spark: SparkSession, path: str) -> bool:
    """Tell whether the first line of a file is a JSON object, as in a file that has one in each line."""
    lines = spark.read.text(path).where("trim(value) <> ''").head(1)
    try:
        return bool(lines) and isinstance(json.loads(lines[0][0]), dict)
    except ValueError:
        return False
