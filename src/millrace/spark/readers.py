"""Tables of other formats than Parquet by path: Spark's own readers, with the settings that a name calls for.

CSV files are expected to begin with the names of their columns, and types are found out by reading them
(``header``, ``inferSchema``), which is a job of its own; texts in quotes may have line ends and doubled
quotes (``multiLine``, ``escape``), as RFC 4180 says, so that a file is read by one task. JSON files have an
object a line, or one array or object in the whole file (``multiLine``). Whoever needs other settings gives a
DataFrame.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from millrace.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".orc": "orc",
}  # fmt: skip
"""Spark's readers by the end of a name; ``.gz`` and the like may stand behind it."""

_PACKED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
_OTHERS = (".txt", ".xml", ".avro", ".xlsx", ".feather", ".arrow")
_CORRUPT = "_corrupt_record"


def suffix_of(path: str) -> str:
    """Return the end of a path's name that tells its format, in lower case."""
    name = Path(path)
    return (Path(name.stem) if name.suffix.lower() in _PACKED else name).suffix.lower()


def format_of(path: str) -> str | None:
    """Return which of Spark's readers a path needs, None for Parquet.

    A folder counts by its name too, as Spark writes them (``out.csv/part-….csv``), if it has such files.

    Raises:
        InputError: Its name is that of a format for which there is no reader.
    """
    suffix = suffix_of(path)
    folder = Path(path).is_dir()
    if suffix in _OTHERS and not folder:
        raise InputError(
            f"{path!r} is no table by its name: expected Parquet, {', '.join(FORMATS)} (also compressed); "
            "read anything else with Spark and give the DataFrame"
        )
    found = FORMATS.get(suffix)
    if found is None or not folder:
        return found
    return found if any(FORMATS.get(suffix_of(str(each))) == found for each in Path(path).iterdir()) else None


def read(spark: SparkSession, path: str, form: str) -> DataFrame:
    """Return the rows of a path that Spark's reader of a format gives.

    Args:
        spark: The session.
        path: As Spark finds it.
        form: What :func:`format_of` returned.

    Raises:
        InputError: There is no such path.
        pyspark.errors.PySparkException: Spark cannot read it for another reason.
    """
    try:
        frame = _read(spark, path, form)
        frame.schema  # noqa: B018  # Spark Connect looks for the path only now
    except PySparkException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise InputError(f"there is no {path}: expected a file, a folder or a glob") from None
    return frame


def _read(spark: SparkSession, path: str, form: str) -> DataFrame:
    if form == "csv":
        separator = "\t" if suffix_of(path) == ".tsv" else ","
        return spark.read.csv(path, header=True, inferSchema=True, sep=separator, multiLine=True, escape='"')
    if form == "json":
        lines = spark.read.json(path)
        if _CORRUPT not in lines.columns:
            return lines
        # Some lines are no objects: the file as a whole may be one, or an array of them.
        whole = spark.read.json(path, multiLine=True)
        return lines if _CORRUPT in whole.columns else whole
    return spark.read.orc(path)
