"""Counting sampled keys: the same keys for everyone, counted like a dictionary would."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from millrace.kernels import KEY, NOW, SETTLED, key_hashes, place, tally

LAWS = settings(max_examples=30, deadline=None, derandomize=True)
codes = st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), max_size=60)


@LAWS
@given(codes, st.integers(0, 2**64 - 1))
@example([-(2**63), 2**63 - 1, 0, -1], 2**64 - 1)
def test_keys_below_the_threshold_are_counted(drawn: list[int], threshold: int) -> None:
    """Extreme codes among them; and entries that are placed in another table are found again."""
    array = np.array(drawn, np.int64)
    table = np.zeros((128, 4), np.int64)
    stopped, held = tally(array, 0, len(array), np.uint64(threshold), table, 0, 64)
    hashes = key_hashes(array)
    expected = Counter(c for c, h in zip(drawn, hashes.tolist(), strict=True) if h <= threshold)
    entries = table[table[:, NOW] > 0]
    assert (stopped, held) == (len(drawn), len(expected))
    assert dict(zip(entries[:, KEY].tolist(), entries[:, NOW].tolist(), strict=True)) == expected
    other = np.zeros((256, 4), np.int64)
    entries[:, SETTLED], entries[:, NOW] = entries[:, NOW], 0
    place(entries, other)
    assert tally(array, 0, len(array), np.uint64(threshold), other, held, 64)[1] == held
    assert (other[:, NOW] == other[:, SETTLED]).all()


def test_it_stops_where_there_is_no_room() -> None:
    """Codes before that are counted, and counting goes on from there."""
    table = np.zeros((8, 4), np.int64)
    everything = np.uint64(2**64 - 1)
    assert tally(np.array([7, 8, 7, 9, 7]), 0, 5, everything, table, 0, 2) == (3, 2)
    assert table[:, NOW].sum() == 3


@pytest.mark.parametrize("stride", [1, 32, 1 << 20, 1 << 40, 10_946, 987])
def test_keys_at_regular_distances_are_sampled_evenly(stride: int) -> None:
    """Whatever the stride, a share of the hashes lies below that share of their range."""
    hashes = key_hashes(np.arange(1 << 14, dtype=np.int64) * stride)
    for share in (1 / 2, 1 / 16, 1 / 64):
        found = np.count_nonzero(hashes < np.uint64(2**64 * share))
        expected = share * (1 << 14)
        assert abs(found - expected) < 5 * expected**0.5
