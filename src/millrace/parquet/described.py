"""A table as Spark describes it: files and a schema, against what the footers say.

Spark knows which files a table has and which columns; the types of these need not be what each file has. The
table is scanned directly where every file has the columns in just these types, or lacks them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from millrace.engine.arrays import scalar
from millrace.errors import InputError
from millrace.parquet.footers import Footer, Unreadable, footers_of
from millrace.parquet.listing import Tree
from millrace.parquet.parquet import log_of
from millrace.parquet.partitions import Doubtful, split_folder, value_of
from millrace.parquet.remote import NoConnection, Remote
from millrace.parquet.stores import DISKS, Store
from millrace.parquet.tables import ParquetFile, ParquetTable

# Spark's calendar before version 3 was another one for earlier times.
_NO_CALENDAR_BEFORE = date(1900, 1, 1)


def described_table(
    shown: str,
    paths: Sequence[str],
    schema: pa.Schema,
    partition_columns: Sequence[str],
    required: Collection[str] = (),
    store: Store = DISKS,
) -> ParquetTable:
    """Return a table as Spark describes it.

    Args:
        shown: Names it in plans.
        paths: Its files.
        schema: Its columns in Spark's types.
        partition_columns: Those whose values are in the names of folders.
        required: Those that Spark does not read where a file lacks them.
        store: Where all files are.

    Raises:
        Doubtful: It is uncertain that a direct scan sees what Spark sees; the message says why.
    """
    stored = [column for column in schema if column.name not in partition_columns]
    kinds = [schema.field(name).type for name in partition_columns]
    try:
        where = store.tree_over(paths) if isinstance(store, Remote) else store
        log = log_of(paths, where)
        if log is not None:
            raise Doubtful(f"{log} says which files count")
        states = [where.states.get(path) if isinstance(where, Tree) else None for path in paths]
        footers = footers_of(paths, store, states)
    except (InputError, NoConnection, Unreadable, OSError) as error:
        raise Doubtful(str(error)) from None
    files = []
    known: dict[str, tuple[Any, ...]] = {}
    for path, footer, state in zip(paths, footers, states, strict=True):
        _check(footer, stored, required)
        folder = os.path.dirname(path)  # noqa: PTH120  # thousands of files: Path objects take their time
        if folder not in known:
            known[folder] = _values(folder, partition_columns, kinds)
        files.append(ParquetFile(path, known[folder], state))
    return ParquetTable(shown, tuple(files), schema, tuple(partition_columns), store=store)


def _check(footer: Footer, stored: Sequence[pa.Field], required: Collection[str]) -> None:
    """Refuse a file in which Spark may see something else."""
    if footer.unsupported:
        raise Doubtful(footer.unsupported)
    where = os.path.basename(footer.path)  # noqa: PTH119
    for column in stored:
        name = footer.spelled.get(column.name.lower())
        if name is None:
            if column.name in required:
                raise Doubtful(f"column {column.name!r} is missing in {where}")
            continue
        kind = footer.schema.field(name).type
        if kind != column.type:
            raise Doubtful(f"column {column.name!r} is {column.type} to Spark and {kind} in {where}")
        if not footer.by_spark and _may_be_old(footer, name, kind):
            raise Doubtful(f"column {column.name!r} may have dates in an old calendar in {where}")


def _may_be_old(footer: Footer, name: str, kind: pa.DataType) -> bool:
    """Tell whether a column may have times that Spark shifts, depending on how it is asked to read."""
    if t.is_nested(kind):
        return any(word in str(kind) for word in ("date", "timestamp"))
    if not t.is_temporal(kind):
        return False
    least = scalar(_NO_CALENDAR_BEFORE, pa.date32())
    if t.is_timestamp(kind):
        day = _NO_CALENDAR_BEFORE
        least = scalar(datetime(day.year, day.month, day.day, tzinfo=UTC), pa.timestamp("us", "UTC"))
    for (low, _, nulls), rows in zip(footer.bounds(name), footer.rows, strict=True):
        if nulls != rows and (low is None or low.value < least.value):
            return True
    return False


def _values(folder: str, columns: Sequence[str], kinds: Sequence[pa.DataType]) -> tuple[Any, ...]:
    """Return the values of partition columns in a folder's path."""
    if not columns:
        return ()
    found: dict[str, tuple[str, str]] = {}
    while folder != os.path.dirname(folder):  # noqa: PTH120
        folder, name = os.path.split(folder)
        pair = split_folder(name)
        if pair is None:
            break
        if pair[0].lower() in found:
            raise Doubtful(f"two folders for partition column {pair[0]!r}")
        found[pair[0].lower()] = (pair[1], name)
    values = []
    for column, kind in zip(columns, kinds, strict=True):
        if column.lower() not in found:
            raise Doubtful(f"partition column {column!r} is not in the names of folders")
        text, name = found[column.lower()]
        if not t.is_string(kind) and "%" in name:
            raise Doubtful(f"partition folder {name}")
        values.append(value_of(column, kind, text))
    return tuple(values)
