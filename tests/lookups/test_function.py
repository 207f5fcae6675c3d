"""Lookups by functions: how they are called, what they may return, and how their failures end."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import types
from concurrent.futures import CancelledError
from contextlib import suppress
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

from millrace.limits.fetcher import wait_within
from millrace.limits.secrets import Secrets
from millrace.lookups import threads
from millrace.lookups.function import function
from millrace.lookups.source import Refused
from tests.limits.running import run
from tests.lookups.kinds import ended, fetched, keys_of, refusal, scanned

SCHEMA = pa.schema([("sku", pa.string()), ("price", pa.int64())])
SKU = ("sku",)
ROW = {"sku": "a", "price": 1}


def ask(fn, keys=("a",), schema=SCHEMA, bound=SKU, by=fetched, **settings):
    given = [key if isinstance(key, dict) else {bound[0]: key} for key in keys]
    return run(by(function(fn, **settings), schema, bound, given))


def refused(fn, keys=("a",), **settings) -> Refused:
    return ask(fn, keys, by=lambda *given: refusal(fetched(*given)), **settings)


def generated(sku="a"):
    yield ROW
    yield [ROW, ("a", 2)]
    yield pa.table({"sku": ["a"], "price": pa.array([3], pa.int8())})
    yield None
    yield from (("a", 4), ("a", 5))


async def generated_later(sku="a"):
    for row in generated():
        await asyncio.sleep(0)
        yield row


async def later(sku):
    await asyncio.sleep(0)
    return {"price": 1}


RETURNED = [
    (lambda sku: None, []),
    (lambda sku: ROW, [1]),
    (lambda sku: ("a", 1), [1]),
    (lambda sku: [("a", 1), ["a", 2], {"sku": "a", "price": 3}, {"price": 4}], [1, 2, 3, 4]),
    (lambda sku: pa.table({"price": [1, 2], "sku": ["a", "a"]}), [1, 2]),
    (lambda sku: pa.record_batch({"price": pa.array([1, None], pa.int32())}), [1, None]),
    (lambda sku: pa.table({"price": pa.chunked_array([[1], [2]])}), [1, 2]),
    (lambda sku: [pa.table({"price": [1]}), pa.table({"price": [2]})], [1, 2]),
    (lambda sku: pd.DataFrame({"price": [1.0, None]}), [1, None]),
    (lambda sku: pd.DataFrame({"sku": pd.Categorical(["a"]), "price": [1]}), [1]),
    (lambda sku: pd.DataFrame({"sku": [], "price": []}), []),
    (generated, [3, 1, 1, 2, 4, 5]),
    (generated_later, [3, 1, 1, 2, 4, 5]),
    (later, [1]),
    (lambda sku: later(sku), [1]),
]


@pytest.mark.parametrize(("fn", "prices"), RETURNED)
def test_what_a_function_may_return(fn, prices):
    """Nothing, rows, or tables of them; at once, one by one, or later."""
    rows = ask(fn)
    assert rows.column("price").to_pylist() == prices
    assert set(rows.column("sku").to_pylist()) <= {"a"}


def test_keys_are_arguments():
    """One value for each bind column in their order, as Python's own; with a batch, a list of each."""
    schema = pa.schema([("d", pa.decimal128(9, 2)), ("t", pa.date32()), ("n", pa.int64())])
    called = []
    keys = [{"t": dt.date(2024, 1, i), "d": Decimal(i)} for i in (1, 2)]
    ask(lambda *values: called.append(values), keys[:1], schema, ("t", "d"))
    ask(lambda *values: called.append(values), keys, schema, ("t", "d"), batch=5)
    ask(lambda *values: called.append(values), keys[:1], schema, ("t", "d"), batch=5)
    first, second = keys
    assert called == [
        (first["t"], first["d"]),
        ([first["t"], second["t"]], [first["d"], second["d"]]),
        ([first["t"]], [first["d"]]),
    ]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"price": "1"}, "column 'price': expected bigint, got '1' (str)"),
        ({"prize": 1}, "did you mean 'prize'"),
        (("a",), "a row has 1 values, expected one for each of the columns sku, price"),
        (5, "expected None, a dict, a list of dicts or tuples, a PyArrow table or a DataFrame, got 5 (int)"),
        ("a", "got 'a' (str)"),
        ([5], "expected a row as an object with fields sku, price, got 5 (int)"),
        (pa.table({"price": [1.5]}), "column 'price': expected bigint, got 1.5 (float)"),
        (pd.DataFrame({"price": [1.5]}), "column 'price': expected bigint, got 1.5 (float)"),
        (pa.table({"sku": [5], "price": [1]}), "column 'sku': expected string, got 5 (int)"),
        # Of two keys: whose rows they are is not to be known.
        ([{"price": 1}], "'sku'"),
        (pa.table({"price": [1]}), "'sku'"),
    ],
)
def test_what_it_must_not_return(returned, said):
    """It is no use to call again; the message names the function and what came."""
    keys = ["a", "b"] if said == "'sku'" else ["a"]
    error = refused(lambda sku: returned, keys, name="prices", batch=len(keys))
    assert (error.kind, error.again) == ("unfit answer", False)
    assert error.message.startswith("function prices: ") and said in error.message


