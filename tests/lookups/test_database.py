"""Lookups in databases, on PostgreSQL and SQLite: what is asked, what comes, and how failures end."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import pickle
import socket
import sqlite3
import threading
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
import sqlalchemy as sa

from millrace.errors import InputError, OptionError, SetupError
from millrace.limits.client import Client
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration
from millrace.limits.secrets import Secrets
from millrace.lookups.database import database
from millrace.lookups.database_session import DatabaseSession, _Work
from tests.limits.running import run
from tests.lookups.asking_sources import failing, fetched, keys_of, refusal

PAIR = pa.schema([("x", pa.int64()), ("y", pa.string()), ("v", pa.int64())])


@pytest.fixture
def secrets(postgres):
    return Secrets({"PG_PASSWORD": postgres.password})


@pytest.fixture(scope="module")
def pairs(postgres, tmp_path_factory):
    """The URLs of a table of pairs: in PostgreSQL, and in SQLite."""
    postgres.run(
        "CREATE TABLE pairs (x bigint, y text, v bigint)",
        "INSERT INTO pairs SELECT i % 100, 'y' || i % 7, i FROM generate_series(0, 999) i",
    )
    path = tmp_path_factory.mktemp("sqlite") / "pairs.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE pairs (x INTEGER, y TEXT, v INTEGER)")
        rows = [(i % 100, f"y{i % 7}", i) for i in range(1000)]
        connection.executemany("INSERT INTO pairs VALUES (?, ?, ?)", rows)
    connection.close()
    return {"postgresql": postgres.url, "sqlite": f"sqlite:///{path}"}


DIALECTS = pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])


@DIALECTS
def test_dialects_without_tuples_get_the_same_rows(pairs, secrets, dialect, monkeypatch):
    """AND and OR find what a comparison of tuples finds, also with as many keys as a batch has."""
    keys = [{"x": x, "y": f"y{y}"} for x in range(100) for y in range(5)]
    source = database(pairs[dialect], "pairs")
    tuples = run(fetched(source, PAIR, ("x", "y"), keys, secrets))
    monkeypatch.setattr("millrace.lookups.database_session._WITH_TUPLES", ())
    others = run(fetched(source, PAIR, ("x", "y"), keys, secrets))
    assert sorted(map(str, tuples.to_pylist())) == sorted(map(str, others.to_pylist()))
    assert tuples.num_rows > 500


@DIALECTS
async def test_a_batch_of_keys_is_one_statement(pairs, secrets, dialect):
    """One round trip, whatever the number of keys, and no transaction around it."""
    statements = []
    session = DatabaseSession(database(pairs[dialect], "pairs"), PAIR, ("x",), secrets)
    await session.fetch(keys_of(PAIR, ("x",), [{"x": 1}]))  # connects
    sa.event.listen(session._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    sa.event.listen(session._engine, "begin", lambda *args: statements.append("BEGIN"))
    for size in (1, 17, 500):
        await session.fetch(keys_of(PAIR, ("x",), [{"x": x} for x in range(size)]))
    await session.close()
    await session.close()
    assert len([each for each in statements if each != "BEGIN"]) == 3
    assert all(each == "BEGIN" or each.startswith("SELECT") for each in statements)


@pytest.mark.parametrize("late", [False, True])
def test_sqlite_is_interrupted(tmp_path, monkeypatch, late):
    """A statement that takes too long ends in its thread, too, also where it begins when its time is over."""
    abandoned, abandon = threading.Event(), _Work.abandon
    monkeypatch.setattr(_Work, "abandon", lambda *given: (abandon(*given), abandoned.set()))

    def wait(*_):
        abandoned.wait(20)

    if late:
        sa.event.listen(sa.Engine, "before_cursor_execute", wait)
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "CREATE VIEW slowly AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
            "SELECT count(*) AS x FROM n"
        )
    connection.close()
    schema = pa.schema([("x", pa.int64())])
    source = database(f"sqlite:///{path}", "slowly", timeout=0.2)
    try:
        error = run(refusal(fetched(source, schema, ("x",), [{"x": 1}])))
    finally:
        if late:
            sa.event.remove(sa.Engine, "before_cursor_execute", wait)
    assert (error.kind, error.again) == ("timeout", True)
    for thread in threading.enumerate():
        if thread.name == "database slowly":
            thread.join(20)
            assert not thread.is_alive()


def test_columns_and_schemas_have_the_databases_names(postgres, secrets):
    """Names that need quotes, views, and the lookup's own names for columns."""
    postgres.run(
        'CREATE SCHEMA "Odd one"',
        'CREATE TABLE "Odd one"."From" ("Sku id" text, "select" numeric)',
        """INSERT INTO "Odd one"."From" VALUES ('a', 1.5)""",
        'CREATE VIEW "Odd one".seen AS SELECT * FROM "Odd one"."From"',
    )
    schema = pa.schema([("sku", pa.string()), ("price", pa.float64())])
    columns = {"sku": "Sku id", "price": "select"}
    for table in ("From", "seen"):
        source = database(postgres.url, table, schema="Odd one", columns=columns)
        source.check(schema, ("sku",), secrets)
        assert run(fetched(source, schema, ("sku",), [{"sku": "a"}], secrets)).to_pylist() == [
            {"sku": "a", "price": 1.5}
        ]
    assert "'\"Odd" not in source.describe() and "Odd one.seen" in source.describe()


