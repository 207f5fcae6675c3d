"""Rows of a partition are delivered exactly once, whatever attempts there are and however they end."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections import Counter
from io import BytesIO

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings, strategies as st

from millrace.errors import ExecutionError
from millrace.limits.chunk import encoded
from millrace.spark.results import Partition, row_keys

LAWS = settings(max_examples=75, deadline=None, derandomize=True)
SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.list_(pa.struct([("x", pa.float32()), ("d", pa.date32())]))),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)
floats = st.sampled_from([math.nan, 0.0, -0.0, math.inf, 1.5])
rows = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(0, 1),
        "f": st.none() | floats,
        "s": st.none() | st.sampled_from(["", "null", "None"]),
        "t": st.none() | st.just(dt.datetime(2024, 2, 3, tzinfo=dt.UTC)),
        "n": st.none()
        | st.lists(st.none() | st.fixed_dictionaries({"x": floats, "d": st.none()}), max_size=2),
        "m": st.none() | st.just([("k", 1)]),
    }
)
# Few different rows, so that many are equal.
tables = st.lists(rows, min_size=1, max_size=4).flatmap(
    lambda some: st.lists(st.sampled_from(some), max_size=12)
)


def exact(value) -> object:
    """A value in which everything that differs in Arrow differs in Python."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, dict):
        return tuple((name, exact(each)) for name, each in sorted(value.items()))
    if isinstance(value, list | tuple):
        return ("list", *map(exact, value))
    return value


def multiset(data: list[dict]) -> Counter:
    return Counter(exact(row) for row in data)


def play(data: list[dict], seed: int, attempts: int) -> None:
    """Let attempts send the rows in orders and batches of their own, some at once; all but one may die."""
    rng = random.Random(seed)
    partition = Partition(3)
    left = {attempt: rng.sample(data, len(data)) for attempt in range(attempts)}
    delivered: list[dict] = []
    winner = rng.randrange(attempts)
    alive = sorted(left)
    while not partition.committed:
        attempt = rng.choice(alive)
        if not left[attempt]:
            if attempt == winner:
                partition.commit(attempt)
            elif len(alive) > 1:
                alive.remove(attempt)
            continue
        if attempt != winner and rng.random() < 0.2:
            alive.remove(attempt)
            continue
        size = rng.randint(1, len(left[attempt]))
        some, left[attempt] = left[attempt][:size], left[attempt][size:]
        batch = partition.accept(attempt, encoded(pa.RecordBatch.from_pylist(some, schema=SCHEMA)))
        delivered += [] if batch is None else batch.to_pylist()
        assert multiset(delivered) <= multiset(data)
    assert multiset(delivered) == multiset(data)
    late = encoded(pa.RecordBatch.from_pylist(data, schema=SCHEMA))
    assert partition.accept(99, late) is None
    partition.commit(99)


@LAWS
@given(tables, st.integers(0, 10**6), st.integers(1, 3))
def test_every_row_is_delivered_exactly_once(data, seed, attempts):
    """Attempts that die, run at once or come after the commit; NaN, -0.0, nulls and nested values."""
    play(data, seed, attempts)


@pytest.mark.broken_rule
@pytest.mark.parametrize("broken", ["nothing is subtracted", "everything is", "keys of zeros agree"])
def test_the_law_notices_a_broken_rule(monkeypatch, broken):
    """Rows that come twice, rows that are lost, and rows that only look alike."""
    data = tables
    if broken == "nothing is subtracted":
        monkeypatch.setattr(Partition, "_new", lambda self, sent, keys: list(range(len(keys))))
        monkeypatch.setattr(Partition, "commit", lambda self, attempt: setattr(self, "committed", True))
    elif broken == "everything is":
        monkeypatch.setattr(Partition, "_new", lambda self, sent, keys: [])
        monkeypatch.setattr(Partition, "commit", lambda self, attempt: setattr(self, "committed", True))
    else:
        monkeypatch.setattr(
            "millrace.spark.results.row_keys",
            lambda batch: [repr(row).replace("-0.0", "0.0").encode() for row in batch.to_pylist()],
        )
        row = dict.fromkeys(SCHEMA.names)
        data = st.just([{**row, "f": 0.0}, {**row, "f": -0.0}])
    law = settings(LAWS, phases=[Phase.generate], report_multiple_bugs=False, database=None)(
        given(data, st.integers(0, 10**6), st.just(3))(play)
    )
    with pytest.raises(AssertionError):
        law()


