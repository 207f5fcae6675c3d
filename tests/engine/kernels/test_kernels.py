"""Hash functions, their spread, and the counting of sampled keys."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from millrace.engine.kernels import KEY, NOW, combine, hash_bytes, mix, tally, thin
from tests.engine.laws import examples

LAWS = examples(75)
codes = st.integers(-(2**63), 2**63 - 1)


def packed(values: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and data as Arrow lays byte strings out."""
    offsets = np.concatenate(([0], np.cumsum([len(v) for v in values]))).astype(np.int32)
    return offsets, np.frombuffer(b"".join(values), np.uint8)


@LAWS
@given(values=st.lists(st.binary(max_size=40), max_size=8), skip=st.integers(0, 8), end=st.binary(max_size=9))
@example(values=[b"", b"\0", b"\0" * 8, b"\0" * 9, b"\0" * 16], skip=0, end=b"")
def test_byte_strings_hash_whatever_lies_around_them(values, skip, end) -> None:
    """Each as it does alone, and all differently: also in their lengths, and in zeros at their ends."""
    offsets, data = packed([*values, end])
    kept = values[skip:]
    alone = {value: hash_bytes(*packed([value]))[0] for value in kept}
    assert hash_bytes(offsets[min(skip, len(values)) : -1], data).tolist() == [alone[value] for value in kept]
    assert len({*alone.values()}) == len(alone)


@LAWS
@given(st.lists(st.tuples(codes, codes), max_size=8))
def test_a_pair_hashes_by_its_values_and_their_order(pairs: list[tuple[int, int]]) -> None:
    """Equal pairs hash equally wherever they stand; swapping unequal halves changes the hash."""
    left, right = (np.array([p[k] for p in pairs], np.int64) for k in (0, 1))
    hashed = combine(left, right)
    assert hashed.dtype == np.int64
    assert hashed.tolist() == [int(combine(left[i : i + 1], right[i : i + 1])[0]) for i in range(len(pairs))]
    swapped = combine(right, left)
    assert all((a == b) == (x == y) for a, b, x, y in zip(hashed, swapped, left, right, strict=True))


@LAWS
@given(st.lists(codes, max_size=8, unique=True))
def test_mixing_is_one_to_one(values: list[int]) -> None:
    """Different codes never collide in ``mix``, the ends of int64 included."""
    mixed = mix(np.array([*values, -(2**63), 2**63 - 1], np.int64))
    assert len(set(mixed.tolist())) == len({*values, -(2**63), 2**63 - 1})


def test_hashes_of_small_numbers_fill_every_slot_evenly() -> None:
    """Low and high bits of the hashes of 4,096 consecutive numbers (and pairs) spread over 16 slots."""
    numbers = np.arange(4096, dtype=np.int64)
    pairs = combine(numbers // 64, numbers % 64)
    for hashed in (mix(numbers), pairs):
        for slots in (hashed & 15, hashed.view(np.uint64) >> np.uint64(60)):
            counts = np.bincount(slots.astype(np.int64), minlength=16)
            assert 180 < counts.min() <= counts.max() < 340
    assert len(set(pairs.tolist())) == 4096


# Counting sampled keys: the same keys for everyone, counted like a dictionary would.


COUNTING = examples(30)
many_codes = st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), max_size=60)


def counted(drawn: list[int], threshold: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a table of the codes, and its slots that are taken."""
    table, taken = np.zeros((128, 4), np.int64), np.empty(64, np.int32)
    array = np.array(drawn, np.int64)
    stopped, held = tally(array, 0, len(array), np.uint64(threshold), table, taken, 0)
    assert stopped == len(drawn)
    return table, taken[:held]


def counts(table: np.ndarray, taken: np.ndarray) -> dict[int, int]:
    return dict(zip(table[taken, KEY].tolist(), table[taken, NOW].tolist(), strict=True))


@COUNTING
@given(many_codes, st.integers(0, 2**64 - 1))
@example([-(2**63), 2**63 - 1, 0, -1], 2**64 - 1)
def test_keys_below_the_threshold_are_counted(drawn: list[int], threshold: int) -> None:
    """Extreme codes among them; a threshold that falls later leaves what it would have let in."""
    found = counts(*counted(drawn, threshold))
    everyone = counts(*counted(drawn, 2**64 - 1))
    assert everyone == Counter(drawn) and found.items() <= everyone.items()
    table, taken = counted(drawn, 2**64 - 1)
    held = thin(table, taken, len(taken), np.uint64(threshold))
    assert counts(table, taken[:held]) == found
    assert np.count_nonzero(table[:, NOW]) == held  # nothing of what was dropped is left


def test_it_stops_where_there_is_no_room() -> None:
    """Codes before that are counted, and counting goes on from there."""
    table, taken = np.zeros((8, 4), np.int64), np.empty(2, np.int32)
    assert tally(np.array([7, 8, 7, 9, 7]), 0, 5, np.uint64(2**64 - 1), table, taken, 0) == (3, 2)
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
