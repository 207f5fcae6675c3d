"""Lookup tables among the tables of a query: what Spark analyses in their place, and what it may read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from millrace.errors import InputError, first_line, near
from millrace.lookups.table import Unreadable
from millrace.options import StorageOptions
from millrace.parquet.parquet import ParquetTable
from millrace.spark.path_tables import open_path
from millrace.spark.types import spark_schema
from millrace.sql.session.asking import Frames
from millrace.sql.syntax.edits import plain_quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.lookups.table import LookupTable


@dataclass(frozen=True, eq=False)
class Lookup:
    """A lookup table of the query.

    Attributes:
        table: As declared.
        scan: All its rows with exactly its columns, as they come; None without a scan that Spark can read.
        parquet: The same as files, when the tasks can read them directly.
    """

    table: LookupTable
    scan: DataFrame | None = None
    parquet: ParquetTable | None = None

    @property
    def needs_keys(self) -> bool:
        """Whether Spark cannot read it."""
        return self.scan is None


def lookup_of(
    frames: Frames, table: LookupTable, storage: StorageOptions | None = None
) -> tuple[Lookup, DataFrame]:
    """Return a lookup table, and the DataFrame that stands for it in the query's text.

    That is its scan, equal rows once, where Spark can read one; else one that fails when it is read.
    """
    table.check()
    if table.frame is None:
        row = frames.spark.range(0, 1, 1, 1)  # opaque to Spark's optimizer, which may not take it for empty
        return Lookup(table), row.mapInArrow(Unreadable(table.name), spark_schema(table.schema))
    frame, files = table.frame, None
    if isinstance(frame, str):
        at = open_path(frames.spark, frame, storage=storage)
        frame, files = at.frame, at.files
    scan = _with_columns(table, frame)
    direct = files if files is not None and files.schema.equals(table.schema) else None
    return Lookup(table, scan, direct), scan.distinct()


def _with_columns(table: LookupTable, frame: DataFrame) -> DataFrame:
    """Return a scan's rows with the table's columns, in its order and types."""
    where = f"the scan of lookup table {table.name!r}"
    names = {name.lower(): name for name in frame.columns}
    columns = []
    for field in spark_schema(table.schema).fields:
        name = names.get(field.name.lower())
        if name is None:
            raise InputError(f"{where} has no column {field.name!r}: {near(field.name, frame.columns)}")
        column = sf.col(plain_quote(name))
        if frame.schema[name].dataType != field.dataType:
            column = column.cast(field.dataType)
        columns.append(column.alias(field.name))
    try:
        scan = frame.select(*columns)
        scan.schema  # noqa: B018  # Spark Connect analyses only now
    except PySparkException as error:
        why = f"{where} has columns of other types, which Spark cannot cast ({first_line(error)})"
        raise InputError(why) from None
    return scan
