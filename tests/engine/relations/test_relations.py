"""The store of base tuples against a plain Arrow table."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from itertools import combinations, product
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.arrays import array_of
from millrace.engine.kernels import hash_bytes
from millrace.engine.tuples import KeyColumn, RelationStore, codes, keys, store as module
from millrace.errors import ExecutionError, UnsupportedType
from tests.engine.eddy.oracle import NUMBERS, canonical, wider
from tests.engine.laws import examples

LAWS = examples(50)
LIST = pa.list_(pa.struct([("x", pa.int8())]))
SCHEMA = pa.schema({"k": pa.int64(), "s": pa.string(), "d": pa.decimal128(12, 2), "l": LIST, "b": pa.bool_()})
KEYS = [KeyColumn("k", pa.int64())]


def table(rows: int) -> pa.Table:
    """Return rows that differ in every column, with nulls of every type, in one chunk."""
    columns = {
        "k": range(rows),
        "s": [None if n % 5 == 0 else f"text {n}" for n in range(rows)],
        "d": [None if n % 7 == 0 else n for n in range(rows)],
        "l": [None if n % 3 == 0 else [{"x": n % 100}] * (n % 4) for n in range(rows)],
        "b": [[None, True, False][n % 3] for n in range(rows)],
    }
    return pa.table(columns, SCHEMA)


def appended(whole: pa.Table, store: RelationStore, low: int, high: int) -> None:
    """Append rows ``low`` to ``high`` as a batch with an offset of its own."""
    batch = whole.to_batches()[0].slice(low, high - low)
    store.append(batch, [batch.column("k").to_numpy()])


WIDE = pa.schema(
    [
        ("s", pa.string()),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ("t", pa.struct([("x", pa.binary()), ("y", pa.list_(pa.struct([("z", pa.string())])))])),
    ]
)


@LAWS
@given(st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 20))
def test_widths_are_of_the_rows_that_are_asked_for(data, sizes, forgotten) -> None:
    """As of a row alone, whatever others of the column have; of nested values too."""
    whole = pa.RecordBatch.from_pylist(
        [
            {
                "s": None if n % 5 == 0 else "s" * (n % 7),
                "l": None if n % 3 == 0 else ["l" * n] * (n % 4),
                "m": None if n % 4 == 0 else [("m" * n, [n] * (n % 3))] * (n % 2),
                "t": {"x": b"x" * n, "y": [{"z": "z" * n}] * (n % 3)},
            }
            for n in range(1 + sum(sizes))
        ],
        WIDE,
    )
    expected = []
    for row in whole.to_pylist():
        alone, batch = RelationStore(WIDE, []), pa.RecordBatch.from_pylist([row], WIDE)
        alone.append(batch, [])
        expected += [0] if (found := alone.widths(WIDE.names, np.array([0]), 0)) is None else found.tolist()
        assert expected[-1] <= batch.nbytes <= expected[-1] + 150  # of offsets and marks of nulls
    store, low = RelationStore(WIDE, []), 0
    for size in sizes:
        store.append(whole.slice(low, size), [])
        low += size
        if store.widths(WIDE.names, np.arange(store.first, low), 0) is None:
            assert not any(expected[store.first : low])
    store.forget(min(forgotten, low - 1))
    rows = np.array(data.draw(st.lists(st.integers(store.first, low - 1), min_size=1, max_size=20)))
    found = store.widths(WIDE.names, rows, 0)
    assert found is None or found.tolist() == [expected[row] for row in rows]


def test_too_many_rows_are_refused_with_what_would_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row numbers have 31 bits."""
    monkeypatch.setattr(module, "MAX_ROWS", 5)
    with pytest.raises(ExecutionError, match="more cells"):
        appended(table(6), RelationStore(SCHEMA, KEYS), 0, 6)


