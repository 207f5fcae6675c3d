"""The HyperCube: every combination that joins meets in exactly one of its cells, and how many those are."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings, strategies as hs

from millrace.engine.plan.expressions import Column, ColumnRef, Exists, IsNull, LeftJoin, Or
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.options import Options
from millrace.spark.exchange import BlockWriter, Cut
from millrace.spark.hypercube import Axis, Cube, choose
from millrace.spark.placement import CELL_BYTES, Size, choose_cube, place
from tests.engine.eddy.oracle import block, compare
from tests.engine.test_trees import spec_of, specs

COLUMNS = "xy"


@hs.composite
def blocks(draw):
    spec = draw(specs(4, COLUMNS))
    count = len(spec.relations)
    rows = [
        draw(hs.lists(hs.tuples(hs.integers(-3, 3), hs.integers(-3, 3)), min_size=1, max_size=6))
        for _ in range(count)
    ]
    sizes = draw(hs.lists(hs.integers(1, 10**9), min_size=count, max_size=count))
    distinct = draw(hs.lists(hs.booleans(), min_size=count, max_size=count))
    return spec, rows, sizes, distinct, draw(hs.integers(1, 30))


@hs.composite
def with_frequent_keys(draw, cube: Cube, fixed: list[bool]):
    """Keys of one axis may be frequent; what is fixed is not spread, nor is what is spread by row."""
    by_row = {number for axis in cube.axes if axis.type is None for number, _ in axis.columns}
    able = [
        (number, relation)
        for number, axis in enumerate(cube.axes)
        for relation, _ in axis.columns
        if axis.type is not None and not fixed[relation] and relation not in by_row
    ]
    if not able:
        return cube
    number, relation = draw(hs.sampled_from(able))
    axes, frequent = [*cube.axes], draw(hs.lists(hs.integers(-3, 3), max_size=3, unique=True))
    axes[number] = replace(axes[number], frequent=tuple(frequent), spread=relation)
    return Cube(tuple(axes))


def cells_of(cube: Cube, relation: int, rows: list[tuple[int, int]]) -> list[list[int]]:
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    base, _ = BlockWriter(Cut(relation, cube, 1)).cells(pa.record_batch(columns, [*COLUMNS]))
    base = np.zeros(len(rows), np.int64) if base is None else base
    homes = [divmod(int(cell), cube.cells) for cell in base]
    return [[cell + offset for offset in cube.offsets(relation, frequent=bool(f))] for f, cell in homes]


def copies_of(cube: Cube, relation: int, row: tuple[int, int]) -> int:
    """Return in how many cells a tuple is: in those of a whole axis more if its key is frequent there."""
    wide = [
        axis.share
        for axis in cube.axes
        if (column := axis.column(relation)) is not None
        and axis.spread != relation
        and axis.type is not None
        and row[COLUMNS.index(column)] in axis.frequent
    ]
    return cube.copies(relation) * math.prod(wide)


def check_a_block(data):
    spec, rows, sizes, distinct, limit = data.draw(blocks())
    cube = data.draw(with_frequent_keys(choose(QueryGraph.of(spec), sizes, limit, distinct), distinct))
    assert 1 <= cube.cells <= limit
    homes = [cells_of(cube, relation, rows[relation]) for relation in range(len(rows))]
    for relation, cells in enumerate(homes):
        copies = [copies_of(cube, relation, row) for row in rows[relation]]
        assert [len(set(each)) for each in cells] == copies
        assert all(0 <= cell < cube.cells for each in cells for cell in each)
        if distinct[relation]:
            known = dict(zip(rows[relation], cells, strict=True))
            assert cells == [known[row] for row in rows[relation]]
    for one, other in itertools.permutations(range(len(rows)), 2):
        if cube.cuts_alike(one, other):
            assert cells_of(cube, other, rows[one]) == homes[one]
    for picks in itertools.product(*(range(len(each)) for each in rows)):
        value = {
            ColumnRef(spec.aliases[n], name): rows[n][pick][k]
            for n, pick in enumerate(picks)
            for k, name in enumerate(COLUMNS)
        }
        if all(value[e.left] == value[e.right] for e in spec.equalities):
            shared = set.intersection(*(set(homes[n][pick]) for n, pick in enumerate(picks)))
            assert len(shared) == 1


@settings(max_examples=150, deadline=None)
@given(hs.data())
def test_every_result_is_made_in_exactly_one_cell(data):
    """Whatever the graph, the sizes and the number of cells; equal tuples of a set go to the same ones."""
    check_a_block(data)


@pytest.mark.broken_rule
@pytest.mark.parametrize("spreads", [lambda axis, relation: True, lambda axis, relation: False])
def test_a_frequent_key_that_is_spread_by_all_or_by_none_is_noticed(monkeypatch, spreads):
    """Results are lost where each relation spreads its tuples, and made in every cell where none does."""
    monkeypatch.setattr(Axis, "spreads", spreads)
    law = settings(max_examples=150, deadline=None, phases=[Phase.generate], derandomize=True, database=None)
    with pytest.raises(AssertionError):
        law(given(hs.data())(check_a_block))()


@pytest.mark.broken_rule
def test_relations_that_share_blocks_but_are_cut_by_other_keys_are_noticed(monkeypatch):
    """Equal tuples of two roles then belong in different cells."""
    monkeypatch.setattr(Cube, "cuts_alike", lambda cube, one, other: True)
    law = settings(max_examples=150, deadline=None, phases=[Phase.generate], derandomize=True, database=None)
    with pytest.raises(AssertionError):
        law(given(hs.data())(check_a_block))()


def test_shares_follow_sizes():
    """The textbook cases: one big relation, a chain, a triangle, a cross product."""
    chain = QueryGraph.of(spec_of(3, ["a.x = b.x", "b.y = c.y"]))
    cube = choose(chain, [1_000_000, 1_000_000, 10], 8, [False] * 3)
    assert [(axis.share, axis.column(0)) for axis in cube.axes] == [(8, "x")]
    triangle = QueryGraph.of(spec_of(3, ["a.y = b.x", "b.y = c.x", "c.y = a.x"]))
    cube = choose(triangle, [1000, 1000, 1000], 8, [False] * 3)
    assert sorted(axis.share for axis in cube.axes) == [2, 2, 2]
    cross = QueryGraph.of(spec_of(2, []))
    cube = choose(cross, [1_000_000, 5], 4, [False] * 2)
    assert [(axis.share, axis.type, axis.columns) for axis in cube.axes] == [(4, None, ((0, ""),))]
    assert choose(cross, [1_000_000, 5], 4, [True, True]).cells == 1


@pytest.mark.parametrize("cells", [7, 1000])
def test_many_classes_are_searched_quickly(cells):
    """A wide star has more classes than can be searched through; the answer still has few copies."""
    count = 12
    wide = pa.schema([(f"c{n}", pa.int64()) for n in range(count)]).empty_table()
    spec = block({f"r{n}": wide for n in range(count)}, [f"r0.c{n} = r{n}.c0" for n in range(1, count)]).spec
    cube = choose(QueryGraph.of(spec), [10**6] + [1000] * (count - 1), cells, [False] * count)
    assert cube.cells <= cells
    assert cube.copies(0) == 1


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
    join = spec_of(2, ["a.x = b.y"])
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
    keys = tuple(compare("=", str(o), f"{last.alias}.{i}", pa.int64()) for o, i in pairs)
    negated = data.draw(hs.booleans())
    asked = Exists(last.alias, keys, negated=negated, null_aware=negated and data.draw(hs.booleans()))
    other = data.draw(hs.none() | outer)
    whole = asked if other is None else Or((asked, IsNull(Column(other))))
    join = replace(spec, relations=tuple(joined), equalities=equalities)
    widens = data.draw(hs.booleans())
    asking = {"outer": (LeftJoin(last.alias, keys),)} if widens else {"residuals": (whole,)}
    join = replace(join, beside=(last,), **asking)
    fixed = [False] * len(joined) + [True]
    cube = data.draw(with_frequent_keys(choose_cube(join, sizes, limit, fixed), fixed))
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
    key = compare("=", "a.x", "b.x", pa.int64())
    asked = Exists("b", (key,), negated=negated, null_aware=null_aware)
    tables = spec_of(2, []).relations
    residual = Or((asked, IsNull(key.left))) if either else asked
    join = JoinSpec(tables[:1], residuals=(residual,), beside=tables[1:])
    sizes = [Size(10**6, 10**9, 8, is_fixed=False), Size(10**6, 10**9, 8, is_fixed=True)]
    cube = place(join, sizes, Options(placement="hypercube", cells=4), parallelism=4).cube
    assert cube.copies(1) == (cube.cells if null_aware else 1)
    writer = BlockWriter(Cut(0, cube, 1 << 20))
    batch = pa.record_batch({"x": pa.array([1, None], pa.int64()), "y": pa.array([1, 1], pa.int64())})
    sent = pa.Table.from_batches([*writer.add(batch), *writer.finish()])
    assert writer.rows == kept
    assert len(set(sent["cell"].to_pylist())) == sent.num_rows


def test_a_left_join_by_another_ones_column_is_made_in_every_cell():
    """Only the cell that has a match knows what to look for."""
    spec = spec_of(3, [])
    outer = tuple(
        LeftJoin(other, (compare("=", f"{one}.x", f"{other}.x", pa.int64()),))
        for one, other in itertools.pairwise(spec.aliases)
    )
    join = replace(spec, relations=spec.relations[:1], beside=spec.relations[1:], outer=outer)
    cube = choose_cube(join, [10**9] * 3, 6, [False, True, True])
    assert [cube.copies(number) for number in range(3)] == [1, 1, 6]
