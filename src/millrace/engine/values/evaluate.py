"""Values of whole columns, by Arrow's kernels where they are Spark's, else by numpy's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types as t

from millrace.engine.expressions import columns_of as columns_read, evaluate, widen
from millrace.engine.values.spec import (
    Arithmetic,
    AsText,
    Choice,
    Constant,
    DatePart,
    DaysBetween,
    Later,
    Length,
    Moved,
    Part,
    Read,
    Remainder,
    Slice,
    Value,
    Widened,
    type_of,
)

_KERNELS = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
_PARTS: dict[Part, Callable[[Any], Any]] = {
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

Column: TypeAlias = Any
"""An array or a chunked array."""


class Values:
    """The values of some rows; each is computed once.

    Args:
        rows: The columns that are read, all of one length.
        count: The number of rows.
    """

    def __init__(self, rows: Mapping[str, Column], count: int) -> None:
        self._rows = rows
        self._count = count
        self._known: dict[Value, Column | pa.Scalar] = {}

    def column(self, value: Value) -> Column:
        """Return a value for every row."""
        found = self._of(value)
        return pa.repeat(found, self._count) if isinstance(found, pa.Scalar) else found

    def _of(self, value: Value) -> Column | pa.Scalar:
        if value not in self._known:
            self._known[value] = self._evaluated(value)
        return self._known[value]

    def _evaluated(self, value: Value) -> Column | pa.Scalar:
        match value:
            case Read(column, _):
                return self._rows[column]
            case Constant(constant, kind):
                return pa.scalar(constant, kind)
            case Widened(inner, kind):
                return widen(self._of(inner), kind)
            case Arithmetic(op, left, right, kind):
                found = _KERNELS[op](self._of(left), self._of(right))
                assert found.type == kind, f"{found.type} of {value}"
                return found
            case Remainder(inner, by, kind):
                divisor = kind.to_pandas_dtype()(by)
                return _by_numpy(self.column(inner), kind, lambda numbers: np.fmod(numbers, divisor))
            case DatePart(part, date):
                return _date_part(part, self.column(date))
            case Moved(date, days):
                step = np.int32(days)
                return _by_numpy(self.column(date), pa.date32(), lambda numbers: numbers + step)
            case Later(time, microseconds, _):
                return _later(_whole(self.column(time)), microseconds)
            case DaysBetween(end, start):
                a, b = (pc.cast(self.column(each), pa.int32()) for each in (end, start))
                return pc.subtract(a, b)
            case Slice(text, start, length):
                found, first = self._of(text), start - 1
                stop = None if length is None else first + length
                if _is_utf8(found):
                    return pc.utf8_slice_codeunits(found, first, stop)
                return _by_characters(found, pa.binary(), lambda each: b"".join(each[first:stop])).view(
                    pa.string()
                )
            case Length(text):
                found = self._of(text)
                if _is_utf8(found):
                    return pc.cast(pc.utf8_length(found), pa.int32())
                return _by_characters(found, pa.int32(), len)
            case AsText(inner):
                return pc.cast(self._of(inner), pa.string())
            case Choice():
                return self._choice(value)

    def _choice(self, value: Choice) -> Column | pa.Scalar:
        null = pa.scalar(None, value.type)
        found = null if value.otherwise is None else self._of(value.otherwise)
        for test, shown in reversed(value.whens):
            columns = {ref: self._rows[ref.column] for ref in columns_read(test)}
            truth = pc.fill_null(evaluate(test, columns), fill_value=False)
            found = pc.if_else(truth, null if shown is None else self._of(shown), found)
        return found


def computed(value: Value, columns: Mapping[str, Column], count: int) -> pa.Array:
    """Return a value for every row as one array."""
    found = _whole(Values(columns, count).column(value))
    assert found.type == type_of(value), f"{found.type} of {value}"
    return found


def _whole(column: Column) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _later(times: pa.Array, microseconds: int) -> pa.Array:
    """Return times of microseconds some of these later; null beyond the ends of 64 bits."""
    numbers = times.view(pa.int64())
    least, most = max(_FIRST, _FIRST - microseconds), min(_LAST, _LAST - microseconds)
    first, last = pc.min_max(numbers).values()
    if first.is_valid and (first.as_py() < least or last.as_py() > most):
        fits = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
        numbers = pc.if_else(fits, numbers, None)
    return pc.add(numbers, microseconds).view(times.type)


def _date_part(part: Part, dates: Column) -> Column:
    first, last = pc.min_max(pc.cast(dates, pa.int32())).values()
    bound = 30_000 * 365
    if first.is_valid and (first.as_py() < -bound or last.as_py() > bound):
        return _by_numpy(dates, pa.int32(), lambda days: _far_part(part, days))
    return pc.cast(_PARTS[part](dates), pa.int32())


def _far_part(part: Part, days: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the part of dates in years that Arrow's calendar has not, by dates of the same calendar."""
    cycles, rest = np.divmod(days.astype(np.int64), _CALENDAR_DAYS)
    found = _PARTS[part](pa.array(rest.astype(np.int32), pa.int32()).cast(pa.date32()))
    numbers: NDArray[np.int32] = found.to_numpy(zero_copy_only=False).astype(np.int32)
    return numbers + (_CALENDAR_YEARS * cycles).astype(np.int32) if part == "year" else numbers


def _by_numpy(
    column: Column, kind: pa.DataType, function: Callable[[NDArray[Any]], NDArray[Any]]
) -> pa.Array:
    """Return what a function makes of a column of numbers or dates, with the same nulls."""
    column = _whole(column)
    plain = column.cast(pa.int32()) if t.is_date32(column.type) else column
    numbers = function(pc.fill_null(plain, 0).to_numpy(zero_copy_only=False))
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    made = pa.array(numbers, mask=nulls)
    return made.view(kind) if t.is_date32(kind) else made.cast(kind)


def _is_utf8(texts: Column | pa.Scalar) -> bool:
    """Whether all texts are UTF-8, which neither Spark nor Arrow sees to when a file is read."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _by_characters(texts: Column, kind: pa.DataType, function: Callable[[list[bytes]], Any]) -> pa.Array:
    """Return what a function makes of the characters of texts, as Spark finds these in any bytes."""
    binary = _whole(texts).view(pa.binary()).to_pylist()
    return pa.array([None if text is None else function(_characters(text)) for text in binary], kind)


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
