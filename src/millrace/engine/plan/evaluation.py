"""Expressions of whole columns: by Arrow's kernels where they are Spark's, else by numpy's.

Invariant: values and truths are exactly what Spark computes of the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.arrays import array_of, scalar, to_arrow, to_numpy, whole
from millrace.engine.plan.expressions import (
    And,
    Call,
    CaseWhen,
    Column,
    ColumnRef,
    Compare,
    Exists,
    Function,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Predicate,
    Truth,
    Value,
    show,
    type_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ORDER = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "=": pc.equal,
    "<>": pc.not_equal,
}
_ARITHMETIC = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "&": pc.bit_wise_and}
_PARTS: dict[str, Callable[[Any], Any]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "week": pc.iso_week,
    "day": pc.day,
    "dayofyear": pc.day_of_year,
    "dayofweek": lambda dates: pc.day_of_week(dates, count_from_zero=False, week_start=7),
    "weekday": pc.day_of_week,
}
# Arrow's calendar has years of 16 bits. It repeats itself, weekdays too, after 400 years.
_CALENDAR_DAYS, _CALENDAR_YEARS = 146_097, 400

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1
_FALSE = scalar(False, pa.bool_())

Data: TypeAlias = Any
"""An array or a chunked array; of what is the same in every row perhaps a scalar."""


class Evaluation:
    """The expressions of so many rows, and columns of that length; each value is computed once."""

    def __init__(self, columns: Mapping[ColumnRef, Data], rows: int) -> None:
        self._columns = columns
        self._rows = rows
        self._values: dict[Value, Data] = {}

    def column(self, node: Value) -> Data:
        """Return a value for every row."""
        data = self._value(node)
        return pa.repeat(data, self._rows) if isinstance(data, pa.Scalar) else data

    def _value(self, node: Value) -> Data:
        if isinstance(node, Column):
            return self._columns[node.ref]
        if isinstance(node, Literal):
            return _constant(node)
        if node not in self._values:
            self._values[node] = self._computed(node)
        return self._values[node]

    def _computed(self, node: Value) -> Data:
        match node:
            case Function("cast", to, (operand,)):
                return widen(self._value(operand), to)
            case Function("+" | "-" | "*" | "&" as op, to, (left, right)):
                result = _ARITHMETIC[op](self._value(left), self._value(right))
                assert result.type == to, f"{result.type} of {node}"
                return result
            case Function("%", to, (operand,), (divisor,)):
                number = to.to_pandas_dtype()(divisor)
                return _by_numpy(self.column(operand), to, lambda numbers: np.fmod(numbers, number))
            case Function("date_add", _, (date,), (int(days),)):
                step = np.int32(days)
                return _by_numpy(self.column(date), pa.date32(), lambda numbers: numbers + step)
            case Function("datediff", _, dates):
                return pc.subtract(*(pc.cast(self.column(date), pa.int32()) for date in dates))
            case Function("timestamp_add", _, (time,), (int(microseconds),)):
                return _add_microseconds(whole(self.column(time)), microseconds)
            case Function("substring", _, (text,), (int(start), length)):
                data, first = self._value(text), start - 1
                stop = None if length is None else first + length
                if _is_utf8(data):
                    return pc.utf8_slice_codeunits(data, first, stop)
                cut = _by_characters(data, pa.binary(), lambda characters: b"".join(characters[first:stop]))
                return cut.view(pa.string())
            case Function("length", _, (text,)):
                data = self._value(text)
                if _is_utf8(data):
                    return pc.cast(pc.utf8_length(data), pa.int32())
                return _by_characters(data, pa.int32(), len)
            case Function(part, _, (date,)) if part in _PARTS:
                return _date_part(part, self.column(date))
            case CaseWhen(whens, otherwise, _):
                result = self._value(otherwise)
                for test, value in reversed(whens):
                    truth = pc.fill_null(self.truth(test), _FALSE)
                    result = pc.if_else(truth, self._value(value), result)
                return result
        raise TypeError(f"{show(node)} is not computed")

    def truth(self, node: Predicate) -> Data:
        """Return the predicate's truth for every row, null for unknown; a scalar if it reads no column."""
        match node:
            case Compare("<=>", left, right, to):
                a, b = widen(self._value(left), to), widen(self._value(right), to)
                same = pc.coalesce(_compare("=", a, b, to), _FALSE)
                return pc.or_(pc.and_(pc.is_null(a), pc.is_null(b)), same)
            case Compare(op, left, right, to):
                return _compare(op, widen(self._value(left), to), widen(self._value(right), to), to)
            case InList(operand, values, to):
                data = widen(self._value(operand), to)
                if pa.types.is_floating(to) or any(v is None for v in values):
                    tests = (_compare("=", data, scalar(v, to), to) for v in values)
                    return reduce(pc.or_kleene, tests)
                found = pc.is_in(data, value_set=array_of(values, to))
                return pc.if_else(pc.is_null(data), scalar(None, pa.bool_()), found)
            case Like(operand, pattern):
                return _like(self._value(operand), pattern)
            case IsNull(operand):
                return pc.is_null(self._value(operand))
            case Truth(operand):
                return self._value(operand)
            case Call() | Exists():
                raise TypeError(f"{show(node)} is for a selection module to evaluate")
            case Not(argument):
                return pc.invert(self.truth(argument))
            case And(arguments):
                return reduce(pc.and_kleene, map(self.truth, arguments))
            case Or(arguments):
                return reduce(pc.or_kleene, map(self.truth, arguments))