@LAWS
@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=12), st.sampled_from([500, 1 << 30]))
def test_rows_keep_their_numbers_values_and_codes(data: st.DataObject, sizes: list[int], merged: int) -> None:
    """In any order, repeated, between appends, empty ones among them, and while any prefix is forgotten.

    Chunks of more bytes than Arrow's offsets reach are not merged, others are.
    """
    with mock.patch.object(module, "_MERGE_BYTES", merged):
        whole = table(sum(sizes) + 1)
        store = RelationStore(SCHEMA, KEYS)
        first = 0
        for size in sizes:
            appended(whole, store, store.rows, store.rows + size)
            below = data.draw(st.just(0) | st.integers(0, store.rows + 2))
            store.forget(below)
            first = max(first, min(below, store.rows))
            assert (store.first, store.held) == (first, store.rows - first)
            assert store.codes(0).tolist() == list(range(first, store.rows))
            held = st.sampled_from(range(first, store.rows)) if store.held else st.just(-1)
            rows = np.array(data.draw(st.lists(held, max_size=9 * bool(store.held))), np.int32)
            assert store.coded(0, rows).tolist() == rows.tolist()
            for name in SCHEMA.names:
                assert store.gather(name, rows).equals(whole[name].combine_chunks().take(pa.array(rows)))
            assert pa.table(store.chunk(rows)).equals(whole.take(pa.array(rows)))
        store.complete = True
        assert store.gather("l", np.empty(0, np.int32)).type == SCHEMA.field("l").type


def test_forgetting_frees_memory_and_costs_little() -> None:
    """A window of 100 rows that slides over 5,000 takes no more than a few windows' memory."""
    whole, store = table(5000), RelationStore(SCHEMA, KEYS)
    appended(whole, store, 0, 100)
    window = store.nbytes
    for low in range(100, 5000, 35):
        appended(whole, store, low, low + 35)
        store.gather("s", np.array([low, store.first]))
        assert codes(store.gather("k", np.arange(low, low + 35)), pa.int64())[0][-1] == low + 34
        store.forget(store.rows - 100)
        assert store.held == 100
        assert sum(chunk.num_rows for chunk in store._chunks) <= 240
        assert sum(column.size for column in store._codes) <= 1024
    assert store.nbytes <= 8 * window


def test_the_size_follows_what_is_forgotten_and_merged() -> None:
    """It is the sum of the rows held, whatever was copied together."""
    store, rows = RelationStore(SCHEMA, KEYS), table(90)
    for low in range(0, 90, 10):
        appended(rows, store, low, low + 10)
    whole = store.nbytes
    assert whole == store.nbytes == sum(batch.nbytes for batch in rows.to_batches(10)) + 8 * 90
    assert store.gather("k", np.arange(90)[::-1]).to_pylist() == list(range(90))[::-1]
    assert store.nbytes == pytest.approx(whole, rel=0.1)  # bitmaps of nulls are cut off at bytes
    for forgotten, left in ((60, 1 / 3), (90, 0)):
        store.forget(forgotten)
        assert store.nbytes == pytest.approx(left * whole, rel=0.2)


# Key codes: equal keys have equal codes, and where a type is exact, only they have.


def whole(bits: int) -> st.SearchStrategy[int]:
    least, greatest = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.one_of(st.sampled_from([least, -1, 0, 1, greatest]), st.integers(least, greatest))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    end = 10**precision - 1
    digits = st.one_of(st.sampled_from([-end, -1, 0, 1, end]), st.integers(-end, end))
    return digits.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))


floats = st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5]) | st.floats(width=32)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
moments = (st.sampled_from([-1, 0, 1]) | st.integers(-(10**16), 10**16)).map(
    lambda microseconds: _EPOCH + dt.timedelta(microseconds=microseconds)
)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): whole(8),
    pa.int16(): whole(16),
    pa.int32(): whole(32),
    pa.int64(): whole(64),
    pa.float32(): floats,
    pa.float64(): st.one_of(floats, st.floats()),
    pa.decimal128(9, 2): decimals(9, 2),
    pa.decimal128(18, 6): decimals(18, 6),
    pa.decimal128(22, 4): decimals(22, 4),
    pa.decimal128(38, 4): decimals(38, 4),
    pa.string(): st.text(max_size=5) | st.text(max_size=30),
    pa.binary(): st.binary(max_size=5) | st.binary(max_size=30),
    pa.date32(): st.dates(),
    pa.timestamp("us"): moments.map(lambda moment: moment.replace(tzinfo=None)),
    pa.timestamp("us", tz="UTC"): moments,
}
WIDENINGS = [(one, other, wider(one, other)) for one, other in combinations(NUMBERS, 2)]


