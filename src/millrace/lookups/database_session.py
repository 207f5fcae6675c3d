"""Asking a database: one statement for a batch of keys, in a thread, until its time is over.

Also how it is connected to, what is in it, and what its errors mean.

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
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool, QueuePool

from millrace.errors import InputError, MillraceError, SetupError, near
from millrace.limits.secrets import NAME, Secrets
from millrace.lookups.rows import RowReader
from millrace.lookups.source import Refused, name_ends, shortened
from millrace.lookups.threads import Threads, within
from millrace.lookups.values import Rules, Unfit

if TYPE_CHECKING:
    from millrace.lookups.database import DatabaseSource

SCAN_ROWS = 10_000
"""Rows of a scan in one batch."""

_WITH_TUPLES = ("postgresql", "mysql", "mariadb", "sqlite", "oracle")
"""Dialects that compare several columns at once, ``(a, b) IN ((1, 2), …)``; others get AND and OR."""
_IDLE_SECONDS = 5.0
"""After which a connection that nothing is asked on is closed, at the latest: others want to connect too."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0  # seconds until a driver is told again to stop

_PATIENCE = 0.05
"""Seconds for which a statement waits for another's connection: about what it takes to make one over TLS."""

CHECK_SECONDS = 10.0
"""For connecting and looking for the table, before anything runs."""

_SYNCHRONOUS = {
    "asyncpg": "postgresql+psycopg",
    "aiosqlite": "sqlite",
    "aiomysql": "mysql+pymysql",
    "asyncmy": "mysql+pymysql",
    "aioodbc": "mssql+pyodbc",
}
_SERVER_TIMEOUTS = {
    "postgresql": "SET statement_timeout = {milliseconds}",
    "mysql": "SET SESSION max_execution_time = {milliseconds}",
    "mariadb": "SET SESSION max_statement_time = {seconds}",
}
"""What ends long statements, by SQLAlchemy's dialect; it holds for a connection."""

_KNOWN = (("postgresql", "psycopg"), ("postgresql", "pg8000"), ("mysql", "pymysql"), ("mssql", "pyodbc"))
_PACKAGES = {
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "mysql": "mysql-connector-python",
    "cx_Oracle": "cx_Oracle",
}
"""Packages of drivers that are named otherwise than their modules."""

_T = TypeVar("_T")


