"""The rows of each query to its sink, once a micro-batch.

Tasks write files themselves, under names that are the micro-batch's and the partition's: one that runs again
replaces them by the same rows. Functions are called where the query was started, with the micro-batch's
number, and may be called again with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import InputError
from millrace.options import StorageOptions
from millrace.parquet.store import Store
from millrace.spark.worker import partition_number, worker_task
from millrace.streams.hub.cell import ENVELOPE
from millrace.streams.hub.folder import Folder, locate_writable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Sink = Callable[[pa.Table, int], Any]
"""Is given the rows of a query in a micro-batch, and the micro-batch's number."""

_WAITING = 64 << 20
"""Rows wait in a task, that files are not written in small pieces, up to so many bytes."""


@dataclass(frozen=True)
class FileSink:
    """A folder of Parquet files; the schema is of their rows."""

    store: Store
    folder: str
    schema: pa.Schema


@dataclass(frozen=True)
class Write:
    """Writes the rows of queries that have files, by the query's number, and hands the others on."""

    sinks: Mapping[int, FileSink]
    batch: int

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what is not written."""
        name = f"{self.batch:010}-{partition_number():05}.parquet"
        waiting: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
        writers: dict[int, pq.ParquetWriter] = {}
        size = 0
        with ExitStack() as files:  # they get their names at its end, complete

            def write() -> None:
                for query, rows in waiting.items():
                    sink = self.sinks[query]
                    if query not in writers:
                        file = files.enter_context(sink.store.writing(f"{sink.folder}/{name}"))
                        writers[query] = files.enter_context(pq.ParquetWriter(file, sink.schema))
                    writers[query].write_table(pa.Table.from_batches(rows, sink.schema))
                waiting.clear()

            for batch in batches:
                queries = batch.column("query").to_pylist()
                others = [place for place, query in enumerate(queries) if query not in self.sinks]
                if others:
                    yield pa.RecordBatch.from_arrays(batch.take(pa.array(others)).columns, schema=ENVELOPE)
                for query, block in zip(queries, batch.column("block"), strict=True):
                    if query in self.sinks:
                        rows = pa.ipc.read_record_batch(block.as_buffer(), self.sinks[query].schema)
                        waiting[query].append(rows)
                        size += len(block.as_buffer())
                if size > _WAITING:
                    write()
                    size = 0
            write()


@dataclass(frozen=True)
class Deliver:
    """Gives each query its rows: what ``foreachBatch`` calls.

    Attributes:
        storage: Reaches the stores that sinks are in.
        functions: Of the queries that have a function as their sink, by the query's number. Names come again.
    """

    folder: Folder
    storage: StorageOptions
    functions: Mapping[int, Sink]

    def __call__(self, rows: DataFrame, batch: int) -> None:
        # Those whose removal is made have no rows any more.
        queries = {query.id: query for query in self.folder.queries()}
        files = {
            id_: FileSink(*locate_writable(query.sink, self.storage), query.schema)
            for id_, query in queries.items()
            if query.sink is not None
        }
        left = rows.mapInArrow(Write(files, batch), rows.schema).toArrow()
        found: dict[int, list[pa.RecordBatch]] = {}
        made: list[int] = []
        for id_, change, _, block in zip(*left.columns, strict=True):
            if change.is_valid:
                made.append(change.as_py())
            elif id_.as_py() in queries:
                schema = queries[id_.as_py()].schema
                found.setdefault(id_.as_py(), []).append(pa.ipc.read_record_batch(block.as_buffer(), schema))
        if made:
            self.folder.note_made(made)
        for id_, batches in sorted(found.items()):
            if id_ in self.functions:
                self.functions[id_](pa.Table.from_batches(batches), batch)
            elif queries[id_].state != "leaving":
                name = queries[id_].name
                raise InputError(
                    f"query {name!r} has no function to give its rows to: give hub() sinks={{{name!r}: …}}"
                )
