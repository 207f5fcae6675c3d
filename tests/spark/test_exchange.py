"""The block exchange loses nothing, changes nothing, and keeps memory bounded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as hs

from millrace.errors import ExecutionError
from millrace.spark.exchange import FIGURES, BlockReader, BlockWriter, Cut, block_rows, figures_block
from millrace.spark.hypercube import Axis, Cube

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
    n = len(keys)
    return pa.record_batch(
        [
            pa.array(keys, pa.int64()),
            pa.array([None if k is None else f"s{k}" for k in keys]),
            pa.array(range(n), pa.int64())
            .cast(pa.decimal128(19, 0))
            .cast(pa.decimal128(21, 2))
            .cast(pa.decimal128(15, 2)),
            pa.array([[1, None]] * n, pa.list_(pa.int8())),
        ],
        schema=SCHEMA,
    )


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
    writer = BlockWriter(Cut(0, cube, 10_000))
    keys = np.arange(40_000)
    for start in range(0, len(keys), 1000):
        list(writer.add(batch_of(keys[start : start + 1000].tolist())))
        assert sum(writer._sizes.values()) <= 16 * 10_000
    list(writer.finish())
    assert writer.rows == len(keys)


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


def test_tuples_without_columns_travel_as_counts():
    """A relation of no columns still has rows."""
    empty = pa.RecordBatch.from_struct_array(pa.nulls(7, pa.struct([])))
    writer = BlockWriter(Cut(0, Cube((Axis(2, None, ((0, ""),)),)), 1024))
    rows = [*writer.add(empty), *writer.finish()]
    total = 0
    for cell, blocks in by_cell(rows).items():
        total += sum(b.num_rows for b in BlockReader(iter(blocks), [pa.schema([])], cell).source(0))
    assert total == 7
