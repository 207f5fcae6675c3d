"""Write a result to one file: whole or not at all, in bounded memory.

Tasks turn the rows into Arrow batches, and Spark keeps these on its disks until this process has
fetched them in order: on classic Spark and on Spark Connect alike, all tasks side by side. CSV and JSON are
lines of text that tasks make with Spark's own ``to_csv`` and ``to_json``, so that Spark's readers get back
what they would from files of Spark's. The target appears by a rename at the end, and what was begun is
removed when something fails.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LINES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_FORMATS = (".parquet", *_LINES, ".arrow", ".feather")
"""By the end of a name, in lower case. JSON has an object a line, as Spark reads and writes it."""

_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"
"""Where Spark keeps its own types in a Parquet file."""

_Put = Callable[[pa.RecordBatch], object]


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check what can be checked before anything runs.

    Raises:
        InputError: ``target`` cannot become a file, its name tells no format, or a file stands there that may
            not be replaced.
    """
    if target.is_dir():
        raise InputError(f"cannot write {target}: it is a folder, expected the name of a file")
    if target.suffix.lower() not in _FORMATS:
        raise InputError(
            f"cannot write {target}: its name tells no format; "
            f"expected one that ends in {', '.join(_FORMATS)}"
        )
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: there is no folder {target.parent}; make it first")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"cannot write {target}: the folder {target.parent} is not writable")
    if target.exists() and not overwrite:
        raise InputError(f"cannot write {target}: the file exists; --overwrite replaces it")


def write(frame: DataFrame, target: Path, *, overwrite: bool = False) -> int:
    """Write the rows of ``frame``, in order, to the file ``target`` and return their number.

    Raises:
        InputError: As :func:`check_target`, or the format has no place for a column.
    """
    check_target(target, overwrite=overwrite)
    form = target.suffix.lower()
    names = frame.columns
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None and (form == ".parquet" or _LINES.get(form) == "json"):
        raise InputError(
            f"two columns are named {twice!r}, which readers of {form} do not tell apart: name one with AS"
        )
    rows = _as_text(frame, _LINES[form]) if form in _LINES else _as_arrow(frame)
    # Without its own types, Spark would read a length of time from Parquet as a number.
    told = {_SCHEMA: frame.schema.json()} if form == ".parquet" else {}
    count = 0
    with workspace(target) as folder, _batches(rows) as batches:
        part = folder / target.name
        with _writer(part, form, names, told, next(batches)) as put:
            for batch in batches:
                put(batch)
                count += batch.num_rows
        if overwrite:
            part.replace(target)
        else:
            _place(part, target)
    return count


def _place(part: Path, target: Path) -> None:
    """Give a file its name, unless another has taken it meanwhile."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise InputError(
            f"cannot write {target}: a file of that name was made meanwhile; --overwrite replaces it"
        ) from None
    except OSError:  # a file system without links
        part.replace(target)


@contextmanager
def workspace(target: Path) -> Iterator[Path]:
    """Give a hidden folder beside ``target`` (so that a rename is possible), and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _batches(frame: DataFrame) -> Iterator[Iterator[Any]]:
    """Run a query; give an iterator of its schema and then of its batches, in order."""
    from pyspark import StorageLevel

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            payload = pa.BufferOutputStream()
            with pa.ipc.new_stream(payload, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_arrays([pa.array([payload.getvalue().to_pybytes()])], ["block"])

    def fetch() -> Iterator[Any]:
        kept.count()  # all tasks side by side; the iterator alone runs one partition after the other
        schema = None
        for row in kept.toLocalIterator():
            with pa.ipc.open_stream(row.block) as stream:
                if schema is None:
                    schema = stream.schema
                    yield schema
                yield from stream
        if schema is None:
            yield frame.limit(0).toArrow().schema

    kept = frame.mapInArrow(pack, "block binary").persist(StorageLevel.DISK_ONLY)
    try:
        yield fetch()
    finally:
        kept.unpersist()


@contextmanager
def _writer(
    path: Path, form: str, names: Sequence[str], told: Mapping[str, str], schema: pa.Schema
) -> Iterator[_Put]:
    """Open a file with what is told of its schema; what is given writes a batch behind those before it."""
    if form in _LINES:
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(names)
        with path.open("wb") as file:
            file.write(header.getvalue().encode() if form == ".csv" else b"")
            yield lambda batch: file.write(_joined(batch.column(0)))
        return
    fields = [field.with_name(name) for field, name in zip(schema, names, strict=True)]
    named = pa.schema(fields, {**(schema.metadata or {}), **told})
    writer: AbstractContextManager[Any] = (
        pq.ParquetWriter(path, named) if form == ".parquet" else pa.ipc.new_file(str(path), named)
    )
    with writer as opened:
        yield lambda batch: opened.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=named))


def _joined(lines: pa.Array) -> bytes:
    """Return lines as bytes, each ended."""
    whole = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")
    text: bytes = whole[0].as_buffer().to_pybytes()
    return text + b"\n" if len(lines) else b""


def _numbered(frame: DataFrame) -> DataFrame:
    """Return the rows with column names that differ, and that Spark's Arrow functions take."""
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))


def _as_arrow(frame: DataFrame) -> DataFrame:
    """Return the rows, named anew.

    Raises:
        InputError: A column has no type of Arrow's.
    """
    from pyspark.sql import types as t

    for field in frame.schema:
        if isinstance(field.dataType, t.YearMonthIntervalType | t.CalendarIntervalType):
            raise InputError(
                f"column {field.name!r} is {field.dataType.simpleString()}, for which Arrow has no type: "
                "write .csv or .json, or make text of it in the query"
            )
    return _numbered(frame)


def _as_text(frame: DataFrame, form: str) -> DataFrame:
    """Return a line of text for each row.

    Raises:
        InputError: The format has no place for a column.
    """
    from pyspark.sql import functions as sf, types as t

    nested = (t.ArrayType, t.MapType, t.StructType, t.BinaryType, t.VariantType)
    for field in frame.schema if form == "csv" else ():
        if isinstance(field.dataType, nested):
            raise InputError(
                f"column {field.name!r} is {field.dataType.simpleString()}, for which CSV has no place: "
                "write .json, .parquet or .arrow, or make text of it in the query"
            )
    row = sf.struct(*(sf.col(f"c{place}").alias(name) for place, name in enumerate(frame.columns)))
    # Quotes are doubled, as RFC 4180 has it.
    line = (
        sf.to_csv(row, {"escape": '"'}) if form == "csv" else sf.to_json(row, {"ignoreNullFields": "false"})
    )
    return _numbered(frame).select(line.alias("line"))
