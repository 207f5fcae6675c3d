"""Which files a table has, of which columns: as a path names them, or as Spark describes them.

Millrace scans a table itself only when it is sure to see what Spark would see. Everything doubtful (differing
schemas, uncertain partition values, types that Spark treats specially) leaves the table to Spark.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import types as t
from pyarrow.fs import FileType

from millrace.engine.arrays import scalar
from millrace.errors import InputError
from millrace.options import StorageOptions
from millrace.parquet.footers import Footer, footers_of
from millrace.parquet.partitions import Doubtful, infer, is_hidden, split_folder, value_of
from millrace.parquet.store import DISKS, NoConnection, State, Store, locate
from millrace.parquet.tables import ParquetFile, ParquetTable, unsupported_table

_SUMMARIES = ("_metadata", "_common_metadata")
_GLOB = frozenset("*?[{")
_OTHER_GLOB = re.compile(r"\{|\[[!^]|\\")
# In a folder that has one of these, a log says which files count.
_LOGS = ("_delta_log", ".hoodie")
_THREADS = 8
# Spark's calendar before version 3 was another one for earlier times.
_NO_CALENDAR_BEFORE = date(1900, 1, 1)

_Partition = tuple[tuple[str, str], ...]  # names and texts of columns


class _File(NamedTuple):
    """A data file, its texts of partition columns, and what it is like now."""

    path: str
    partition: _Partition
    state: State


def open_table(path: str | Path, options: StorageOptions | None = None) -> ParquetTable:
    """Return the Parquet table at a path: a file, a folder, a Hive-partitioned folder or a glob.

    The path is local, or the URI of an object store, which ``options`` reach. Names that start with ``_`` or
    ``.`` are not data, as in Spark.

    Raises:
        InputError: Nothing is there, there is no Parquet file in it, or a file cannot be read.
    """
    text = str(path)
    store, place = locate(text, options)
    if store is None:
        return unsupported_table(text, "the path is not on a local file system")
    try:
        files = _find_files(store, place)
        if not files:
            raise InputError(
                f"folder {text} has no Parquet file: expected at least one data file "
                "(names that start with '_' or '.' do not count)"
            )
        return _table_of(text, files, store)
    except (Doubtful, NoConnection) as doubt:
        return unsupported_table(text, str(doubt))


def open_files(
    shown: str,
    paths: Sequence[str],
    schema: pa.Schema,
    partition_columns: Sequence[str],
    required: Collection[str] = (),
    store: Store = DISKS,
) -> ParquetTable:
    """Return a table as Spark describes it: its files, and its columns in Spark's types.

    The types need not be what each file has. The table is scanned directly where every file has the columns
    in just these types, or lacks them, unless they are ``required``: then Spark does not read it. ``shown``
    names the table in plans.

    Raises:
        Doubtful: It is not certain that a direct scan sees what Spark sees.
    """
    stored = [column for column in schema if column.name not in partition_columns]
    kinds = [schema.field(name).type for name in partition_columns]
    try:
        listed = store.around(paths) if store.is_remote else {}
        _refuse_logs(paths, store, listed)
        states = [listed.get(path) for path in paths]
        footers = footers_of(paths, store, states)
    except (InputError, NoConnection, OSError) as error:
        raise Doubtful(str(error)) from None
    files = []
    known: dict[str, tuple[Any, ...]] = {}
    for path, footer, state in zip(paths, footers, states, strict=True):
        _check(footer, stored, required)
        folder = path.rpartition("/")[0]
        if folder not in known:
            known[folder] = _values(folder, partition_columns, kinds)
        files.append(ParquetFile(path, known[folder], state))
    return ParquetTable(shown, tuple(files), schema, tuple(partition_columns), store=store)


# The files at a path


def _find_files(store: Store, place: str) -> list[_File]:
    """Return every data file, in the order of paths."""
    files: list[_File] = []
    listed: dict[str, State | None] = {}
    roots = _expand(store, place)
    for root, kind in roots:
        if kind == FileType.File:
            if is_hidden(name := root.rpartition("/")[2]):
                raise Doubtful(f"Spark ignores files named like {name}")
            files.append(_File(root, (), store.state(root)))
        else:
            files += _data_files(store, root, listed)
    _refuse_logs([file.path for file in files] or [f"{root}/" for root, _ in roots], store, listed)
    return sorted(files)


def _expand(store: Store, place: str) -> list[tuple[str, FileType]]:
    """Return the files and folders that a path or a glob names."""
    path = place if store.is_remote else os.path.abspath(place)  # noqa: PTH100  # resolve() would follow links
    kind = store.info(path).type
    if kind != FileType.NotFound:
        return [(path, kind)]
    if not _GLOB & set(place):
        raise InputError(store.missing(path))
    if store.is_remote:
        raise InputError(
            f"{path} is a glob, which is not looked for in object stores: expected a file or a folder; what "
            "works is the folder that has the files"
        )
    if _OTHER_GLOB.search(place):
        raise Doubtful("the path is a glob that Spark reads in its own way")
    hits = glob.glob(path, include_hidden=True)
    if not hits:
        raise InputError(f"no file matches {place}: expected at least one Parquet file or folder")
    found = [(hit, store.info(hit).type) for hit in hits]
    for hit, kind in found:
        names = hit.split("/")[: None if kind == FileType.Directory else -1]
        if any(is_hidden(name) and name != part for name, part in zip(names, path.split("/"), strict=False)):
            raise Doubtful("the glob finds hidden folders, which Spark may read")
    return [(hit, kind) for hit, kind in found if not is_hidden(os.path.basename(hit))]  # noqa: PTH119


def _data_files(store: Store, top: str, listed: dict[str, State | None]) -> list[_File]:
    """Return the data files of a folder and of the partition folders below it; what is seen is listed."""
    files, top = [], top.rstrip("/")
    partitions: dict[str, _Partition | None] = {top: ()}  # None for what Spark passes over
    for path, state in store.below(top):
        listed[path] = state
        if path == top:
            continue
        folder, _, name = path.rpartition("/")
        if folder not in partitions:
            raise Doubtful(f"{path} is not below {top}, as the store lists it")
        partition = partitions[folder]
        if partition is not None and name in _SUMMARIES:
            raise Doubtful(f"{folder} has a summary file {name}")
        if partition is None or is_hidden(name):
            partitions[path] = None
        elif state is not None:
            files.append(_File(path, partition, state))
        elif (pair := split_folder(name)) is not None:
            partitions[path] = (*partition, pair)
        else:
            raise Doubtful(f"{path} is a folder within the table's folder")
    return files


def _refuse_logs(files: Iterable[str], store: Store, listed: Mapping[str, State | None]) -> None:
    """Refuse files below the log of a table format (Delta, Hudi); what is not listed is asked for."""
    folders: set[str] = set()
    for file in files:
        folder = file.rpartition("/")[0]
        while folder not in folders and folder.startswith(store.root):
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    logs = [f"{folder}/{name}" for folder in sorted(folders) for name in _LOGS]
    asked = [log for log in logs if log.rpartition("/")[0] not in listed]
    if store.is_remote:
        with ThreadPoolExecutor(_THREADS, "logs") as pool:  # asking a store is waiting
            answers = list(pool.map(store.is_folder, asked))
    else:
        answers = list(map(store.is_folder, asked))
    there = {log for log, is_there in zip(asked, answers, strict=True) if is_there}
    there |= {path for path, state in listed.items() if state is None}
    for log in logs:
        if log in there:
            raise Doubtful(f"{log} says which files count")


def _table_of(path: str, files: Sequence[_File], store: Store) -> ParquetTable:
    if len(files) > 1 and any(file.state.size == 0 for file in files):
        raise Doubtful("an empty file among others")
    footers = footers_of([file.path for file in files], store, [file.state for file in files])
    for footer in footers:
        if footer.unsupported:
            raise Doubtful(footer.unsupported)
        if footer.schema != footers[0].schema:
            raise Doubtful(_difference(footers[0], footer))
    names = {tuple(name for name, _ in file.partition) for file in files}
    if len(names) > 1:
        raise Doubtful("files in different kinds of partition folders")
    (columns,) = names
    lowered = [name.lower() for name in (*footers[0].schema.names, *columns)]
    if len(set(lowered)) != len(lowered):
        raise Doubtful("a partition column has the name of another column")
    kinds = {
        column: infer(column, {file.partition[place][1] for file in files})
        for place, column in enumerate(columns)
    }
    made = tuple(
        ParquetFile(
            file.path,
            tuple(value_of(name, kinds[name], text) for name, text in file.partition),
            file.state if store.is_remote else None,
        )
        for file in files
    )
    schema = pa.schema([*footers[0].schema, *map(pa.field, kinds, kinds.values())])
    return ParquetTable(path, made, schema, columns, store=store)


def _difference(first: Footer, other: Footer) -> str:
    a = {f.name: str(f.type) for f in first.schema}
    b = {f.name: str(f.type) for f in other.schema}
    where = f"{Path(first.path).name} and {Path(other.path).name}"
    for name in [*a, *b]:
        if a.get(name) != b.get(name):
            left, right = a.get(name, "missing"), b.get(name, "missing")
            return f"files with different schemas: {name!r} is {left} and {right} in {where}"
    return f"files with different orders of columns: {where}"


# Files that Spark describes


def _check(footer: Footer, stored: Sequence[pa.Field], required: Collection[str]) -> None:
    """Refuse a file in which Spark may see something else."""
    if footer.unsupported:
        raise Doubtful(footer.unsupported)
    where = footer.path.rpartition("/")[2]
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
    for name in reversed(folder.split("/")):
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
