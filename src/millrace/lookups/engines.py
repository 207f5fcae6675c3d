"""Connections to databases: how they are made, what is in the database, and what their errors mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool

from millrace.errors import InputError, MillraceError, SetupError, near
from millrace.limits.secrets import NAME, Secrets
from millrace.lookups.source import Refused, shortened
from millrace.lookups.threads import within

if TYPE_CHECKING:
    from millrace.lookups.database import DatabaseSource

CHECK_SECONDS = 10.0
"""For connecting and looking for the table, before anything runs."""

_SYNCHRONOUS = {
    "asyncpg": "postgresql+psycopg",
    "aiosqlite": "sqlite",
    "aiomysql": "mysql+pymysql",
    "asyncmy": "mysql+pymysql",
    "aioodbc": "mssql+pyodbc",
}


def filled_url(source: DatabaseSource, secrets: Secrets) -> tuple[URL, Secrets]:
    """Return a source's URL with its secrets, and the secrets with what else in it is to be hidden.

    Raises:
        InputError: It is no URL of a database.
    """
    text = source.url
    whole = NAME.fullmatch(text) is not None
    try:
        url = make_url(secrets.fill(text) if whole else text)
    except (exc.ArgumentError, ValueError):
        raise InputError(
            f"{text!r} is no URL of a database, expected dialect+driver://user:${{PASSWORD}}@host/database"
        ) from None
    if not whole:
        query = {
            name: secrets.fill(value) if isinstance(value, str) else tuple(map(secrets.fill, value))
            for name, value in url.query.items()
        }
        return (
            URL.create(
                url.drivername,
                _filled(url.username, secrets),
                _filled(url.password, secrets),
                _filled(url.host, secrets),
                url.port,
                _filled(url.database, secrets),
                query,
            ),
            secrets,
        )
    if url.password:
        secrets = secrets.hiding(str(url.password), text)
    return url, secrets


def _filled(piece: str | None, secrets: Secrets) -> str | None:
    return None if piece is None else secrets.fill(piece)


def connected(source: DatabaseSource, secrets: Secrets) -> tuple[sa.Engine, Secrets]:
    """Return an engine, which connects when it is used, and the secrets to scrub its errors with.

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
        engine = sa.create_engine(
            url,
            poolclass=NullPool,  # what is kept open, and for how long, the session knows
            skip_autocommit_rollback=True,  # nothing to undo, and a round trip with some drivers
            hide_parameters=True,
            connect_args=arguments,
        )
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
        raise InputError(f"{source.describe()}: there is no file {secrets.scrub(name)!r}")


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


def inspected(source: DatabaseSource, secrets: Secrets) -> list[str]:
    """Connect and return the names of the table's columns.

    Raises:
        InputError: The database cannot be reached or does not let us in, or there is no such table.
        SetupError: The driver is not installed.
    """
    engine, secrets = connected(source, secrets)
    try:
        return within(CHECK_SECONDS, lambda: _columns(engine, source))
    except TimeoutError:
        raise InputError(f"{source.describe()}: no answer within {CHECK_SECONDS:g} s") from None
    except MillraceError:
        raise
    except exc.SQLAlchemyError as error:
        raise InputError(shortened(secrets.scrub(f"{source.describe()}: {said(error)}"))) from None
    except Exception as error:  # noqa: BLE001  # drivers raise what they like while they connect
        name = type(error).__name__
        raise InputError(shortened(secrets.scrub(f"{source.describe()}: {name}: {error}"))) from None
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


def refused(error: Exception, source: DatabaseSource, secrets: Secrets) -> Refused:
    """Return what an error of a statement means: whether it may pass, and what to tell."""
    driver = getattr(error, "orig", None) or error
    again = isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError | OSError)
    again = again or (isinstance(error, exc.DBAPIError) and error.connection_invalidated)
    # A table that is missing is an operational error to SQLite, which has no others.
    again = again and not str(driver).startswith(("no such table", "no such column"))
    message = shortened(secrets.scrub(f"{source.describe()}: {said(error)}"))
    return Refused(type(driver).__name__, message, again=again)