def evaluate(node: Predicate, columns: Mapping[ColumnRef, Data]) -> pa.Array | pa.Scalar:
    """Return the predicate's truth for every row: a boolean array with nulls for unknown.

    A predicate that reads no column gives a boolean scalar.
    """
    return Evaluation(columns, 0).truth(node)


def compute(value: Value, columns: Mapping[str, Data], rows: int) -> pa.Array:
    """Return a value of one relation's columns, by their names, for every row as one array."""
    data = whole(
        Evaluation({ColumnRef("", name): column for name, column in columns.items()}, rows).column(value)
    )
    assert data.type == type_of(value), f"{data.type} of {value}"
    return data


def widen(values: Any, to: pa.DataType) -> Any:
    """Cast an array or a scalar as Spark casts before it compares; ``to`` is the wider type.

    Integers beyond what a float holds are rounded rather than refused. Decimals become floats by
    way of their text: Arrow multiplies them by an inexact power of ten, so that 1.10 is not 1.1.
    """
    if values.type == to:
        return values
    if pa.types.is_floating(to) and pa.types.is_decimal(values.type):
        values = pc.cast(values, pa.string())
    return pc.cast(values, options=pc.CastOptions(to, allow_float_truncate=True))


@lru_cache(maxsize=256)
def _constant(node: Literal) -> pa.Scalar:
    return scalar(node.value, node.type)


def _compare(op: str, left: Data, right: Data, kind: pa.DataType) -> Data:
    return _float_compare(op, left, right) if pa.types.is_floating(kind) else _ORDER[op](left, right)


def _float_compare(op: str, left: Any, right: Any) -> Any:
    """Compare floats with NaN equal to itself and above every other number (Spark's order)."""
    if op in (negated := {"<>": "=", "<=": ">", ">=": "<"}):
        return pc.invert(_float_compare(negated[op], left, right))
    if op == ">":
        return _float_compare("<", right, left)
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if op == "=":
        return pc.or_kleene(pc.equal(left, right), pc.and_kleene(left_nan, right_nan))
    return pc.or_kleene(pc.less(left, right), pc.and_kleene(right_nan, pc.invert(left_nan)))


def _like(values: Any, pattern: str) -> Any:
    """Match by Arrow's LIKE, or by a regular expression where an escaped backslash would mislead it."""
    if "\\\\" not in pattern:
        return pc.match_like(values, pattern)
    tokens = re.findall(r"\\.|.", pattern, re.DOTALL)
    parts = [{"%": ".*", "_": "."}.get(token) or re.escape(token[-1]) for token in tokens]
    return pc.match_substring_regex(values, rf"(?s)\A(?:{''.join(parts)})\z")


def _add_microseconds(times: pa.Array, microseconds: int) -> pa.Array:
    """Return times of microseconds some of these later; null beyond the ends of 64 bits."""
    numbers = times.view(pa.int64())
    least, most = max(_FIRST, _FIRST - microseconds), min(_LAST, _LAST - microseconds)
    first, last = pc.min_max(numbers).values()
    if first.is_valid and (first.as_py() < least or last.as_py() > most):
        low, high = array_of([least, most], pa.int64())
        fits = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
        numbers = pc.if_else(fits, numbers, scalar(None, pa.int64()))
    return pc.add(numbers, scalar(microseconds, pa.int64())).view(times.type)


def _date_part(part: str, dates: Data) -> Data:
    first, last = pc.min_max(pc.cast(dates, pa.int32())).values()
    bound = 30_000 * 365
    if first.is_valid and (first.as_py() < -bound or last.as_py() > bound):
        return _by_numpy(dates, pa.int32(), lambda days: _far_part(part, days))
    return pc.cast(_PARTS[part](dates), pa.int32())


def _far_part(part: str, days: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the part of dates in years that Arrow's calendar has not, by dates of the same calendar."""
    cycles, rest = np.divmod(days.astype(np.int64), _CALENDAR_DAYS)
    found = _PARTS[part](to_arrow(rest.astype(np.int32)).cast(pa.date32()))
    numbers: NDArray[np.int32] = to_numpy(found).astype(np.int32)
    return numbers + (_CALENDAR_YEARS * cycles).astype(np.int32) if part == "year" else numbers


def _by_numpy(column: Data, kind: pa.DataType, function: Callable[[NDArray[Any]], NDArray[Any]]) -> pa.Array:
    """Return what a function makes of a column of numbers or dates, with the same nulls."""
    column = whole(column)
    plain = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
    numbers = function(to_numpy(pc.fill_null(plain, scalar(0, plain.type))))
    nulls = to_numpy(column.is_null()) if column.null_count else None
    made = to_arrow(numbers, nulls)
    return made.view(kind) if pa.types.is_date32(kind) else made.cast(kind)


def _is_utf8(texts: Data) -> bool:
    """Whether all texts are UTF-8, which neither Spark nor Arrow sees to when a file is read."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _by_characters(texts: Data, kind: pa.DataType, function: Callable[[list[bytes]], Any]) -> pa.Array:
    """Return what a function makes of the characters of texts, as Spark finds these in any bytes."""
    binary = whole(texts).view(pa.binary()).to_pylist()
    return array_of([None if text is None else function(_characters(text)) for text in binary], kind)


def _characters(text: bytes) -> list[bytes]:
    """Cut bytes where Spark does: the first byte of a character alone says how long it is."""
    found = []
    place = 0
    while place < len(text):
        first = text[place]
        size = 1 if first < 0xC2 or first > 0xF4 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        found.append(text[place : place + size])
        place += size
    return found