def test_types_that_databases_have_besides(postgres, secrets):
    """Identifiers, enumerations, documents and arrays, as texts, structs and arrays."""
    postgres.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE besides (id uuid, m mood, j jsonb, a int[], c char(3), v varchar)",
        f"INSERT INTO besides VALUES ('{uuid.UUID(int=7)}', 'glad', "
        """'{"a": 1, "b": [2]}', '{1,2}', 'ab', 'x')""",
    )
    ints = pa.list_(pa.field("element", pa.int64()))
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("m", pa.string()),
            ("j", pa.struct([("a", pa.int64()), ("b", ints)])),
            ("a", ints),
            ("v", pa.string()),
        ]
    )
    row = {"id": str(uuid.UUID(int=7)), "m": "glad", "j": {"a": 1, "b": [2]}, "a": [1, 2], "v": "x"}
    for column in ("id", "m", "v"):
        found = run(
            fetched(database(postgres.url, "besides"), schema, (column,), [{column: row[column]}], secrets)
        )
        assert found.to_pylist() == [row]


def test_sqlite_has_fewer_types(tmp_path):
    """Dates, times, decimals and truth values are texts and numbers there, and found and read as such."""
    path = tmp_path / "x.db"
    schema = pa.schema(
        [("b", pa.bool_()), ("d", pa.decimal128(9, 2)), ("t", pa.date32()), ("n", pa.timestamp("us"))]
    )
    engine = sa.create_engine(f"sqlite:///{path}")
    table = sa.Table(
        "x", sa.MetaData(), sa.Column("b", sa.Boolean), sa.Column("d", sa.NUMERIC), sa.Column("t", sa.Date),
        sa.Column("n", sa.DateTime),
    )  # fmt: skip
    row = {"b": True, "d": Decimal("12.50"), "t": dt.date(2024, 1, 2), "n": dt.datetime(2024, 1, 2, 3)}  # noqa: DTZ001
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(sa.insert(table).values(row | {"d": 12.5}))
    engine.dispose()
    source = database(f"sqlite:///{path}", "x")
    for columns in (("b",), ("d",), ("t",), ("n",), ("d", "t"), ("b", "n")):
        found = run(fetched(source, schema, columns, [{name: row[name] for name in columns}]))
        assert found.to_pylist() == [row], columns


def test_rows_that_only_the_database_takes_for_equal_come_back_as_they_are(tmp_path):
    """Capital and small letters may be the same there; whoever asked drops what does not agree."""
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE x (sku TEXT COLLATE NOCASE, v INTEGER)")
        connection.execute("INSERT INTO x VALUES ('a', 1), ('A', 2)")
    connection.close()
    schema = pa.schema([("sku", pa.string()), ("v", pa.int64())])
    rows = run(fetched(database(f"sqlite:///{path}", "x"), schema, ("sku",), [{"sku": "a"}]))
    assert sorted(rows.column("sku").to_pylist()) == ["A", "a"]


