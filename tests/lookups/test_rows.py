"""Values and bindings become exactly the declared columns, or an error that says which does not."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import uuid
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.engine.plan.evaluation import widen
from millrace.errors import UnsupportedType
from millrace.lookups.bindings import grouped, narrow_bindings
from millrace.lookups.rows import RowReader, check_schema
from millrace.lookups.values import Rules, Unfit, array_of, parse, sql_name

LAWS = settings(max_examples=40, deadline=None, derandomize=True)

UTC_MICROS = pa.timestamp("us", tz="UTC")
PLAIN_MICROS = pa.timestamp("us")

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001
LEAVES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(38, 6): st.decimals(-(10**32) + 1, 10**32 - 1, places=6, allow_nan=False),
    pa.decimal128(9, 0): st.integers(-(10**9) + 1, 10**9 - 1).map(Decimal),
    pa.string(): _TEXT,
    pa.binary(): st.binary(max_size=8),
    pa.date32(): st.dates(),
    UTC_MICROS: _TIMES.map(lambda time: time.replace(tzinfo=dt.UTC)),
    PLAIN_MICROS: _TIMES,
}


@st.composite
def kinds(draw, depth: int = 2) -> pa.DataType:
    choice = draw(st.integers(0, 5 if depth else 2))
    if choice <= 2:
        return draw(st.sampled_from(list(LEAVES)))
    if choice == 3:
        return pa.list_(pa.field("element", draw(kinds(depth - 1))))
    if choice == 4:
        return pa.map_(pa.string(), draw(kinds(depth - 1)))
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    return pa.struct([pa.field(name, draw(kinds(depth - 1))) for name in names])


def values(kind: pa.DataType) -> st.SearchStrategy:
    if kind in LEAVES:
        each = LEAVES[kind]
    elif pa.types.is_list(kind):
        each = st.lists(values(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        each = st.dictionaries(_TEXT, values(kind.item_type), max_size=3)
    else:
        each = st.fixed_dictionaries({f.name: values(f.type) for f in kind.fields})
    return st.none() | each


@st.composite
def columns(draw) -> tuple[pa.DataType, list]:
    kind = draw(kinds())
    return kind, draw(st.lists(values(kind), max_size=5))


def as_json(value) -> str:
    """Write a value as a careful service would; decimals with all their digits."""
    match value:
        case Decimal():
            return format(value, "f")
        case dt.datetime() | dt.date():
            return json.dumps(value.isoformat())
        case bytes():
            return json.dumps(base64.b64encode(value).decode())
        case list():
            return f"[{','.join(map(as_json, value))}]"
        case dict():
            return f"{{{','.join(f'{json.dumps(k)}:{as_json(v)}' for k, v in value.items())}}}"
    return json.dumps(value)


@LAWS
@given(columns())
def test_values_survive(column):
    """Of every type, nested ones and extremes too: written as JSON, and as what drivers return."""
    kind, given_values = column
    text = "[" + ",".join(f'{{"x": {as_json(value)}, "more": 1}}' for value in given_values) + "]"
    schema = pa.schema([("x", kind)])
    batch = RowReader(schema, (), Rules()).batch(parse(text.encode(), exact=True))
    for array in (batch.column("x"), array_of(given_values, kind, "x", Rules(native=True))):
        array.validate(full=True)
        assert array.type == kind
        assert array.to_pylist(maps_as_pydicts="strict") == given_values


@LAWS
@given(kinds(depth=1), st.sampled_from([True, 3, 2.5, "text", [1], {"a": 1}, 10**40]))
def test_a_wrong_value_is_never_taken(kind, value):
    """Whatever JSON value comes for whatever type, the column has it unchanged, or there is an error."""
    (parsed,) = parse(f"[{json.dumps(value)}]".encode(), exact=True)
    try:
        back = array_of([None, parsed], kind, "x", Rules())[1].as_py(maps_as_pydicts="strict")
    except Unfit:
        return
    if isinstance(back, bytes):
        back = base64.b64encode(back).decode()
    assert back == value and isinstance(back, bool) == isinstance(value, bool)


WRONG = [
    (pa.int64(), "1.0", "expected bigint, got 1.0 (float)"),
    (pa.int8(), "128", "expected tinyint, got 128 (int)"),
    (pa.string(), '"\\ud800"', "expected string"),
    (pa.float64(), "1e400", "out of range"),
    (pa.float64(), "1" + "0" * 400, "out of range"),
    (pa.float32(), "1e300", "out of range"),
    (pa.decimal128(5, 2), "1.234", "expected decimal(5,2), got 1.234 (float)"),
    (pa.decimal128(5, 2), "1234.5", "expected decimal(5,2)"),
    (pa.decimal128(5, 2), "1e999999999", "expected decimal(5,2)"),
    (pa.decimal128(5, 2), f"0.{'0' * 45}1", "expected decimal(5,2)"),
    (pa.decimal128(5, 2), "15e-41", "expected decimal(5,2)"),
    (pa.decimal128(5, 2), '" 1"', "expected decimal(5,2)"),
    (pa.decimal128(5, 2), "NaN", "expected decimal(5,2)"),
    (pa.binary(), '"not base64!"', "base64"),
    (pa.date32(), '"2024-1-1"', "expected date"),
    (pa.date32(), '"2024-01-01T00:00:00"', "expected date"),
    (UTC_MICROS, '"2024-01-01T00:00:00"', "with a time zone"),
    (PLAIN_MICROS, '"2024-01-01T00:00:00Z"', "without a time zone"),
    (pa.list_(pa.field("element", pa.int64())), "[1, null, true]", "column 'x[]': expected bigint, got True"),
    (pa.struct([("a", pa.struct([("b", pa.int64())]))]), '{"a": {"b": "c"}}', "column 'x.a.b'"),
    (pa.struct([("amount", pa.int64())]), '{"amonut": 1}', "'x.amount' is not in the row"),
    (pa.struct([("amount", pa.int64())]), '{"amonut": 1}', "did you mean 'amonut'?"),
]
RIGHT = [
    (pa.float64(), "NaN", math.nan),
    (pa.float64(), str(2**63 + 1), float(2**63 + 1)),
    (pa.decimal128(38, 18), "0.123456789012345678", Decimal("0.123456789012345678")),
    (pa.decimal128(5, 2), '"1.50"', Decimal("1.50")),
    (pa.decimal128(5, 2), "1.5000", Decimal("1.50")),
    (pa.decimal128(5, 2), "1e2", Decimal(100)),
    (pa.decimal128(5, 2), f"1.5{'0' * 45}", Decimal("1.50")),
    (UTC_MICROS, '"2024-01-01T01:00:00.1234567+01:00"', dt.datetime(2024, 1, 1, 0, 0, 0, 123456, dt.UTC)),
    (PLAIN_MICROS, '"2024-01-01 01:02:03.123456789"', dt.datetime(2024, 1, 1, 1, 2, 3, 123456)),  # noqa: DTZ001
]
ELSEWHERE = dt.timezone(dt.timedelta(hours=1))
NATIVE = [
    (pa.bool_(), 1, True),
    (pa.int64(), np.int32(5), 5),
    (pa.int64(), Decimal(5), 5),
    (pa.int64(), pd.NA, None),
    (UTC_MICROS, pd.NaT, None),
    (pa.float64(), Decimal("1.5"), 1.5),
    (pa.decimal128(9, 2), 12.34, Decimal("12.34")),
    (pa.decimal128(5, 2), Decimal(f"1.5{'0' * 45}"), Decimal("1.50")),
    (pa.string(), uuid.UUID(int=7), str(uuid.UUID(int=7))),
    (pa.binary(), memoryview(b"ab"), b"ab"),
    (pa.date32(), dt.datetime(2024, 1, 2), dt.date(2024, 1, 2)),  # noqa: DTZ001
    (pa.date32(), "2024-01-02", dt.date(2024, 1, 2)),
    (UTC_MICROS, dt.datetime(2024, 1, 2, tzinfo=ELSEWHERE), dt.datetime(2024, 1, 1, 23, tzinfo=dt.UTC)),
    (pa.list_(pa.field("element", pa.int64())), np.array([1, 2]), [1, 2]),
]
JSON, PYTHON = Rules(), Rules(native=True)
TAKEN = [
    *((kind, parse(text.encode(), exact=True), means, JSON) for kind, text, means in RIGHT),
    *((*row, PYTHON) for row in NATIVE),
]


@pytest.mark.parametrize(("kind", "value", "means", "rules"), TAKEN)
def test_nothing_that_was_sent_is_lost(kind, value, means, rules):
    """Digits of decimals do not pass through floats; times are cut to microseconds as Spark cuts them.

    Drivers and functions return the same value in several guises.
    """
    array = array_of([value], kind, "x", rules)
    assert repr(array.to_pylist()) == repr(pa.array([means], kind).to_pylist())  # NaN equals nothing


UNCERTAIN = [
    (pa.bool_(), 2),
    (pa.int64(), 1.0),
    (pa.int64(), Decimal("1.5")),
    (pa.decimal128(9, 2), 0.1 + 0.2),
    (pa.decimal128(9, 2), math.inf),
    (pa.decimal128(9, 2), Decimal("NaN")),
    (pa.decimal128(5, 2), Decimal("15e-41")),
    (pa.decimal128(38, 2), 12345678901234567.0),
    (pa.string(), 5),
    (pa.binary(), "text"),
    (pa.date32(), dt.datetime(2024, 1, 2, 3)),  # noqa: DTZ001
    (UTC_MICROS, dt.datetime(2024, 1, 2)),  # noqa: DTZ001
    (PLAIN_MICROS, dt.datetime(2024, 1, 2, tzinfo=dt.UTC)),
]
REFUSED = [
    *((kind, parse(text.encode(), exact=True), said, JSON) for kind, text, said in WRONG),
    *((*row, "column 'x'", PYTHON) for row in UNCERTAIN),
]


@pytest.mark.parametrize(("kind", "value", "said", "rules"), REFUSED)
def test_a_wrong_value_is_named(kind, value, said, rules):
    """The error has the column, the type as it was declared, and the value.

    Digits behind a float's, a missing time zone and the like are not made up.
    """
    with pytest.raises(Unfit) as caught:
        array_of([None, value], kind, "x", rules)
    assert said in str(caught.value)


_GUISES = [None, True, 0, 1, 1.5, Decimal(1), "1", "2024-01-02", b"x", pd.NA, np.int64(1), uuid.UUID(int=7)]


@LAWS
@given(st.sampled_from(list(LEAVES)), st.lists(st.sampled_from([*_GUISES, dt.date(2024, 1, 2)]), max_size=9))
def test_a_value_is_taken_whatever_stands_beside_it(kind, given_values):
    """A column of several Python types has what each value becomes alone, and none that is refused alone."""

    def read(values: list) -> list | None:
        try:
            return array_of(values, kind, "x", PYTHON).to_pylist()
        except Unfit:
            return None

    taken = [value for value in given_values if read([value]) is not None]
    assert read(taken) == [value for each in taken for value in read([each])]
    assert len(taken) == len(given_values) or read(given_values) is None


@pytest.mark.broken_rule
def test_the_rule_on_columns_of_several_types_brings_them_together(monkeypatch):
    """Without it, only values of one of the types would be left."""
    monkeypatch.setattr("millrace.lookups.values.pc.coalesce", lambda first, *_: first)
    with pytest.raises(AssertionError):
        test_a_value_is_taken_whatever_stands_beside_it()


@pytest.mark.broken_rule
def test_the_rule_on_fractions_keeps_their_digits():
    """Without it, decimals would pass through floats, and lose what those cannot hold."""
    kind = pa.decimal128(20, 2)
    text = b"12345678901234567.89"
    exact = array_of([parse(text, exact=True)], kind, "x", Rules())
    assert exact.to_pylist() == [Decimal(text.decode())]
    with pytest.raises(Unfit, match="expected decimal"):
        array_of([parse(text, exact=False)], kind, "x", Rules())


SCHEMA = pa.schema([("sku", pa.string()), ("price", pa.float64())])


def test_a_missing_column_is_an_error_or_null():
    """A service that renames a field is found out, unless absent="null"; a bind column is never null."""
    with pytest.raises(Unfit, match=r"column 'price' .* did you mean 'prize'"):
        RowReader(SCHEMA, (), Rules()).batch([{"sku": "a", "prize": 1.0}])
    reader = RowReader(SCHEMA, ("sku",), Rules(absent="null"))
    assert reader.batch([{"sku": "a"}]).to_pylist() == [{"sku": "a", "price": None}]
    with pytest.raises(Unfit, match="'sku'"):
        reader.batch([{"price": 1.0}])


def test_rows_that_lack_the_key_have_the_one_that_was_asked_for():
    """An explicit null or another value stays what it is."""
    reader = RowReader(SCHEMA, ("sku",), Rules())
    lacking, null, other = {"price": 1.0}, {"sku": None, "price": 2.0}, {"sku": "b", "price": 3}
    for rows, skus in ([lacking, null, other], ["a", None, "b"]), ([lacking] * 2, ["a", "a"]):
        assert reader.batch(rows, {"sku": pa.scalar("a")}).column("sku").to_pylist() == skus


def test_long_values_are_cut_short_behind_secrets():
    """A secret within a value is hidden before its text is cut, so that no half of it is left."""
    secret = "s3cret" * 20
    rules = Rules(scrub=lambda text: text.replace(secret, "${TOKEN}"))
    with pytest.raises(Unfit) as caught:
        array_of([f"{'x' * 50}{secret}"], pa.int64(), "x", rules)
    assert "s3c" not in str(caught.value)
    assert len(str(caught.value)) < 150


def test_types_are_named_as_in_a_schema():
    """Types that no lookup can have are refused by the column's name."""
    nested = pa.map_(pa.string(), pa.list_(pa.field("element", pa.decimal128(9, 2))))
    assert sql_name(pa.struct([("a", nested)])) == "struct<a:map<string,array<decimal(9,2)>>>"
    with pytest.raises(UnsupportedType, match="column 'x': Arrow type uint8"):
        check_schema(pa.schema([("x", pa.uint8())]), ())


