"""Direct scan of Parquet tables named by path: what there is, which row groups to read, reading them.

Millrace scans a table itself only when it is sure to see what Spark would see. Everything
doubtful (differing schemas, uncertain partition values, types that Spark treats specially) sets
:attr:`ParquetTable.unsupported`, and then Spark reads the table.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from millrace.errors import InputError
from millrace.expressions import Predicate, columns_of
from millrace.sources.footers import Bounds, Footer, Unreadable, footers_of
from millrace.sources.partitions import Doubtful, infer, split_folder
from millrace.sources.pruning import may_match
from millrace.sources.reading import read_split, read_splits
from millrace.sources.tables import ParquetFile, ParquetTable, Split

__all__ = ["ParquetFile", "ParquetTable", "Split", "open_table", "read_split", "read_splits", "splits"]

_SUMMARIES = ("_metadata", "_common_metadata")
_GLOB = frozenset("*?[{")
_OTHER_GLOB = re.compile(r"\{|\[[!^]|\\")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# In a folder that has one of these, a log says which files count.
_LOGS = ("_delta_log", ".hoodie")


def open_table(path: str | Path) -> ParquetTable:
    """Return the Parquet table at a path: a file, a folder, a Hive-partitioned folder or a glob.

    Args:
        path: A local path. Names that start with ``_`` or ``.`` are not data, as in Spark.

    Raises:
        InputError: Nothing is there, there is no Parquet file in it, or a file cannot be read.
    """
    text = str(path)
    try:
        found = _find(text)
        if not found:
            raise InputError(
                f"folder {text} has no Parquet file: expected at least one data file "
                "(names that start with '_' or '.' do not count)"
            )
        return _describe(text, found)
    except (Doubtful, Unreadable) as doubt:
        return ParquetTable(text, (), pa.schema([]), (), str(doubt))


def _find(text: str) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """Return every data file with its partition texts, in the order of paths."""
    if text.startswith("file:"):
        text = text.removeprefix("file:")
        text = "/" + text.lstrip("/")
    elif _SCHEME.match(text):
        raise Doubtful("the path is not on a local file system")
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
    files: list[tuple[str, tuple[tuple[str, str], ...]]] = []
    for each in roots:
        if each.is_file():
            if _hidden(each.name):
                raise Doubtful(f"Spark ignores files named like {each.name}")
            files.append((str(each), ()))
        else:
            files.extend(_walk(each, (), top=True))
    found = sorted(files)
    log = log_of(file for file, _ in found)
    if log is not None:
        raise Doubtful(f"{log} says which files count")
    return found


def log_of(files: Iterable[str]) -> str | None:
    """Return the log of a table format (Delta, Hudi) above one of the files, None without any."""
    folders: set[str] = set()
    for file in files:
        folder = os.path.dirname(file)  # noqa: PTH120  # thousands of files: Path objects take their time
        while folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120
    logs = (os.path.join(folder, name) for folder in sorted(folders) for name in _LOGS)  # noqa: PTH118
    return next((log for log in logs if os.path.isdir(log)), None)  # noqa: PTH112


def _missing(root: Path) -> str:
    parent = root.parent
    while not parent.exists():
        parent = parent.parent
    return f"there is no {root}: expected a Parquet file, a folder or a glob; {parent} exists"


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _walk(
    folder: Path, partition: tuple[tuple[str, str], ...], *, top: bool = False
) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yield the data files of a folder and of the partition folders below it."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"cannot read folder {folder}: {error.strerror or error}") from None
    for entry in entries:
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
        yield from _walk(Path(entry.path), (*partition, pair))


def _describe(path: str, found: list[tuple[str, tuple[tuple[str, str], ...]]]) -> ParquetTable:
    if len(found) > 1 and any(os.stat(file).st_size == 0 for file, _ in found):
        raise Doubtful("an empty file among others")
    footers = footers_of([file for file, _ in found])
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
        ParquetFile(file, tuple(column[number] for column in values))
        for number, (file, _) in enumerate(found)
    )
    schema = pa.schema([*footers[0].schema, *kinds])
    return ParquetTable(path, files, schema, columns)


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
    computed = {name for name, _ in table.computed}
    read = table.stored([*wanted, *(ref.column for predicate in filters for ref in columns_of(predicate))])
    stored = sorted(read.difference(table.partition_columns))
    kinds = {name: table.schema.field(name).type for name in (*table.partition_columns, *stored)}
    kept = []
    for file, footer in zip(table.files, table.footers, strict=True):
        own = {name: footer.spelled.get(name.lower()) for name in stored}
        values = dict(zip(table.partition_columns, file.partition, strict=True))
        values |= dict.fromkeys(name for name, spelled in own.items() if spelled is None)
        constants = tuple((name, kinds[name], value) for name, value in values.items())
        fixed = {name: _constant(value, kind) for name, kind, value in constants}
        sizes = [footer.decoded_bytes(spelled) for spelled in own.values() if spelled is not None]
        for group, rows in enumerate(footer.rows):

            def bounds(
                column: str,
                footer: Footer = footer,
                group: int = group,
                rows: int = rows,
                fixed: dict[str, Bounds] = fixed,
            ) -> Bounds:
                name = table.resolve(column)
                if name in computed:
                    return None, None, None
                if name not in fixed:
                    return footer.bounds(footer.spelled[name.lower()])[group]
                low, high, nulls = fixed[name]
                return low, high, rows if nulls else 0

            if rows and all(may_match(predicate, rows, bounds) for predicate in filters):
                kept.append(Split(file.path, group, rows, sum(size[group] for size in sizes), constants))
    return tuple(kept)


def _constant(value: object, kind: pa.DataType) -> Bounds:
    if value is None:
        return None, None, 1
    scalar = pa.scalar(value, kind)
    return scalar, scalar, 0
