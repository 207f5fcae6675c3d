"""Partial aggregation: whatever becomes one row, putting the partial rows together gives the exact groups."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, event, given, settings, strategies as st

from millrace.engine import eager
from millrace.engine.aggregate import AggregateSpec, Partial, PartialAggregation
from millrace.engine.plan.evaluation import compute
from millrace.engine.plan.expressions import Column, ColumnRef, Function, Literal
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.engine.spill.run_of import run_of
from millrace.options import ARCHITECTURES
from tests.engine.eddy.access_cases import any_options
from tests.engine.eddy.oracle import canonical
from tests.engine.laws import examples

LAWS = examples(80)

PRICE, SHARE, NET = pa.decimal128(15, 2), pa.decimal128(3, 2), pa.decimal128(20, 4)
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.float64()),
        ("whole", pa.int64()),
        ("small", pa.int32()),
        ("price", PRICE),
        ("share", SHARE),
        ("wide", pa.decimal128(38, 1)),
        ("real", pa.float32()),
        ("m", pa.int64()),
    ]
)
TIED = pa.schema([("m", pa.int64()), ("label", pa.string()), ("amount", pa.int32())])
COUNTED = pa.schema([("m", pa.int64())])


def read(name):
    return Column(ColumnRef("", name))


LEFT = Function("-", pa.decimal128(4, 2), (Literal(Decimal(1), pa.decimal128(1, 0)), read("share")))
LONG = pa.int64()


def multiplied(one, other):
    return Function("*", LONG, tuple(Function("cast", LONG, (read(name),)) for name in (one, other)))


PARTIALS = (
    Partial("rows", "count", None, LONG),
    Partial("texts", "count", read("text"), LONG),
    Partial("whole", "sum", read("whole"), LONG),
    Partial("square", "sum", multiplied("small", "small"), LONG),
    Partial("net", "sum", Function("*", NET, (read("price"), LEFT)), pa.decimal128(30, 4)),
    Partial("wide", "sum", read("wide"), pa.decimal128(38, 1)),
    Partial("float", "sum", Function("cast", pa.float64(), (read("small"),)), pa.float64()),
    Partial("ones", "sum", Literal(1, pa.int32()), LONG),
    Partial("low", "min", read("number"), pa.float64()),
    Partial("high", "max", read("real"), pa.float32()),
    Partial("last", "max", read("text"), pa.string()),
    Partial("amount", "sum", read("amount"), LONG),
    Partial("both", "sum", multiplied("amount", "small"), LONG),
)
JOIN = JoinSpec(
    (RelationSpec("t", SCHEMA), RelationSpec("u", TIED), RelationSpec("w", COUNTED)),
    tuple(Equality(ColumnRef("t", "m"), ColumnRef(alias, "m"), pa.int64()) for alias in "uw"),
    output=(
        *(OutputColumn(name, ColumnRef("t", name)) for name in SCHEMA.names),
        *(OutputColumn(name, ColumnRef("u", name)) for name in ("label", "amount")),
    ),
)
"""A join of rows with others and with some that are only counted: each multiplies the results."""

maybe = st.none
LIMIT = 10**37 - 1


KEYS = st.sampled_from([None, 0, 1, 1, 1, 2])
TIED_ROWS = st.lists(st.tuples(KEYS, st.sampled_from([None, "", "x", "y"]), maybe() | st.integers(-5, 5)))
COUNTED_ROWS = st.lists(st.tuples(KEYS), max_size=6)


def rows(*, extreme: bool):
    """Rows; extreme ones may have sums beyond their types, so that they are not merged."""
    small = maybe() | st.integers(-5, 5)
    ends = st.sampled_from([2**63 - 1, -(2**63), 2**62, -(2**62)])
    wide = maybe() | st.decimals(-1, 1, places=1)
    return st.tuples(
        st.sampled_from([None, "", "a", "b", "ä"]),
        st.sampled_from([None, 0.0, -0.0, 1.5, -3.0, math.inf, -math.inf, math.nan]),
        small | ends if extreme else small,
        small | st.sampled_from([2**31 - 1, -(2**31)]) if extreme else small,
        maybe() | st.decimals(-(10**13) + 1, 10**13 - 1, places=2),
        maybe() | st.decimals(Decimal("0.00"), Decimal("1.00"), places=2),
        wide | st.sampled_from([Decimal(LIMIT), Decimal(-LIMIT)]) if extreme else wide,
        st.sampled_from([None, 0.5, -0.5, math.inf, math.nan, 0.0]),
        KEYS,
    )


def exact(values):
    """The sum of numbers without rounding, None of none; NaN never comes."""
    known = [value for value in values if value is not None]
    return sum(map(Fraction, known)) if known else None


def extreme_of(choose):
    """The least, or the greatest, as Spark orders values: NaN above all numbers, ``-0.0`` as ``0.0``."""

    def found(values):
        known = [canonical(value) for value in values if value is not None]
        return choose(known, key=lambda value: (value == "NaN", 0 if value == "NaN" else value), default=None)

    return found


def grouped(found, keys, how):
    """The groups of rows, in which NaN is one value and so are the zeros; columns are put together."""
    groups = defaultdict(list)
    for row in found:
        groups[tuple(canonical(row[key]) for key in keys)].append(row)
    return {
        key: {name: function([row[name] for row in members]) for name, function in how.items()}
        for key, members in groups.items()
    }


def values_of(partial, joined):
    """The partial results of single rows; what expressions are is for other tests."""
    if partial.value is None:
        return [1] * len(joined)
    table = pa.Table.from_pylist(joined, JOIN.output_schema)
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    if isinstance(partial.value, Column):
        values = columns[partial.value.ref.column].to_pylist()
    else:
        values = compute(partial.value, columns, len(joined)).to_pylist()
    return [int(value is not None) for value in values] if partial.how == "count" else values


HOW = {"count": exact, "sum": exact, "min": extreme_of(min), "max": extreme_of(max)}
GROUPED_BY = [(), ("text",), ("number",), ("text", "number"), ("label",), ("label", "number", "m"), ("m",)]


ANY = given(st.data(), st.sampled_from(GROUPED_BY), st.integers(1, 9))


@LAWS
@ANY
def test_partial_rows_make_the_exact_groups(data, keys, chunk):
    """Whatever joins, however it is run and however much is merged: sums near the ends of their types too."""
    options = data.draw(any_options(architecture=ARCHITECTURES))
    drawn = [
        data.draw(st.lists(rows(extreme=data.draw(st.booleans())), max_size=25)),
        data.draw(TIED_ROWS),
        data.draw(COUNTED_ROWS),
    ]
    tables = {
        r.alias: pa.Table.from_pylist([dict(zip(r.schema.names, row, strict=True)) for row in own], r.schema)
        for own, r in zip(drawn, JOIN.relations, strict=True)
    }
    step = data.draw(st.integers(1, 12))
    sources = {alias: table.to_batches(step) for alias, table in tables.items()}
    sizes = data.draw(st.permutations(range(3)))
    spec = replace(
        JOIN, relations=tuple(replace(r, rows=n) for r, n in zip(JOIN.relations, sizes, strict=True))
    )
    partials = tuple(data.draw(st.lists(st.sampled_from(PARTIALS), min_size=1, unique=True)))
    aggregate = whole = AggregateSpec(keys, partials)
    repeating = data.draw(st.sets(st.sampled_from("tuw")))
    early = eager.EagerAggregation.of(spec, whole, lambda alias, _: alias in repeating)
    event(f"aggregated before it is joined: {early and early.alias}")
    if early is not None:
        spec, aggregate = early.join, early.aggregate
        sources[early.alias] = list(early.over(sources[early.alias]))
    aggregation = PartialAggregation(aggregate, spec.output_schema, chunk)
    out = list(aggregation.over(run_of(spec, sources, options).run()))
    found = [row for batch in out for row in batch.to_pylist()]
    joined = [
        {**one, **other}
        for one in tables["t"].to_pylist()
        for other in tables["u"].to_pylist()
        for third in tables["w"].to_pylist()
        if one["m"] is not None and one["m"] == other["m"] == third["m"]
    ]
    for partial in partials:
        for row, value in zip(joined, values_of(partial, joined), strict=True):
            row[partial.name] = value
    how = {partial.name: HOW[partial.how] for partial in partials}
    assert grouped(found, keys, how) == grouped(joined, keys, how)
    assert all(batch.schema == whole.schema(JOIN.output_schema) for batch in out)
    assert aggregation.rows_out == len(found)


@pytest.mark.broken_rule
@pytest.mark.parametrize("rule", ["_weighted", "_total"])
def test_a_broken_rule_of_weights_is_noticed(monkeypatch, rule):
    """What is aggregated of other relations counts once for each tuple; what is of these counts once."""
    right = getattr(eager, rule)
    wrong = {"_weighted": lambda p: p, "_total": lambda p: replace(right(p), weight=eager.WEIGHT)}
    monkeypatch.setattr(eager, rule, wrong[rule])
    law = settings(max_examples=1000, phases=[Phase.generate], report_multiple_bugs=False, database=None)(
        ANY(test_partial_rows_make_the_exact_groups.hypothesis.inner_test)
    )
    with pytest.raises((AssertionError, pa.ArrowInvalid)):  # which a sum beyond its type is
        law()


@pytest.mark.parametrize(
    ("keys", "groups", "most"),
    [
        # However many chunks there are, few groups are one row each at the end.
        ([n % 10 for n in range(10_000)], 10, 10),
        # After one chunk of keys that never repeat nothing is merged for a while.
        (range(5_000), 5_000, 5_000),
        # Rows that begin to repeat later are merged, all but those of a few chunks.
        ([*range(1_000), *([7] * 20_000)], 1_000, 1_000 + 20 * 100),
        # What is held when keys stop repeating is given out.
        ([*([7] * 1_000), *range(8, 2_000)], 1_993, 1_993),
        # Held rows are bounded by twice a chunk, and keys that come close together are merged still.
        ([n // 4 for n in range(20_000)], 5_000, 5_500),
    ],
    ids=["few groups", "unique", "repeating later", "repeating at first", "many groups"],
)
def test_rows_are_merged_where_keys_repeat(keys, groups, most):
    """In chunks of 100; nothing is lost, and partial rows are not many more than groups."""
    spec = AggregateSpec(("k",), (Partial("n", "count", None, pa.int64()),))
    table = pa.table({"k": np.asarray(keys, np.int64)})
    aggregation = PartialAggregation(spec, table.schema, 100)
    out = pa.Table.from_batches(list(aggregation.over(table.to_batches(100))))
    assert sum(out["n"].to_pylist()) == len(keys)
    assert len(set(out["k"].to_pylist())) == groups
    assert groups <= aggregation.rows_out <= most
