"""Lookups in databases, on PostgreSQL and SQLite: what is asked, what comes, and how failures end."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import pickle
import socket
import sqlite3
import threading
import uuid
from contextlib import closing
from decimal import Decimal

import pyarrow as pa
import pytest
import sqlalchemy as sa

from millrace.errors import InputError, MillraceError, OptionError
from millrace.limits.fetcher import wait_within
from millrace.limits.secrets import Secrets
from millrace.lookups.database import database
from millrace.lookups.database_session import DatabaseSession
from millrace.lookups.source import Refused
from tests.limits.running import run
from tests.lookups.kinds import DATABASES, PAIR, PAIRS, ended, failing, fetched, keys_of, refusal
from tests.session import wait_for

X = pa.schema([("x", pa.int64())])
SKU = pa.schema([("sku", pa.string()), ("v", pa.int64())])

DIALECTS = pytest.mark.parametrize("kind", DATABASES, indirect=True)


@pytest.fixture
def secrets(postgres):
    return Secrets({"PG_PASSWORD": postgres.password})


def sqlite(folder, *statements: str) -> str:
    with closing(sqlite3.connect(folder / "x.db")) as base, base:
        for each in statements:
            base.execute(each)
    return f"sqlite:///{folder}/x.db"


def ask(source, schema: pa.Schema, secrets: Secrets | None = None, **key) -> list[dict]:
    return run(fetched(source, schema, tuple(key), [key], secrets)).to_pylist()


def refused(source, schema: pa.Schema, secrets: Secrets | None = None, **key) -> Refused:
    return run(refusal(fetched(source, schema, tuple(key), [key], secrets)))


@DIALECTS
def test_dialects_without_tuples_get_the_same_rows(kind, monkeypatch):
    """AND and OR find what a comparison of tuples finds, also with as many keys as a batch has."""
    keys = [{"x": x, "y": f"y{y}"} for x in range(100) for y in range(5)]
    monkeypatch.setattr("millrace.lookups.database_session._WITH_TUPLES", ())
    found = run(fetched(database(*kind.table(PAIRS)), PAIR, ("x", "y"), keys, kind.secrets)).to_pylist()
    assert sorted(found, key=lambda row: row["v"]) == [row for row in PAIRS if row["y"] < "y5"]


@DIALECTS
async def test_a_batch_of_keys_is_one_statement(kind):
    """One round trip, whatever the number of keys, and no transaction around it."""
    statements = []
    session = DatabaseSession(database(*kind.table(PAIRS)), PAIR, ("x",), kind.secrets)
    await session.fetch(keys_of(PAIR, ("x",), [{"x": 1}]))  # connects
    sa.event.listen(session._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    sa.event.listen(session._engine, "begin", lambda *args: statements.append("BEGIN"))
    for size in (1, 17, 500):
        await session.fetch(keys_of(PAIR, ("x",), [{"x": x} for x in range(size)]))
    await session.close()
    asked = [each for each in statements if each != "BEGIN"]
    assert len(asked) == 3 and all(each.startswith("SELECT") for each in asked)


@DIALECTS
async def test_quick_statements_share_a_connection_and_slow_ones_do_not_wait(kind, monkeypatch):
    """A statement waits a while for a connection that is in use, and makes one then."""
    made, together = [], threading.Barrier(8)

    def wait(*_):
        together.wait(20)

    session = DatabaseSession(database(*kind.table(PAIRS)), PAIR, ("x",), kind.secrets)
    sa.event.listen(session._engine, "connect", lambda *_: made.append(1))

    async def ask_at_once() -> None:
        await asyncio.gather(*(session.fetch(keys_of(PAIR, ("x",), [{"x": x}])) for x in range(8)))

    monkeypatch.setattr("millrace.lookups.database_session._PATIENCE", 60.0)
    await ask_at_once()
    assert len(made) == 1
    monkeypatch.setattr("millrace.lookups.database_session._PATIENCE", 0.0)
    sa.event.listen(session._engine, "before_cursor_execute", wait)
    await ask_at_once()
    assert len(made) == 8
    sa.event.remove(session._engine, "before_cursor_execute", wait)
    session._connections.close_unused()
    monkeypatch.setattr("millrace.lookups.database_session._PATIENCE", 60.0)
    await ask_at_once()
    await session.close()
    assert len(made) == 9


async def test_sqlite_is_interrupted_where_a_statement_begins_too_late(tmp_path):
    """It ends in its thread, though the interruption came before it; test_sources has the others."""
    over = threading.Event()

    def wait(*_):
        over.wait(20)

    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) AS x FROM n"
    source = database(sqlite(tmp_path, f"CREATE VIEW slowly AS {endless}"), "slowly", timeout=0.2)
    session = source.open(X, ("x",), Secrets())
    sa.event.listen(sa.Engine, "before_cursor_execute", wait)
    try:
        error = await refusal(
            wait_within(session.fetch(keys_of(X, ("x",), [{"x": 1}])), source.terms.timeout)
        )
    finally:
        over.set()
        await session.close()
        sa.event.remove(sa.Engine, "before_cursor_execute", wait)
    await ended("database slowly")
    assert (error.kind, error.again) == ("timeout", True)


def test_columns_and_schemas_have_the_databases_names(postgres, secrets):
    """Names that need quotes, views, and the lookup's own names for columns."""
    postgres.run(
        'CREATE SCHEMA "Odd one"',
        'CREATE TABLE "Odd one"."From" ("Sku id" text, "select" numeric)',
        """INSERT INTO "Odd one"."From" VALUES ('a', 1.5)""",
        'CREATE VIEW "Odd one".seen AS SELECT * FROM "Odd one"."From"',
    )
    schema = pa.schema([("sku", pa.string()), ("price", pa.float64())])
    for table in ("From", "seen"):
        columns = {"sku": "Sku id", "price": "select"}
        source = database(postgres.url, table, schema="Odd one", columns=columns)
        source.check(schema, ("sku",), secrets)
        assert ask(source, schema, secrets, sku="a") == [{"sku": "a", "price": 1.5}]
    assert "'\"Odd" not in source.describe() and "Odd one.seen" in source.describe()


