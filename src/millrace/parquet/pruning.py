"""Deciding from a row group's statistics that no row of it can pass a filter.

Only ever errs towards reading: whatever is not understood may match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from millrace.engine.arrays import scalar
from millrace.engine.plan.expressions import (
    MIRRORED,
    And,
    Column,
    Compare,
    InList,
    IsNull,
    Literal,
    Or,
    Predicate,
)
from millrace.parquet.footers import Bounds, Footer

Keeps = Callable[[Callable[[Predicate], bool]], bool]
"""Asked before a row group is read: given what tells of a predicate whether it may hold for one of its rows,
returns whether to read it."""


def bounds_of(
    footer: Footer,
    group: int,
    constants: Mapping[str, tuple[pa.DataType, object]],
    computed: Collection[str],
) -> Callable[[str], Bounds]:
    """Return what gives the bounds of a row group's columns, by their names in any case.

    Args:
        footer: Of the file.
        group: The row group's number.
        constants: Types and values of columns that the file does not have, by lower-case name.
        computed: Lower-case names of columns that are computed, of which nothing is known.
    """

    def bounds(column: str) -> Bounds:
        name = column.lower()
        if name in computed:
            return None, None, None
        if name not in constants:
            return footer.bounds(footer.spelled[name])[group]
        kind, value = constants[name]
        if value is None:
            return None, None, footer.rows[group]
        only = scalar(value, kind)
        return only, only, 0

    return bounds


def may_match(node: Predicate, rows: int, bounds: Callable[[str], Bounds]) -> bool:
    """Return False when the predicate is certainly not true for any row of the row group.

    Args:
        node: A predicate over one relation.
        rows: Number of rows in the row group.
        bounds: Gives a column's bounds by name.
    """
    match node:
        case And(arguments):
            return all(may_match(a, rows, bounds) for a in arguments)
        case Or(arguments):
            return any(may_match(a, rows, bounds) for a in arguments)
        case IsNull(operand):
            return bounds(operand.ref.column)[2] != 0
        case Compare(op, Column() as column, Literal() as literal, to):
            return _compare(op, bounds(column.ref.column), rows, [literal.value], literal.type, to)
        case Compare(op, Literal() as literal, Column() as column, to):
            return _compare(MIRRORED[op], bounds(column.ref.column), rows, [literal.value], literal.type, to)
        case InList(operand, values, to):
            known = [v for v in values if v is not None]
            return _compare("=", bounds(operand.ref.column), rows, known, to, to)
    return True


def _compare(
    op: str, bounds: Bounds, rows: int, values: list[Any], kind: pa.DataType, to: pa.DataType
) -> bool:
    low, high, nulls = bounds
    if op == "<=>":
        if values == [None]:
            return nulls != 0
        op = "="
    if not values or values == [None]:
        return False
    if nulls is not None and nulls == rows:
        return False
    if low is None or pa.types.is_floating(to):
        return True
    try:
        least, greatest = plain(low, to), plain(high, to)
        return any(_possible(op, least, greatest, value) for value in constants(tuple(values), kind, to))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return True


@lru_cache(maxsize=256)
def constants(values: tuple[Any, ...], kind: pa.DataType, to: pa.DataType) -> tuple[Any, ...]:
    """Return the plain values of a predicate's literals; they are the same for every row group."""
    return tuple(plain(scalar(value, kind), to) for value in values)


def plain(value: pa.Scalar, to: pa.DataType) -> Any:
    """Return a value that Python orders as Spark orders the type."""
    value = value.cast(to)
    if pa.types.is_string(to):  # Spark orders texts by their bytes, which need not be UTF-8
        value = value.cast(pa.binary())
    return value.value if pa.types.is_temporal(to) else value.as_py()


def _possible(op: str, low: Any, high: Any, value: Any) -> bool:
    match op:
        case "=":
            return bool(low <= value <= high)
        case "<>":
            return not low == value == high
        case "<":
            return bool(low < value)
        case "<=":
            return bool(low <= value)
        case ">":
            return bool(high > value)
        case ">=":
            return bool(high >= value)
    return True
