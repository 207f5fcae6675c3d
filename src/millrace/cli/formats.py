"""The formats of ``--output``, each known by the end of the file's name.

Values in CSV and JSON are written by Spark's own ``to_csv`` and ``to_json``, in the tasks, so that its
readers get back what they would from a file of Spark's; this process only puts the lines together.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Put = Callable[[pa.RecordBatch], object]
"""Writes a batch behind those before it."""


@dataclass(frozen=True)
class Form:
    """A format.

    Attributes:
        rows: What of a DataFrame's rows is written: they themselves, or a line of text for each.
        writer: Opens a file for these rows, given their schema and the names of the DataFrame's columns.
    """

    rows: Callable[[DataFrame], DataFrame]
    writer: Callable[[Path, pa.Schema, Sequence[str]], AbstractContextManager[Put]]


def form_of(target: Path) -> Form:
    """Return the format that a name stands for.

    Raises:
        InputError: It stands for none.
    """
    form = FORMS.get(target.suffix.lower())
    if form is None:
        raise InputError(
            f"cannot write {target}: its name tells no format; expected one that ends in {', '.join(FORMS)}"
        )
    return form


@contextmanager
def _parquet(path: Path, schema: pa.Schema, _names: Sequence[str]) -> Iterator[Put]:
    with pq.ParquetWriter(path, schema) as writer:
        yield writer.write_batch


@contextmanager
def _arrow(path: Path, schema: pa.Schema, _names: Sequence[str]) -> Iterator[Put]:
    with pa.ipc.new_file(str(path), schema) as writer:
        yield writer.write_batch


@contextmanager
def _csv(path: Path, _schema: pa.Schema, names: Sequence[str]) -> Iterator[Put]:
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(names)
    with path.open("wb") as file:
        file.write(header.getvalue().encode())
        yield lambda batch: file.write(_text(batch))


@contextmanager
def _json(path: Path, _schema: pa.Schema, _names: Sequence[str]) -> Iterator[Put]:
    with path.open("wb") as file:
        yield lambda batch: file.write(_text(batch))


def _text(batch: pa.RecordBatch) -> bytes:
    """Return a column of lines as bytes, each line ended."""
    lines = batch.column(0)
    whole = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")
    text: bytes = whole[0].as_buffer().to_pybytes()
    return text + b"\n" if len(lines) else b""


def _same(frame: DataFrame) -> DataFrame:
    return frame


def _as_csv(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf, types as t

    for field in frame.schema:
        if isinstance(field.dataType, t.ArrayType | t.MapType | t.StructType | t.BinaryType | t.VariantType):
            raise InputError(
                f"column {field.name!r} is {field.dataType.simpleString()}, for which CSV has no place: "
                "write .json, .parquet or .arrow, or make text of it in the query"
            )
    return _lines(frame, lambda row: sf.to_csv(row, {"escape": '"'}))  # as RFC 4180 has it


def _as_json(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    twice = next((name for name in frame.columns if frame.columns.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two columns are named {twice!r}, which JSON does not tell apart: name one with AS")
    return _lines(frame, lambda row: sf.to_json(row, {"ignoreNullFields": "false"}))


def _lines(frame: DataFrame, written: Callable[[Any], Any]) -> DataFrame:
    """Return a line of text for each row."""
    from pyspark.sql import functions as sf

    plain = frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))
    parts = [sf.col(f"c{place}").alias(name) for place, name in enumerate(frame.columns)]
    return plain.select(written(sf.struct(*parts)).alias("line"))


FORMS = {
    ".parquet": Form(_same, _parquet),
    ".csv": Form(_as_csv, _csv),
    ".json": Form(_as_json, _json),
    ".jsonl": Form(_as_json, _json),
    ".ndjson": Form(_as_json, _json),
    ".arrow": Form(_same, _arrow),
    ".feather": Form(_same, _arrow),
}
"""By the end of a name, in lower case. JSON has an object a line, as Spark reads and writes it."""