def test_types_that_databases_have_besides(postgres, secrets):
    """Identifiers, enumerations, documents and arrays, as texts, structs and arrays."""
    row = {"id": str(uuid.UUID(int=7)), "m": "glad", "j": {"a": 1, "b": [2]}, "a": [1, 2], "v": "x"}
    postgres.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE besides (id uuid, m mood, j jsonb, a int[], c char(3), v varchar)",
        f"INSERT INTO besides VALUES ('{row['id']}', 'glad', '{json.dumps(row['j'])}', '{{1,2}}', 'c', 'x')",
    )
    ints = pa.list_(pa.field("element", pa.int64()))
    kinds = {"j": pa.struct([("a", pa.int64()), ("b", ints)]), "a": ints}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in row])
    for column in ("id", "m", "v"):
        assert ask(database(postgres.url, "besides"), schema, secrets, **{column: row[column]}) == [row]


def test_sqlite_has_no_decimals(tmp_path):
    """They are numbers there, and found and read as such."""
    schema = pa.schema([("d", pa.decimal128(9, 2)), ("v", pa.int64())])
    made = "CREATE TABLE x (d NUMERIC(9, 2), v INTEGER)", "INSERT INTO x VALUES (12.5, 1)"
    found = ask(database(sqlite(tmp_path, *made), "x"), schema, d=Decimal("12.50"))
    assert found == [{"d": Decimal("12.50"), "v": 1}]


def test_sqlite_has_no_times(tmp_path):
    """They are texts there, which each program writes in its way."""
    schema = pa.schema([("at", pa.timestamp("us")), ("v", pa.int64())])
    written = (
        "2020-01-01 00:00:00",
        "2020-01-01T00:00:00",
        "2020-01-01 00:00:00.000",
        "2020-01-01 00:00:01",
    )
    rows = [f"INSERT INTO x VALUES ('{at}', {v})" for v, at in enumerate(written)]
    source = database(sqlite(tmp_path, "CREATE TABLE x (at TIMESTAMP, v INTEGER)", *rows), "x")
    at = dt.datetime(2020, 1, 1)  # noqa: DTZ001  # SQLite has no zones
    assert [row["v"] for row in ask(source, schema, at=at)] == [0, 1, 2]
    assert [row["v"] for row in ask(source, schema, at=at, v=1)] == [1]