def test_a_lost_connection_may_come_back(postgres, secrets, pairs):
    """What a restart breaks is asked again; connections that broke meanwhile are noticed before their use."""

    async def work():
        session = database(pairs["postgresql"], "pairs").open(PAIR, ("x",), secrets)
        keys = keys_of(PAIR, ("x",), [{"x": 1}])
        await session.fetch(keys)
        with postgres.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pairs%' "
                "AND pid <> pg_backend_pid()"
            )
        rows = await session.fetch(keys)
        await session.close()
        return rows.num_rows

    assert run(work()) == 10

    postgres.run(
        "CREATE FUNCTION breaks(x bigint) RETURNS bigint LANGUAGE sql AS "
        "'SELECT pg_terminate_backend(pg_backend_pid())::int::bigint'",
        "CREATE TABLE one AS SELECT 1::bigint AS x",
        "CREATE VIEW broken AS SELECT x, breaks(x) AS v FROM one",
    )
    schema = pa.schema([("x", pa.int64()), ("v", pa.int64())])
    error = run(refusal(fetched(database(postgres.url, "broken"), schema, ("x",), [{"x": 1}], secrets)))
    assert error.again, error


def test_connections_are_bounded_over_all_tasks(postgres, secrets, pairs):
    """Between statements all tasks together keep as many open as there may be at once, whoever comes."""
    source = database(pairs["postgresql"], "pairs", max_in_flight=4)

    def connections() -> int:
        with postgres.connect() as connection:
            seen = "query LIKE '%FROM pairs%' AND pid <> pg_backend_pid()"
            return connection.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {seen}").fetchone()[0]

    async def settled(*expected: int) -> None:
        for _ in range(200):
            if connections() in expected:
                return
            await asyncio.sleep(0.02)
        assert connections() in expected

    async def ask(client: Client, session: DatabaseSession, x: int) -> None:
        async with client.permit():
            await session.fetch(keys_of(PAIR, ("x",), [{"x": x}]))

    async def work() -> None:
        limits = LookupSession(Registration("pairs", 4))
        tasks = []
        for number, most in ((1, 4), (2, 4), (3, 3), (5, 4)):
            while len(tasks) < number:
                client, session = Client.local(limits), source.open(PAIR, ("x",), secrets)
                client.on_share(session.keep)
                tasks.append((client, session))
            await asyncio.gather(*(ask(*task, x) for task in tasks for x in range(8)))
            await settled(most)
        for client, session in tasks[1:]:
            await session.close()
            await client.close()
        await asyncio.gather(*(ask(*tasks[0], x) for x in range(8)))
        await settled(1, 2, 3, 4)  # its first one may be free again before others open
        await tasks[0][1].close()
        await tasks[0][0].close()
        limits.close()
        await settled(0)

    run(work())


def test_the_server_ends_statements_of_tasks_that_have_died(postgres, secrets, pairs):
    """Connections have its time-out, a second over the source's own."""
    session = database(pairs["postgresql"], "pairs", timeout=7).open(PAIR, ("x",), secrets)
    with session._engine.connect() as connection:
        assert connection.execute(sa.text("SHOW statement_timeout")).scalar() == "8s"
    session._engine.dispose()


@DIALECTS
def test_rows_of_a_statement_are_bounded(pairs, secrets, dialect):
    """More than so many are not read; as many are."""
    enough, few = (database(pairs[dialect], "pairs", max_rows=most) for most in (10, 9))
    assert run(fetched(enough, PAIR, ("x",), [{"x": 1}], secrets)).num_rows == 10
    error = run(refusal(fetched(few, PAIR, ("x",), [{"x": 1}], secrets)))
    assert (error.kind, error.again) == ("too many rows", False) and "set max_rows" in error.message
    with pytest.raises(OptionError, match="max_rows is 0"):
        database(pairs[dialect], "pairs", max_rows=0)


def test_a_wrong_statement_stays_wrong(postgres, secrets):
    """A table that is gone, or a key that the column cannot be compared with, is not asked for again."""
    schema = pa.schema([("x", pa.int64())])
    error = run(refusal(fetched(database(postgres.url, "nowhere"), schema, ("x",), [{"x": 1}], secrets)))
    assert (error.kind, error.again) == ("UndefinedTable", False)
    postgres.run("CREATE TABLE texts (x uuid)")
    text = pa.schema([("x", pa.string())])
    error = run(refusal(fetched(database(postgres.url, "texts"), text, ("x",), [{"x": "no uuid"}], secrets)))
    assert (error.kind, error.again) == ("InvalidTextRepresentation", False)


def test_a_missing_table_of_sqlite_stays_missing(tmp_path):
    """SQLite calls it operational."""
    sqlite3.connect(tmp_path / "x.db").close()
    source = database(f"sqlite:///{tmp_path / 'x.db'}", "nowhere")
    error = run(refusal(fetched(source, PAIR, ("x",), [{"x": 1}])))
    assert not error.again and "no such table" in error.message