def raising(error):
    """Return functions that raise an error: at once, later, and after a row."""

    def raises(sku):
        raise error

    async def raises_later(sku):
        raise error

    def yields_and_raises(sku):
        yield ROW
        raise error

    return raises, raises_later, yields_and_raises


def test_what_it_raises_may_pass():
    """Its kind is the exception's; a function that knows better raises Refused itself."""
    for fn in raising(LookupError("busy")):
        error = refused(fn)
        assert (error.kind, error.again) == ("LookupError", True)
        assert fn.__name__ in error.message and "LookupError: busy" in error.message
    for fn in raising(Refused("gone", "for good", again=False, wait=3)):
        error = refused(fn)
        assert (error.kind, error.again, error.wait) == ("gone", False, 3)
    # Event loops and generators would take these for their own.
    for raised in (
        StopIteration(),
        SystemExit(1),
        KeyboardInterrupt(),
        CancelledError(),
        TimeoutError("own"),
    ):
        error = refused(raising(raised)[0])
        assert error.again and type(raised).__name__ in error.message


async def test_calls_that_never_return_are_counted(monkeypatch):
    """Threads do not pile up without end; when the calls have returned, it goes on."""
    monkeypatch.setattr(threads, "ABANDONED", 3)
    end = threading.Event()
    session = function(lambda sku: end.wait(20) and ROW).open(SCHEMA, SKU, Secrets())
    keys = keys_of(SCHEMA, SKU, [{"sku": "a"}])
    kinds = [(await refusal(wait_within(session.fetch(keys), 0.1))).kind for _ in range(5)]
    end.set()
    rows = None
    while rows is None:
        await asyncio.sleep(0)  # until the loop has heard that they have returned
        with suppress(Refused):
            rows = await session.fetch(keys)
    await session.close()
    assert (kinds, rows.num_rows) == (["timeout"] * 3 + ["stuck"] * 2, 1)
    await ended("function ")


class Bound:
    """Rows that are bound to the thread which has made them, as a cursor of SQLite is."""

    def __init__(self):
        self._thread, self._rows = threading.current_thread(), iter([ROW])

    def __iter__(self):
        return self

    def __next__(self):
        assert threading.current_thread() is self._thread
        return next(self._rows)


async def test_what_a_call_returns_is_read_in_its_thread():
    """Also where many calls are under way beside each other."""
    together = threading.Barrier(8)
    session = function(lambda sku: together.wait(20) * 0 or Bound()).open(SCHEMA, SKU, Secrets())
    keys = keys_of(SCHEMA, SKU, [{"sku": "a"}])
    answers = [await asyncio.gather(*(session.fetch(keys) for _ in range(8))) for _ in range(4)]
    await session.close()
    assert [rows.num_rows for each in answers for rows in each] == [1] * 32


