"""The block exchange loses and changes nothing, in bounded memory, and deals rows alike in every attempt."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as hs

from millrace.engine.plan.expressions import Column as ColumnOf, ColumnRef, Compare, Literal
from millrace.engine.plan.spec import Equality, JoinSpec, RelationSpec
from millrace.errors import ExecutionError
from millrace.parquet.discovery import open_table
from millrace.parquet.read_ahead import AheadBatches
from millrace.parquet.tables import splits
from millrace.spark.exchange import (
    BLOCK_SCHEMA,
    FIGURES,
    BlockReader,
    BlockWriter,
    Cut,
    HashPartitioner,
    block_rows,
    figures_block,
)
from millrace.spark.hypercube import Axis, Cube
from millrace.spark.reports import Sink
from millrace.spark.task_inputs import Scan
from millrace.spark.tasks import Reduction, ScanTask

SCHEMA = pa.schema(
    [("k", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(15, 2)), ("l", pa.list_(pa.int8()))]
)
CUBES = [
    Cube(()),
    Cube((Axis(3, pa.int64(), ((0, "k"), (1, "k"))),)),
    Cube((Axis(2, pa.int64(), ((0, "k"),)), Axis(3, pa.string(), ((1, "s"),)))),
    Cube((Axis(4, None, ((0, ""),)),)),
]


def batch_of(keys: list[int | None]) -> pa.RecordBatch:
    texts = [None if k is None else f"s{k}" for k in keys]
    columns = [keys, texts, map(Decimal, range(len(keys))), [[1, None]] * len(keys)]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns, SCHEMA.types)), schema=SCHEMA)


def by_cell(rows: list[pa.RecordBatch]) -> dict[int, list[pa.RecordBatch]]:
    cells: dict[int, list[pa.RecordBatch]] = {}
    for batch in rows:
        for n in range(batch.num_rows):
            cells.setdefault(batch.column(0)[n].as_py(), []).append(batch.slice(n, 1))
    return cells


@settings(max_examples=50, deadline=None)
@given(
    hs.lists(hs.lists(hs.one_of(hs.none(), hs.integers(-5, 5)), max_size=30), max_size=6),
    hs.sampled_from(CUBES),
    hs.sampled_from([1024, 4096, 1 << 20]),
)
def test_what_goes_in_comes_out_in_the_right_cells(batches, cube, block_bytes):
    """Every tuple with a key arrives once in each of its cells; null keys may be dropped."""
    sent: list[tuple[int, pa.RecordBatch]] = []
    rows: list[pa.RecordBatch] = []
    for relation in (0, 1):
        writer = BlockWriter(Cut(relation, cube, block_bytes))
        for keys in batches:
            batch = batch_of(keys)
            sent.append((relation, batch))
            rows += writer.add(batch)
        rows += writer.finish()
    arrived: list[Counter] = [Counter(), Counter()]
    for cell, blocks in by_cell(rows).items():
        reader = BlockReader(iter(blocks), [SCHEMA, SCHEMA], cell)
        for relation in (1, 0):
            for batch in reader.source(relation):
                assert batch.schema == SCHEMA
                arrived[relation].update(map(str, batch.to_pylist()))
        assert reader.blocks == len(blocks)
    for relation in (0, 1):
        keyed = [axis.column(relation) for axis in cube.axes if axis.type is not None]
        expected: Counter = Counter()
        for number, batch in sent:
            for row in batch.to_pylist():
                if number == relation and not any(c and row[c] is None for c in keyed):
                    expected[str(row)] += cube.copies(relation)
        assert arrived[relation] == expected


def test_blocks_are_aligned_and_not_copied():
    """Numbers in a decoded block start at multiples of 8 and lie in the buffer that arrived."""
    writer = BlockWriter(Cut(0, Cube(()), 1024))
    rows = [row for n in range(5) for row in writer.add(batch_of(list(range(n * 7 + 1))))]
    rows += writer.finish()
    parts = [(0, 0, block) for r in rows for block in (pa.py_buffer(v.as_py()) for v in r.column(2))]
    parts.insert(1, (0, FIGURES, figures_block('{"a":1}')))
    together = block_rows(parts)
    low = together.column(2).buffers()[2].address
    high = low + together.column(2).buffers()[2].size
    reader = BlockReader(iter([together]), [SCHEMA], 0)
    for batch in reader.source(0):
        keys = batch.column(0).buffers()[1]
        assert low <= keys.address < high
        assert keys.address % 8 == 0
        assert np.frombuffer(keys, np.int64).flags.aligned
    assert reader.figures == ['{"a":1} ']


def test_waiting_tuples_take_bounded_memory():
    """With many cells, blocks leave before they are full rather than pile up."""
    cube = Cube((Axis(500, pa.int64(), ((0, "k"),)),))
    writer = BlockWriter(Cut(0, cube, 2_000))
    for start in range(0, 8_000, 1000):
        list(writer.add(batch_of(list(range(start, start + 1000)))))
        assert sum(writer._sizes.values()) <= 16 * 2_000
    list(writer.finish())
    assert writer.rows == 8_000


def test_a_row_that_waits_does_not_keep_its_batch():
    """Of a skewed key most cells get few rows of each batch, which are slices of it."""
    cube = Cube((Axis(8, pa.int64(), ((0, "k"),)),))
    writer = BlockWriter(Cut(0, cube, 20_000))
    before = pa.total_allocated_bytes()
    for start in range(0, 480, 8):
        keys = np.full(16_000, 1)
        keys[:8] = range(start, start + 8)
        for _ in writer.add(pa.record_batch({"k": keys})):
            pass
    assert pa.total_allocated_bytes() - before <= 2 * 16 * 20_000 + 2 * keys.nbytes
    list(writer.finish())
    assert writer.rows == 60 * 16_000


def test_sorted_blocks_end_the_other_sources():
    """When one relation is known to come last, its first block ends the others and nothing waits."""
    writer = BlockWriter(Cut(0, Cube(()), 1024))
    small = [*writer.add(batch_of([1, 2])), *writer.finish()]
    writer = BlockWriter(Cut(1, Cube(()), 1024))
    big = [row for n in range(20) for row in writer.add(batch_of(list(range(40))))] + list(writer.finish())
    reader = BlockReader(iter([*small, *big]), [SCHEMA, SCHEMA], 0, last=1)
    assert sum(b.num_rows for b in reader.source(0)) == 2
    assert len(reader._waiting[1]) < len(big)
    assert sum(b.num_rows for b in reader.source(1)) == 800


def test_tuples_of_another_cell_are_an_error():
    """If Spark mixed partitions, the answer would be wrong: it must fail."""
    rows = block_rows([(3, 0, batch_of([1]).serialize())])
    with pytest.raises(ExecutionError, match="cell 2 received tuples of cell 3"):
        list(BlockReader(iter([rows]), [SCHEMA], 2).source(0))


SCHEMAS = [
    pa.schema([("k", pa.int64()), ("s", pa.string())]),
    pa.schema([("b", pa.bool_()), ("d", pa.decimal128(20, 2)), ("f", pa.float64()), ("raw", pa.binary())]),
    pa.schema([("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("small", pa.int8())]),
    pa.schema([("list", pa.list_(pa.int64())), ("s", pa.string())]),
    pa.schema([("list", pa.list_(pa.int64())), ("f", pa.float32())]),
    pa.schema([]),
]
VALUES = {
    "k": hs.integers(-(2**63), 2**63 - 1) | hs.integers(-2, 2),
    "s": hs.text("ab€", max_size=40),
    "b": hs.booleans(),
    "d": hs.decimals(-(10**15), 10**15, places=2),
    "f": hs.floats(width=32),
    "raw": hs.binary(max_size=40),
    "day": hs.dates(),
    "at": hs.datetimes().map(lambda at: at.replace(tzinfo=None)),
    "small": hs.integers(-128, 127),
    "list": hs.lists(hs.integers(-3, 3), max_size=3),
}
SPREADS = [
    Cube((Axis(3, None, ((0, ""),)),)),
    Cube((Axis(8, None, ((0, ""),)), Axis(2, None, ((1, ""),)))),
    Cube((Axis(2, pa.int64(), ((0, "k"), (1, "k"))), Axis(3, None, ((0, ""),)))),
]


def batch_of_rows(schema: pa.Schema, rows: list[tuple]) -> pa.RecordBatch:
    if not len(schema):
        return pa.RecordBatch.from_struct_array(pa.nulls(len(rows), pa.struct([])))
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def sent(task, batches: list[pa.RecordBatch], schema: pa.Schema) -> Counter:
    """Return how often each row goes to each cell."""
    arrived: Counter = Counter()
    for rows in task(iter(batches)):
        for row in range(rows.num_rows):
            cell = rows.column(0)[row].as_py()
            for batch in BlockReader(iter([rows.slice(row, 1)]), [schema], cell).source(0):
                arrived.update((str(each), cell) for each in batch.to_pylist())
    return arrived


@hs.composite
def partitions(draw):
    """A partition in two orders, each cut into batches somewhere."""
    schema = draw(hs.sampled_from(SCHEMAS))
    row = hs.tuples(*(hs.none() | VALUES[name] for name in schema.names))
    rows = draw(hs.lists(row, max_size=30))
    attempts = []
    for order in (rows, draw(hs.permutations(rows))):
        whole = batch_of_rows(schema, order)
        cuts = [0, *sorted(draw(hs.lists(hs.integers(0, len(rows)), max_size=4))), len(rows)]
        attempts.append([whole.slice(a, b - a) for a, b in itertools.pairwise(cuts)])
    return schema, attempts


@settings(max_examples=150, deadline=None)
@given(partitions(), hs.sampled_from(SPREADS), hs.integers(0, 300), hs.sampled_from([1, 100, 1 << 20]))
def test_rows_of_a_dataframe_go_to_the_same_cells_in_every_order(partition, cube, number, block_bytes):
    """Any permutation and any batching of a partition's rows gives all rows, in the same cells."""
    schema, attempts = partition
    if "k" not in schema.names and any(axis.type is not None for axis in cube.axes):
        cube = SPREADS[0]

    def task(batches):
        writer = BlockWriter(Cut(0, cube, block_bytes), HashPartitioner(number))
        for batch in batches:
            yield from writer.add(batch)
        yield from writer.finish()

    first, second = (sent(task, batches, schema) for batches in attempts)
    assert first == second
    assert all(0 <= cell < cube.cells for _, cell in first)
    keyed = any(axis.type is not None for axis in cube.axes)
    kept = sum(batch.num_rows - (batch["k"].null_count if keyed else 0) for batch in attempts[0])
    assert first.total() == kept * cube.copies(0)


