"""The store of base tuples against a plain Arrow table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count, pairwise
from types import FrameType
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.relations import KeyColumn, RelationStore, store as module
from millrace.errors import ExecutionError
from tests.engine.laws import examples

LAWS = examples(50)
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("d", pa.decimal128(12, 2)),
        pa.field("l", pa.list_(pa.struct([("x", pa.int8())]))),
        pa.field("b", pa.bool_()),
    ]
)
KEYS = [KeyColumn("k", pa.int64())]


def table(rows: int) -> pa.Table:
    """Return rows that differ in every column, with nulls of every type, in one chunk."""
    return pa.Table.from_pylist(
        [
            {
                "k": n,
                "s": None if n % 5 == 0 else f"text {n}",
                "d": None if n % 7 == 0 else n,
                "l": None if n % 3 == 0 else [{"x": n % 100}] * (n % 4),
                "b": [None, True, False][n % 3],
            }
            for n in range(rows)
        ],
        SCHEMA,
    ).combine_chunks()


def appended(whole: pa.Table, store: RelationStore, low: int, high: int) -> None:
    """Append rows ``low`` to ``high`` as a batch with an offset of its own."""
    batch = whole.to_batches()[0].slice(low, high - low)
    store.append(batch, [batch.column("k").to_numpy()])


def size_of(value: object) -> int:
    """Return the bytes of a value of ``WIDE`` without marks of nulls: 8 of a number, 4 of a list."""
    match value:
        case str() | bytes():
            return len(value)
        case int():
            return 8
        case list():
            return 4 + sum(map(size_of, value))
        case tuple():
            return sum(map(size_of, value))
        case dict():
            return sum(map(size_of, value.values()))
    return 0


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
def test_widths_are_of_the_rows_that_are_asked_for(
    data: st.DataObject, sizes: list[int], forgotten: int
) -> None:
    """Of nested values too, whatever others of the column have; a row that is not asked for costs nothing."""
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
    nulls = [4 * (row["l"] is None) + 4 * (row["m"] is None) for row in whole.to_pylist()]
    expected = [size_of(row) + more for row, more in zip(whole.to_pylist(), nulls, strict=True)]
    store, low = RelationStore(WIDE, []), 0
    for size in sizes:
        store.append(whole.slice(low, size), [])
        low += size
        if store.widths(WIDE.names, np.arange(store.first, low), 0) is None:
            assert not any(expected[store.first : low])
    store.forget(min(forgotten, low - 1))
    rows = np.array(data.draw(st.lists(st.integers(store.first, low - 1), min_size=1, max_size=20)))
    measured: list[int] = []
    sizes_of = module._sizes
    with mock.patch.object(
        module, "_sizes", lambda column, *ends: (measured.append(len(ends[0])), sizes_of(column, *ends))[1]
    ):
        found = store.widths(WIDE.names, rows, 0)
    assert found is None or found.tolist() == [expected[row] for row in rows]
    assert all(count <= len(rows) for count in measured)


@LAWS
@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_gathering_equals_taking_from_the_whole(data: st.DataObject, sizes: list[int]) -> None:
    """Rows by number, repeated and in any order, between appends of any size, empty ones among them."""
    whole = table(sum(sizes) + 1)
    store = RelationStore(SCHEMA, KEYS)
    for size in sizes:
        appended(whole, store, store.rows, store.rows + size)
        if not store.rows:
            continue
        rows = data.draw(st.lists(st.integers(0, store.rows - 1), max_size=8))
        column = data.draw(st.sampled_from(SCHEMA.names))
        gathered = store.gather(column, np.array(rows, np.int32))
        assert gathered.type == SCHEMA.field(column).type
        assert gathered.to_pylist() == [whole[column][r].as_py() for r in rows]
    assert store.codes(0).tolist() == list(range(sum(sizes)))
    everything = np.arange(store.rows, dtype=np.int32)
    if store.rows:
        assert store.chunk(everything).equals(whole.to_batches()[0].slice(0, store.rows))


@pytest.mark.parametrize("size", [1, 3, 50])
def test_chunks_stay_few_as_the_store_grows(size: int) -> None:
    """However small the batches, chunk sizes fall geometrically: a logarithmic number of them."""
    whole = table(600)
    store = RelationStore(SCHEMA, KEYS)
    for low in range(0, 600, size):
        appended(whole, store, low, low + size)
        assert store.gather("k", np.array([0, low], np.int32)).to_pylist() == [0, low]
        sizes = [chunk.num_rows for chunk in store._chunks]
        assert sum(sizes) == store.rows
        assert all(a >= 2 * b for a, b in pairwise(sizes)), sizes
    assert store.gather("s", np.arange(600)).equals(whole["s"].combine_chunks())


@LAWS
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20))
def test_chunk_sizes_fall_whatever_came_before_a_gather(sizes: list[int]) -> None:
    """A small tail does not keep the chunks before it apart."""
    whole = table(sum(sizes) + 1)
    store = RelationStore(SCHEMA, KEYS)
    for size in sizes:
        appended(whole, store, store.rows, store.rows + size)
    if store.rows:
        rows = np.arange(store.rows)[::-1]
        assert store.gather("s", rows).to_pylist() == whole["s"].to_pylist()[: store.rows][::-1]
    counts = [chunk.num_rows for chunk in store._chunks]
    assert sum(counts) == sum(sizes)
    assert not store.rows or all(a >= 2 * b for a, b in pairwise(counts)), counts


def test_a_complete_relation_becomes_one_chunk_when_that_pays() -> None:
    """Once as many rows have been taken as there are; before that it may not be worth the copy."""
    whole = table(1500)
    store = RelationStore(SCHEMA, KEYS)
    for low, high in ((0, 1000), (1000, 1400), (1400, 1500)):
        appended(whole, store, low, high)
    store.complete = True
    rows = np.arange(0, 1500, 2)
    assert store.gather("k", rows).to_pylist() == rows.tolist()
    assert len(store._chunks) == 3
    assert store.gather("k", rows).to_pylist() == rows.tolist()
    assert len(store._chunks) == 1
    assert store.chunk(np.arange(1500)).equals(whole.to_batches()[0])


def test_rows_are_located_once_for_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many columns are taken."""
    whole = table(1200)
    store = RelationStore(SCHEMA, KEYS)
    appended(whole, store, 0, 1000)
    appended(whole, store, 1000, 1200)
    sorts: list[int] = []
    argsort = np.argsort
    monkeypatch.setattr(module.np, "argsort", lambda *a, **k: (sorts.append(1), argsort(*a, **k))[1])
    rows = np.random.default_rng(5).integers(0, 1200, 700)
    for name, found in zip(SCHEMA.names, store.take(SCHEMA.names, rows), strict=True):
        assert found.equals(whole[name].combine_chunks().take(pa.array(rows)))
    assert len(store._chunks) == 2 and len(sorts) == 1


