"""How a SteM searches by inequalities: in order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.expressions import Column, ColumnRef, Compare
from millrace.engine.state.ordered import OrderedIndex, is_ordered, places
from millrace.options import Options
from tests.engine.eddy.access_cases import run
from tests.engine.eddy.blocks import block
from tests.engine.eddy.oracle import Case
from tests.engine.laws import examples


def between(n: int) -> Case:
    """Return ``a.x >= b.low AND a.x < b.high`` over n tuples each, with one match for each."""
    tables = {
        "a": pa.table({"x": pa.array(range(n), pa.int64())}),
        "b": pa.table({"low": pa.array(range(n), pa.int64()), "high": pa.array(range(1, n + 1), pa.int64())}),
    }
    case = block(tables, [], count_only=True)
    x, low, high = (Column(ColumnRef(*name.split("."))) for name in ("a.x", "b.low", "b.high"))
    residuals = (Compare(">=", x, low, pa.int64()), Compare("<", x, high, pa.int64()))
    return replace(case, spec=replace(case.spec, residuals=residuals))


@pytest.mark.parametrize("stream", ["a", "b"])
def test_a_range_is_searched_and_not_filtered(stream: str) -> None:
    """Both bounds narrow the search if they are of one column; else one does, and a selection the other."""
    n = 300
    ran = run(between(n), {}, Options(batch_size=50), stream=stream, chunk=100)
    assert ran.rows == {(n,): 1}
    made = {m.action: m.tuples_out for m in ran.eddy.figures().modules if m.action in ("probe", "select")}
    if stream == "b":
        assert made == {"probe": n}
    else:
        assert made["select"] == n
        assert made["probe"] < n * n


def test_places_are_in_sparks_order() -> None:
    """Negative before positive, NaN last of all and equal to itself, zeros alike."""
    values = [-math.inf, -2.5, -1e-300, -0.0, 0.0, 1e-300, 3.0, math.inf, math.nan]
    for kind in (pa.float64(), pa.float32()):
        numbers, valid = places(pa.array([*values, None], kind), kind)
        assert valid is not None
        assert valid.tolist() == [True] * 9 + [False]
        differences = np.sign(np.diff(numbers[:9].astype(object))).tolist()
        tiny = 1 if kind == pa.float64() else 0  # which float32 does not know from 0
        assert differences == [1, 1, tiny, 0, tiny, 1, 1, 1]
    assert not is_ordered(pa.string())


@examples(60)
@given(st.data(), st.lists(st.lists(st.integers(-5, 5), max_size=6), max_size=8))
def test_an_ordered_index_equals_a_filter(data: st.DataObject, inserts: list[list[int]]) -> None:
    """Bounds from both sides, open and closed; row limits from both sides; eviction; any output size."""
    index = OrderedIndex()
    values: list[int] = []
    for part in inserts:
        index.insert(np.array(part, np.int64), np.array([v != 3 for v in part], np.bool_) if part else None)
        values += part
    below = data.draw(st.integers(0, len(values)))
    index.evict(below)
    n = data.draw(st.integers(0, 4))
    drawn = st.lists(st.integers(-6, 6), min_size=n, max_size=n)
    lows = [(np.array(data.draw(drawn), np.int64), data.draw(st.booleans())) for _ in range(2)]
    highs = [(np.array(data.draw(drawn), np.int64), data.draw(st.booleans()))]
    before = np.array([abs(b) for b in data.draw(drawn)], np.int32)
    walk = index.probe(lows, highs, None, n, below + 1, before)
    pairs: list[tuple[int, int]] = []
    while not walk.is_done:
        left, right = walk.pairs(3)
        assert len(left) == len(right) <= 3
        pairs += zip(left.tolist(), right.tolist(), strict=True)
    expected = [
        (i, row)
        for i in range(n)
        for row, v in enumerate(values)
        if below < row < before[i]
        and v != 3
        and all(v >= b[i] if closed else v > b[i] for b, closed in lows)
        and all(v <= b[i] if closed else v < b[i] for b, closed in highs)
    ]
    assert sorted(pairs) == expected
