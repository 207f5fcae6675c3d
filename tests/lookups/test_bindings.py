"""Bindings in a lookup's own types, and an answer's rows by key: laws against plain Python."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from millrace.engine.evaluation import widen
from millrace.lookups.bindings import grouped, narrowed

SEEDED = settings(derandomize=True, deadline=None, max_examples=75)


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time())


_WIDENINGS = [
    (pa.int64(), pa.int8(), st.integers(-(2**63), 2**63 - 1) | st.integers(-130, 130)),
    (
        pa.decimal128(20, 4),
        pa.int32(),
        st.decimals(-(10**12), 10**12, places=4) | st.integers(-5, 5).map(Decimal),
    ),
    (pa.decimal128(38, 10), pa.decimal128(6, 2), st.decimals(-(10**6), 10**6, places=3)),
    (pa.float64(), pa.int16(), st.floats(allow_nan=True) | st.integers(-40_000, 40_000).map(float)),
    (
        pa.timestamp("us"),
        pa.date32(),
        st.datetimes(_midnight(dt.date(1900, 1, 1)), _midnight(dt.date(2100, 1, 1))),
    ),
    (pa.timestamp("us"), pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)).map(_midnight)),
    (pa.string(), pa.string(), st.text(max_size=5)),
]


@SEEDED
@given(st.data())
def test_a_binding_fits_exactly_if_some_value_of_the_column_equals_it(data) -> None:
    """What fits is equal after widening; what does not has no equal among all values of the narrow type."""
    wide, own, values = data.draw(st.sampled_from(_WIDENINGS))
    drawn = pa.array(data.draw(st.lists(values, min_size=1, max_size=6)), wide)
    keys, fits = narrowed(pa.record_batch({"k": drawn}), pa.schema([pa.field("k", own)]))
    assert keys.schema.field("k").type == own
    for value, narrow, fit in zip(drawn, keys.column(0), fits, strict=True):
        if fit:
            assert widen(pa.array([narrow.as_py()], own), wide)[0] == value
        else:
            assert not _has_equal(value.as_py(), own)


def _has_equal(value: object, own: pa.DataType) -> bool:
    """Whether a value of the narrow type equals this one, by Python's rules."""
    if isinstance(value, dt.datetime):
        return value.time() == dt.time()
    if pa.types.is_decimal(own):
        assert isinstance(value, Decimal)
        return value == round(value, own.scale) and abs(value) < 10 ** (own.precision - own.scale)
    if value != value or value in (float("inf"), float("-inf")):
        return False
    bits = own.bit_width - 1
    return value == int(value) and -(2**bits) <= int(value) < 2**bits  # type: ignore[call-overload]


_NAMES = st.sampled_from(["", "a", "A", "a ", "ä", "b"])


@SEEDED
@given(
    st.lists(st.tuples(_NAMES | st.none(), st.integers(0, 2) | st.none(), st.integers(0, 99)), max_size=12),
    st.lists(st.tuples(_NAMES, st.integers(0, 2)), min_size=1, max_size=6, unique=True),
    st.booleans(),
)
def test_rows_are_grouped_by_the_keys_that_were_asked_for(rows, keys, alone) -> None:
    """Each key gets all of its rows, in the order they came; rows of other keys, or null ones, go."""
    keys = keys[:1] if alone else keys
    schema = pa.schema([("name", pa.string()), ("size", pa.int32()), ("v", pa.int64())])
    given, wanted = ([dict(zip(schema.names, each, strict=False)) for each in some] for some in (rows, keys))
    batch = pa.RecordBatch.from_pylist(given, schema)
    found, counts = grouped(batch, pa.RecordBatch.from_pylist(wanted, pa.schema(list(schema)[:2])))
    expected = [[v for name, size, v in rows if (name, size) == key] for key in keys]
    assert counts == [len(each) for each in expected]
    assert found.column("v").to_pylist() == [v for each in expected for v in each]
