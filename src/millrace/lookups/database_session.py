"""Asking a database: one statement for a batch of keys, in a thread, until its time is over.

Columns are read as the driver returns them and converted here, strictly: a dialect's own conversions would
hide that a value is not what was declared. Keys are given as Python values without casts, so that the
database's own type of the column decides, and its indexes are used.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc

from millrace.limits.secrets import Secrets
from millrace.lookups.engines import connected, refused
from millrace.lookups.rows import RowReader
from millrace.lookups.source import Refused, shortened
from millrace.lookups.threads import Threads
from millrace.lookups.values import Rules, Unfit

if TYPE_CHECKING:
    from millrace.lookups.database import DatabaseSource

SCAN_ROWS = 10_000
"""Rows of a scan in one batch."""

_WITH_TUPLES = ("postgresql", "mysql", "mariadb", "sqlite", "oracle")
"""Dialects that compare several columns at once, ``(a, b) IN ((1, 2), …)``; others get AND and OR."""
_IDLE_SECONDS = 5.0
"""For which a connection is kept open that nothing is asked on: others want to connect too."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0  # seconds until a driver is told again to stop

_T = TypeVar("_T")


class DatabaseSession:
    """An open :class:`DatabaseSource`."""

    def __init__(
        self, source: DatabaseSource, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets
    ) -> None:
        self._source = source
        self._columns = columns
        self._engine, self._secrets = connected(source, secrets)
        # Without a transaction there is nothing to begin and to end: one round trip a statement.
        self._idle = _Idle(self._engine.execution_options(isolation_level="AUTOCOMMIT"), _IDLE_SECONDS)
        self._reader = RowReader(schema, columns, Rules(native=True, scrub=self._secrets.scrub))
        self._dialect = self._engine.dialect.name
        self._threads = Threads(f"database {source.table}")
        self._bound: list[sa.ColumnClause[Any]] = [
            sa.column(source.names.get(name, name)) for name in columns
        ]
        wanted: list[sa.Label[Any]] = [
            sa.column(source.names.get(name, name)).label(name) for name in schema.names
        ]
        self._select = sa.select(*wanted).select_from(sa.table(source.table, schema=source.schema))
        # SQLite takes no more parameters, and times have several spellings.
        times = sum(pa.types.is_timestamp(schema.field(name).type) for name in columns)
        is_sqlite = self._dialect == "sqlite"
        self._most_keys = max(1, 32_000 // (6**times * max(1, len(columns)))) if is_sqlite else sys.maxsize
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Ask for some keys; see :meth:`millrace.lookups.source.Session.fetch`."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_unused())
        most = self._source.max_rows
        rows: list[Any] = []
        for first in range(0, keys.num_rows, self._most_keys):
            statement, parameters = self._statement(keys.slice(first, self._most_keys))
            asked, work = statement.limit(most + 1 - len(rows)), _Work(self._idle)
            rows += await self._run(work, partial(work.all, asked, parameters))
        if len(rows) > most:
            raise Refused(
                "too many rows",
                f"{self._source.describe()}: more than {most:,} rows for {keys.num_rows:,} keys: give a "
                "smaller batch, bind more columns, or set max_rows",
            )
        return self._batch(rows)

    async def scan(self) -> AsyncIterator[pa.RecordBatch]:
        """Return all rows, by a cursor in the database; see :meth:`millrace.lookups.source.Session.scan`."""
        work = _Work(_Idle(self._engine, 0))
        try:
            await self._run(work, lambda: work.begin(self._select))
            while rows := await self._run(work, work.more):
                yield self._batch(rows)
        finally:
            with suppress(Exception):  # it is read or broken, and not wanted any more
                await self._threads.run(work.end)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._closing is not None:
                self._closing.cancel()
            await self._close(self._idle.close)
            self._threads.close()

    async def _close_unused(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            await self._close(self._idle.close_unused)

    async def _close(self, close: Callable[[], None]) -> None:
        with suppress(Refused):  # so many abandoned statements that there are no threads
            await self._threads.run(close)

    def _statement(self, keys: pa.RecordBatch) -> tuple[sa.Select[Any], dict[str, Any]]:
        """Return the statement for some keys, of one text whatever their number, and its parameters."""
        values = [keys.column(name).to_pylist() for name in self._columns]
        if self._dialect == "sqlite":
            values = _spell_keys(values)
        if len(values) == 1:
            found = self._bound[0].in_(sa.bindparam("keys", expanding=True))
            return self._select.where(found), {"keys": values[0]}
        rows = list(zip(*values, strict=True))
        if self._dialect in _WITH_TUPLES:
            found = sa.tuple_(*self._bound).in_(sa.bindparam("keys", expanding=True))
            return self._select.where(found), {"keys": rows}
        each = [
            sa.and_(*(column == value for column, value in zip(self._bound, row, strict=True)))
            for row in rows
        ]
        return self._select.where(sa.or_(*each)), {}

    def _batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        try:
            return self._reader.batch([tuple(row) for row in rows])
        except Unfit as error:
            message = self._secrets.scrub(f"{self._source.describe()}: {error}")
            raise Refused("unfit answer", shortened(message)) from None

    async def _run(self, work: _Work, function: Callable[[], _T]) -> _T:
        """Call a function in a thread; abandon what it does when nobody waits, as when time is over."""
        returned = threading.Event()

        def call() -> _T:
            try:
                return function()
            finally:
                returned.set()

        try:
            return await self._threads.run(call)
        except asyncio.CancelledError:
            work.abandon(returned)
            raise
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001  # drivers raise what they like
            raise refused(error, self._source, self._secrets) from None


class _Idle:
    """Connections that are open between statements, for so many seconds; to be used in threads."""

    def __init__(self, engine: sa.Engine, seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds
        self._lock = threading.Lock()
        self._connections: list[tuple[sa.Connection, float]] = []  # with when they came back, the latest last

    def take(self) -> sa.Connection:
        """Return a connection for one statement: the one that was in use last, or a new one."""
        with self._lock:
            if self._connections:
                return self._connections.pop()[0]
        return self._engine.connect()

    def give(self, connection: sa.Connection, *, works: bool) -> None:
        """Take a connection back; one that does not work is closed, and so are all if it broke."""
        broken = connection.invalidated
        try:
            if works and not broken:
                connection.rollback()
        except exc.SQLAlchemyError:
            broken = True
        with self._lock:
            if works and not broken and self._seconds:
                self._connections.append((connection, time.monotonic()))
                return
        if broken:  # a restart breaks all
            self._close_older(math.inf)
        if not works:
            connection.invalidate()
        _close([connection])

    def close_unused(self) -> None:
        """Close those whose time is over."""
        self._close_older(time.monotonic() - self._seconds)

    def close(self) -> None:
        """Close all, and keep none from now on."""
        self._seconds = 0.0
        self._close_older(math.inf)

    def _close_older(self, latest: float) -> None:
        with self._lock:
            old = [each for each, since in self._connections if since < latest]
            self._connections = [each for each in self._connections if each[1] >= latest]
        _close(old)


def _close(connections: list[sa.Connection]) -> None:
    for connection in connections:
        with suppress(exc.SQLAlchemyError, OSError):
            connection.close()


class _Work:
    """One statement and its connection; all but ``abandon`` is called in threads, one call at a time.

    The lock keeps a statement from being stopped on a connection that has gone back and may be another's.
    """

    def __init__(self, connections: _Idle) -> None:
        self._connections = connections
        self._lock = threading.Lock()
        self._connection: sa.Connection | None = None
        self._result: sa.CursorResult[Any] | None = None
        self._abandoned = False

    def all(self, statement: sa.Select[Any], parameters: dict[str, Any]) -> Sequence[Any]:
        """Return all rows.

        A connection that was closed while it was idle is told by the first statement; another one is tried
        then, for asking each time beforehand would take as long as the statement.
        """
        try:
            return self._all(statement, parameters)
        except exc.DBAPIError as error:
            if not error.connection_invalidated or self._abandoned:
                raise
            return self._all(statement, parameters)

    def _all(self, statement: sa.Select[Any], parameters: dict[str, Any]) -> Sequence[Any]:
        try:
            return self._connected().execute(statement, parameters).all()
        finally:
            self.end()

    def begin(self, statement: sa.Select[Any]) -> None:
        """Open a cursor in the database."""
        options = {"yield_per": SCAN_ROWS}
        self._result = self._connected().execute(statement, execution_options=options)

    def more(self) -> Sequence[Any]:
        """Return the next rows; none at the end."""
        assert self._result is not None
        return self._result.fetchmany(SCAN_ROWS)

    def end(self) -> None:
        """Give the connection back; throw it away if it may be busy still."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._result is not None:
            with suppress(Exception):  # the transaction that the cursor is in may have failed
                self._result.close()
        self._connections.give(connection, works=not self._abandoned)

    def abandon(self, returned: threading.Event) -> None:
        """Stop the statement, where the driver has a way; its connection is not used again.

        ``returned`` is set when the call that runs the statement has returned.
        """
        with self._lock:
            self._abandoned = True
            if self._connection is None:
                return
            raw = self._connection.connection.dbapi_connection
        for name in ("interrupt", "cancel"):
            stop = getattr(raw, name, None)
            if stop is not None:  # it may ask the database, and wait for it
                threading.Thread(target=_stop, args=(stop, returned), daemon=True).start()
                return

    def _connected(self) -> sa.Connection:
        connection = self._connections.take()
        with self._lock:
            self._connection = connection
            if self._abandoned:
                raise TimeoutError("nobody waits for it any more")
        return connection


def _stop(stop: Callable[[], object], returned: threading.Event) -> None:
    # A driver forgets it where the statement has not begun yet, so it is told until the call has returned.
    pause = _FIRST_PAUSE
    while not returned.is_set():
        with suppress(Exception):  # the statement may be over by now
            stop()
        returned.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _spell_keys(columns: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return keys, by column, as SQLite may have them: it has no times, dates and decimals of its own."""
    rows = [row for key in zip(*columns, strict=True) for row in product(*map(_spell, key))]
    return list(zip(*rows, strict=True))


def _spell(value: Any) -> list[Any]:
    match value:
        case Decimal():
            return [format(value, "f")]
        case dt.datetime():  # Python's own driver writes no fraction that is zero, SQLAlchemy always one
            fractions = ["microseconds", "auto"] + ["milliseconds"] * (value.microsecond % 1000 == 0)
            return list({value.isoformat(between, each): None for between in " T" for each in fractions})
        case dt.date():
            return [value.isoformat()]
    return [value]