class DatabaseSession:
    """An open :class:`DatabaseSource`."""

    def __init__(
        self, source: DatabaseSource, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets
    ) -> None:
        self._source = source
        self._columns = columns
        self._connect = partial(make_engine, source, secrets)
        # Without a transaction there is nothing to begin and to end: one round trip a statement.
        self._engine, self._secrets = self._connect(
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,  # nothing to undo, and a round trip with some drivers
            poolclass=QueuePool,
            pool_size=0,  # as many as there are statements at once
            pool_use_lifo=True,
        )
        self._connections = _Connections(self._engine)
        self._reader = RowReader(schema, columns, Rules(native=True, scrub=self._secrets.scrub))
        self._dialect = self._engine.dialect.name
        self._threads = Threads(f"database {source.table}")
        bound = [name for name in columns if name in schema.names]
        ranged = [name for name in schema.names if {*name_ends(name)} <= {*columns}]
        self._bound: list[sa.ColumnClause[Any]] = [
            sa.column(source.names.get(name, name)) for name in (*bound, *ranged)
        ]
        self._is_ranged = bool(ranged)
        wanted: list[sa.Label[Any]] = [
            sa.column(source.names.get(name, name)).label(name) for name in schema.names
        ]
        self._select = sa.select(*wanted).select_from(sa.table(source.table, schema=source.schema))
        # SQLite takes no more parameters, nor deeper conditions, and times have several spellings.
        times = sum(pa.types.is_timestamp(schema.field(name).type) for name in bound)
        is_sqlite = self._dialect == "sqlite"
        most = 900 if ranged else 32_000 // max(1, len(columns))
        self._most_keys = max(1, most // 6**times) if is_sqlite else sys.maxsize
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Ask for some keys; see :meth:`millrace.lookups.source.Session.fetch`."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_unused())
        most = self._source.max_rows
        if self._is_ranged and keys.num_rows > self._most_keys:  # of two statements a row would come twice
            said = f"SQLite takes {self._most_keys} such keys at once: give batch={self._most_keys}"
            raise Refused("too many keys", f"{self._source.describe()}: {said}")
        rows: list[Any] = []
        for first in range(0, keys.num_rows, self._most_keys):
            statement, parameters = self._statement(keys.slice(first, self._most_keys))
            asked, work = statement.limit(most + 1 - len(rows)), _Work(self._connections)
            rows += await self._run(work, partial(work.all, asked, parameters))
        if len(rows) > most:
            raise Refused(
                "too many rows",
                f"{self._source.describe()}: more than {most:,} rows for {keys.num_rows:,} keys: give a "
                "smaller batch, bind more columns, or set max_rows",
            )
        return self._batch(rows)

    async def scan(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Return all rows, by a cursor in the database; see :meth:`millrace.lookups.source.Session.scan`."""
        engine, _ = self._connect(poolclass=NullPool)  # a cursor needs a transaction
        work = _Work(_Connections(engine))
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
            await self._close(self._engine.dispose)
            self._threads.close()

    async def _close_unused(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            await self._close(self._connections.close_unused)

    async def _close(self, close: Callable[[], None]) -> None:
        with suppress(Refused):  # so many abandoned statements that there are no threads
            await self._threads.run(close)

    def _statement(self, keys: pa.RecordBatch) -> tuple[sa.Select[Any], dict[str, Any]]:
        """Return the statement for some keys, of one text whatever their number, and its parameters."""
        values = [keys.column(name).to_pylist() for name in self._columns]
        if self._dialect == "sqlite":
            values = _spell_keys(values, ranged=self._is_ranged)
        if len(values) == 1:
            found: sa.ColumnElement[bool] = self._bound[0].in_(sa.bindparam("keys", expanding=True))
            if self._engine.driver == "psycopg":  # writing hundreds of parameters takes as long as the answer
                found = self._bound[0] == sa.any_(sa.bindparam("keys"))
            return self._select.where(found), {"keys": values[0]}
        rows = list(zip(*values, strict=True))
        if self._dialect in _WITH_TUPLES and not self._is_ranged:
            found = sa.tuple_(*self._bound).in_(sa.bindparam("keys", expanding=True))
            return self._select.where(found), {"keys": rows}
        return self._select.where(sa.or_(*map(self._agrees, rows))), {}

    def _agrees(self, key: Sequence[Any]) -> sa.ColumnElement[bool]:
        """Return whether a row has the values of a key, and lies in its interval."""
        values = [sa.literal(value, sa.types.NullType()) for value in key]  # the column's type decides
        *bound, last = self._bound
        equal = [column == value for column, value in zip(bound, values, strict=False)]
        end = last.between(values[-2], values[-1]) if self._is_ranged else last == values[-1]
        return sa.and_(*equal, end)

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
            raise explain_refusal(error, self._source, self._secrets) from None


class _Connections:
    """Connections of one session; to be used in threads.

    A statement waits for one that is in use about as long as it takes to make one, and makes one then. So
    quick statements share few, and slow ones do not hold up each other.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._free = threading.Semaphore(1)  # the first one is made at once

    def take(self) -> sa.Connection:
        """Return a connection for one statement."""
        is_free = self._free.acquire(timeout=_PATIENCE)
        try:
            return self._engine.connect()
        except BaseException:
            if is_free:
                self._free.release()
            raise

    def give(self, connection: sa.Connection, *, works: bool) -> None:
        """Take a connection back; close it if it does not work."""
        with suppress(exc.SQLAlchemyError, OSError):
            if not works:
                connection.invalidate()
            connection.close()
        self._free.release()

    def close_unused(self) -> None:
        """Close those that are not in use, which come back all the same; the next one is made at once."""
        unused = 0
        while self._free.acquire(blocking=False):
            unused += 1
        self._engine.pool.dispose()
        if unused:
            self._free.release()


class _Work:
    """One statement and its connection; all but ``abandon`` is called in threads, one call at a time.

    The lock keeps a statement from being stopped on a connection that has gone back and may be another's.
    """

    def __init__(self, connections: _Connections) -> None:
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
        """Give the connection back; close it if it may be busy still."""
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


def _spell_keys(columns: Sequence[Sequence[Any]], *, ranged: bool) -> list[Sequence[Any]]:
    """Return keys, by column, as SQLite may have them: it has no times, dates and decimals of its own.

    With ``ranged`` the last two are ends: the least spelling of one and the greatest of the other, for as
    texts all times between are between these, however they are spelled.
    """
    spelled = [list(map(_spell, column)) for column in columns]
    if ranged:
        spelled[-2] = [[min(low)] for low in spelled[-2]]
        spelled[-1] = [[max(high)] for high in spelled[-1]]
    rows = [row for key in zip(*spelled, strict=True) for row in product(*key)]
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


def filled_url(source: DatabaseSource, secrets: Secrets) -> tuple[URL, Secrets]:
    """Return a source's URL with its secrets, and the secrets with what else in it is to be hidden.

    Raises:
        InputError: It is no URL of a database.
    """
    text = source.url
    is_secret = NAME.fullmatch(text) is not None
    try:
        url = make_url(secrets.fill(text) if is_secret else text)
    except (exc.ArgumentError, ValueError):
        raise InputError(
            f"{text!r} is no URL of a database, expected dialect+driver://user:${{PASSWORD}}@host/database"
        ) from None
    if is_secret:
        return url, secrets.hiding(str(url.password), text) if url.password else secrets

    def fill(piece: str | None) -> str | None:
        return None if piece is None else secrets.fill(piece)

    query = {
        name: secrets.fill(value) if isinstance(value, str) else tuple(map(secrets.fill, value))
        for name, value in url.query.items()
    }
    filled = url.set(
        username=fill(url.username),
        password=fill(url.password),
        host=fill(url.host),
        database=fill(url.database),
        query=query,
    )
    return filled, secrets


def make_engine(source: DatabaseSource, secrets: Secrets, **how: Any) -> tuple[sa.Engine, Secrets]:
    """Return an engine, which connects when it is used, and the secrets to scrub its errors with.

    ``how`` is given to SQLAlchemy.

    Raises:
        InputError: The URL cannot be used.
        SetupError: The driver is not installed.
    """
    url, secrets = filled_url(source, secrets)
    arguments = {
        name: secrets.fill(value) if isinstance(value, str) else value for name, value in source.connect_args
    }
    try:
        dialect = url.get_dialect()
        if dialect.is_async:
            works = _SYNCHRONOUS.get(dialect.driver, "a driver that is not")
            raise InputError(
                f"{source.describe()}: the driver {dialect.driver} is asynchronous, which is of no use here: "
                f"use {works}"
            )
        if dialect.name == "sqlite":
            _check_file(url.database, source, secrets)
        engine = sa.create_engine(url, hide_parameters=True, connect_args=arguments, **how)
    except exc.NoSuchModuleError:
        known = [*sa.dialects.__all__, *map("{0[0]}+{0[1]}".format, _KNOWN)]
        raise InputError(
            f"{source.describe()}: SQLAlchemy knows no dialect {secrets.scrub(url.drivername)!r}: "
            f"{near(url.drivername, known)} Other dialects are packages of their own, to be installed"
        ) from None
    except ImportError as error:
        module = error.name or str(error)
        raise SetupError(
            f"{source.describe()}: the driver {module!r} is not installed: "
            f"pip install {_PACKAGES.get(module.split('.')[0], module)}"
        ) from None
    except MillraceError:  # which may be a ValueError too
        raise
    except (exc.SQLAlchemyError, TypeError, ValueError) as error:
        raise InputError(secrets.scrub(f"{source.describe()}: {said(error)}")) from None
    _bound_statements(engine, source.terms.timeout)
    return engine, secrets


def _bound_statements(engine: sa.Engine, seconds: float) -> None:
    """Have the server end statements that take longer, and a second: those of tasks that have died, say."""
    setting = _SERVER_TIMEOUTS.get(engine.dialect.name)
    if setting is None:
        return
    statement = setting.format(seconds=seconds + 1, milliseconds=math.ceil(1000 * (seconds + 1)))

    @sa.event.listens_for(engine, "connect")
    def bound(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        try:
            cursor.execute(statement)
        finally:
            cursor.close()
        connection.commit()  # or it would be undone with the transaction


def _check_file(name: str | None, source: DatabaseSource, secrets: Secrets) -> None:
    """Raise an InputError unless SQLite's file is there: SQLite would make an empty one."""
    if name in (None, "", ":memory:"):
        raise InputError(
            f"{source.describe()}: a database in memory is seen by one connection alone; name a file"
        )
    assert name is not None
    if not name.startswith("file:") and not Path(name).is_file():
        raise InputError(
            f"{source.describe()}: there is no file {secrets.scrub(name)!r}: expected a database of SQLite"
        )


def inspect_columns(source: DatabaseSource, secrets: Secrets) -> list[str]:
    """Connect and return the names of the table's columns.

    Raises:
        InputError: The database cannot be reached or does not let us in, or there is no such table.
        SetupError: The driver is not installed.
    """
    engine, secrets = make_engine(source, secrets, poolclass=NullPool)
    try:
        return within(CHECK_SECONDS, lambda: _columns(engine, source))
    except TimeoutError:
        raise InputError(f"{source.describe()}: no answer within {CHECK_SECONDS:g} s") from None
    except MillraceError:
        raise
    except Exception as error:  # noqa: BLE001  # drivers raise what they like while they connect
        raise InputError(shortened(secrets.scrub(f"{source.describe()}: {said(error)}"))) from None
    finally:
        engine.dispose()


def _columns(engine: sa.Engine, source: DatabaseSource) -> list[str]:
    with engine.connect() as connection:
        inspector = sa.inspect(connection)
        try:
            return [column["name"] for column in inspector.get_columns(source.table, source.schema)]
        except exc.NoSuchTableError:
            there = inspector.get_table_names(source.schema) + inspector.get_view_names(source.schema)
        raise InputError(f"{source.describe()}: there is no such table: {near(source.table, there)}")


def said(error: Exception) -> str:
    """Return what the driver said, without the statement and SQLAlchemy's own remarks."""
    driver = getattr(error, "orig", None)
    if driver is None:
        return f"{type(error).__name__}: {error}"
    return f"{type(driver).__name__}: {driver}"


def explain_refusal(error: Exception, source: DatabaseSource, secrets: Secrets) -> Refused:
    """Return what an error of a statement means: whether it may pass, and what to tell."""
    driver = getattr(error, "orig", None) or error
    again = isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError | OSError)
    again = again or (isinstance(error, exc.DBAPIError) and error.connection_invalidated)
    # A table that is missing is an operational error to SQLite, which has no others.
    again = again and not str(driver).startswith(("no such table", "no such column"))
    message = shortened(secrets.scrub(f"{source.describe()}: {said(error)}"))
    return Refused(type(driver).__name__, message, again=again)
