"""A source over a table in memory that notes what it was asked, and lookups over it without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from millrace.limits.client import Client
from millrace.limits.clock import WallClock
from millrace.limits.lookup_session import LookupSession
from millrace.limits.secrets import Secrets
from millrace.lookups.index import LookupIndex
from millrace.lookups.index_spec import IndexSpec, OnError
from millrace.lookups.loop import Loop
from millrace.lookups.scan import LookupScan
from millrace.lookups.source import Refused
from millrace.lookups.terms import Terms

Key = tuple[Any, ...]


@dataclass(eq=False)
class TableSource:
    """Answers from a table.

    Args:
        table: What it knows.
        terms: On which it may be asked.
        refuse: Returns what to raise for an attempt: it gets the key and how often it was asked before.
        generous: It returns all rows whatever it is asked for.
        before: Awaited before each answer, with the keys that were asked for.
        chunk: Rows in a batch of a scan.
        breaks: After so many batches the first scan fails, the second, and so on; later ones are whole.
    """

    table: pa.Table
    terms: Terms = field(default_factory=Terms)
    refuse: Callable[[Key, int], Refused | None] = lambda key, before: None
    generous: bool = False
    before: Callable[[list[Key]], Any] | None = None
    chunk: int = 3
    breaks: list[int] = field(default_factory=list)
    kind: str = "function"
    secrets: tuple[str, ...] = ()
    can_scan: bool = True

    def __post_init__(self) -> None:
        self.asked: Counter[Key] = Counter()
        self.requests: list[list[Key]] = []
        self.open_sessions = 0

    identity = property(lambda self: f"table {id(self)}")

    def describe(self) -> str:
        return "a table"

    def check(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> None:
        """Nothing can be wrong."""

    def open(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> _Session:
        self.open_sessions += 1
        return _Session(self, schema)


class _Session:
    def __init__(self, source: TableSource, schema: pa.Schema) -> None:
        self._source = source
        self._rows = source.table.select(schema.names).combine_chunks()

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        source = self._source
        wanted: list[Key] = list(zip(*(c.to_pylist() for c in keys.columns), strict=True))
        before = [source.asked[key] for key in wanted]
        source.asked.update(wanted)
        source.requests.append(wanted)
        if source.before is not None:
            await source.before(wanted)
        for key, times in zip(wanted, before, strict=True):
            refused = source.refuse(key, times)
            if refused is not None:
                raise refused
        mine = zip(*(self._rows.column(name).to_pylist() for name in keys.schema.names), strict=True)
        keep = [source.generous or key in wanted for key in mine]
        return self._batch(self._rows.filter(pa.array(keep, pa.bool_())))

    async def scan(self) -> AsyncIterator[pa.RecordBatch]:
        end = self._source.breaks.pop(0) if self._source.breaks else None
        for number, low in enumerate(range(0, self._rows.num_rows, self._source.chunk)):
            if number == end:
                raise Refused("broken", "the connection is gone", again=True)
            yield self._batch(self._rows.slice(low, self._source.chunk))

    async def close(self) -> None:
        self._source.open_sessions -= 1

    def _batch(self, table: pa.Table) -> pa.RecordBatch:
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


class Lookups:
    """Makes access modules that share an event loop; an index's room is that of its name."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.rooms: dict[str, LookupSession] = {}

    def index(
        self,
        name: str,
        columns: tuple[str, ...],
        source: Any,
        *,
        on_error: OnError = "fail",
        schema: pa.Schema | None = None,
    ) -> LookupIndex:
        """Return an index over a source, of the schema of its table if there is none."""
        spec = IndexSpec(name, columns, schema or source.table.schema, source, on_error)

        async def connect() -> Client:
            if name not in self.rooms:
                self.rooms[name] = LookupSession(spec.registration(Secrets()))
            return Client.local(self.rooms[name])

        return LookupIndex(spec, lambda rows: rows, self.loop, connect, WallClock())

    def scan(self, name: str, source: TableSource) -> LookupScan:
        """Return a scan of a source."""

        async def secrets() -> Secrets:
            return Secrets()

        return LookupScan(
            name, source, source.table.schema, lambda rows: rows, self.loop, secrets, WallClock()
        )


@contextmanager
def lookups():
    """Return what makes access modules; their event loop ends with the block."""
    loop = Loop()
    made = Lookups(loop)
    try:
        yield made
    finally:
        for room in made.rooms.values():
            loop.call(room.close)
        loop.close()
