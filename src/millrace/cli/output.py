"""Write a result to one file: whole or not at all, in bounded memory.

On classic Spark its own writer fills a hidden folder beside the target, all tasks in parallel; the
parts are then copied into one file, batch by batch. A Spark Connect server may run on another
machine, so there the rows come to this process as Arrow blocks, a partition's worth at a time. Either
way the target appears by a rename at the end, and what was begun is removed when something fails.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.cli import formats
from millrace.errors import InputError
from millrace.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BLOCK_ROWS = 65_536


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check what can be checked before anything runs.

    Raises:
        InputError: ``target`` cannot become a file, its name tells no format, or a file stands there that may
            not be replaced.
    """
    if target.is_dir():
        raise InputError(f"cannot write {target}: it is a folder, expected the name of a file")
    formats.form_of(target)
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
    form = formats.form_of(target)
    rows = form.rows(frame)
    with workspace(target) as folder:
        single = folder / target.name
        spark = frame.sparkSession
        batches = _from_connect(rows) if is_connect(spark) else _from_writer(rows, spark, folder)
        count = 0
        schema = next(batches)
        assert isinstance(schema, pa.Schema)
        with form.writer(single, schema, frame.columns) as put:
            for batch in batches:
                assert isinstance(batch, pa.RecordBatch)
                put(batch)
                count += batch.num_rows
        if overwrite:
            single.replace(target)
        else:
            _place(single, target)
    return count


def _place(single: Path, target: Path) -> None:
    """Give a file its name, unless another has taken it meanwhile."""
    try:
        os.link(single, target)
    except FileExistsError:
        raise InputError(
            f"cannot write {target}: a file of that name was made meanwhile; --overwrite replaces it"
        ) from None
    except OSError:  # a file system without links
        single.replace(target)


@contextmanager
def workspace(target: Path) -> Iterator[Path]:
    """Give a hidden folder beside ``target`` (so that a rename is possible), and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _from_writer(frame: DataFrame, spark: SparkSession, folder: Path) -> Iterator[pa.Schema | pa.RecordBatch]:
    """Let Spark write parts, then yield the schema and the parts' batches in order."""
    # Spark's default is a format that Arrow reads as nanoseconds, which end in the year 2262.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    parts = folder / "parts"
    frame.write.parquet(parts.absolute().as_uri())
    names = sorted(parts.glob("part-*.parquet"))
    schema = pq.read_schema(names[0]) if names else _schema(frame)
    yield schema
    for name in names:
        with pq.ParquetFile(name) as part:
            yield from part.iter_batches(_BLOCK_ROWS)
        name.unlink()


def _from_connect(frame: DataFrame) -> Iterator[pa.Schema | pa.RecordBatch]:
    """Yield the schema, and the rows as they come from the server, one binary value per batch."""
    schema = _schema(frame)
    yield schema

    def to_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            payload = pa.BufferOutputStream()
            with pa.ipc.new_stream(payload, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_arrays([pa.array([payload.getvalue().to_pybytes()])], ["block"])

    for row in frame.mapInArrow(to_blocks, "block binary").toLocalIterator():
        for batch in pa.ipc.open_stream(row.block):
            yield pa.RecordBatch.from_struct_array(batch.to_struct_array().cast(pa.struct(list(schema))))


def _schema(frame: DataFrame) -> pa.Schema:
    return frame.limit(0).toArrow().schema
