"""Eviction: tuples whose window has passed are not matched any more, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from millrace.engine.expressions import Column, ColumnRef, Compare
from millrace.engine.graph import QueryGraph
from millrace.engine.spec import JoinSpec
from millrace.engine.state.inequalities import inequalities
from millrace.engine.state.stem import SteM, singletons
from tests.engine.eddy.blocks import block
from tests.engine.eddy.oracle import key_values
from tests.engine.laws import examples

LAWS = examples(50)
TEXTS = key_values(pa.string())


def spec_of(*, ordered: bool) -> JoinSpec:
    """Return ``a.k = b.k AND a.s = b.s``, or ``a.k < b.k``."""
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])
    tables = {"a": schema.empty_table(), "b": schema.empty_table()}
    case = block(tables, [] if ordered else ["a.k = b.k", "a.s = b.s"])
    if not ordered:
        return case.spec
    less = Compare("<", Column(ColumnRef("a", "k")), Column(ColumnRef("b", "k")), pa.int64())
    return JoinSpec(case.spec.relations, (), (less,), case.spec.output)


def rows_of(values: list[tuple[int, str]]) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array([k for k, _ in values], pa.int64()), "s": [s for _, s in values]})


def matches(stem: SteM, batch: Any, limit: int = 3) -> list[tuple[int, int]]:
    """Return pairs of a probing tuple's row and a row of the SteM."""
    probe = stem.start(batch)
    pairs: list[tuple[int, int]] = []
    while not probe.is_done:
        found = stem.probe(probe, limit)
        pairs += zip(found.rows[0].tolist(), found.rows[1].tolist(), strict=True)
    return sorted(pairs)


@LAWS
@given(st.data(), st.booleans(), st.booleans())
def test_a_probe_meets_what_is_not_evicted(data: st.DataObject, ordered: bool, as_set: bool) -> None:
    """Builds, probes and evictions in any sequence, against a list of tuples."""
    spec = spec_of(ordered=ordered)
    graph = QueryGraph.of(spec)
    a = SteM(0, spec.relations[0], graph)
    b = SteM(1, spec.relations[1], graph, inequalities=inequalities(spec, 1))
    if as_set:
        b.base.as_set()
    held: dict[int, tuple[int, str]] = {}
    tuples = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(TEXTS)), min_size=1, max_size=40)
    stamp = 0
    for _ in range(data.draw(st.integers(1, 6))):
        values = data.draw(tuples)
        built = b.build(singletons(b, rows_of(values), "b", built=False), stamp)
        if as_set:
            values = [v for v in dict.fromkeys(values) if v not in held.values()]
        assert built.size == len(values)
        held |= dict(enumerate(values, b.rows - len(values)))
        assert b.store.gather("s", built.rows[1]).to_pylist() == [s for _, s in values]
        stamp += 1000
        below = data.draw(st.integers(0, b.rows))
        b.evict(below)
        held = {row: v for row, v in held.items() if row >= below}
        probing = data.draw(tuples)
        probe = a.build(singletons(a, rows_of(probing), "a", built=False), stamp)
        stamp += 1000
        first = a.rows - len(probing)
        expected = [
            (first + i, row)
            for i, mine in enumerate(probing)
            for row, other in held.items()
            if (mine[0] < other[0] if ordered else mine == other)
        ]
        assert matches(b, probe) == sorted(expected)
        assert b.figures().tuples == len(held)
        assert b.figures().evicted + len(held) == b.figures().inserted == b.rows


def test_a_sliding_window_keeps_memory_bounded() -> None:
    """Indexes are made anew when they hold more evicted rows than others, so they do not grow either."""
    spec = spec_of(ordered=False)
    graph = QueryGraph.of(spec)
    a, b = (SteM(i, spec.relations[i], graph) for i in range(2))
    sizes = []
    for n in range(200):
        rows = rows_of([(i, "x") for i in range(50 * n, 50 * n + 50)])
        b.build(singletons(b, rows, "b", built=False), 100 * n)
        b.evict(b.rows - 200)
        probe = a.build(singletons(a, rows, "a", built=False), 100 * n + 50)
        assert len(matches(b, probe, 1000)) == 50
        sizes.append(b.nbytes)
    assert b.rows == 10_000
    assert max(sizes[100:]) <= 2 * max(sizes[:20])
    assert int(np.diff([len(b.store.codes(0)), 200])[0]) == 0
