"""What a row group's statistics say of filters: which share of its rows passes, nothing where none can.

Pruning errs towards reading only: whatever is not understood may match. Else values are taken to be spread
evenly from the least to the greatest, and conditions to be independent, but for the two ends of a range
(Selinger et al. 1979). Of what statistics do not tell there are the same old guesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
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
    Not,
    Or,
    Predicate,
)
from millrace.parquet.footers import Bounds, Footer

Keeps = Callable[[Callable[[Predicate], bool]], bool]
"""Asked before a row group is read: given what tells of a predicate whether it may hold for one of its rows,
returns whether to read it."""

# What is taken to pass an equality, and anything else, of which nothing is known.
_EQUAL, _OTHER = 1 / 10, 1 / 3
_UNKNOWN = {"=": _EQUAL, "<>": 1 - _EQUAL}
_LEAST = 1e-12  # what may hold for a row, however improbable, is never estimated as nothing
_UNCLEAR = (pa.ArrowException, AttributeError, ArithmeticError, TypeError, ValueError)


def bounds_of(
    footer: Footer,
    group: int,
    constants: Mapping[str, tuple[pa.DataType, object]],
    computed: Collection[str],
) -> Callable[[str], Bounds]:
    """Return what gives the bounds of a row group's columns, by their names in any case.

    ``constants`` are the types and values of columns that the file does not have. Nothing is known of columns
    that are ``computed``. Both have lower-case names.
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


def share(node: Predicate, rows: int, bounds: Callable[[str], Bounds]) -> float:
    """Return which share of a row group's rows the predicate is true for, an estimate.

    It is 0 where it is certainly true for none, and else, as a row may pass, that of one at least.
    """
    found = _share(node, rows, bounds)
    return max(1 / rows, found) if found else 0.0


def _comparison(node: Predicate) -> tuple[str, str, Literal, pa.DataType] | None:
    """Return the operator, the column and the literal of a comparison with one; None for all else."""
    match node:
        case Compare(op, Column(ref), Literal() as literal, to):
            return op, ref.column, literal, to
        case Compare(op, Literal() as literal, Column(ref), to):
            return MIRRORED[op], ref.column, literal, to
    return None


def _may_hold(op: str, low: Any, high: Any, value: Any) -> bool:
    """Return whether something between two ends may compare so with a value."""
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


@lru_cache(maxsize=256)
def _constants(values: tuple[Any, ...], kind: pa.DataType, to: pa.DataType) -> tuple[Any, ...]:
    """Return the plain values of a predicate's literals; they are the same for every row group."""
    return tuple(_plain(scalar(value, kind), to) for value in values)


def _plain(value: pa.Scalar, to: pa.DataType) -> Any:
    """Return a value that Python orders as Spark orders the type."""
    value = value.cast(to)
    if pa.types.is_string(to):  # Spark orders texts by their bytes, which need not be UTF-8
        value = value.cast(pa.binary())
    return value.value if pa.types.is_temporal(to) else value.as_py()


def _share(node: Predicate, rows: int, bounds: Callable[[str], Bounds]) -> float:
    """Return an estimate, however small, or 0 where no row can pass: a product of estimates is never 0."""
    match node:
        case And(arguments):
            return _share_of_all(arguments, rows, bounds)
        case Or(arguments):
            return 1 - math.prod(1 - _share(each, rows, bounds) for each in arguments)
        case Not(argument):
            return max(_LEAST, 1 - _share(argument, rows, bounds))
        case IsNull(operand):
            nulls = bounds(operand.ref.column)[2]
            return _EQUAL if nulls is None else nulls / rows
        case InList(operand, values, to):
            known = tuple(v for v in values if v is not None)
            return _share_of_list(bounds(operand.ref.column), rows, known, to)
    if (found := _comparison(node)) is not None:
        op, name, literal, to = found
        return _share_of_comparison(op, bounds(name), rows, literal.value, literal.type, to)
    return _OTHER


def _share_of_all(nodes: Sequence[Predicate], rows: int, bounds: Callable[[str], Bounds]) -> float:
    """Return the share that passes all; of a column's ends of a range, what neither cuts off."""
    result = 1.0
    ranges: dict[str, dict[str, float]] = {}
    for node in nodes:
        found, passing = _comparison(node), _share(node, rows, bounds)
        if not passing:
            return 0.0
        if found is None or found[0] not in ("<", "<=", ">", ">="):
            result *= passing
            continue
        ends = ranges.setdefault(found[1], {"<": 1.0, ">": 1.0})
        ends[found[0][0]] = min(ends[found[0][0]], passing)
    for ends in ranges.values():
        below, above = ends["<"], ends[">"]
        # Guesses of both ends may leave nothing between them: then it is as if they were independent.
        result *= below + above - 1 if below + above > 1 else below * above
    return max(_LEAST, result)


def _share_of_list(bounds: Bounds, rows: int, values: tuple[Any, ...], to: pa.DataType) -> float:
    """Return the share that has one of some values: as much of each that is between the bounds."""
    inside = values
    try:
        least, greatest = _plain(bounds[0], to), _plain(bounds[1], to)
        literals = zip(values, _constants(values, to, to), strict=True)
        inside = tuple(value for value, at in literals if least <= at <= greatest)
    except _UNCLEAR:
        pass  # nothing is known of any
    if not inside:
        return _LEAST if values and pa.types.is_floating(to) else 0.0
    return min(1.0, len(inside) * _share_of_comparison("=", bounds, rows, inside[0], to, to))


def _share_of_comparison(
    op: str, bounds: Bounds, rows: int, value: Any, kind: pa.DataType, to: pa.DataType
) -> float:
    low, high, nulls = bounds
    if value is None:
        return (_EQUAL if nulls is None else nulls / rows) if op == "<=>" else 0.0
    present = 1.0 if nulls is None else 1 - nulls / rows
    op = "=" if op == "<=>" else op
    found = _UNKNOWN.get(op, _OTHER)
    try:
        least, greatest, at = (_plain(low, to), _plain(high, to), *_constants((value,), kind, to))
        # Literals may be NaN, which Spark orders above everything; and bounds are widened less exactly.
        if not pa.types.is_floating(to) and not _may_hold(op, least, greatest, at):
            return 0.0
        if not least <= at <= greatest:
            equal, below = 0.0, float(at > greatest)
        elif least == greatest:
            equal, below = 1.0, 0.0
        elif isinstance(at, int):
            width = greatest - least + 1
            equal, below = 1 / width, (at - least) / width
        elif op in _UNKNOWN:
            equal, below = _EQUAL, 0.0
        else:
            equal, below = 0.0, float((at - least) / (greatest - least))
        shares = {"=": equal, "<>": 1 - equal, "<": below, "<=": below + equal}
        shares |= {">": 1 - below - equal, ">=": 1 - below}
        found = min(1.0, shares[op])
    except _UNCLEAR:
        pass  # the bounds say nothing
    return max(_LEAST, present * found) if present else 0.0
