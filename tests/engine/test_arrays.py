"""Arrays that are made without pandas are those that pyarrow makes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as hs

from millrace.engine.arrays import array_of, is_true, scalar, to_arrow, to_numpy

TIMES = [
    datetime.fromisoformat(text)
    for text in ("0001-01-01 00:00:00.000001", "1969-12-31 03:04:05.000067", "9999-12-31 23:59:59.999999")
]
VALUES = [
    (pa.int8(), [-128, 127]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.float32(), [0.1, -0.0, float("inf")]),
    (pa.bool_(), [True, False, True]),
    (pa.string(), ["", "é", "a\0b"]),
    (pa.binary(), [b"\xff", b""]),
    (pa.date32(), [date.min, date(1969, 12, 31), date.max]),
    (pa.timestamp("us"), TIMES),
    (
        pa.timestamp("us", "UTC"),
        [TIMES[1].replace(tzinfo=zone) for zone in (UTC, timezone(timedelta(hours=5.5)))],
    ),
    (pa.timestamp("us", "UTC"), TIMES),
    (pa.decimal128(38, 10), [Decimal("-0.01"), Decimal("1E+3"), Decimal("9" * 28)]),
    (pa.decimal128(5, 2), [1, 2]),
    (pa.list_(pa.int8()), [[1], []]),
    (pa.int32(), [1, None]),
    (pa.string(), [None, None]),
    (pa.string(), []),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda each: str(each)[:40])
def test_values_of_python(kind, values):
    made = array_of(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))
    assert [scalar(value, kind) for value in values] == [pa.scalar(value, kind) for value in values]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.int8(), 128), (pa.decimal128(3, 1), Decimal("1.23")), (pa.decimal128(3, 1), Decimal("100.0"))],
)
def test_what_does_not_fit_is_refused(kind, value):
    with pytest.raises((pa.ArrowInvalid, OverflowError)):
        scalar(value, kind)


@given(
    hs.lists(hs.tuples(hs.booleans(), hs.booleans()), max_size=40),
    hs.integers(0, 40),
    hs.integers(0, 40),
    hs.sampled_from([np.bool_, np.int8, np.int64, np.float64]),
)
def test_numpy_and_back(rows, start, length, dtype):
    """Slices too, which begin inside a byte of truths."""
    values, nulls = np.array(rows, np.bool_).reshape(-1, 2).T
    whole = to_arrow(values.astype(dtype), nulls)
    whole.validate(full=True)
    assert whole.equals(pa.array(values.astype(dtype), mask=nulls))
    part, place = whole.slice(min(start, len(whole)), length), slice(start, start + length)
    assert to_numpy(part)[~nulls[place]].tolist() == values[place][~nulls[place]].astype(dtype).tolist()
    assert to_numpy(to_arrow(values.astype(dtype))).tolist() == values.astype(dtype).tolist()
    if dtype is np.bool_:
        assert is_true(part).tolist() == (values & ~nulls)[place].tolist()
