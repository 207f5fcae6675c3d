"""Grouped filters give what evaluating each condition gives, and conditions survive being written down."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st

from millrace.engine.evaluation import evaluate
from millrace.engine.expressions import (
    And,
    Call,
    Column,
    ColumnRef,
    Compare,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Overlap,
    Truth,
    and_all,
    show,
)
from millrace.errors import InputError
from millrace.predicates import PredicateSpec
from millrace.streams.hub.encoding import decoded, encoded
from millrace.streams.hub.grouped import GroupedFilter
from tests.gate import examples

T = pa.timestamp("us", "UTC")
KINDS = {
    "i": (pa.int32(), st.integers(-3, 3)),
    "l": (pa.int64(), st.integers(-3, 3).map(lambda n: n * 2**40)),
    "f": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan")])),
    "g": (pa.float32(), st.sampled_from([0.0, -0.0, 1.5, -2.25, float("nan")])),
    "t": (T, st.integers(0, 5).map(lambda s: dt.datetime(2026, 1, 1, 0, 0, s, tzinfo=dt.UTC))),
    "d": (pa.date32(), st.integers(1, 5).map(lambda d: dt.date(1969, 12, 29 + d % 3))),
    "s": (pa.string(), st.sampled_from(["", "a", "b", "é", "A"])),
    "m": (pa.decimal128(9, 2), st.integers(-3, 3).map(lambda n: Decimal(n) / 4)),
    "b": (pa.bool_(), st.booleans()),
}
OPS = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"])


@st.composite
def conditions(draw):
    """A condition on one column, of any kind."""
    name = draw(st.sampled_from(sorted(KINDS)))
    kind, values = KINDS[name]
    column = Column(ColumnRef("r", name))
    wider = pa.float64() if name in "ilg" and draw(st.booleans()) else kind
    if wider != kind:
        values = values.map(float)
    form = draw(st.sampled_from(["compare", "compare", "compare", "in", "null", "other"]))
    if form == "in":
        listed = st.one_of(values, st.none()) if draw(st.booleans()) else values
        return InList(column, tuple(draw(st.lists(listed, min_size=1, max_size=4))), wider)
    if form == "null":
        return IsNull(column)
    if form == "other":
        return draw(
            st.sampled_from([Truth(Column(ColumnRef("r", "b"))), Like(Column(ColumnRef("r", "s")), "%a%")])
        )
    literal = Literal(draw(st.one_of(values, st.none()) if draw(st.booleans()) else values), wider)
    sides = (column, literal) if draw(st.integers(0, 3)) else (literal, column)
    return Compare(draw(OPS), *sides, wider)


predicates = st.recursive(
    conditions(),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: And(tuple(each))),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: Or(tuple(each))),
    ),
    max_leaves=4,
)
tables = st.lists(
    st.fixed_dictionaries({name: st.one_of(st.none(), values) for name, (_, values) in KINDS.items()}),
    max_size=12,
)


@pytest.mark.law
@settings(max_examples=examples(50, 1000))
@given(tables, st.dictionaries(st.integers(0, 130), st.lists(predicates, max_size=3), max_size=8))
def test_a_tuple_has_the_bits_of_the_queries_it_passes(rows, wanted):
    """Nulls, NaN, -0.0, constants of wider types, and conditions that no index answers."""
    schema = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    found = GroupedFilter("r", wanted, 3).passed(batch)
    assert found.dtype == np.uint64 and found.shape == (len(rows), 3)
    columns = {ColumnRef("r", name): batch.column(name) for name in schema.names}
    want = np.zeros((len(rows), 192), bool)
    for slot, each in wanted.items():
        condition = and_all(tuple(each))
        truth = pa.scalar(True) if condition is None else evaluate(condition, columns)
        filled = pc.fill_null(truth, False)
        want[:, slot] = (
            filled.as_py() if isinstance(filled, pa.Scalar) else filled.to_numpy(zero_copy_only=False)
        )
    got = np.unpackbits(found.astype("<u8").view(np.uint8).reshape(len(rows), 24), axis=1, bitorder="little")
    assert (got == want).all()


@pytest.mark.law
@settings(max_examples=examples(50, 1000))
@given(predicates)
def test_a_condition_that_was_written_down_is_the_same(predicate):
    """With its constants' types; NaN is not equal to itself, but is written alike."""
    text = json.dumps(encoded(predicate))
    again = decoded(json.loads(text))
    assert json.dumps(encoded(again)) == text and type(again) is type(predicate)


def test_a_function_cannot_be_written_down():
    """It is refused, by name."""
    call = Call(PredicateSpec("spam", lambda x: True), (Column(ColumnRef("r", "s")),))
    with pytest.raises(InputError, match=r"cannot have the condition spam\(r.s\)"):
        encoded(call)


def test_overlaps_of_words():
    """One bit in one word is enough."""
    columns = {
        ColumnRef(r, w): pa.array([a, b], pa.uint64())
        for (r, w, a, b) in (
            ("x", "0", 1, 2),
            ("x", "1", 0, 1 << 63),
            ("y", "0", 2, 1),
            ("y", "1", 1, (1 << 63) + 1),
        )
    }
    overlap = Overlap(*(tuple(Column(ColumnRef(r, w)) for w in "01") for r in "xy"))
    assert evaluate(overlap, columns).to_pylist() == [False, True]
    assert show(overlap) == "x.0 & y.0 <> 0 OR x.1 & y.1 <> 0"