def test_a_call_may_return_when_its_event_loop_is_closed():
    """Nobody wants to know any more, and its thread ends quietly."""
    end = threading.Event()
    assert refused(lambda sku: end.wait(20), timeout=0.05).kind == "timeout"
    end.set()
    run(ended("function "))


async def test_threads_are_used_again_and_end_with_their_owner():
    """As many as calls overlap; idle ones end at once, busy ones when they are done."""
    end, calls = threading.Event(), threads.Threads("test of threads")
    seen = {await calls.run(threading.current_thread) for _ in range(20)}
    assert [thread.daemon for thread in seen] == [True]  # a process that ends does not wait for them
    busy = asyncio.create_task(calls.run(lambda: end.wait(20)))
    await asyncio.sleep(0)
    calls.close()
    end.set()
    assert await busy
    await ended("test of threads")


def test_a_call_within_a_time():
    """It returns, raises, or is left alone."""
    assert threads.within(10, lambda: 5) == 5
    with pytest.raises(KeyError, match="x"):
        threads.within(10, lambda: {}["x"])
    end = threading.Event()
    with pytest.raises(TimeoutError, match="not done within"):
        threads.within(0.02, lambda: end.wait(20))
    end.set()


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        (generated, 6),
        (generated_later, 6),
        (lambda: [ROW] * 7, 7),
        (lambda: pa.table({"sku": ["a"], "price": [1]}), 1),
        (lambda: None, 0),
        (lambda: iter([[ROW], [ROW]]), 2),
    ],
)
def test_scans(fn, count, monkeypatch):
    """All rows, in whatever form they are yielded; what is yielded comes in several batches."""
    monkeypatch.setattr("millrace.lookups.function.SCAN_ROWS", 2)
    source = function(fn, scan=True)
    source.check(SCHEMA, (), Secrets())
    batches = run(scanned(source, SCHEMA))
    assert sum(batch.num_rows for batch in batches) == count
    assert len(batches) > 1 or fn not in (generated, generated_later)
    assert all(batch.schema == SCHEMA for batch in batches)


def test_what_a_scan_yields_without_rows_is_a_batch(monkeypatch):
    """Whoever reads gives each request a time of its own."""
    monkeypatch.setattr("millrace.lookups.function.SCAN_SECONDS", 0.0)
    batches = run(scanned(function(lambda: iter([[], None, [ROW]]), scan=True), SCHEMA))
    assert [batch.num_rows for batch in batches] == [0, 0, 1]


@pytest.mark.parametrize("is_left", [False, True])
async def test_the_generator_of_a_scan_is_closed(is_left):
    """Where it fails, which is told after what came before, and where nobody reads on."""
    ended = []

    def fails():
        try:
            yield [ROW] * 20_000
            raise LookupError("gone")
        finally:
            ended.append(True)

    generator = fails()  # so that nothing else closes it
    session = function(lambda: generator, scan=True).open(SCHEMA, (), Secrets())
    batches = session.scan()
    assert (await anext(batches)).num_rows == 20_000
    if is_left:
        await batches.aclose()
    else:
        assert (await refusal(anext(batches))).kind == "LookupError"
    await session.close()
    assert ended == [True]


MODULE = """
import math, threading
FACTOR = 2
LOCK = threading.Lock()
WORDS = frozenset(["some", "words", "in", "no", "order"])
class Scale:
    def of(self, x):
        return x * FACTOR
def helper(x):
    return math.floor(Scale().of(x)) if x else other(x)
def other(x):
    return helper(x) if x in {"one", "two", "three"} else LOCK
def asked(sku):
    return {"price": helper(sku)}
"""


def _made(text):
    module = types.ModuleType("shop.prices")
    exec(text, module.__dict__)
    return function(module.asked).identity


def test_its_identity_changes_with_what_it_names():
    """Helpers of its package, their helpers, classes and values; not with what it does not name."""
    known = _made(MODULE)
    assert known == _made(MODULE) == _made(MODULE + "UNUSED = 5")
    for old, new in [("FACTOR = 2", "FACTOR = 3"), ("floor", "ceil"), ("x * F", "x + F"), ('"one"', '"1"')]:
        assert _made(MODULE.replace(old, new)) != known, old