def compared(value: Any, kind: pa.DataType) -> Any:
    """Return what Spark compares: NaN as one value, -0.0 as 0.0, numbers in the type of the equality."""
    return canonical(float(kind.to_pandas_dtype()(value))) if pa.types.is_floating(kind) else value


@pytest.mark.parametrize(("left", "right", "kind"), [*((k, k, k) for k in VALUES), *WIDENINGS], ids=str)
@examples(25)
@given(data=st.data())
def test_equal_codes_mean_equal_keys(left, right, kind, data) -> None:
    """For every type of key, with the nasty values; keys of two types meet in the wider one."""
    values, others = (data.draw(st.lists(VALUES[own], max_size=6)) for own in (left, right))
    same = left == right
    meeting = values if same else [n for v in values if (n := into(v, right)) is not None]
    mine, yours = pa.array(values, left), pa.array([*others, *meeting], right)
    coded = [zip(each.to_pylist(), codes(each, kind)[0].tolist(), strict=True) for each in (mine, yours)]
    for (a, x), (b, y) in product(*coded):
        # Hashes of a few different keys do not collide either, though they may.
        assert (x == y) == (compared(a, kind) == compared(b, kind)), (a, b, kind)


def into(value: Any, kind: pa.DataType) -> Any:
    """Return the number as a value of that type, or None where it does not fit."""
    if pa.types.is_floating(kind):
        return compared(value, kind) if not math.isnan(value) else value
    if pa.types.is_decimal(kind):
        fits = abs(value) < 10 ** (kind.precision - kind.scale)
        return Decimal(value).quantize(Decimal(1).scaleb(-kind.scale)) if fits else None
    return int(value) if abs(value) < 1 << kind.bit_width - 1 else None


LARGE = {
    pa.string(): [pa.large_string(), pa.string_view()],
    pa.binary(): [pa.large_binary(), pa.binary_view()],
}


def check_layouts(array: pa.Array, start: int, length: int) -> None:
    """Raise AssertionError unless keys have the codes that each has alone, wherever Arrow has them."""
    kind, part = array.type, array.slice(start, length)
    expected = [codes(array_of([value], kind), kind)[0][0] for value in part.to_pylist() if value is not None]
    values = part.is_valid().to_pylist()
    for layout in (array, array.dictionary_encode(), *map(array.cast, LARGE.get(kind, ()))):
        found, valid = codes(layout.slice(start, length), kind)
        assert (valid is None) == all(values)
        mask = np.array(values, np.bool_) if valid is None else valid
        assert mask.tolist() == values
        assert found[mask].tolist() == expected


@pytest.mark.parametrize("kind", VALUES, ids=str)
@examples(25)
@given(data=st.data(), start=st.integers(0, 12), length=st.integers(0, 12))
def test_codes_do_not_depend_on_the_layout(kind, data, start, length) -> None:
    """Slices, nulls, dictionaries, large offsets and views; and a mask tells which rows are valid.

    Buffers of a column of nulls alone may be missing.
    """
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=12))
    array = pa.array(values, kind) if any(v is not None for v in values) else pa.nulls(len(values), kind)
    check_layouts(array, start, length)


@pytest.mark.broken_rule
@pytest.mark.parametrize("slip", ["reads on", "begins early"])
def test_a_hash_of_more_than_the_text_is_caught(monkeypatch, slip) -> None:
    """What lies around a text is another thing in a dictionary."""
    hashes = {
        "reads on": lambda ends, data: hash_bytes(ends, data) + np.append(data, [0])[ends[1:]],
        "begins early": lambda ends, data: hash_bytes(ends // 8 * 8, data),
    }
    monkeypatch.setattr(keys, "hash_bytes", hashes[slip])
    texts = pa.array(["a", "second", None, "a", "of more than eight bytes", "second"])
    with pytest.raises(AssertionError):
        check_layouts(texts, 1, 5)


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.struct([("a", pa.int8())]), pa.null()], ids=str)
def test_other_types_are_refused_with_what_would_work(kind: pa.DataType) -> None:
    """Nested columns are payload, never keys."""
    with pytest.raises(UnsupportedType, match="cannot be a join key"):
        codes(pa.nulls(1, kind), kind)