@LAWS
@given(st.lists(rows, max_size=6))
def test_keys_tell_rows_apart_exactly(data):
    """Two rows have the same key if and only if all their values are the same."""
    batch = pa.RecordBatch.from_pylist(data, schema=SCHEMA)
    keys = row_keys(batch)
    for key, row in zip(keys, data, strict=True):
        for other_key, other in zip(keys, data, strict=True):
            assert (key == other_key) == (exact(row) == exact(other))


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (pa.timestamp("us"), 2**62, 2**62 + 1),  # beyond the years that Python has
        (pa.date32(), -(2**30), 2**30),
        (pa.duration("ns"), 1, 2),
        (pa.time64("ns"), 1, 2),
        (pa.list_(pa.timestamp("us")), [2**62], [2**62 + 1]),
        (pa.map_(pa.string(), pa.date32()), [("k", 2**30)], [("k", 2**30 + 1)]),
        (pa.binary(), b"a", b"b"),
        (pa.decimal128(38, 2), 1, 2),
        (pa.bool_(), True, False),
        (pa.large_list(pa.int8()), [1], [None]),
        (pa.list_(pa.int8(), 2), [1, 2], [2, 1]),
        (pa.struct([("a", pa.time32("s"))]), {"a": 1}, {"a": 2}),
        (pa.dictionary(pa.int8(), pa.string()), "a", "b"),
        (pa.null(), None, None),
    ],
    ids=str,
)
def test_values_of_every_type_are_compared(kind, first, second):
    """Also those that Python cannot hold; a null is only equal to a null."""
    batch = pa.record_batch({"v": pa.array([first, second, first, None], kind)})
    one, two, again, null = row_keys(batch)
    assert one == again
    assert (one == two) == (first == second)
    assert (null == one) == (first is None)


def test_rows_without_columns_are_counted():
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert len(row_keys(batch)) == 2


def numbers(*values: int) -> bytes:
    return encoded(pa.record_batch({"v": pa.array(values, pa.int64())}))


@pytest.mark.parametrize("second", [(1, 2), (1, 2, 3, 4), (1, 2, 2), ()])
def test_other_rows_in_the_second_attempt_are_an_error(second):
    """Fewer or others: what has been delivered cannot be taken back, so the error says why."""
    partition = Partition(3)
    partition.accept(0, numbers(1, 2, 3))
    if second:
        partition.accept(1, numbers(*second))
    if Counter((1, 2, 3)) <= Counter(second):
        partition.commit(1)  # they were ahead: all of theirs have been delivered
    else:
        with pytest.raises(ExecutionError, match="partition 3 ran more than once, with other rows"):
            partition.commit(1)


def test_many_rows_wait_on_disk(monkeypatch):
    """There they are when another attempt sends rows."""
    monkeypatch.setattr("millrace.spark.results.IN_MEMORY", 100)
    partition = Partition(0)
    for number in range(20):
        partition.accept(0, numbers(number, number))
    assert not isinstance(partition._kept, BytesIO)
    new = partition.accept(1, numbers(*range(20), 20, *range(20)))
    assert new.to_pydict() == {"v": [20]}
    partition.commit(1)


def test_what_is_no_batch_is_refused():
    """The task is no task of ours."""
    for payload in (b"", b"nonsense", numbers(1)[:100]):
        with pytest.raises(ValueError, match=r"."):
            Partition(0).accept(0, payload)