def test_what_a_null_hides_decides_nothing():
    """Arrow leaves any bytes where a null is; they are another's leftovers in the next attempt."""
    bits = pa.py_buffer(b"\x02")
    for kind, one, other in (
        (pa.int64(), [7, 5], [8, 5]),
        (pa.string(), ["hidden", "x"], ["other", "x"]),
        (pa.decimal128(30, 0), [1, 5], [2, 5]),
    ):
        columns = [
            pa.Array.from_buffers(kind, 2, [bits, *pa.array(values, kind).buffers()[1:]])
            for values in (one, other)
        ]
        numbers = [HashPartitioner(3)(pa.record_batch([column], ["c"])).tolist() for column in columns]
        assert numbers[0] == numbers[1]


def test_floating_point_numbers_decide_nothing():
    """A sum may be rounded otherwise when its addends come in another order; its row is the same row."""
    deal = HashPartitioner(0)
    before = pa.record_batch([pa.array([1, 2]), pa.array([0.1 + 0.2 + 0.3, 1.0])], ["k", "total"])
    after = pa.record_batch([pa.array([1, 2]), pa.array([0.3 + 0.2 + 0.1, 1.0])], ["k", "total"])
    assert not before.equals(after)
    assert deal(before).tolist() == deal(after).tolist()


