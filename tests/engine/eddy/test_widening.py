"""Joins of columns of different types, each equality compared in a type of its own."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from millrace.engine.expressions import And, Column, ColumnRef, Compare, IsNull, Not, Or, Predicate
from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.options import POLICY_NAMES, Options
from tests.engine.eddy.blocks import run
from tests.engine.eddy.oracle import Case
from tests.engine.eddy.test_laws import schedules

NUMBERS: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-1, 0, 1, 110],
    pa.int32(): [-1, 0, 1, 110, 2**24 + 1],
    pa.int64(): [-1, 0, 110, 2**53, 2**53 + 1],
    pa.float32(): [-1.0, -0.0, 1.5, math.nan, 16777216.0],
    pa.float64(): [-1.0, 0.0, 1.1, 1.5, math.nan, 2.0**53, 16777217.0],
    pa.decimal128(9, 2): [Decimal(t) for t in ("-1.00", "0.00", "1.10", "1.50", "110.00")],
    pa.decimal128(22, 4): [Decimal(t) for t in ("-1.0000", "1.1000", "1.1001", "9007199254740993.0000")],
}


def wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type in which DuckDB and Spark compare the two."""
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return left if left == right else pa.float64()
    if not (pa.types.is_decimal(left) or pa.types.is_decimal(right)):
        return max(left, right, key=lambda kind: kind.bit_width)
    digits = {pa.int8(): 3, pa.int32(): 10, pa.int64(): 20}
    sides = [(k.precision, k.scale) if pa.types.is_decimal(k) else (digits[k], 0) for k in (left, right)]
    scale = max(s for _, s in sides)
    return pa.decimal128(max(p - s for p, s in sides) + scale, scale)


@st.composite
def mixed_cases(draw: st.DrawFn) -> Case:
    """Draw two to four relations with two number columns each, of any types, and equalities among them."""
    tables: dict[str, pa.Table] = {}
    for alias in "abcd"[: draw(st.integers(2, 4))]:
        n = draw(st.integers(0, 6))
        columns = {}
        for name in "xy":
            kind = draw(st.sampled_from(list(NUMBERS)))
            pool = st.sampled_from([None, *NUMBERS[kind]])
            columns[name] = pa.array(draw(st.lists(pool, min_size=n, max_size=n)), kind)
        tables[alias] = pa.table(columns)
    refs = [ColumnRef(alias, name) for alias in tables for name in "xy"]

    def kind_of(ref: ColumnRef) -> pa.DataType:
        return tables[ref.relation].schema.field(ref.column).type

    def compared(op: str) -> tuple[ColumnRef, ColumnRef, pa.DataType]:
        left, right = draw(st.permutations(refs))[:2]
        return left, right, wider(kind_of(left), kind_of(right))

    equalities = [Equality(*compared("=")) for _ in range(draw(st.integers(1, 5)))]
    residuals: list[Predicate] = []
    for op in draw(st.lists(st.sampled_from(["<", ">=", "<>"]), max_size=2)):
        left, right, to = compared(op)
        less = Compare(op, Column(left), Column(right), to)  # type: ignore[arg-type]
        either = Or((less, IsNull(Column(draw(st.sampled_from(refs))))))
        residuals.append(draw(st.sampled_from([less, Not(less), either, And((either, Not(Not(less))))])))
    relations = tuple(RelationSpec(alias, table.schema) for alias, table in tables.items())
    output = tuple(OutputColumn(f"{r.relation}{r.column}", r) for r in refs)
    return Case(JoinSpec(relations, tuple(equalities), tuple(residuals), output), tables)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data(), mixed_cases())
def test_columns_of_different_types_join_as_in_the_oracle(data: st.DataObject, case: Case) -> None:
    """Equalities do not chain across types; one relation's columns may be equated with each other."""
    options = Options(
        architecture="stems",
        policy=data.draw(st.sampled_from(POLICY_NAMES)),
        batch_size=data.draw(st.sampled_from([1, 3, 100])),
    )
    rows, _ = run(
        case, options, schedule=data.draw(schedules(case)), chunk=data.draw(st.sampled_from([1, 2, 50]))
    )
    assert rows == case.expected(), case.sql()
