"""Direct scan of Parquet tables named by path: what there is, which row groups to read, reading them.

Millrace scans a table itself only when it is sure to see what Spark would see. Everything
doubtful (differing schemas, uncertain partition values, types that Spark treats specially) sets
:attr:`ParquetTable.unsupported`, and then Spark reads the table.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyarrow.fs import FileType

from millrace.engine.plan.expressions import Predicate, columns_of
from millrace.errors import InputError
from millrace.options import StorageOptions
from millrace.parquet.footers import Footer, Unreadable, footers_of
from millrace.parquet.listing import Entry, Folders, State
from millrace.parquet.partitions import Doubtful, infer, split_folder
from millrace.parquet.passing import share
from millrace.parquet.pruning import bounds_of, may_match
from millrace.parquet.reading import read_split, read_splits
from millrace.parquet.remote import NoConnection, Remote
from millrace.parquet.stores import DISKS, Store, located
from millrace.parquet.tables import ParquetFile, ParquetTable, Split

__all__ = ["ParquetFile", "ParquetTable", "Split", "open_table", "read_split", "read_splits", "splits"]

_SUMMARIES = ("_metadata", "_common_metadata")
_GLOB = frozenset("*?[{")
_OTHER_GLOB = re.compile(r"\{|\[[!^]|\\")
# In a folder that has one of these, a log says which files count.
_LOGS = ("_delta_log", ".hoodie")
_THREADS = 8

_Found = list[tuple[str, tuple[tuple[str, str], ...]]]
"""Data files, each with its partition texts."""


def open_table(path: str | Path, options: StorageOptions | None = None) -> ParquetTable:
    """Return the Parquet table at a path: a file, a folder, a Hive-partitioned folder or a glob.

    Args:
        path: A local path, or the URI of an object store. Names that start with ``_`` or ``.`` are not data,
            as in Spark.
        options: How to reach object stores.

    Raises:
        InputError: Nothing is there, there is no Parquet file in it, or a file cannot be read.
    """
    text = str(path)
    store, place = located(text, options)
    if store is None:
        return ParquetTable(text, (), pa.schema([]), (), "the path is not on a local file system")
    try:
        found, states = _find_remote(store, place) if isinstance(store, Remote) else (_find(place), {})
        if not found:
            raise InputError(
                f"folder {text} has no Parquet file: expected at least one data file "
                "(names that start with '_' or '.' do not count)"
            )
        return _describe(text, found, store, states)
    except (Doubtful, Unreadable, NoConnection) as doubt:
        return ParquetTable(text, (), pa.schema([]), (), str(doubt))


def _find(text: str) -> _Found:
    """Return every data file of this machine, in the order of paths."""
    root = Path(os.path.abspath(text))  # noqa: PTH100  # resolve() would follow links, Spark does not
    if root.exists():
        roots = [root]
    elif _GLOB & set(text):
        if _OTHER_GLOB.search(text):
            raise Doubtful("the path is a glob that Spark reads in its own way")
        roots = sorted(Path(hit) for hit in glob.glob(str(root)))
        if not roots:
            raise InputError(f"no file matches {text}: expected at least one Parquet file or folder")
        roots = [hit for hit in roots if not _hidden(hit.name)]
    else:
        raise InputError(_missing(root))
    files: _Found = []
    for each in roots:
        if each.is_file():
            files.append(_single(str(each)))
        else:
            files.extend(_walk(str(each), (), _entries, top=True))
    found = sorted(files)
    _refuse_logs([file for file, _ in found], DISKS)
    return found


def _find_remote(store: Remote, path: str) -> tuple[_Found, Mapping[str, State]]:
    """Return every data file of a store in the order of paths, and what the listing says of each."""
    kind = store.info(path).type
    if kind == FileType.File:
        _refuse_logs([path], store)
        return [_single(path)], {path: store.state(path)}
    if kind == FileType.NotFound and _GLOB & set(path):
        raise InputError(
            f"{path} is a glob, which is not looked for in object stores: expected a file or a folder; what "
            "works is the folder that has the files"
        )
    tree = store.tree(path)
    found = sorted(_walk(path, (), tree.entries, top=True))
    _refuse_logs([file for file, _ in found] or [f"{path}/"], tree)
    return found, tree.states


def _single(path: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    name = os.path.basename(path)  # noqa: PTH119
    if _hidden(name):
        raise Doubtful(f"Spark ignores files named like {name}")
    return path, ()


def _refuse_logs(files: Iterable[str], where: Folders) -> None:
    log = log_of(files, where)
    if log is not None:
        raise Doubtful(f"{log} says which files count")


def log_of(files: Iterable[str], where: Folders = DISKS) -> str | None:
    """Return the log of a table format (Delta, Hudi) above one of the files, None without any.

    Args:
        files: Their paths.
        where: Knows which folders there are.
    """
    folders: set[str] = set()
    for file in files:
        folder = os.path.dirname(file)  # noqa: PTH120  # thousands of files: Path objects take their time
        while folder not in folders and folder.startswith(where.root):
            folders.add(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120
    logs = [os.path.join(folder, name) for folder in sorted(folders) for name in _LOGS]  # noqa: PTH118
    if where == DISKS:
        return next((log for log in logs if where.is_folder(log)), None)
    with ThreadPoolExecutor(_THREADS, "logs") as pool:  # asking a store is waiting
        found = pool.map(where.is_folder, logs)
        return next((log for log, there in zip(logs, found, strict=True) if there), None)


def _missing(root: Path) -> str:
    parent = root.parent
    while not parent.exists():
        parent = parent.parent
    return f"there is no {root}: expected a Parquet file, a folder or a glob; {parent} exists"


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return what a folder of this machine has, by name."""
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"cannot read folder {folder}: {error.strerror or error}") from None


