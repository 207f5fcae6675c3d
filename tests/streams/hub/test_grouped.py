"""Grouped filters give what evaluating each condition gives, and conditions survive being written down."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.engine.lineage import GroupedFilter
from millrace.engine.plan.expressions import (
    Call,
    Column,
    ColumnRef,
    Compare,
    InList,
    Literal,
    and_all,
)
from millrace.errors import InputError
from millrace.predicates import PredicateSpec
from millrace.streams.hub.query import decode, encode
from tests.engine.test_expressions import ROWS, ours, table, tree
from tests.gate import examples

predicates = st.integers(0, 1 << 40).map(lambda seed: tree(random.Random(seed), 2))


@pytest.mark.law
@settings(max_examples=examples(50, 1000))
@given(
    st.integers(0, 1 << 40).map(table),
    st.integers(0, ROWS),
    st.dictionaries(st.integers(0, 130), st.lists(predicates, max_size=3), max_size=8),
)
def test_a_tuple_has_the_bits_of_the_queries_it_passes(values, rows, wanted):
    """Nulls, NaN, -0.0, constants of wider types, and conditions that no index answers."""
    batch = values.to_batches()[0].slice(0, rows)
    found = GroupedFilter("t", wanted, 3).evaluate(batch)
    assert found.dtype == np.uint64 and found.shape == (rows, 3)
    want = np.zeros((rows, 192), bool)
    for slot, each in wanted.items():
        condition = and_all(tuple(each))
        truths = [True] * rows if condition is None else ours(condition, pa.table(batch))
        want[:, slot] = [truth is True for truth in truths]
    got = np.unpackbits(found.astype("<u8").view(np.uint8).reshape(rows, 24), axis=1, bitorder="little")
    assert (got == want).all()


@pytest.mark.law
@settings(max_examples=examples(50, 1000))
@given(predicates)
def test_a_condition_that_was_written_down_is_the_same(predicate):
    """With its constants' types; NaN is not equal to itself, but is written alike."""
    text = json.dumps(encode(predicate))
    again = decode(json.loads(text))
    assert json.dumps(encode(again)) == text and type(again) is type(predicate)


def test_an_instant_after_the_years_of_python_is_written_down():
    """Or no list of the hub's queries could be read any more."""
    instant, column = pa.timestamp("us", "UTC"), Column(ColumnRef("r", "t"))
    far = 10**18
    for condition in (Compare("<", column, Literal(far, instant), instant), InList(column, (far,), instant)):
        assert decode(json.loads(json.dumps(encode(condition)))) == condition


def test_a_function_cannot_be_written_down():
    """It is refused, by name."""
    call = Call(PredicateSpec("spam", lambda x: True), (Column(ColumnRef("r", "s")),))
    with pytest.raises(InputError, match=r"cannot have the condition spam\(r.s\)"):
        encode(call)
