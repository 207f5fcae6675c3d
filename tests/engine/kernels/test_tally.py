"""Counting sampled keys: the same keys for everyone, counted like a dictionary would."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from millrace.engine.kernels import BEFORE, KEY, NOW, SETTLED, runs, tally, thin, turn
from tests.engine.laws import examples

LAWS = examples(30)
codes = st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), max_size=60)
EVERYTHING = np.uint64(2**64 - 1)


def counted(drawn: list[int], threshold: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a table of the codes, and its slots that are taken."""
    table, taken = np.zeros((128, 4), np.int64), np.empty(64, np.int32)
    array = np.array(drawn, np.int64)
    stopped, held = tally(array, 0, len(array), np.uint64(threshold), table, taken, 0)
    assert stopped == len(drawn)
    return table, taken[:held]


def column(table: np.ndarray, taken: np.ndarray, which: int) -> dict[int, int]:
    return dict(zip(table[taken, KEY].tolist(), table[taken, which].tolist(), strict=True))


@LAWS
@given(codes, st.integers(0, 2**64 - 1))
@example([-(2**63), 2**63 - 1, 0, -1], 2**64 - 1)
def test_keys_below_the_threshold_are_counted(drawn: list[int], threshold: int) -> None:
    """Extreme codes among them; a threshold that falls later leaves what it would have let in."""
    found = column(*counted(drawn, threshold), NOW)
    everyone = column(*counted(drawn, 2**64 - 1), NOW)
    assert everyone == Counter(drawn) and found.items() <= everyone.items()
    table, taken = counted(drawn, 2**64 - 1)
    held = thin(table, taken, len(taken), np.uint64(threshold))
    assert column(table, taken[:held], NOW) == found
    assert np.count_nonzero(table[:, NOW]) == held  # nothing of what was dropped is left


@LAWS
@given(codes, codes)
def test_rows_of_now_become_rows_of_before(first: list[int], then: list[int]) -> None:
    """What was settled stays so, and keys are found again."""
    table, taken = np.zeros((256, 4), np.int64), np.empty(128, np.int32)
    held = 0
    for drawn in (first, then):
        turn(table, taken[:held])
        held = tally(np.array(drawn, np.int64), 0, len(drawn), EVERYTHING, table, taken, held)[1]
    everyone = {*first, *then}
    assert column(table, taken[:held], NOW) == {code: then.count(code) for code in everyone}
    assert column(table, taken[:held], BEFORE) == {code: first.count(code) for code in everyone}
    assert column(table, taken[:held], SETTLED) == {code: first.count(code) for code in everyone}


def test_it_stops_where_there_is_no_room() -> None:
    """Codes before that are counted, and counting goes on from there."""
    table, taken = np.zeros((8, 4), np.int64), np.empty(2, np.int32)
    assert tally(np.array([7, 8, 7, 9, 7]), 0, 5, EVERYTHING, table, taken, 0) == (3, 2)
    assert table[:, NOW].sum() == 3


@pytest.mark.parametrize("stride", [1, 32, 1 << 20, 1 << 40, 10_946, 987])
def test_keys_at_regular_distances_are_sampled_evenly(stride: int) -> None:
    """Whatever the stride, a share of the hashes lies below that share of their range."""
    keys = np.arange(1 << 14, dtype=np.int64) * stride
    for share in (1 / 2, 1 / 16, 1 / 64):
        table, taken = np.zeros((1 << 15, 4), np.int64), np.empty(1 << 14, np.int32)
        found = tally(keys, 0, len(keys), np.uint64(2**64 * share), table, taken, 0)[1]
        expected = share * (1 << 14)
        assert abs(found - expected) < 5 * expected**0.5


@LAWS
@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 5))
def test_runs_are_found(drawn: list[int], least: int) -> None:
    """Those of codes that come so often or oftener, and no others."""
    keys, counts = runs(np.sort(np.array(drawn, np.int64)), least)
    found = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    assert found == {code: count for code, count in Counter(drawn).items() if count >= least}