def test_merging_stops_before_offsets_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks beyond the limit in bytes are left as they are, and the rows stay right."""
    monkeypatch.setattr(module, "_MERGE_BYTES", 500)
    whole = table(300)
    store = RelationStore(SCHEMA, KEYS)
    for low in range(0, 300, 10):
        appended(whole, store, low, low + 10)
    rows = np.arange(299, -1, -1, dtype=np.int32)
    assert store.gather("s", rows).to_pylist() == whole["s"].to_pylist()[::-1]
    assert len(store._chunks) > 5


def test_a_merge_copies_each_row_a_logarithmic_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathering after every append does not make appending quadratic."""
    copied: list[int] = []
    original = pa.Table.from_batches

    class Counting:
        @staticmethod
        def from_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
            copied.append(sum(b.num_rows for b in batches))
            return original(batches, schema)

    whole = table(1024)
    store = RelationStore(SCHEMA, KEYS)
    monkeypatch.setattr(module.pa, "Table", Counting)
    for low in range(1024):
        appended(whole, store, low, low + 1)
        store.gather("k", np.array([low], np.int32))
    assert sum(copied) <= 1024 * 12


def test_a_relation_without_columns_keeps_its_rows() -> None:
    """Rows of no column at all are counted, chunked and never gathered."""
    nothing = pa.record_batch([pa.nulls(4)], ["x"]).select([])
    store = RelationStore(nothing.schema, [])
    store.append(nothing, [])
    store.append(nothing.slice(1), [])
    assert store.rows == 7
    assert store.chunk(np.arange(3)).num_rows == 3