async def test_a_lost_connection_may_come_back(postgres, secrets):
    """What a restart breaks is asked again; connections that broke meanwhile are noticed before their use."""
    postgres.run(
        "CREATE FUNCTION breaks(x bigint) RETURNS bigint LANGUAGE sql AS "
        "'SELECT pg_terminate_backend(pg_backend_pid())::int::bigint'",
        "CREATE TABLE one AS SELECT 1::bigint AS x",
        "CREATE VIEW broken AS SELECT breaks(x) AS x FROM one",
    )
    error = await refusal(fetched(database(postgres.url, "broken"), X, ("x",), [{"x": 1}], secrets))
    assert error.again
    session = database(postgres.url, "one").open(X, ("x",), secrets)
    keys = keys_of(X, ("x",), [{"x": 1}])
    await session.fetch(keys)
    ours = "query LIKE '%one%' AND pid <> pg_backend_pid()"
    postgres.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
    assert (await session.fetch(keys)).num_rows == 1
    await session.close()


async def test_connections_are_used_again_and_closed_when_nothing_is_asked(postgres, secrets, monkeypatch):
    """Statements at once have one each; all go when their time is over, or with the session."""
    postgres.run("CREATE TABLE shared AS SELECT i::bigint AS x FROM generate_series(0, 7) i")
    source = database(postgres.url, "shared", max_in_flight=4)
    session = source.open(X, ("x",), secrets)
    ours = "query LIKE '%FROM shared%' AND pid <> pg_backend_pid()"
    pids = f"SELECT pid FROM pg_stat_activity WHERE {ours}"

    async def opened() -> set[tuple[int]]:
        with postgres.connect() as connection:
            return set(connection.execute(pids).fetchall())

    async def ask(count: int) -> None:
        await asyncio.gather(*(session.fetch(keys_of(X, ("x",), [{"x": x}])) for x in range(count)))

    monkeypatch.setattr("millrace.lookups.database_session._IDLE_SECONDS", 60.0)
    await ask(4)
    before = await opened()
    await ask(1)
    assert len(before) in range(1, 5) and await opened() == before
    await session.close()
    await asyncio.to_thread(wait_for, lambda: not asyncio.run(opened()), 10)
    monkeypatch.setattr("millrace.lookups.database_session._IDLE_SECONDS", 0.05)
    session = source.open(X, ("x",), secrets)
    await ask(4)
    await asyncio.to_thread(wait_for, lambda: not asyncio.run(opened()), 10)
    await ask(1)
    await session.close()


def test_the_server_ends_statements_of_tasks_that_have_died(postgres, secrets):
    """Connections have its time-out, a second over the source's own."""
    session = database(postgres.url, "pairs", timeout=7).open(PAIR, ("x",), secrets)
    with session._engine.connect() as connection:
        assert connection.execute(sa.text("SHOW statement_timeout")).scalar() == "8s"
    session._engine.dispose()


@DIALECTS
def test_rows_of_a_statement_are_bounded(kind):
    """More than so many are not read; as many are."""
    enough, few = (database(*kind.table(PAIRS), max_rows=most) for most in (10, 9))
    assert len(ask(enough, PAIR, kind.secrets, x=1)) == 10
    error = refused(few, PAIR, kind.secrets, x=1)
    assert (error.kind, error.again) == ("too many rows", False) and "set max_rows" in error.message
    with pytest.raises(OptionError, match="max_rows is 0"):
        database("sqlite:///x.db", "pairs", max_rows=0)


