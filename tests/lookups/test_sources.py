"""What every kind of source promises: HTTP, functions, coroutines, SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.errors import InputError, MillraceError, OptionError
from millrace.limits.secrets import Secrets
from millrace.lookups.database import database
from millrace.lookups.function import function
from millrace.lookups.http import http
from tests.limits.running import run
from tests.lookups.asking_sources import failing, fetched, keys_of, refusal, scanned
from tests.lookups.kinds import PAIR, PAIRS, SLOW

EVERYTHING = {
    "b": (pa.bool_(), True),
    "i": (pa.int32(), -5),
    "l": (pa.int64(), 2**62),
    "f": (pa.float64(), 0.1),
    "d": (pa.decimal128(20, 4), Decimal("1234567890123456.7891")),
    "s": (pa.string(), "ä 'quoted'; -- x"),
    "y": (pa.binary(), b"\x00\xff"),
    "t": (pa.date32(), dt.date(2024, 2, 29)),
    "z": (pa.timestamp("us", tz="UTC"), dt.datetime(2024, 1, 2, 3, 4, 5, 678901, dt.UTC)),
    "n": (pa.timestamp("us"), dt.datetime(2024, 1, 2, 3, 4, 5)),  # noqa: DTZ001
}


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.sets(st.integers(-5, 120), min_size=1, max_size=40),
    st.sets(
        st.tuples(st.integers(0, 99), st.sampled_from(["y0", "y3", "no", "Y1"])), min_size=1, max_size=20
    ),
)
def test_rows_are_those_of_the_keys(kind, singles, doubles):
    """For one bind column and for two, as many as there are, whatever the keys; of one key alone too."""

    async def ask(bound, keys):
        async with kind.source(PAIRS, bound, batch=max(2, len(keys))) as source:
            rows = await fetched(source, PAIR, bound, keys, kind.secrets)
        return sorted(rows.to_pylist(), key=lambda row: row["v"])

    async def ask_both():
        assert await ask(("x",), [{"x": x} for x in sorted(singles)]) == [
            row for row in PAIRS if row["x"] in singles
        ]
        assert await ask(("x", "y"), [{"x": x, "y": y} for x, y in sorted(doubles)]) == [
            row for row in PAIRS if (row["x"], row["y"]) in doubles
        ]

    run(ask_both())


async def test_values_of_every_type_come_as_they_are(kind):
    """A key of each type finds its row; nulls are null."""
    names = "ilfsy" if kind.name == "sqlite" else "".join(EVERYTHING)  # test_database has SQLite's others
    schema = pa.schema([(name, EVERYTHING[name][0]) for name in names])
    row = {name: EVERYTHING[name][1] for name in names}
    nulls = dict.fromkeys(names) | {"i": -7}
    for name, wanted in (*((name, row) for name in names), ("i", nulls)):
        async with kind.source([row, nulls], (name,)) as source:
            found = await fetched(source, schema, (name,), [{name: wanted[name]}], kind.secrets)
            assert found.to_pylist() == [wanted], name


async def test_a_value_of_another_type_is_no_answer(kind):
    """It is no use to ask again; the message has the column, its type and what came."""
    async with kind.source([{"x": 1, "v": "dear"}], ("x",)) as source:
        schema = pa.schema([("x", pa.int64()), ("v", pa.int64())])
        error = await refusal(fetched(source, schema, ("x",), [{"x": 1}], kind.secrets))
    assert (error.kind, error.again) == ("unfit answer", False)
    assert "column 'v': expected bigint, got 'dear' (str)" in error.message


async def test_requests_overlap_and_a_session_is_closed_twice(kind):
    """Each has its own rows, also beside a scan, and when they are made again and again."""
    async with kind.source(PAIRS, ("x",), max_in_flight=4) as source:
        session = source.open(PAIR, ("x",), kind.secrets)
        for _ in range(3):
            scans = [session.scan()] if source.can_scan else []
            asked = [session.fetch(keys_of(PAIR, ("x",), [{"x": x}])) for x in range(12)]
            answers = await asyncio.gather(*asked, *map(anext, scans))
            assert [set(rows.column("x").to_pylist()) for rows in answers[:12]] == [{x} for x in range(12)]
            for scan in scans:
                await scan.aclose()
        await session.close()
        await session.close()


async def test_time_is_limited(kind):
    """What is silent or not wanted any more is given up, and others go on beside it."""
    terms = {"timeout": 0.7, "max_in_flight": 1}
    async with kind.source([{"x": SLOW}, {"x": 1}], ("x",), hangs=True, **terms) as source:
        schema = pa.schema([("x", pa.int64())])
        session = source.open(schema, ("x",), kind.secrets)
        slow, fast = (keys_of(schema, ("x",), [{"x": x}]) for x in (SLOW, 1))
        errors = [await refusal(session.fetch(slow)) for _ in range(2)]
        asked = asyncio.create_task(session.fetch(slow))
        await asyncio.sleep(0.1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await session.fetch(fast)).num_rows == 1
        await session.close()
    assert [(error.kind, error.again) for error in errors] == [("timeout", True)] * 2
    await kind.settled()


async def test_a_scan_has_all_rows_and_may_be_left(kind, monkeypatch):
    """In batches, so that memory does not hold the table."""
    monkeypatch.setattr("millrace.lookups.database_session.SCAN_ROWS", 300)
    monkeypatch.setattr("millrace.lookups.function.SCAN_ROWS", 300)
    async with kind.source(PAIRS, ()) as source:
        assert source.can_scan
        batches = await scanned(source, PAIR, kind.secrets)
        assert all(batch.schema == PAIR for batch in batches)
        assert kind.name == "http" or [batch.num_rows for batch in batches] == [300, 300, 300, 100]
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert sorted(rows, key=lambda row: row["v"]) == PAIRS
        session = source.open(PAIR, (), kind.secrets)
        begun = session.scan()
        assert (await anext(begun)).num_rows == batches[0].num_rows
        await begun.aclose()
        await session.close()


URL, FILE = "http://h/{sku}", "sqlite:///x.db"
MAKERS = {
    "http": lambda **how: http(URL, **how),
    "database": lambda **how: database(FILE, "t", **how),
    "function": lambda **how: function(print, **how),
}
BY_MAKER = pytest.mark.parametrize("made", MAKERS.values(), ids=MAKERS)


@BY_MAKER
def test_terms_bind_columns_and_types_are_checked(made):
    """Where a source is declared, or before anything runs, and without a request."""
    nested = pa.list_(pa.field("element", pa.int64()))

    def says(column, kind):
        return failing(lambda: made().check(pa.schema([("sku", kind)]), (column,), Secrets()), MillraceError)

    assert "timeout of a lookup is -1" in failing(lambda: made(timeout=-1), OptionError)
    assert "binds column 'skuu', which it lacks: did you mean 'sku'" in says("skuu", pa.string())
    assert "not a single value" in says("sku", nested)
    assert "column 'sku'" in says("sku", pa.large_string())


@pytest.mark.parametrize(
    ("one", "same", "others"),
    [
        (http(URL), http(URL, timeout=1, check=False), [http(f"{URL}?v=2"), http(URL, rows="$.x")]),
        (
            database(FILE, "t"),
            database(FILE, "t", batch=3),
            [database(FILE, "u"), database("sqlite:///y", "t")],
        ),
        (function(print), function(print, max_in_flight=2, timeout=1), [function(repr)]),
    ],
    ids=MAKERS,
)
def test_an_identity_is_that_of_the_answers(one, same, others):
    """A cache is for the same rows, however fast they are asked for; a source travels."""
    assert one.identity == same.identity
    assert all(other.identity != one.identity for other in others)
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    "made",
    [
        lambda: http("https://user:pa55word@h/{sku}"),
        lambda: http("https://h/{sku}?api_key=pa55word"),
        lambda: http("https://h/{sku}?access_token=pa55word&x={sku}"),
        lambda: http("https://h/{sku}?sig=pa55word%2Bpa55word%3D"),
        lambda: http("https://h/{sku}?key=pa55wordpa55word"),
        lambda: http("https://h/{sku}", headers={"Ocp-Apim-Subscription-Key": "pa55word"}),
        lambda: http("https://h/{sku}", headers={"Authorization": "Bearer pa55word"}),
        lambda: http("https://h/{sku}", headers={"proxy-authorization": "Basic pa55word"}),
        lambda: http("https://h/{sku}", headers={"COOKIE": "id=pa55word"}),
        lambda: http("https://h/{sku}", headers={"X-Api-Key": "pa55word"}),
        lambda: http("https://h/{sku}", headers={"X-Auth-Token": "pa55word"}),
        lambda: http("https://h/{sku}", body={"auth": [{"password": "pa55word"}]}),
        lambda: database("postgresql://u:pa55word@h/d", "t"),
        lambda: database("postgresql://u@h/d?password=pa55word", "t"),
        lambda: database("postgresql://u@h/d", "t", connect_args={"password": "pa55word"}),
        lambda: database("mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BO%7D%3BUID%3Dme%3BPWD%3Dpa55word", "t"),
    ],
)
def test_credentials_are_not_written_out(made):
    """They would be in every plan; the error says what to write instead, and not the credentials."""
    text = failing(made, InputError)
    assert "${" in text and "pa55word" not in text


def test_what_only_looks_like_credentials_is_well():
    """Secrets by name, keys, and users without a password."""
    source = http(
        "https://user:${PW}@h/{sku}?token={sku}&api_key=${KEY}&key=5&sort=token",
        headers={"Authorization": "Bearer ${TOKEN}", "Accept-Language": "de"},
        body={"token": "${TOKEN}", "key": "x", "password": "{sku}"},
    )
    assert source.secrets == ("PW", "KEY", "TOKEN")
    assert http("https://user@h/{sku}").secrets == ()
    assert database("mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BODBC%7D%3BPWD%3D${PW}", "t").secrets == ("PW",)
