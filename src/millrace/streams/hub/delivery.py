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
from millrace.spark.worker import partition_number, worker_task
from millrace.streams.hub.folder import Folder, locate_writable
from millrace.streams.hub.query import ENVELOPE, StandingQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Sink = Callable[[pa.Table, int], Any]
"""Is given the rows of a query in a micro-batch, and the micro-batch's number."""


@dataclass(frozen=True)
class Write:
    """Writes the rows of queries that have files, and hands the others on.

    Attributes:
        queries: Those that have files, by their numbers.
        storage: Reaches the stores that these are in.
    """

    queries: Mapping[int, StandingQuery]
    storage: StorageOptions
    batch: int

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what is not written."""
        name = f"{self.batch:010}-{partition_number():05}.parquet"
        writers: dict[int, pq.ParquetWriter] = {}
        with ExitStack() as files:  # they get their names at its end, complete
            for batch in batches:
                numbers = batch.column("query").to_pylist()
                others = [place for place, number in enumerate(numbers) if number not in self.queries]
                if others:
                    yield pa.RecordBatch.from_arrays(batch.take(pa.array(others)).columns, schema=ENVELOPE)
                blocks: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
                for number, block in zip(numbers, batch.column("block"), strict=True):
                    if (query := self.queries.get(number)) is not None:
                        rows = pa.ipc.read_record_batch(block.as_buffer(), query.schema)
                        blocks[number].append(rows)
                for number, rows in blocks.items():
                    query = self.queries[number]
                    if number not in writers:
                        store, folder = locate_writable(query.sink or "", self.storage)
                        file = files.enter_context(store.writing(f"{folder}/{name}"))
                        writers[number] = files.enter_context(pq.ParquetWriter(file, query.schema))
                    writers[number].write_table(pa.Table.from_batches(rows))


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
        files = {id_: query for id_, query in queries.items() if query.sink is not None}
        left = rows.mapInArrow(Write(files, self.storage, batch), rows.schema).toArrow()
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
