"""Single values of a column without parts: numbers, texts, dates and the like.

Arrow makes arrays of lists of one Python type at once. A :class:`Leaf` says which types those are for a
column, and makes values of other types one of them, if nothing is lost.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyarrow import compute as pc, types as t

from millrace.errors import UnsupportedType
from millrace.lookups.json_text import Fraction, Named, is_overflow

CERTAIN_DIGITS = 15
"""So many significant digits survive the way through a float and back."""

_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_MORE_THAN_MICROS = r"(\.\d{6})\d{1,3}"


class NotOne(ValueError):
    """A single value cannot be converted; the text says why, or is empty."""


@dataclass(frozen=True)
class Leaf:
    """How to make an array of one type without parts.

    Attributes:
        plain: Python types that ``build`` takes, beside None.
        fit: Returns a value of another type as one of them, or raises :class:`NotOne`.
        build: Makes the array; raises a ValueError, TypeError or ArithmeticError for values out of range.
    """

    plain: frozenset[type]
    fit: Callable[[Any], Any]
    build: Callable[[list[Any]], pa.Array]


def leaf(kind: pa.DataType, *, native: bool) -> Leaf:
    """Return how to make arrays of one of Millrace's Arrow types without parts.

    Native values are Python's own, rather than those of JSON.

    Raises:
        UnsupportedType: It is none of them.
    """
    if t.is_boolean(kind):
        return Leaf(frozenset({bool}), _bool if native else _no, lambda v: pa.array(v, kind))
    if t.is_integer(kind):
        return Leaf(frozenset({int}), _int if native else _no, lambda v: pa.array(v, kind))
    if t.is_floating(kind):
        return Leaf(
            frozenset({float, int, Fraction, Named}), _float, lambda v: _floats(v, kind, bounded=not native)
        )
    if t.is_decimal(kind):
        if native:
            return Leaf(frozenset({int, Decimal}), _native_decimal, lambda v: pa.array(v, kind))
        return Leaf(frozenset({int, Fraction}), _decimal, lambda v: _decimals(v, kind))
    if t.is_string(kind):
        return Leaf(frozenset({str}), _str if native else _no, lambda v: pa.array(v, kind))
    if t.is_binary(kind):
        return Leaf(frozenset({bytes}), _bytes if native else _base64, lambda v: pa.array(v, kind))
    if t.is_date(kind):
        if native:
            return Leaf(frozenset({dt.date}), _date, lambda v: pa.array(v, kind))
        return Leaf(frozenset({str}), _no, lambda v: pa.array(v, pa.string()).cast(kind))
    if t.is_timestamp(kind):
        if native:
            return Leaf(frozenset({dt.datetime}), partial(_time, kind), lambda v: _datetimes(v, kind))
        return Leaf(frozenset({str}), _no, lambda v: _timestamps(v, kind))
    raise UnsupportedType(f"Arrow type {kind} is not one that a lookup can have")


def _no(value: object) -> Any:  # noqa: ARG001  # nothing else will do
    raise NotOne


def _bool(value: object) -> bool:
    if isinstance(value, bool) or (isinstance(value, int | Decimal) and value in (0, 1)):
        return bool(value)
    raise NotOne


def _int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() < 40 and value == int(value):
        return int(value)
    raise NotOne


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise NotOne
    return float(value)


def _floats(values: list[Any], kind: pa.DataType, *, bounded: bool) -> pa.Array:
    try:
        # Arrow refuses whole numbers that a float does not hold exactly; JSON knows no such difference.
        wide = pa.array([v if v is None else float(v) for v in values], pa.float64())
    except OverflowError:
        raise NotOne("out of range") from None
    infinite = pc.is_inf(wide)
    if bounded and pc.any(infinite).as_py() and any(v is not None and is_overflow(v) for v in values):
        raise NotOne("out of range")
    array = wide.cast(kind)
    if kind != wide.type and pc.any(pc.and_not(pc.is_inf(array), infinite)).as_py():
        raise NotOne("out of range")
    return array


def _decimals(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([Decimal(v.text) if type(v) is Fraction else v for v in values], kind)


def _decimal(value: object) -> Decimal:
    if isinstance(value, Decimal):
        return Decimal(value)
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        raise NotOne
    return Decimal(value)


def _native_decimal(value: object) -> Decimal:
    if not isinstance(value, float):
        return _int(value) if isinstance(value, int) else _decimal(value)  # type: ignore[return-value]
    exact = Decimal(repr(float(value)))
    if not exact.is_finite() or len(exact.normalize().as_tuple().digits) > CERTAIN_DIGITS:
        raise NotOne("a float does not tell its digits for certain: a Decimal or a text does")
    return exact


def _str(value: object) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, UUID):
        return str(value)
    raise NotOne


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise NotOne


def _base64(value: object) -> bytes:
    if not isinstance(value, str):
        raise NotOne
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise NotOne("binary is sent as base64") from None


def _date(value: object) -> dt.date:
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None or value.time() != dt.time():
            raise NotOne("it has a time of day")
        return value.date()
    if isinstance(value, dt.date):
        return dt.date(value.year, value.month, value.day)
    if isinstance(value, str):
        return _parsed(value, pa.date32())  # type: ignore[no-any-return]
    raise NotOne


def _datetimes(values: list[dt.datetime | None], kind: pa.DataType) -> pa.Array:
    for value in values:
        if value is not None and (value.tzinfo is None) != (kind.tz is None):
            _time(kind, value)
    return pa.array(values, kind)


def _time(kind: pa.DataType, value: object) -> dt.datetime:
    if isinstance(value, str):
        return _parsed(value, kind)  # type: ignore[no-any-return]
    if not isinstance(value, dt.datetime):
        raise NotOne
    if value.tzinfo is None and kind.tz is not None:
        raise NotOne("a time without a time zone is of type timestamp_ntz")
    if value.tzinfo is not None and kind.tz is None:
        raise NotOne("a time with a time zone is of type timestamp")
    return value


def _parsed(text: str, kind: pa.DataType) -> Any:
    """Return one date or time of ISO 8601 as Python's."""
    try:
        if t.is_date(kind):
            return pa.scalar(text).cast(kind).as_py()
        return _timestamps([text], kind)[0].as_py()
    except (ValueError, OverflowError):
        raise NotOne("expected ISO 8601") from None


def _timestamps(texts: list[str | None], kind: pa.DataType) -> pa.Array:
    # Spark cuts digits behind microseconds off, Arrow does not accept them.
    micros = pc.replace_substring_regex(pa.array(texts, pa.string()), _MORE_THAN_MICROS, r"\1")
    try:
        return micros.cast(kind)
    except ValueError:
        if kind.tz is None:
            raise NotOne("expected ISO 8601 without a time zone") from None
        raise NotOne("expected ISO 8601 with a time zone or Z") from None