@pytest.mark.parametrize("cells", [2, 3, 8, 64])
def test_rows_that_differ_are_spread_evenly(cells):
    """Also those that differ in one column of several, or in the middle of a short text only."""
    n = 6_400
    for columns in (
        [np.arange(n)],
        [np.arange(n) * 1024, np.zeros(n, np.int64)],
        [pa.array([f"user-{i:05}@example.org" for i in range(n)])],
    ):
        batch = pa.record_batch(columns, [f"c{i}" for i in range(len(columns))])
        held = np.bincount(HashPartitioner(1)(batch) % cells, minlength=cells)
        # A sum of n draws with probability 1/cells lies within six deviations but once in 10⁸ times.
        assert np.abs(held - n / cells).max() < 6 * np.sqrt(n / cells)


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64()), pa.float64()])
def test_rows_that_hash_alike_are_spread_by_partition(kind):
    """With as many partitions as cells, equal rows fill all cells evenly."""
    equal = pa.record_batch([pa.nulls(10, kind)], ["c"])
    held = np.bincount(np.concatenate([HashPartitioner(n)(equal) % 8 for n in range(16)]), minlength=8)
    assert held.tolist() == [20] * 8


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_scan_sends_the_same_in_every_attempt(tmp_path, monkeypatch, is_remote):
    """Row groups, filters and batches keep the files' order, so that numbers of rows do.

    However a store stalls, a small relation's filter drops the same rows, and the others go where they went.
    """
    key = pa.int64()
    tables = {
        "t": pa.table({"k": pa.array(range(60_000), key), "s": [f"s{n % 7}" for n in range(60_000)]}),
        "s": pa.table({"k": pa.array([n for n in range(60_000) if n % 20], key)}),
    }
    low = Compare("<", ColumnOf(ColumnRef("t", "k")), Literal(54_500, key), key)
    filters, scans = {"t": (low,), "s": ()}, {}
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1000)
        own = splits(open_table(str(tmp_path / f"{name}.parquet")), filters[name], tuple(table.schema.names))
        parts = (own[::2], own[1::2]) if name == "t" else (own,)
        scans[name] = replace(Scan.of(table.schema, filters[name], parts), is_remote=is_remote)
    relations = tuple(RelationSpec(name, table.schema) for name, table in tables.items())
    join = JoinSpec(relations, (Equality(ColumnRef("t", "k"), ColumnRef("s", "k"), key),))
    reduction = Reduction(join, ((1, scans["s"]),))
    batch, sink = 16_384 if is_remote else 300, Sink("test", None, hidden=False)
    task = ScanTask({"t": (scans["t"], Cut(0, SPREADS[0], 1 << 20))}, batch, sink, reduction)
    sent, following = [], AheadBatches.__next__
    for number, seed in itertools.product((0, 1), (0, 1)):
        stalls = random.Random(seed)
        monkeypatch.setattr(
            AheadBatches,
            "__next__",
            lambda self, stalls=stalls: (
                None if not self._waits and stalls.random() < 0.5 else following(self)
            ),
        )
        sent.append(list(task(iter([pa.record_batch([pa.array([number])], ["id"])]))))
        assert sent[-1][0].schema == BLOCK_SCHEMA
    assert sent[0] == sent[1] != sent[2] == sent[3]
