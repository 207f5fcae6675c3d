"""The rows of each query to its sink, once a micro-batch.

Cells write files themselves, under names that are the micro-batch's and the cell's: one that runs again
replaces them by the same rows. Functions are called where the query was started, with the micro-batch's
number, and may be called again with it. A sink that fails ends the hub, until its query is removed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from millrace.errors import InputError, encodable, first_line
from millrace.options import StorageOptions
from millrace.streams.hub.folder import Folder, locate_writable
from millrace.streams.hub.query import ENVELOPE, StandingQuery

_log = logging.getLogger("millrace")

_LOST = "query %r is removed, and its last rows are lost, for its sink fails: %s"

Sink = Callable[[pa.Table, int], Any]
"""Is given the rows of a query in a micro-batch, and the micro-batch's number."""


class SinkFiles(ExitStack):
    """The files of a micro-batch in a cell: one for each query that has a folder, and rows.

    They get their names once all rows are written; if an error comes before, none does.

    Args:
        name: Of each file, in the folder of its query.
        storage: Reaches the stores that the folders are in.
        leaving: Numbers of the queries that are removed: an error of their folders ends nothing.

    Attributes:
        lost: These errors, by the query's number.
    """

    def __init__(self, name: str, storage: StorageOptions, leaving: Collection[int] = ()) -> None:
        super().__init__()
        self._name, self._storage, self._leaving = name, storage, leaving
        self._files: dict[int, ExitStack] = {}
        self._writers: dict[int, pq.ParquetWriter] = {}
        self.lost: dict[int, str] = {}

    def write(self, query: StandingQuery, rows: pa.RecordBatch) -> None:
        """Write rows of a query.

        Raises:
            InputError: Nothing can be written to its folder.
        """
        if query.id in self.lost:
            return
        if query.id not in self._files:
            self._files[query.id] = self.enter_context(ExitStack())
        with self._let_leave(query.id) as file:
            if query.id not in self._writers:
                store, folder = locate_writable(query.sink or "", self._storage)
                target = file.enter_context(store.writing(f"{folder}/{self._name}"))
                self._writers[query.id] = file.enter_context(pq.ParquetWriter(target, query.schema))
            self._writers[query.id].write_batch(rows)

    def finish(self) -> None:
        """Give the files their names; raises as :meth:`write`."""
        for number in self._files:
            with self._let_leave(number) as file:
                file.close()

    @contextmanager
    def _let_leave(self, number: int) -> Iterator[ExitStack]:
        """Give what ends a query's file, and keep the error that ends it if the query is leaving."""
        file = self._files[number]
        try:
            yield file
        except Exception as error:
            if number not in self._leaving:
                raise
            self.lost[number] = encodable(first_line(error))
            with suppress(Exception):
                file.__exit__(type(error), error, error.__traceback__)  # nothing of it stays


def deliver(rows: DataFrame, batch: int, folder: Folder, functions: Mapping[int, Sink]) -> None:
    """Give functions the rows of their queries, by the queries' numbers, for names come again."""
    blocks = rows.toArrow().column("block").drop_null()
    envelopes = [pa.ipc.read_record_batch(block.as_buffer(), ENVELOPE) for block in blocks]
    given = pa.Table.from_batches(envelopes, ENVELOPE)
    for made in given["made"].drop_null().to_pylist():
        folder.note_made(*made)
    columns = map(given.column, ("query", "block", "lost"))
    told = [row for row in zip(*columns, strict=True) if row[1].is_valid or row[2].is_valid]
    # Those whose removal is made have no rows any more.
    queries = {query.id: query for query in folder.queries()} if told else {}
    found: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
    for number, block, lost in told:
        if (query := queries.get(number.as_py())) is None:
            continue
        if lost.is_valid:
            _log.error(_LOST, query.name, lost.as_py())
        else:
            found[query.id].append(pa.ipc.read_record_batch(block.as_buffer(), query.schema))
    for number, batches in sorted(found.items()):
        query = queries[number]
        try:
            find_function(query, functions)(pa.Table.from_batches(batches), batch)
        except Exception as error:
            if query.state != "leaving":
                raise
            _log.error(_LOST, query.name, first_line(error), exc_info=error)


def find_function(query: StandingQuery, functions: Mapping[int, Sink]) -> Sink:
    """Return the function that a query gives its rows to, of those by number; raise InputError without it."""
    if query.id not in functions:
        raise InputError(
            f"query {query.name!r} gives its rows to a function, which no restart remembers: give hub() "
            f"sinks={{{query.name!r}: function}}"
        )
    return functions[query.id]
