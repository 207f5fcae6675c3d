"""How many cells an exchange has, and where matches are looked for."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as hs

from millrace.engine.expressions import Column, ColumnRef, Compare, Exists, IsNull, LeftJoin, Or
from millrace.engine.spec import JoinSpec
from millrace.options import Options
from millrace.spark.exchange import BlockWriter, Cut
from millrace.spark.placement import CELL_BYTES, Size, choose_cube, place
from tests.spark.test_hypercube import COLUMNS, blocks, cells_of, spec_of


@pytest.mark.parametrize(
    ("bytes_each", "splits", "cells"),
    [
        (CELL_BYTES // 8, None, 4),
        (10 * CELL_BYTES, None, 20),
        (10**6 * CELL_BYTES, None, 50),
        (200 * CELL_BYTES, 8, 400),
    ],
)
def test_estimates_of_spark_ask_for_no_more_cells_than_spark_takes_partitions(bytes_each, splits, cells):
    """They multiply at every join, so a tiny one may be taken for a terabyte; a file's size is known."""
    join = spec_of(2, [(0, "a", 1, "b")])
    sizes = [Size(10**6, bytes_each, splits, is_fixed=False)] * 2
    options = Options(placement="hypercube")
    assert place(join, sizes, options, parallelism=4, partitions=50).cells == cells


def _is_sent(cube, relation, row):
    """Whether a tuple goes anywhere: one with a null key does not, but on an axis where nulls stay."""
    columns = [axis.column(relation) for axis in cube.axes if axis.type is not None and not axis.nulls]
    return all(row[COLUMNS.index(column)] is not None for column in columns if column is not None)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(hs.data())
def test_a_cell_that_asks_has_every_match(data):
    """A result that a semijoin, an antijoin or an OR with one lets pass is made in one cell.

    So is what a left join widens, and all that it can match is there.
    """
    spec, rows, sizes, _, limit = data.draw(blocks().filter(lambda block: len(block[0].relations) > 1))
    *joined, last = spec.relations
    equalities = tuple(e for e in spec.equalities if last.alias not in (e.left.relation, e.right.relation))
    outer = hs.builds(ColumnRef, hs.sampled_from([r.alias for r in joined]), hs.sampled_from(COLUMNS))
    pairs = data.draw(hs.lists(hs.tuples(outer, hs.sampled_from(COLUMNS)), min_size=1, max_size=2))
    keys = tuple(Compare("=", Column(o), Column(ColumnRef(last.alias, i)), pa.int64()) for o, i in pairs)
    negated = data.draw(hs.booleans())
    asked = Exists(last.alias, keys, negated=negated, null_aware=negated and data.draw(hs.booleans()))
    other = data.draw(hs.none() | outer)
    whole = asked if other is None else Or((asked, IsNull(Column(other))))
    join = replace(spec, relations=tuple(joined), equalities=equalities)
    widens = data.draw(hs.booleans())
    if widens:
        join = replace(join, beside=(last,), outer=(LeftJoin(last.alias, keys),))
    else:
        join = replace(join, beside=(last,), residuals=(whole,))
    cube = choose_cube(join, sizes, limit, [False] * len(joined) + [True])
    rows = [[tuple(None if v > 1 else v for v in row) for row in each] for each in rows]
    homes = [
        [cells if _is_sent(cube, number, row) else [] for row, cells in zip(each, found, strict=True)]
        for number, each in enumerate(rows)
        for found in (cells_of(cube, number, each),)
    ]
    if asked.null_aware and not widens:
        assert all(len(cells) == cube.cells for cells in homes[-1])
    for picks in itertools.product(*(range(len(each)) for each in rows[:-1])):
        value = {
            ColumnRef(relation.alias, name): rows[n][pick][k]
            for n, (relation, pick) in enumerate(zip(joined, picks, strict=True))
            for k, name in enumerate(COLUMNS)
        }
        if any(value[e.left] is None or value[e.left] != value[e.right] for e in equalities):
            continue
        matches = [
            set(cells)
            for row, cells in zip(rows[-1], homes[-1], strict=True)
            if all(value[o] is not None and value[o] == row[COLUMNS.index(i)] for o, i in pairs)
        ]
        shared = set.intersection(*(set(homes[n][pick]) for n, pick in enumerate(picks)))
        if widens:
            assert len(shared) == 1
            assert all(shared <= cells for cells in matches)
            continue
        seen = {cell for cell in shared if any(cell in each for each in matches)}
        sure = other is not None and value[other] is None
        passed = shared if sure else shared - seen if negated else seen
        assert len(passed) == int(sure or bool(matches) is not negated)


@pytest.mark.parametrize(
    ("negated", "null_aware", "either", "kept"),
    [(False, False, False, 1), (False, False, True, 2), (True, False, False, 2), (True, True, False, 2)],
)
def test_a_null_key_is_dropped_only_where_it_finds_no_match(negated, null_aware, either, kept):
    """A tuple with one goes to a single cell for NOT EXISTS and OR; NOT IN's relation goes to all cells."""
    key = Compare("=", Column(ColumnRef("r0", "a")), Column(ColumnRef("r1", "a")), pa.int64())
    asked = Exists("r1", (key,), negated=negated, null_aware=null_aware)
    tables = spec_of(2, []).relations
    residual = Or((asked, IsNull(key.left))) if either else asked
    join = JoinSpec(tables[:1], residuals=(residual,), beside=tables[1:])
    sizes = [Size(10**6, 10**9, 8, is_fixed=False), Size(10**6, 10**9, 8, is_fixed=True)]
    cube = place(join, sizes, Options(placement="hypercube", cells=4), parallelism=4).cube
    assert cube.copies(1) == (cube.cells if null_aware else 1)
    writer = BlockWriter(Cut(0, cube, 1 << 20))
    batch = pa.record_batch({"a": pa.array([1, None], pa.int64()), "b": pa.array([1, 1], pa.int64())})
    sent = pa.Table.from_batches([*writer.add(batch), *writer.finish()])
    assert writer.rows == kept
    assert len(set(sent["cell"].to_pylist())) == sent.num_rows


def test_a_left_join_by_another_ones_column_is_made_in_every_cell():
    """Only the cell that has a match knows what to look for."""
    spec = spec_of(3, [])
    refs = [Column(ColumnRef(alias, "a")) for alias in spec.aliases]
    keys = [(Compare("=", one, other, pa.int64()),) for one, other in itertools.pairwise(refs)]
    outer = tuple(LeftJoin(alias, each) for alias, each in zip(spec.aliases[1:], keys, strict=True))
    join = replace(spec, relations=spec.relations[:1], beside=spec.relations[1:], outer=outer)
    cube = choose_cube(join, [10**9] * 3, 6, [False, True, True])
    assert [cube.copies(number) for number in range(3)] == [1, 1, 6]