def test_check_finds_tables_and_columns(secrets, pairs):
    """What is missing is said with what is there."""
    database(pairs["postgresql"], "pairs").check(PAIR, ("x", "y"), secrets)
    with pytest.raises(InputError, match="no such table: did you mean 'pairs'"):
        database(pairs["postgresql"], "pars").check(PAIR, ("x",), secrets)
    schema = pa.schema([("lang", pa.int64())])
    with pytest.raises(
        InputError, match=r"has no column 'vv' \(column 'lang' of the lookup\): did you mean 'v'"
    ):
        database(pairs["sqlite"], "pairs", columns={"lang": "vv"}).check(schema, ("lang",), secrets)
    with pytest.raises(InputError, match="has no column 'lang': there is 'v', 'x', 'y'"):
        database(pairs["sqlite"], "pairs").check(schema, ("lang",), secrets)
    with pytest.raises(InputError, match="maps column 'k'"):
        database(pairs["sqlite"], "pairs", columns={"k": "x"}).check(schema, ("lang",), secrets)
    with pytest.raises(InputError, match="binds column 'k'"):
        database(pairs["sqlite"], "pairs").check(PAIR, ("k",), secrets)


def test_check_tells_what_is_wrong_with_a_connection(postgres, tmp_path):
    """No driver, no dialect, no server, no file, no way in: each in words of its own."""
    schema = pa.schema([("x", pa.int64())])

    def says(source, kind=InputError, **values):
        return failing(lambda: source.check(schema, ("x",), Secrets(values)), kind)

    assert "pip install pymysql" in says(database("mysql+pymysql://u@h/d", "t"), SetupError)
    assert "pip install psycopg2-binary" in says(database("postgresql+psycopg2://u@h/d", "t"), SetupError)
    assert "did you mean 'postgresql'" in says(database("postgresq://u@h/d", "t"))
    assert "asynchronous" in says(database("postgresql+psycopg_async://u@h/d", "t"))
    assert "no URL of a database" in says(database("the database", "t"))
    assert "no file" in says(database(f"sqlite:///{tmp_path}/no.db", "t"))
    assert not (tmp_path / "no.db").exists()
    assert "in memory" in says(database("sqlite://", "t"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    assert "refused" in says(database(f"postgresql+psycopg://u@127.0.0.1:{free}/d", "t"))
    wrong = says(database(postgres.url, "t"), PG_PASSWORD="wr0ng password")
    assert "password authentication failed" in wrong and "wr0ng" not in wrong
    assert "there is no value for the secret ${PG_PASSWORD}" in says(database(postgres.url, "t"))


def test_secrets_stay_hidden(postgres, pairs, caplog):
    """In texts, pickles, errors and logs; as a password, within connect_args, and as a whole URL."""
    caplog.set_level(logging.DEBUG)
    whole = sa.URL.create(
        "postgresql+psycopg", "postgres", postgres.password, "127.0.0.1", postgres.port, "postgres"
    )
    schema = pa.schema([("x", pa.int64())])
    sources = {
        "PG_PASSWORD": (database(postgres.url, "nowhere"), postgres.password),
        "PG_URL": (database("${PG_URL}", "nowhere"), whole.render_as_string(hide_password=False)),
        "PG_ARG": (
            database(
                f"postgresql+psycopg://postgres@127.0.0.1:{postgres.port}/postgres",
                "nowhere",
                connect_args={"password": "${PG_ARG}"},
            ),
            postgres.password,
        ),
    }
    for name, (source, value) in sources.items():
        assert source.secrets == (name,)
        secrets = Secrets({name: value})
        texts = [repr(source), source.describe(), source.identity, str(pickle.dumps(source))]
        texts.append(
            failing(lambda source=source, secrets=secrets: source.check(schema, ("x",), secrets), InputError)
        )
        texts.append(str(run(refusal(fetched(source, schema, ("x",), [{"x": 1}], secrets)))))
        known = database(source.url, "pairs", connect_args=dict(source.connect_args))
        assert run(fetched(known, PAIR, ("x",), [{"x": 1}], secrets)).num_rows == 10
        for text in [*texts, caplog.text]:
            for form in (postgres.password, value, whole.render_as_string(hide_password=False), "s3cret"):
                assert form not in text, name