def test_an_empty_store_gathers_nothing() -> None:
    """An empty array of the column's type; also of a relation that has ended, and of empty batches."""
    for sizes in ([], [0], [0, 0]):
        store = RelationStore(SCHEMA, KEYS)
        for _ in sizes:
            appended(table(1), store, 0, 0)
        for complete in (False, True):
            store.complete = complete
            found = store.gather("l", np.empty(0, np.int32))
            assert (len(found), found.type) == (0, SCHEMA.field("l").type)


def test_too_many_rows_are_refused_with_what_would_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row numbers have 31 bits."""
    monkeypatch.setattr(module, "MAX_ROWS", 5)
    with pytest.raises(ExecutionError, match="more cells"):
        appended(table(6), RelationStore(SCHEMA, KEYS), 0, 6)


@LAWS
@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_forgotten_rows_leave_the_others_as_they_were(data: st.DataObject, sizes: list[int]) -> None:
    """Between appends, any prefix is forgotten; rows keep their numbers, values and codes."""
    whole = table(sum(sizes) + 1)
    store = RelationStore(SCHEMA, KEYS)
    first = 0
    for size in sizes:
        appended(whole, store, store.rows, store.rows + size)
        below = data.draw(st.integers(0, store.rows + 2))
        store.forget(below)
        first = max(first, min(below, store.rows))
        assert (store.first, store.held) == (first, store.rows - first)
        assert store.codes(0).tolist() == list(range(first, store.rows))
        if not store.held:
            continue
        rows = np.array(data.draw(st.lists(st.integers(first, store.rows - 1), max_size=9)), np.int32)
        assert store.coded(0, rows).tolist() == rows.tolist()
        for name in SCHEMA.names:
            assert store.gather(name, rows).equals(whole[name].combine_chunks().take(pa.array(rows)))
        assert pa.table(store.chunk(rows)).equals(whole.take(pa.array(rows)))


def test_forgetting_frees_memory_and_costs_little() -> None:
    """A window of 100 rows that slides over 5,000 takes no more than a few windows' memory."""
    whole = table(5000)
    store = RelationStore(SCHEMA, KEYS)
    appended(whole, store, 0, 100)
    window = store.nbytes
    for low in range(100, 5000, 20):
        appended(whole, store, low, low + 20)
        store.gather("s", np.array([low, store.first]))
        store.forget(store.rows - 100)
        assert store.held == 100
        assert sum(chunk.get_total_buffer_size() for chunk in store._chunks) > 0
        assert sum(chunk.num_rows for chunk in store._chunks) <= 240
        assert sum(column.size for column in store._codes) <= 1024
    assert store.nbytes <= 8 * window


@pytest.mark.parametrize("moment", range(5))
def test_reading_the_size_changes_nothing(moment: int) -> None:
    """Another thread may read it at any moment of a reading; it is that of what is held, before and after."""
    size = RelationStore.nbytes.fget
    assert size is not None
    store = RelationStore(SCHEMA, KEYS)
    held = 0
    for rows in (10, 100, 1000):
        (batch,) = table(rows).to_batches()
        store.append(batch, [np.arange(rows)])
        held += batch.nbytes + 8 * rows
        lines = count()

        def beside(frame: FrameType, event: str, _: object, lines: Iterator[int] = lines) -> object:
            if event == "line" and next(lines) == moment:
                size(store)  # which is not traced itself
            return beside

        before = sys.gettrace()
        sys.settrace(lambda frame, event, _, each=beside: each if frame.f_code is size.__code__ else None)
        try:
            found = store.nbytes
        finally:
            sys.settrace(before)
        assert found == store.nbytes == held


def test_the_size_follows_what_is_forgotten_and_merged() -> None:
    """It is the sum of the rows held, whatever was copied together."""
    store = RelationStore(SCHEMA, KEYS)
    for low in range(0, 90, 10):
        store.append(table(90).to_batches()[0].slice(low, 10), [np.arange(low, low + 10)])
    whole = store.nbytes
    assert store.gather("k", np.arange(90)[::-1]).to_pylist() == list(range(90))[::-1]
    assert store.nbytes == pytest.approx(whole, rel=0.1)  # bitmaps of nulls are cut off at bytes
    store.forget(60)
    assert store.nbytes == pytest.approx(whole / 3, rel=0.2)
    store.forget(90)
    assert store.nbytes == 0
