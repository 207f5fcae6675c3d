"""Key codes: equal keys have equal codes, and where a type is exact, only they have."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.relations import KeyColumn, codes, is_exact, is_key_type, keyed
from millrace.errors import UnsupportedType
from tests.engine.laws import examples

LAWS = examples(40)


def whole(bits: int) -> st.SearchStrategy[int]:
    least, greatest = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.one_of(st.sampled_from([least, -1, 0, 1, greatest]), st.integers(least, greatest))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    end = 10**precision - 1
    digits = st.one_of(st.sampled_from([-end, -1, 0, 1, end]), st.integers(-end, end))
    return digits.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))


floats = st.one_of(
    st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5]), st.floats(width=32)
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
moments = st.one_of(st.sampled_from([-1, 0, 1]), st.integers(-(10**16), 10**16)).map(
    lambda microseconds: _EPOCH + dt.timedelta(microseconds=microseconds)
)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): whole(8),
    pa.int16(): whole(16),
    pa.int32(): whole(32),
    pa.int64(): whole(64),
    pa.float32(): floats,
    pa.float64(): st.one_of(floats, st.floats()),
    pa.decimal128(9, 2): decimals(9, 2),
    pa.decimal128(18, 6): decimals(18, 6),
    pa.decimal128(38, 4): decimals(38, 4),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(),
    pa.timestamp("us"): moments.map(lambda moment: moment.replace(tzinfo=None)),
    pa.timestamp("us", tz="UTC"): moments,
}
WIDENINGS: list[tuple[pa.DataType, pa.DataType, pa.DataType]] = [
    (pa.int8(), pa.int64(), pa.int64()),
    (pa.int16(), pa.int32(), pa.int32()),
    (pa.int32(), pa.decimal128(9, 2), pa.decimal128(12, 2)),
    (pa.int64(), pa.decimal128(9, 2), pa.decimal128(22, 2)),
    (pa.decimal128(9, 2), pa.decimal128(18, 6), pa.decimal128(18, 6)),
    (pa.decimal128(9, 2), pa.decimal128(38, 4), pa.decimal128(38, 4)),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.int32(), pa.float64(), pa.float64()),
    (pa.int64(), pa.float64(), pa.float64()),
    (pa.int32(), pa.float32(), pa.float32()),
    (pa.decimal128(9, 2), pa.float64(), pa.float64()),
    (pa.decimal128(38, 4), pa.float64(), pa.float64()),
]


def canonical(value: Any, kind: pa.DataType) -> Any:
    """Return what Spark compares: NaN as one value, -0.0 as 0.0, numbers in the type of the equality."""
    if pa.types.is_float32(kind):
        value = struct.unpack("f", struct.pack("f", value))[0]
    if pa.types.is_floating(kind):
        return "NaN" if math.isnan(value) else float(value) + 0.0
    return value


def assert_codes_tell_keys(left: pa.Array, right: pa.Array, kind: pa.DataType) -> None:
    """Every pair of a left and a right key: equal codes if, and for exact types only if, equal keys."""
    mine, yours = codes(left, kind)[0], codes(right, kind)[0]
    for a, x in zip(left.to_pylist(), mine.tolist(), strict=True):
        for b, y in zip(right.to_pylist(), yours.tolist(), strict=True):
            same = canonical(a, kind) == canonical(b, kind)
            # Hashes of a few different keys do not collide either, though they may.
            assert (x == y) == same, (a, b, kind)


@pytest.mark.law
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_equal_codes_mean_equal_keys(kind: pa.DataType) -> None:
    """For every type of key, with duplicates and the nasty values."""

    @LAWS
    @given(st.lists(VALUES[kind], max_size=8))
    def law(values: list[Any]) -> None:
        array = pa.array(values, kind)
        assert is_key_type(kind)
        assert codes(array, kind)[0].dtype == np.int64
        assert_codes_tell_keys(array, array, kind)

    law()


@pytest.mark.law
@pytest.mark.parametrize(("left", "right", "kind"), WIDENINGS, ids=str)
def test_codes_agree_after_widening(left: pa.DataType, right: pa.DataType, kind: pa.DataType) -> None:
    """Keys of two types meet in the wider one: integers of all widths, decimals of all scales, floats."""

    @LAWS
    @given(st.lists(VALUES[left], max_size=6), st.lists(VALUES[right], max_size=6))
    def law(values: list[Any], others: list[Any]) -> None:
        meeting = [number for v in values if (number := into(v, right)) is not None]
        assert_codes_tell_keys(pa.array(values, left), pa.array([*others, *meeting], right), kind)

    law()


def into(value: Any, kind: pa.DataType) -> Any:
    """Return the number as a value of that type, or None where it does not fit."""
    if pa.types.is_floating(kind):
        return canonical(float(value), kind) if not math.isnan(value) else value
    if pa.types.is_decimal(kind):
        fits = abs(value) < 10 ** (kind.precision - kind.scale)
        return Decimal(value).quantize(Decimal(1).scaleb(-kind.scale)) if fits else None
    return int(value) if abs(value) < 1 << kind.bit_width - 1 else None


def test_a_decimal_equals_the_double_of_its_text() -> None:
    """Spark rounds a decimal correctly to a double; a cast that is off by a bit loses the match."""
    prices = [Decimal(n).scaleb(-2) for n in range(-20_000, 20_000, 7)]
    coded, _ = codes(pa.array(prices, pa.decimal128(9, 2)), pa.float64())
    assert coded.tolist() == codes(pa.array([float(p) for p in prices]), pa.float64())[0].tolist()


def test_integers_beyond_the_digits_of_a_float_round_as_spark_rounds_them() -> None:
    """A cast that refuses them would fail a query that Spark answers."""
    big = pa.array([2**53, 2**53 + 1, -(2**63)])
    assert (
        codes(big, pa.float64())[0].tolist()
        == codes(pa.array([2.0**53, 2.0**53, -(2.0**63)]), pa.float64())[0].tolist()
    )
    assert len(set(codes(pa.array([2**24, 2**24 + 1], pa.int32()), pa.float32())[0].tolist())) == 1


@pytest.mark.law
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_slices_and_nulls_do_not_shift_codes(kind: pa.DataType) -> None:
    """Any slice of a column with nulls has the slice of its codes, and a mask of its valid rows."""

    @LAWS
    @given(st.lists(st.none() | VALUES[kind], max_size=12), st.integers(0, 12), st.integers(0, 12))
    def law(values: list[Any], start: int, length: int) -> None:
        array = pa.array(values, kind)
        full, _ = codes(array, kind)
        part, valid = codes(array.slice(start, length), kind)
        expected = [v is not None for v in values[start : start + length]]
        assert (valid is None) == all(expected)
        mask = np.array(expected, np.bool_) if valid is None else valid
        assert mask.tolist() == expected
        assert part[mask].tolist() == full[start : start + length][mask].tolist()

    law()


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_columns_without_a_value_have_codes_too(kind: pa.DataType) -> None:
    """Empty columns and columns of nulls, whose buffers may be missing."""
    assert len(codes(pa.array([], kind), kind)[0]) == 0
    for nulls in (pa.nulls(3, kind), pa.array([None] * 3, kind), pa.array([None] * 5, kind)[2:]):
        coded, valid = codes(nulls, kind)
        assert len(coded) == 3
        assert valid is not None and not valid.any()


def test_only_hashed_types_ask_for_verification() -> None:
    """Text, bytes and decimals beyond 18 digits are hashed; everything else is its own code."""
    hashed = {pa.string(), pa.binary(), pa.decimal128(38, 4)}
    assert {kind for kind in VALUES if not is_exact(kind)} == hashed


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.struct([("a", pa.int8())]), pa.null()], ids=str)
def test_other_types_are_refused_with_what_would_work(kind: pa.DataType) -> None:
    """Nested columns are payload, never keys."""
    with pytest.raises(UnsupportedType, match="cannot be a join key"):
        codes(pa.nulls(1, kind), kind)


@LAWS
@given(
    st.lists(
        st.tuples(*[st.none() | st.integers(0, 2)] * 2, *[st.none() | st.sampled_from(["", "a"])] * 2),
        max_size=12,
    ),
    st.booleans(),
)
def test_keyed_keeps_the_rows_that_can_match(rows: list[tuple[Any, ...]], tied: bool) -> None:
    """A row with a null key goes, and one whose columns of one attribute class differ; codes follow."""
    names = ["a", "b", "s", "t"]
    types = [pa.int32(), pa.int32(), pa.string(), pa.string()]
    batch = pa.record_batch([pa.array([r[k] for r in rows], types[k]) for k in range(4)], names)
    keys = [KeyColumn(name, kind) for name, kind in zip(names, types, strict=True)]
    kept, coded = keyed(batch, keys, [(0, 1), (2, 3)] if tied else [])
    wanted = [r for r in rows if None not in r and (not tied or (r[0] == r[1] and r[2] == r[3]))]
    assert [tuple(row.values()) for row in kept.to_pylist()] == wanted
    for name, key, column in zip(names, keys, coded, strict=True):
        assert column.tolist() == codes(kept.column(name), key.type)[0].tolist()
