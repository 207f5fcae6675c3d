"""Laws of the HyperCube: every combination that joins meets in exactly one cell."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as hs

from millrace.engine.expressions import ColumnRef
from millrace.engine.graph import QueryGraph
from millrace.engine.kernels import mix
from millrace.engine.relations import codes
from millrace.engine.spec import Equality, JoinSpec, RelationSpec
from millrace.spark.hypercube import Cube, choose

COLUMNS = ("a", "b")


def spec_of(count: int, edges: list[tuple[int, str, int, str]]) -> JoinSpec:
    schema = pa.schema([(name, pa.int64()) for name in COLUMNS])
    return JoinSpec(
        tuple(RelationSpec(f"r{n}", schema) for n in range(count)),
        tuple(Equality(ColumnRef(f"r{i}", x), ColumnRef(f"r{j}", y), pa.int64()) for i, x, j, y in edges),
    )


@hs.composite
def blocks(draw):
    count = draw(hs.integers(1, 4))
    column = hs.sampled_from(COLUMNS)
    pairs = list(itertools.combinations(range(count), 2))
    edges = draw(
        hs.lists(hs.tuples(hs.sampled_from(pairs), column, column), max_size=5) if pairs else hs.just([])
    )
    spec = spec_of(count, [(i, x, j, y) for (i, j), x, y in edges])
    rows = [
        draw(hs.lists(hs.tuples(hs.integers(-3, 3), hs.integers(-3, 3)), min_size=1, max_size=6))
        for _ in range(count)
    ]
    sizes = draw(hs.lists(hs.integers(1, 10**9), min_size=count, max_size=count))
    distinct = draw(hs.lists(hs.booleans(), min_size=count, max_size=count))
    return spec, rows, sizes, distinct, draw(hs.integers(1, 30))


def cells_of(cube: Cube, relation: int, rows: list[tuple[int, int]]) -> list[list[int]]:
    batch = pa.table([pa.array(column, pa.int64()) for column in zip(*rows, strict=True)], names=COLUMNS)
    hashes = [
        mix(codes(batch[axis.column(relation)].combine_chunks(), axis.type)[0])
        for axis in cube.axes
        if axis.type is not None and axis.column(relation) is not None
    ]
    base = cube.base(relation, hashes, np.arange(len(rows)))
    base = np.zeros(len(rows), np.int64) if base is None else base
    return [[int(cell) + offset for offset in cube.offsets(relation)] for cell in base]


@settings(max_examples=150, deadline=None)
@given(blocks())
def test_every_result_is_made_in_exactly_one_cell(block):
    """Whatever the graph, the sizes and the number of cells; equal tuples of a set go to the same ones."""
    spec, rows, sizes, distinct, limit = block
    cube = choose(QueryGraph.of(spec), sizes, limit, distinct)
    assert 1 <= cube.cells <= limit
    homes = [cells_of(cube, relation, rows[relation]) for relation in range(len(rows))]
    for relation, cells in enumerate(homes):
        assert all(len(set(each)) == cube.copies(relation) for each in cells)
        assert all(0 <= cell < cube.cells for each in cells for cell in each)
        if distinct[relation]:
            known = dict(zip(rows[relation], cells, strict=True))
            assert cells == [known[row] for row in rows[relation]]
    for picks in itertools.product(*(range(len(each)) for each in rows)):
        value = {
            ColumnRef(f"r{n}", name): rows[n][pick][k]
            for n, pick in enumerate(picks)
            for k, name in enumerate(COLUMNS)
        }
        if all(value[e.left] == value[e.right] for e in spec.equalities):
            shared = set.intersection(*(set(homes[n][pick]) for n, pick in enumerate(picks)))
            assert len(shared) == 1


def test_shares_follow_sizes():
    """The textbook cases: one big relation, a chain, a triangle, a cross product."""
    chain = QueryGraph.of(spec_of(3, [(0, "a", 1, "a"), (1, "b", 2, "b")]))
    cube = choose(chain, [1_000_000, 1_000_000, 10], 8, [False] * 3)
    assert [(axis.share, axis.column(0)) for axis in cube.axes] == [(8, "a")]
    triangle = QueryGraph.of(spec_of(3, [(0, "b", 1, "a"), (1, "b", 2, "a"), (2, "b", 0, "a")]))
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
    schema = pa.schema([(f"c{n}", pa.int64()) for n in range(count)])
    spec = JoinSpec(
        tuple(RelationSpec(f"r{n}", schema) for n in range(count)),
        tuple(
            Equality(ColumnRef("r0", f"c{n}"), ColumnRef(f"r{n}", "c0"), pa.int64()) for n in range(1, count)
        ),
    )
    cube = choose(QueryGraph.of(spec), [10**6] + [1000] * (count - 1), cells, [False] * count)
    assert cube.cells <= cells
    assert cube.copies(0) == 1
