"""Every kind of source over the same rows, each asked as users ask it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from aiohttp import web

from millrace.limits.secrets import Secrets
from millrace.lookups.database import database
from millrace.lookups.function import function
from millrace.lookups.http import http
from tests.lookups.asking_sources import ended
from tests.lookups.test_json_rows import as_json
from tests.lookups.web import serving
from tests.postgres import SECRET, Postgres

DATABASES = ("sqlite", "postgresql")
KINDS = ("http", "function", "coroutine", *DATABASES)
SLOW = 13
"""The key of which a hanging source never has an answer."""

Row = dict[str, Any]
PAIR = pa.schema([("x", pa.int64()), ("y", pa.string()), ("v", pa.int64())])
PAIRS: list[Row] = [{"x": n % 100, "y": f"y{n % 7}", "v": n} for n in range(1000)]
TYPES = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    Decimal: "numeric(20, 4)",
    str: "text",
    bytes: "bytea",
    dt.date: "date",
    dt.datetime: "timestamptz",
}
"""Of PostgreSQL."""


class Kind:
    """Makes sources of one kind.

    Args:
        name: One of ``KINDS``.
        folder: For files.
        server: For tables of PostgreSQL.
    """

    def __init__(self, name: str, folder: Path, server: Postgres | None) -> None:
        self.name, self._folder, self._server = name, folder, server
        self.secrets = Secrets({} if server is None else {SECRET: server.password})

    @asynccontextmanager
    async def source(
        self, rows: list[Row], bound: tuple[str, ...], *, hangs: bool = False, **terms: Any
    ) -> AsyncIterator[Any]:
        """Give a source of rows by some of their columns; of all rows for none. The first row has no null.

        A source that ``hangs`` has no answer for the key ``SLOW``.
        """
        match self.name:
            case "http":
                async with _served(rows, bound, hangs=hangs) as url:
                    body = {name: f"{{{name}}}" for name in bound}
                    asked = {"method": "POST", "body": body} if bound else {}
                    yield http(url, **asked, **terms)
            case "function" | "coroutine":
                with _called(rows, bound, hangs=hangs, later=self.name == "coroutine") as called:
                    yield function(called, scan=not bound, **terms)
            case _:
                yield database(*self.table(rows, hangs=hangs), **terms)

    async def settled(self) -> None:
        """Wait until nobody works any more on what nobody waits for."""
        if self._server is not None:
            busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%hanging%' AND state = 'active'"
            with self._server.connect() as connection:
                while connection.execute(f"{busy} AND pid <> pg_backend_pid()").fetchone() != (0,):
                    await asyncio.sleep(0.02)
        await ended("database ", "function ")

    def table(self, rows: list[Row], *, hangs: bool = False) -> tuple[str, str]:
        """Make a table or a view in the database; return the URL and the name."""
        return (self._in_sqlite if self.name == "sqlite" else self._in_postgres)(rows, hangs=hangs)

    def _in_sqlite(self, rows: list[Row], *, hangs: bool) -> tuple[str, str]:
        path = self._folder / f"{uuid4().hex}.db"
        columns = ", ".join(rows[0])
        with closing(sqlite3.connect(path)) as base, base:
            base.execute(f"CREATE TABLE rows ({columns})")
            places = ", ".join("?" * len(rows[0]))
            base.executemany(f"INSERT INTO rows VALUES ({places})", [tuple(row.values()) for row in rows])
            endless = "WITH RECURSIVE n(i) AS (SELECT x UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
            base.execute(f"CREATE VIEW hanging AS SELECT * FROM rows WHERE x <> {SLOW} OR ({endless}) > 0")
        return f"sqlite:///{path}", "hanging" if hangs else "rows"

    def _in_postgres(self, rows: list[Row], *, hangs: bool) -> tuple[str, str]:
        assert self._server is not None
        name = f"rows_{uuid4().hex}"
        view = f"hanging_{uuid4().hex}"
        with self._server.connect() as connection:
            columns = ", ".join(f"{column} {_sql_type(value)}" for column, value in rows[0].items())
            connection.execute(f"CREATE TABLE {name} ({columns})")
            places = ", ".join(["%s"] * len(rows[0]))
            with connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {name} VALUES ({places})", [tuple(row.values()) for row in rows]
                )
            if hangs:
                waits = f"CASE WHEN x = {SLOW} THEN pg_sleep(60) IS NOT NULL ELSE true END"
                connection.execute(f"CREATE VIEW {view} AS SELECT * FROM {name} WHERE {waits}")
        return self._server.url, view if hangs else name


def _sql_type(value: object) -> str:
    return "timestamp" if getattr(value, "tzinfo", value) is None else TYPES[type(value)]


def _as_sent(value: object) -> object:
    """A key as it arrives in the body of a request."""
    written = json.loads(as_json(value))
    return written.replace("+00:00", "Z") if isinstance(value, dt.datetime) else written


@asynccontextmanager
async def _served(rows: list[Row], bound: tuple[str, ...], *, hangs: bool) -> AsyncIterator[str]:
    """Serve rows to whoever posts their keys."""

    async def answer(request: web.Request) -> web.Response:
        found = rows
        if bound:
            asked = [(await request.json())[name] for name in bound]
            keys = list(zip(*asked, strict=True)) if isinstance(asked[0], list) else [tuple(asked)]
            if hangs and (SLOW,) in keys:
                await asyncio.Event().wait()
            found = [row for row in rows if tuple(_as_sent(row[name]) for name in bound) in keys]
        return web.Response(text=as_json(found), content_type="application/json")

    async with serving(answer) as seen:
        yield f"{seen.url}/rows"


@contextmanager
def _called(
    rows: list[Row], bound: tuple[str, ...], *, hangs: bool, later: bool
) -> Iterator[Callable[..., Any]]:
    """A function that returns rows by their keys; a hanging one returns at the end."""
    end = threading.Event()

    def plain(*given: Any) -> Iterator[Row] | list[Row]:
        if not bound:
            return iter(rows)
        keys = list(zip(*given, strict=True)) if isinstance(given[0], list) else [given]
        return [row for row in rows if tuple(row[name] for name in bound) in keys]

    def blocking(*given: Any) -> Iterator[Row] | list[Row]:
        if hangs and given == (SLOW,):
            end.wait(20)
        return plain(*given)

    async def waiting(*given: Any) -> Iterator[Row] | list[Row]:
        if hangs and given == (SLOW,):
            await asyncio.Event().wait()
        return plain(*given)

    try:
        yield waiting if later else blocking
    finally:
        end.set()
