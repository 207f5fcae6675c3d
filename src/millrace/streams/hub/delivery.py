"""The rows of each query to its sink, once a micro-batch.

Tasks write files themselves, under names that are the micro-batch's and the partition's: one that runs again
replaces them by the same rows. Functions are called where the query was started, with the micro-batch's
number, and may be called again with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import InputError
from millrace.spark.worker import partition_number, worker_task
from millrace.streams.hub.folder import Folder
from millrace.streams.hub.task import ENVELOPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Sink = Callable[[pa.Table, int], Any]
"""Is given the rows of a query in a micro-batch, and the micro-batch's number."""

_WAITING = 64 << 20
"""Rows wait in a task, that files are not written in small pieces, up to so many bytes."""


@dataclass(frozen=True)
class FileSink:
    """A folder of Parquet files; the schema is of their rows."""

    folder: str
    schema: pa.Schema


class _File:
    """A file that gets its name when it is complete."""

    def __init__(self, sink: FileSink, name: str) -> None:
        self._schema = sink.schema
        self._path = Path(sink.folder, f"{name}.parquet")
        # A name of its own: a task that Spark has given up may still be writing.
        self._part = self._path.with_name(f".{name}.{uuid.uuid4().hex}.part")
        self._writer: pq.ParquetWriter | None = None
        self.waiting: list[pa.RecordBatch] = []

    def flush(self) -> None:
        """Write what waits."""
        if self.waiting:
            if self._writer is None:
                self._part.parent.mkdir(parents=True, exist_ok=True)
                self._writer = pq.ParquetWriter(self._part, self._schema)
            self._writer.write_table(pa.Table.from_batches(self.waiting, self._schema))
            self.waiting = []

    def close(self) -> None:
        """Give it its name."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
            self._part.replace(self._path)


@dataclass(frozen=True)
class Write:
    """Writes the rows of queries that have files, by the query's number, and hands the others on."""

    sinks: Mapping[int, FileSink]
    batch: int

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what is not written."""
        name = f"{self.batch:010}-{partition_number():05}"
        files: dict[int, _File] = {}
        size = 0
        for batch in batches:
            queries = batch.column("query").to_pylist()
            others = [place for place, query in enumerate(queries) if query not in self.sinks]
            if others:
                yield pa.RecordBatch.from_arrays(batch.take(pa.array(others)).columns, schema=ENVELOPE)
            for query, block in zip(queries, batch.column("block"), strict=True):
                sink = self.sinks.get(query)
                if sink is not None:
                    file = files.setdefault(query, _File(sink, name))
                    file.waiting.append(pa.ipc.read_record_batch(block.as_buffer(), sink.schema))
                    size += len(block.as_buffer())
            if size > _WAITING:
                for file in files.values():
                    file.flush()
                size = 0
        for file in files.values():
            file.close()


@dataclass(frozen=True)
class Deliver:
    """Gives each query its rows: what ``foreachBatch`` calls.

    Attributes:
        functions: Of the queries that have a function as their sink, by the query's number. Names come again.
        retained: So many micro-batches Spark may run again.
    """

    folder: Folder
    functions: Mapping[int, Sink]
    retained: int

    def __call__(self, rows: DataFrame, batch: int) -> None:
        folder = self.folder
        changes = folder.written()
        queries = {
            change.query.id: (change.query, told["sink"])
            for change, told in changes
            if change.query is not None
        }
        gone = {change.gone for change, _ in changes}
        files = {
            id_: FileSink(sink, query.schema) for id_, (query, sink) in queries.items() if sink is not None
        }
        left = rows.mapInArrow(Write(files, batch), rows.schema).toArrow()
        found: dict[int, list[pa.RecordBatch]] = {}
        for row in left.to_batches():
            for id_, change, _, block in zip(*row.columns, strict=True):
                if change.is_valid:
                    folder.note_made(change.as_py(), batch)
                else:
                    schema = queries[id_.as_py()][0].schema
                    found.setdefault(id_.as_py(), []).append(
                        pa.ipc.read_record_batch(block.as_buffer(), schema)
                    )
        for id_, batches in sorted(found.items()):
            if id_ in self.functions:
                self.functions[id_](pa.Table.from_batches(batches), batch)
            elif id_ not in gone:
                name = queries[id_][0].name
                raise InputError(
                    f"query {name!r} has no function to give its rows to: give hub() sinks={{{name!r}: …}}"
                )
        folder.put_together(batch - self.retained)