# A type, another one for which it is too wide, and values of it.
_WIDENINGS = [
    (pa.int64(), pa.int8(), "TINYINT", st.integers(-(2**63), 2**63 - 1) | st.integers(-130, 130)),
    (
        pa.decimal128(20, 4),
        pa.int32(),
        "INTEGER",
        st.decimals(-(10**12), 10**12, places=4) | st.integers(-5, 5).map(Decimal),
    ),
    (pa.decimal128(38, 10), pa.decimal128(6, 2), "DECIMAL(6, 2)", st.decimals(-(10**6), 10**6, places=3)),
    (pa.float64(), pa.int16(), "SMALLINT", st.floats() | st.integers(-40_000, 40_000).map(float)),
    (PLAIN_MICROS, pa.date32(), "DATE", _TIMES),
    (PLAIN_MICROS, pa.date32(), "DATE", st.dates().map(lambda day: dt.datetime.combine(day, dt.time()))),
    (pa.string(), pa.string(), "VARCHAR", st.text(max_size=5)),
]


@LAWS
@given(st.data())
def test_a_binding_fits_exactly_if_some_value_of_the_column_equals_it(data):
    """What fits is equal after widening; what does not has no equal among all values of the narrow type."""
    wide, own, name, values = data.draw(st.sampled_from(_WIDENINGS))
    drawn = pa.table({"k": pa.array(data.draw(st.lists(values, min_size=1, max_size=6)), wide)})
    keys, fits = narrow_bindings(drawn.to_batches()[0], pa.schema([pa.field("k", own)]))
    assert keys.schema.field("k").type == own
    wanted = duckdb.sql(f"SELECT coalesce(try_cast(k AS {name}) = k, false) FROM drawn").fetchall()
    assert [(bool(fit),) for fit in fits] == wanted
    for value, narrow, fit in zip(drawn["k"], keys.column(0), fits, strict=True):
        assert not fit or widen(pa.array([narrow.as_py()], own), wide)[0] == value


_NAMES = st.sampled_from(["", "a", "A", "a ", "ä", "b"])


@LAWS
@given(
    st.lists(st.tuples(_NAMES | st.none(), st.integers(0, 2) | st.none(), st.integers(0, 99)), max_size=12),
    st.lists(st.tuples(_NAMES, st.integers(0, 2)), min_size=1, max_size=6, unique=True),
    st.booleans(),
)
def test_rows_are_grouped_by_the_keys_that_were_asked_for(rows, keys, alone):
    """Each key gets all of its rows, in the order they came; rows of other keys, or null ones, go."""
    keys = keys[:1] if alone else keys
    schema = pa.schema([("name", pa.string()), ("size", pa.int32()), ("v", pa.int64())])
    given, wanted = ([dict(zip(schema.names, each, strict=False)) for each in some] for some in (rows, keys))
    batch = pa.RecordBatch.from_pylist(given, schema)
    found, counts = grouped(batch, pa.RecordBatch.from_pylist(wanted, pa.schema(list(schema)[:2])))
    expected = [[v for name, size, v in rows if (name, size) == key] for key in keys]
    assert counts == [len(each) for each in expected]
    assert found.column("v").to_pylist() == [v for each in expected for v in each]
