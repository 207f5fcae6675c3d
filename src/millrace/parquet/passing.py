"""Which share of a row group's rows passes filters, as estimated from the row group's statistics.

Values are taken to be spread evenly from the least to the greatest, and conditions to be independent, but for
the two ends of a range (Selinger et al. 1979). Of what statistics do not tell there are the same old guesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

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
from millrace.parquet.footers import Bounds
from millrace.parquet.pruning import constants, plain

_EQUAL, _OTHER = 1 / 10, 1 / 3
"""What is taken to pass an equality, and anything else, of which nothing is known."""

_UNKNOWN = {"=": _EQUAL, "<=>": _EQUAL, "<>": 1 - _EQUAL}

_UNCLEAR = (pa.ArrowException, AttributeError, ArithmeticError, TypeError, ValueError)


def share(filters: Sequence[Predicate], rows: int, bounds: Callable[[str], Bounds]) -> float:
    """Return the share of the rows that passes all filters; as a row may pass, it is that of one at least.

    Args:
        filters: Predicates over one relation.
        rows: Number of rows in the row group, above 0.
        bounds: Gives a column's bounds by name.
    """
    return max(1 / rows, _share(And(tuple(filters)), rows, bounds))


def _share(node: Predicate, rows: int, bounds: Callable[[str], Bounds]) -> float:
    match node:
        case And(arguments):
            return _all(arguments, rows, bounds)
        case Or(arguments):
            return 1 - math.prod(1 - _share(each, rows, bounds) for each in arguments)
        case Not(argument):
            return 1 - _share(argument, rows, bounds)
        case IsNull(operand):
            nulls = bounds(operand.ref.column)[2]
            return _EQUAL if nulls is None else nulls / rows
        case InList(operand, values, to):
            known = tuple(v for v in values if v is not None)
            return _estimate_list(bounds(operand.ref.column), rows, known, to)
    if (found := _comparison(node)) is not None:
        op, name, literal, to = found
        return _compared(op, bounds(name), rows, literal.value, literal.type, to)
    return _OTHER


def _all(nodes: Sequence[Predicate], rows: int, bounds: Callable[[str], Bounds]) -> float:
    """Return the share that passes all; of a column's ends of a range, what neither cuts off."""
    result = 1.0
    ranges: dict[str, dict[str, float]] = {}
    for node in nodes:
        found, passing = _comparison(node), _share(node, rows, bounds)
        if found is None or found[0][0] not in "<>" or found[0] in ("<>", "<=>"):
            result *= passing
            continue
        ends = ranges.setdefault(found[1], {"<": 1.0, ">": 1.0})
        ends[found[0][0]] = min(ends[found[0][0]], passing)
    for ends in ranges.values():
        below, above = ends["<"], ends[">"]
        # Guesses of both ends may leave nothing between them: then it is as if they were independent.
        result *= below + above - 1 if below + above > 1 else below * above
    return result


def _comparison(node: Predicate) -> tuple[str, str, Literal, pa.DataType] | None:
    """Return the operator, the column and the literal of a comparison with one; None for all else."""
    match node:
        case Compare(op, Column(ref), Literal() as literal, to):
            return op, ref.column, literal, to
        case Compare(op, Literal() as literal, Column(ref), to):
            return MIRRORED[op], ref.column, literal, to
    return None


def _estimate_list(bounds: Bounds, rows: int, values: tuple[Any, ...], to: pa.DataType) -> float:
    """Return the share that has one of some values: as much of each that is between the bounds."""
    try:
        least, greatest = plain(bounds[0], to), plain(bounds[1], to)
        literals = zip(values, constants(values, to, to), strict=True)
        values = tuple(value for value, at in literals if least <= at <= greatest)
    except _UNCLEAR:
        pass  # nothing is known of any
    return min(1.0, len(values) * _compared("=", bounds, rows, values[0], to, to)) if values else 0.0


def _compared(op: str, bounds: Bounds, rows: int, value: Any, kind: pa.DataType, to: pa.DataType) -> float:
    low, high, nulls = bounds
    if value is None:
        return (_EQUAL if nulls is None else nulls / rows) if op == "<=>" else 0.0
    present = 1.0 if nulls is None else 1 - nulls / rows
    try:
        least, greatest, at = (plain(low, to), plain(high, to), *constants((value,), kind, to))
        if not least <= at <= greatest:
            equal, below = 0.0, float(at > greatest)
        elif least == greatest:
            equal, below = 1.0, 0.0
        elif isinstance(at, int):
            width = greatest - least + 1
            equal, below = 1 / width, (at - least) / width
        elif op in _UNKNOWN:
            return present * _UNKNOWN[op]
        else:
            equal, below = 0.0, float((at - least) / (greatest - least))
    except _UNCLEAR:
        return present * _UNKNOWN.get(op, _OTHER)
    shares = {
        "=": equal,
        "<=>": equal,
        "<>": 1 - equal,
        "<": below,
        "<=": below + equal,
        ">": 1 - below - equal,
        ">=": 1 - below,
    }
    return present * min(1.0, max(0.0, shares[op]))