def test_a_wrong_statement_stays_wrong(postgres, secrets, tmp_path):
    """A table that is gone, or a key that the column cannot be compared with, is not asked for again."""
    postgres.run("CREATE TABLE identifiers (sku uuid, v bigint)")
    for source, kind in (
        (database(postgres.url, "nowhere"), "UndefinedTable"),
        (database(postgres.url, "identifiers"), "InvalidTextRepresentation"),
        (database(sqlite(tmp_path), "nowhere"), "OperationalError"),
    ):
        error = refused(source, SKU, secrets, sku="no identifier")
        assert (error.kind, error.again) == (kind, False), error


@pytest.mark.parametrize(
    ("table", "columns", "says"),
    [
        ("pars", {}, "no such table: did you mean 'pairs'"),
        ("pairs", {"x": "vv"}, "has no column 'vv' (column 'x' of the lookup): did you mean 'v'"),
        ("pairs", {}, "has no column 'x': there is 'v', 'w'"),
        ("pairs", {"k": "v"}, "maps column 'k'"),
    ],
)
def test_check_finds_tables_and_columns(tmp_path, table, columns, says):
    url = sqlite(tmp_path, "CREATE TABLE pairs (v INTEGER, w INTEGER)")
    database(url, "pairs", columns={"x": "v"}).check(X, ("x",), Secrets())
    source = database(url, table, columns=columns)
    assert says in failing(lambda: source.check(X, ("x",), Secrets()), InputError)


def test_check_tells_what_is_wrong_with_a_connection(postgres, tmp_path):
    """No driver, no dialect, no server, no file, no way in: each in words of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]

    def says(url: str, **values: str) -> str:
        return failing(lambda: database(url, "t").check(X, ("x",), Secrets(values)), MillraceError)

    for url, said in {
        "mysql+pymysql://u@h/d": "pip install pymysql",
        "postgresql+psycopg2://u@h/d": "pip install psycopg2-binary",
        "postgresq://u@h/d": "did you mean 'postgresql'",
        "postgresql+psycopg_async://u@h/d": "asynchronous",
        "the database": "no URL of a database",
        f"sqlite:///{tmp_path}/no.db": "no file",
        "sqlite://": "in memory",
        f"postgresql+psycopg://u@127.0.0.1:{free}/d": "refused",
        postgres.url: "there is no value for the secret ${PG_PASSWORD}",
    }.items():
        told = says(url)
        assert said in told and told.count("table t") <= 1, told
    assert not (tmp_path / "no.db").exists()
    wrong = says(postgres.url, PG_PASSWORD="wr0ng password")
    assert "password authentication failed" in wrong and "wr0ng" not in wrong


@pytest.mark.parametrize("name", ["PG_PASSWORD", "PG_URL", "PG_ARG"])
def test_secrets_stay_hidden(postgres, caplog, name):
    """In texts, pickles, errors and logs; as a password, as a whole URL, and within connect_args."""
    caplog.set_level(logging.DEBUG)
    bare = sa.URL.create("postgresql+psycopg", "postgres", None, "127.0.0.1", postgres.port, "postgres")
    whole = bare.set(password=postgres.password).render_as_string(hide_password=False)
    urls = {"PG_PASSWORD": postgres.url, "PG_URL": "${PG_URL}", "PG_ARG": bare.render_as_string()}
    how = {"connect_args": {"password": "${PG_ARG}"}} if name == "PG_ARG" else {}
    source = database(urls[name], "nowhere", **how)
    assert source.secrets == (name,)
    secrets = Secrets({name: whole if name == "PG_URL" else postgres.password})
    postgres.run("CREATE TABLE IF NOT EXISTS known AS SELECT 1::bigint AS x")
    assert ask(database(urls[name], "known", **how), X, secrets, x=1) == [{"x": 1}]
    texts = [repr(source), source.describe(), source.identity, str(pickle.dumps(source))]
    texts.append(failing(lambda: source.check(X, ("x",), secrets), InputError))
    texts.append(str(refused(source, X, secrets, x=1)))
    for text in [*texts, caplog.text]:
        for form in (postgres.password, whole, "s3cret"):
            assert form not in text
