"""Hash functions against plain Python arithmetic, and their spread."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from millrace.engine.kernels import combine, hash_bytes, hash_parts, mix
from tests.engine.laws import examples

LAWS = examples(75)
WORD = 1 << 64
codes = st.integers(-(2**63), 2**63 - 1)


def signed(word: int) -> int:
    return word - WORD if word >= WORD // 2 else word


def packed(values: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and data as Arrow lays byte strings out."""
    offsets = np.concatenate(([0], np.cumsum([len(v) for v in values]))).astype(np.int32)
    return offsets, np.frombuffer(b"".join(values), np.uint8)


def fnv(value: bytes) -> int:
    word = 0xCBF29CE484222325
    for byte in value:
        word = (word ^ byte) * 0x100000001B3 % WORD
    return signed(word)


@LAWS
@given(st.lists(st.binary(max_size=12), max_size=8), st.integers(0, 8))
def test_byte_strings_hash_as_fnv_does(values: list[bytes], skip: int) -> None:
    """FNV-1a of each string, whatever lies before it in the buffer."""
    offsets, data = packed(values)
    skip = min(skip, len(values))
    assert hash_bytes(offsets[skip:], data).tolist() == [fnv(v) for v in values[skip:]]


def parts(value: bytes) -> int:
    size = min(len(value), 8)
    middle = (len(value) - size) // 2
    front, inner, back = (
        int.from_bytes(value[low : low + size], "big") for low in (0, middle, len(value) - size)
    )
    word = (len(value) * 0x9E3779B97F4A7C15 + front) % WORD
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9 + inner) % WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB + back) % WORD
    return signed(word ^ word >> 31)


@LAWS
@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(0, 8))
def test_parts_of_byte_strings_hash_whatever_lies_around_them(values: list[bytes], skip: int) -> None:
    """Eight bytes each at the front, in the middle and at the back, and the length."""
    offsets, data = packed(values)
    skip = min(skip, len(values))
    assert hash_parts(offsets[skip:], data).tolist() == [parts(v) for v in values[skip:]]


def test_strings_of_up_to_24_bytes_are_hashed_whole() -> None:
    """One bit anywhere makes another hash."""
    for length in range(1, 25):
        values = [bytes(length)]
        values += [
            bytes(i) + bytes([1 << bit]) + bytes(length - i - 1) for i in range(length) for bit in (0, 7)
        ]
        assert len(set(hash_parts(*packed(values)).tolist())) == len(values)


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
            assert counts.min() > 180
            assert counts.max() < 340
    assert len(set(pairs.tolist())) == 4096


def test_strings_that_differ_in_one_place_differ_in_their_hash() -> None:
    """All strings of up to two bytes, and a string and its zero-padded form, hash differently."""
    values = [b"", b"\x00", b"\x00\x00", *(bytes([a, b]) for a in range(0, 256, 5) for b in range(1, 256, 7))]
    hashed = hash_bytes(*packed(values))
    assert len(set(hashed.tolist())) == len(values)
