"""The rows of each query to its sink, once a micro-batch.

Tasks write files themselves, under names that are the micro-batch's and the partition's: one that runs again
replaces them by the same rows. Functions are called where the query was started, with the micro-batch's
number, and may be called again with it. A sink that fails ends the hub, until its query is removed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from millrace.errors import InputError
from millrace.options import StorageOptions
from millrace.spark.worker import partition_number, worker_task
from millrace.streams.hub.folder import Folder, locate_writable
from millrace.streams.hub.query import StandingQuery

_log = logging.getLogger("millrace")

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
        numbers = pa.array([*self.queries], pa.int64())
        writers: dict[int, pq.ParquetWriter] = {}
        with ExitStack() as files:  # they get their names at its end, complete
            for batch in batches:
                others = batch.filter(pc.invert(pc.is_in(batch.column("query"), numbers)))
                if others.num_rows:
                    yield others
                for number, rows in _read_blocks(batch, self.queries).items():
                    if number not in writers:
                        query = self.queries[number]
                        store, folder = locate_writable(query.sink or "", self.storage)
                        file = files.enter_context(store.writing(f"{folder}/{name}"))
                        writers[number] = files.enter_context(pq.ParquetWriter(file, query.schema))
                    writers[number].write_table(rows)


@dataclass(frozen=True)
class Deliver:
    """Gives each query its rows: what ``foreachBatch`` calls.

    Attributes:
        functions: Of the queries that have a function as their sink, by the query's number. Names come again.
    """

    folder: Folder
    functions: Mapping[int, Sink]

    def __call__(self, rows: DataFrame, batch: int) -> None:
        # Those whose removal is made have no rows any more.
        queries = {query.id: query for query in self.folder.queries()}
        files = {}
        for query in queries.values():
            if query.sink is not None:
                with _let_leave(query):
                    if query.state == "leaving":
                        write_empty(query, self.folder.storage)
                    files[query.id] = query
        left = rows.mapInArrow(Write(files, self.folder.storage, batch), rows.schema).toArrow()
        made = pc.max(left.column("made")).as_py()
        if made is not None:
            self.folder.note_made(made)
        for number, table in sorted(_read_blocks(left, queries).items()):
            if number in self.functions:
                with _let_leave(queries[number]):
                    self.functions[number](table, batch)
            elif queries[number].state != "leaving":
                name = queries[number].name
                raise InputError(
                    f"query {name!r} has no function to give its rows to: give hub() sinks={{{name!r}: …}}"
                )


def write_empty(query: StandingQuery, storage: StorageOptions) -> None:
    """Write a file of no rows to a query's folder: whoever reads it finds the columns before there are rows.

    Raises:
        InputError: Nothing can be written there.
    """
    store, folder = locate_writable(query.sink or "", storage)
    with store.naming(folder, "write"), store.writing(f"{folder}/empty.parquet") as file:
        pq.write_table(query.schema.empty_table(), file)


@contextmanager
def _let_leave(query: StandingQuery) -> Iterator[None]:
    """Log what a sink raises whose query is leaving, for no later micro-batch could begin without it."""
    try:
        yield
    except Exception:
        if query.state != "leaving":
            raise
        _log.exception("query %r is removed, and its last rows are lost, for its sink fails", query.name)


def _read_blocks(
    rows: pa.RecordBatch | pa.Table, queries: Mapping[int, StandingQuery]
) -> dict[int, pa.Table]:
    """Return the rows of these queries among those of ``ENVELOPE``, by the query's number."""
    blocks: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
    for number, block in zip(rows.column("query").to_pylist(), rows.column("block"), strict=True):
        if number in queries:
            blocks[number].append(pa.ipc.read_record_batch(block.as_buffer(), queries[number].schema))
    return {number: pa.Table.from_batches(each) for number, each in blocks.items()}
