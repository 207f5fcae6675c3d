"""Partial aggregation: whatever becomes one row, putting the partial rows together gives the exact groups."""

from __future__ import annotations

import math
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.aggregates import AggregateSpec, Partial, PartialAggregation
from millrace.engine.expressions import Arithmetic, Cast, Column, ColumnRef, Literal
from tests.engine.laws import examples

LAWS = examples(60)

PRICE, SHARE, NET = pa.decimal128(15, 2), pa.decimal128(3, 2), pa.decimal128(20, 4)
SCHEMA = pa.schema(
    [
        pa.field("text", pa.string()),
        pa.field("number", pa.float64()),
        pa.field("whole", pa.int64()),
        pa.field("small", pa.int32()),
        pa.field("price", PRICE),
        pa.field("share", SHARE),
        pa.field("wide", pa.decimal128(38, 1)),
        pa.field("real", pa.float32()),
    ]
)


def read(name):
    """A column of the rows."""
    return Column(ColumnRef("", name))


LEFT = Arithmetic("-", Literal(Decimal(1), pa.decimal128(1, 0)), read("share"), pa.decimal128(4, 2))
PARTIALS = (
    Partial("rows", "count", None, pa.int64()),
    Partial("texts", "count", read("text"), pa.int64()),
    Partial("whole", "sum", read("whole"), pa.int64()),
    Partial(
        "square",
        "sum",
        Arithmetic(
            "*",
            Cast(read("small"), pa.int64()),
            Cast(read("small"), pa.int64()),
            pa.int64(),
        ),
        pa.int64(),
    ),
    Partial("net", "sum", Arithmetic("*", read("price"), LEFT, NET), pa.decimal128(30, 4)),
    Partial("wide", "sum", read("wide"), pa.decimal128(38, 1)),
    Partial("float", "sum", Cast(read("small"), pa.float64()), pa.float64()),
    Partial("ones", "sum", Literal(1, pa.int32()), pa.int64()),
    Partial("low", "min", read("number"), pa.float64()),
    Partial("high", "max", read("real"), pa.float32()),
    Partial("last", "max", read("text"), pa.string()),
)

maybe = st.none
LIMIT = 10**37 - 1


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
    )


def exact(values):
    """The sum of numbers without rounding, None of none; NaN never comes."""
    known = [value for value in values if value is not None]
    return sum(map(Fraction, known)) if known else None


def least(values, sign):
    """The least (or greatest) as Spark orders numbers, NaN above all; ``-0.0`` is ``0.0``."""

    def order(value):
        return (value != value, 0 if value != value else value) if isinstance(value, float) else value

    known = [value for value in values if value is not None]
    if not known:
        return None
    found = min(known, key=order) if sign < 0 else max(known, key=order)
    return "nan" if found != found else found


def key_of(row, keys):
    """The group of a row: NaN is one value, and so are the zeros."""
    values = [row[key] for key in keys]
    return tuple("nan" if v != v else (v + 0.0 if isinstance(v, float) else v) for v in values)


def grouped(found, keys, how):
    """The groups of rows, each column put together by its function."""
    groups = defaultdict(list)
    for row in found:
        groups[key_of(row, keys)].append(row)
    return {
        key: {name: function([row[name] for row in members]) for name, function in how.items()}
        for key, members in groups.items()
    }


def expected(row):
    """The partial results of one row, in Python."""
    price, share = row["price"], row["share"]
    return {
        **{key: row[key] for key in ("text", "number")},
        "rows": 1,
        "texts": int(row["text"] is not None),
        "whole": row["whole"],
        "square": None if row["small"] is None else row["small"] ** 2,
        "net": None if price is None or share is None else Fraction(price) * (1 - Fraction(share)),
        "wide": row["wide"],
        "float": row["small"],
        "ones": 1,
        "low": row["number"],
        "high": row["real"],
        "last": row["text"],
    }


HOW = {
    **dict.fromkeys(("rows", "texts", "whole", "square", "net", "wide", "float", "ones"), exact),
    "low": lambda values: least(values, -1),
    "high": lambda values: least(values, 1),
    "last": lambda values: least(values, 1),
}


@LAWS
@given(st.data(), st.sampled_from([(), ("text",), ("number",), ("text", "number")]), st.integers(1, 9))
def test_partial_rows_make_the_exact_groups(data, keys, chunk):
    """Whatever the batches and however much is merged: sums near the ends of their types included."""
    drawn = data.draw(st.lists(rows(extreme=data.draw(st.booleans())), max_size=40))
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in drawn], SCHEMA)
    batches, at = [], 0
    while at < len(drawn):
        step = data.draw(st.integers(1, 12))
        batches += table.slice(at, step).to_batches()
        at += step
    aggregation = PartialAggregation(AggregateSpec(keys, PARTIALS), SCHEMA, chunk)
    out = list(aggregation.over(batches))
    found = [row for batch in out for row in batch.to_pylist()]
    given_ = [expected(row) for row in table.to_pylist()]
    assert grouped(found, keys, HOW) == grouped(given_, keys, HOW)
    assert all(batch.schema == AggregateSpec(keys, PARTIALS).schema(SCHEMA) for batch in out)
    assert (aggregation.rows_in, aggregation.rows_out) == (len(drawn), len(found))


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