def _walk(
    folder: str,
    partition: tuple[tuple[str, str], ...],
    entries: Callable[[str], Sequence[os.DirEntry[str] | Entry]],
    *,
    top: bool = False,
) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yield the data files of a folder and of the partition folders below it."""
    for entry in entries(folder):
        if entry.name in _SUMMARIES:
            raise Doubtful(f"{folder} has a summary file {entry.name}")
        if _hidden(entry.name):
            continue
        if entry.is_file():
            if partition == () and not top:
                raise Doubtful(f"{folder} is a folder within the table's folder")
            yield entry.path, partition
            continue
        pair = split_folder(entry.name)
        if pair is None:
            raise Doubtful(f"{entry.path} is a folder within the table's folder")
        yield from _walk(entry.path, (*partition, pair), entries)


def _describe(path: str, found: _Found, store: Store, states: Mapping[str, State]) -> ParquetTable:
    if len(found) > 1 and any((states.get(file) or store.state(file)).size == 0 for file, _ in found):
        raise Doubtful("an empty file among others")
    footers = footers_of([file for file, _ in found], store, [states.get(file) for file, _ in found])
    for footer in footers:
        if footer.unsupported:
            raise Doubtful(footer.unsupported)
        if footer.schema != footers[0].schema:
            raise Doubtful(_difference(footers[0], footer))
    names = [tuple(name for name, _ in partition) for _, partition in found]
    if len(set(names)) > 1:
        raise Doubtful("files in different kinds of partition folders")
    columns = names[0]
    lowered = [name.lower() for name in (*footers[0].schema.names, *columns)]
    if len(set(lowered)) != len(lowered):
        raise Doubtful("a partition column has the name of another column")
    kinds = []
    values = []
    for place, column in enumerate(columns):
        kind, mapping = infer(column, [partition[place][1] for _, partition in found])
        kinds.append(pa.field(column, kind))
        values.append([mapping[partition[place][1]] for _, partition in found])
    files = tuple(
        ParquetFile(file, tuple(column[number] for column in values), states.get(file))
        for number, (file, _) in enumerate(found)
    )
    schema = pa.schema([*footers[0].schema, *kinds])
    return ParquetTable(path, files, schema, columns, store=store)


def _difference(first: Footer, other: Footer) -> str:
    a = {f.name: str(f.type) for f in first.schema}
    b = {f.name: str(f.type) for f in other.schema}
    where = f"{Path(first.path).name} and {Path(other.path).name}"
    for name in [*a, *b]:
        if a.get(name) != b.get(name):
            left, right = a.get(name, "missing"), b.get(name, "missing")
            return f"files with different schemas: {name!r} is {left} and {right} in {where}"
    return f"files with different orders of columns: {where}"


def splits(
    table: ParquetTable, filters: tuple[Predicate, ...] = (), columns: tuple[str, ...] | None = None
) -> tuple[Split, ...]:
    """Return the row groups that may hold rows that pass the filters, in the order of the files.

    Args:
        table: The table.
        filters: Predicates over its columns; all must hold.
        columns: What will be read, for :attr:`Split.bytes`; None is every column.
    """
    wanted = table.schema.names if columns is None else columns
    computed = {name.lower() for name, _ in table.computed}
    read = table.stored([*wanted, *(ref.column for predicate in filters for ref in columns_of(predicate))])
    stored = sorted(read.difference(table.partition_columns))
    kinds = {name: table.schema.field(name).type for name in (*table.partition_columns, *stored)}
    kept = []
    for file, footer in zip(table.files, table.footers, strict=True):
        own = {name: footer.spelled.get(name.lower()) for name in stored}
        values = dict(zip(table.partition_columns, file.partition, strict=True))
        values |= dict.fromkeys(name for name, spelled in own.items() if spelled is None)
        constants = tuple((name, kinds[name], value) for name, value in values.items())
        fixed = {name.lower(): (kind, value) for name, kind, value in constants}
        sizes = [footer.decoded_bytes(spelled) for spelled in own.values() if spelled is not None]
        for group, rows in enumerate(footer.rows):
            bounds = bounds_of(footer, group, fixed, computed)
            if rows and all(may_match(predicate, rows, bounds) for predicate in filters):
                size = sum(each[group] for each in sizes)
                passing = share(filters, rows, bounds)
                kept.append(Split(file.path, group, rows, size, constants, table.store, file.state, passing))
    return tuple(kept)
