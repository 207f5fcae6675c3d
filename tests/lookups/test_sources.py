"""What every kind of source promises: HTTP, functions, coroutines, SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.limits.fetcher import wait_within
from millrace.lookups.database import database
from millrace.lookups.function import function
from millrace.lookups.http import http
from tests.limits.running import run
from tests.lookups.kinds import PAIR, PAIRS, SLOW, fetched, keys_of, refusal, scanned

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
    st.sets(st.tuples(st.integers(-5, 120)), min_size=1, max_size=40),
    st.sets(
        st.tuples(st.integers(0, 99), st.sampled_from(["y0", "y3", "no", "Y1"])), min_size=1, max_size=20
    ),
)
def test_rows_are_those_of_the_keys(kind, singles, doubles):
    """For one bind column and for two, as many as there are, whatever the keys; of one key alone too."""

    async def check(bound, keys):
        asked = [dict(zip(bound, key, strict=True)) for key in sorted(keys)]
        async with kind.source(PAIRS, bound, batch=max(2, len(keys))) as source:
            rows = await fetched(source, PAIR, bound, asked, kind.secrets)
        found = sorted(rows.to_pylist(), key=lambda row: row["v"])
        assert found == [row for row in PAIRS if tuple(row[name] for name in bound) in keys]

    run(check(("x",), singles))
    run(check(("x", "y"), doubles))


async def test_values_of_every_type_come_as_they_are(kind):
    """A key of each type finds its row; nulls are null."""
    # SQLite has no moments and no decimals; test_database has those that it has in their place.
    names = "bilfsytn" if kind.name == "sqlite" else "".join(EVERYTHING)
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
        errors = [await refusal(wait_within(session.fetch(slow), 0.7)) for _ in range(2)]
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
)
def test_an_identity_is_that_of_the_answers(one, same, others):
    """A cache is for the same rows, however fast they are asked for; a source travels."""
    assert one.identity == same.identity
    assert all(other.identity != one.identity for other in others)
    assert pickle.loads(pickle.dumps(one)) == one
