"""Every kind of source over the same rows, each asked as users ask it; and asking one in a test."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import sqlalchemy as sa
from aiohttp import web

from millrace.limits.fetcher import wait_within
from millrace.limits.secrets import Secrets
from millrace.lookups.database import database
from millrace.lookups.function import function
from millrace.lookups.http import http
from millrace.lookups.source import Refused
from tests.limits.running import PATIENCE
from tests.lookups.test_rows import as_json
from tests.lookups.web import Web
from tests.postgres import SECRET, Postgres

DATABASES = ("sqlite", "postgresql")
KINDS = ("http", "function", "coroutine", *DATABASES)
SLOW = 13
"""The key of which a hanging source never has an answer."""

Row = dict[str, Any]
PAIR = pa.schema([("x", pa.int64()), ("y", pa.string()), ("v", pa.int64())])
PAIRS: list[Row] = [{"x": n % 100, "y": f"y{n % 7}", "v": n} for n in range(1000)]


class Kind:
    """Makes sources of one of ``KINDS``, with files in a folder, or with tables of PostgreSQL."""

    def __init__(self, name: str, folder: Path, server: Postgres | None) -> None:
        self.name, self._folder, self._server = name, folder, server
        self.secrets = Secrets({} if server is None else {SECRET: server.password})

    @asynccontextmanager
    async def source(self, rows: list[Row], bound: tuple[str, ...], *, hangs=False, **terms) -> AsyncIterator:
        """Give a source of rows by some of their columns, or of all; one that hangs has none for ``SLOW``."""
        match self.name:
            case "http":
                with _served(rows, bound, hangs=hangs) as url:
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
        name, view = (f"{kind}_{uuid4().hex}" for kind in ("rows", "hanging"))
        if self._server is None:
            url = f"sqlite:///{self._folder / name}.db"
            engine = sa.create_engine(url)
            endless = "WITH RECURSIVE n(i) AS (SELECT x UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
            waits = f"x <> {SLOW} OR ({endless}) > 0"
        else:
            url = self._server.url
            engine = sa.create_engine("postgresql+psycopg://", creator=self._server.connect)
            waits = f"CASE WHEN x = {SLOW} THEN pg_sleep(60) IS NOT NULL ELSE true END"
        columns = [sa.Column(column, _sql_type(value)) for column, value in rows[0].items()]
        with engine.begin() as connection:
            table = sa.Table(name, sa.MetaData(), *columns)
            table.create(connection)
            connection.execute(sa.insert(table), rows)
            if hangs:
                connection.execute(sa.text(f"CREATE VIEW {view} AS SELECT * FROM {name} WHERE {waits}"))
        engine.dispose()
        return url, view if hangs else name


def _sql_type(value: object) -> Any:
    if type(value) is int:
        return sa.BigInteger()
    is_moment = isinstance(value, dt.datetime) and value.tzinfo is not None
    return sa.DateTime(timezone=True) if is_moment else sa.literal(value).type


def _as_sent(value: object) -> object:
    """A key as it arrives in the body of a request."""
    written = json.loads(as_json(value))
    return written.replace("+00:00", "Z") if isinstance(value, dt.datetime) else written


@contextmanager
def _served(rows: list[Row], bound: tuple[str, ...], *, hangs: bool) -> Iterator[str]:
    async def answer(request: web.Request) -> web.Response:
        found = rows
        if bound:
            asked = [(await request.json())[name] for name in bound]
            keys = list(zip(*asked, strict=True)) if isinstance(asked[0], list) else [tuple(asked)]
            if hangs and (SLOW,) in keys:
                await asyncio.Event().wait()
            found = [row for row in rows if tuple(_as_sent(row[name]) for name in bound) in keys]
        return web.Response(text=as_json(found), content_type="application/json")

    with Web(answer) as seen:
        yield f"{seen.url}/rows"


@contextmanager
def _called(rows: list[Row], bound: tuple[str, ...], *, hangs: bool, later: bool) -> Iterator[Callable]:
    """A function that returns rows by their keys; a hanging one returns at the end, or is cancelled."""
    end, under_way = threading.Event(), set()

    def at_once(*given: Any) -> Iterator[Row] | list[Row]:
        if hangs and not later and given == (SLOW,):
            end.wait(20)
        if not bound:
            return iter(rows)
        keys = list(zip(*given, strict=True)) if isinstance(given[0], list) else [given]
        return [row for row in rows if tuple(row[name] for name in bound) in keys]

    async def waiting(*given: Any) -> Iterator[Row] | list[Row]:
        if hangs and given == (SLOW,):
            under_way.add(asyncio.current_task())
            try:
                await asyncio.Event().wait()
            finally:
                under_way.discard(asyncio.current_task())
        return at_once(*given)

    try:
        yield waiting if later else at_once
        assert not under_way
    finally:
        end.set()


# Asking a source: opened, asked and closed.


def keys_of(schema: pa.Schema, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> pa.RecordBatch:
    kinds = [
        (name, schema.field(name.partition(".")[0]).type) for name in columns
    ]  # ends have their column's
    return pa.RecordBatch.from_pylist(rows, pa.schema(kinds))


async def fetched(source, schema, columns, keys, secrets: Secrets | None = None) -> pa.RecordBatch:
    session = source.open(schema, columns, secrets or Secrets())
    try:
        rows = await wait_within(session.fetch(keys_of(schema, columns, keys)), source.terms.timeout)
    finally:
        await session.close()
    assert rows.schema == schema
    rows.validate(full=True)
    return rows


async def scanned(source, schema: pa.Schema, secrets: Secrets | None = None) -> list[pa.RecordBatch]:
    session = source.open(schema, (), secrets or Secrets())
    try:
        return [batch async for batch in session.scan()]
    finally:
        await session.close()


async def refusal(work: Awaitable[Any]) -> Refused:
    with pytest.raises(Refused) as told:
        await work
    return told.value


async def ended(*names: str) -> None:
    """Wait until all threads have ended whose names begin with these."""
    for thread in threading.enumerate():
        if thread.name.startswith(names):
            await asyncio.to_thread(thread.join, PATIENCE)
            assert not thread.is_alive(), thread.name


def failing(call: Callable[[], Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as told:
        call()
    return str(told.value)
