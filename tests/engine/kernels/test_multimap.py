"""The multimap against a dictionary of lists."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from millrace.engine.kernels import Multimap, multimap
from tests.engine.laws import examples

LEAST, GREATEST = -(2**63), 2**63 - 1

# Clusters of codes that address densely, and sparse ones that hash; each with the ends of int64.
clusters = st.sampled_from([0, -3, 1 << 20, -(1 << 40), LEAST, GREATEST - 40])
dense = clusters.flatmap(lambda base: st.integers(base, base + 40))
sparse = st.one_of(
    st.sampled_from([LEAST, LEAST + 1, -1, 0, 1, GREATEST - 1, GREATEST]), st.integers(LEAST, GREATEST)
)
few = st.sampled_from([LEAST, 7, 7 << 32, GREATEST])
UNHASH = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
# Codes that crowd the first line of a hashed table, and the last one, which the first follows.
crowded = st.builds(
    lambda first, n: ((first + n) * UNHASH + GREATEST + 1) % (1 << 64) + LEAST,
    st.sampled_from([0, -40]),
    st.integers(0, 39),
)


@st.composite
def code_lists(draw: st.DrawFn, max_size: int = 60) -> list[int]:
    return draw(
        st.lists(draw(st.sampled_from([dense, sparse, few, crowded, st.integers(5, 12)])), max_size=max_size)
    )


Pairs = Counter[tuple[int, int]]


def probed(table: Multimap, codes: list[int], limit: int, low: int = 0, high: Any = None) -> Pairs:
    """Probe to the end and return ``(position, row)`` pairs; no call gives more than ``limit``.

    Newer rows come before older ones, so that a walk may stop at the first row that is too old.
    """
    bounds = None if high is None else np.array(high, np.int32)
    walk = table.probe(np.array(codes, np.int64), low, bounds)
    assert walk.is_new
    pairs: Pairs = Counter()
    last: dict[int, int] = {}
    calls = 0
    while not walk.is_done:
        left, right = walk.pairs(limit)
        assert len(left) == len(right) <= limit
        for position, row in zip(left.tolist(), right.tolist(), strict=True):
            pairs[position, row] += 1
            assert last.get(position, table.rows) > row
            last[position] = row
        calls += 1
        assert calls <= len(codes) * (table.rows + 1) + 1, "the walk makes no progress"
    return pairs


def model(rows: list[int], codes: list[int], low: int = 0, high: list[int] | None = None) -> Pairs:
    chains = defaultdict(list)
    for row, code in enumerate(rows):
        chains[code].append(row)
    ends = high or [len(rows)] * len(codes)
    return Counter((i, row) for i, code in enumerate(codes) for row in chains[code] if low <= row < ends[i])


@examples(150)
@given(
    st.data(),
    st.lists(code_lists(), min_size=1, max_size=5),
    code_lists(),
    st.integers(1, 70),
    st.sampled_from([0, 1, 5000]),
)
def test_a_probe_finds_what_a_dictionary_of_lists_holds(data, pieces, others, limit, capacity):
    """Every match, once, after each insert: however small the output buffer, and however it is bounded.

    Only rows from ``low`` on, and below each tuple's own ``high``, match. What the table counts is exact.
    """
    table, rows = Multimap(capacity), []
    for piece in pieces:
        table.insert(np.array(piece, np.int64))
        rows += piece
        assert (table.rows, table.distinct) == (len(rows), len(set(rows)))
        assert table.unique == (len(set(rows)) == len(rows))
        codes = others + rows[::2]
        assert probed(table, codes, limit) == model(rows, codes)
        low = data.draw(st.integers(0, len(rows)))
        ends = st.integers(0, len(rows))
        high = data.draw(st.none() | st.lists(ends, min_size=len(codes), max_size=len(codes)))
        assert probed(table, codes, limit, low, high) == model(rows, codes, low, high)


@pytest.mark.broken_rule
def test_a_slot_that_stays_behind_when_the_table_grows_is_missed(monkeypatch) -> None:
    """All slots of a line move: the law above would see what is lost."""
    move, codes = multimap._move, [n << 40 for n in range(600)]

    def leave_behind(old, heads, first, *table):
        heads = heads.copy()
        heads[:, -1] = -1
        move(old, heads, first, *table)

    for broken in (False, True):
        monkeypatch.setattr(multimap, "_move", leave_behind if broken else move)
        table = Multimap()
        for low in range(0, 600, 50):
            table.insert(np.array(codes[low : low + 50]))
        assert (probed(table, codes, 99) != model(codes, codes)) == broken


@pytest.mark.parametrize("stride", [1, 1 << 40])
def test_a_walk_does_not_look_at_rows_that_are_too_old(stride: int) -> None:
    """It sees the last ten of a thousand; older links, were they followed, would lead back to these."""
    table = Multimap()
    for piece in range(100):
        fresh = np.arange(1 + piece * 500, 501 + piece * 500)
        table.insert(np.concatenate([np.zeros(10, np.int64), fresh]) * stride)
    first = table.rows - 510
    table.nexts[:first] = first
    assert probed(table, [0], 100, first) == Counter({(0, row): 1 for row in range(first, first + 10)})


@pytest.mark.parametrize(
    ("codes", "most"),
    [
        (np.arange(40_000) * 7, 45),  # dense, in a range seven times their number
        (np.arange(40_000) << 40, 56),  # hashed
        (np.arange(40_000) % 100 << 40, 6),  # as many rows of few codes
    ],
    ids=["dense", "hashed", "repeated"],
)
def test_memory_of_a_row(codes: np.ndarray, most: int) -> None:
    """Links take 4 bytes a row, and slots what the number of different codes asks for; keys are not kept.

    An expectation that is far too high is not believed at once.
    """
    for expected in (0, 1 << 24):
        table = Multimap(expected)
        table.insert(codes[:1000])
        assert table.nbytes <= 1 << 17
        for low in range(1000, len(codes), 500):
            table.insert(codes[low : low + 500])
        assert expected or table.nbytes <= most * table.rows


def test_codes_of_other_types_and_layouts_are_taken() -> None:
    """A view of every other code, of 32 bits, and one that cannot be written."""
    codes = np.arange(20)
    frozen = codes.copy()
    frozen.flags.writeable = False
    table = Multimap()
    for each in (codes[::2], codes.astype(np.int32), frozen):
        table.insert(each)
    rows = [*range(0, 20, 2), *range(20), *range(20)]
    assert probed(table, frozen[::3], 9) == model(rows, list(range(0, 20, 3)))
