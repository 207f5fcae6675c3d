"""Python values as Arrow arrays of a declared type, strictly: a value of another type is an error.

Sources answer with values whose types they choose: JSON, a database's driver, a user's function. What was
declared decides. Only what loses nothing is accepted: whole numbers where fractions are declared, texts in
ISO 8601 where dates and times are, texts of digits where decimals are; never a number in a text column, a
text in a number column, or a fraction in a column of whole numbers.

All values of a column that have one Python type are converted at once, by Arrow, where that type is accepted.
Arrow alone would cut fractions off; libraries that check values against types, such as msgspec, round times
to microseconds and take neither numpy's numbers nor subclasses.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from operator import attrgetter
from types import NoneType
from typing import Any, Literal, Self
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc, types as t

from millrace.errors import UnsupportedType, near

IfAbsent = Literal["error", "null"]


class Absent:
    """The type of ``ABSENT``."""

    __slots__ = ()


ABSENT: Any = Absent()
"""Stands for the value of a field that is not there."""

_SHOWN = 60
_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
_NULLS = ("Absent", "NaTType", "NAType")  # pandas' two, which is not loaded for them
_MOST_DIGITS = 38  # of a decimal
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MORE_THAN_MICROS = r"(\.\d{6})\d{1,3}"


class Unfit(ValueError):
    """A value is not of the declared type; the text names the column, the type and the value."""


class _Refused(ValueError):
    """A value cannot be converted; the text says why, or is empty."""


_FAILURES = (ValueError, TypeError, ArithmeticError, LookupError)  # Arrow's and Python's, of a conversion


class Fraction(float):
    """A number of a JSON text that is not whole; ``text`` is as it was written.

    A decimal column gets exactly the digits that were sent; JSON paths compare it like any other number.
    """

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number


class Named(float):
    """NaN, Infinity or -Infinity, which JSON does not have but many write."""

    __slots__ = ()


def parse(text: bytes, *, exact: bool) -> Any:
    """Return the value of a JSON text; with ``exact``, fractions are :class:`Fraction`, else floats, faster.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, parse_float=Fraction if exact else None, parse_constant=Named)


def has_decimals(kind: pa.DataType) -> bool:
    """Tell whether values of a type have decimals in them, which want :class:`Fraction`."""
    return t.is_decimal(kind) or any(has_decimals(kind.field(i).type) for i in range(kind.num_fields))


_ACCEPTED = [
    # A column's types, and the Python types of its values: of JSON, and of drivers and functions.
    (t.is_boolean, bool, bool | int | Decimal),
    (t.is_integer, int, int | Decimal),
    (t.is_floating, int | float, int | float | Decimal),
    (t.is_decimal, int | str | Fraction, int | str | float | Decimal),
    (t.is_string, str, str | UUID),
    (t.is_binary, str, bytes | bytearray | memoryview),
    (t.is_date, str, str | dt.date),
    (t.is_timestamp, str, str | dt.datetime),
]


@dataclass(frozen=True)
class Rules:
    """What is accepted beside exactly what was declared.

    Attributes:
        native: The values are Python's own rather than JSON's: bytes are bytes, not base64; 0 and 1 may be
            truth values; a float may be a decimal if its digits are certain, and infinite.
        absent: What it means that an object lacks a field: an error or null.
        scrub: Takes secrets out of what errors show of values; before it is cut short.
    """

    native: bool = False
    absent: IfAbsent = "error"
    scrub: Callable[[str], str] = str


def sql_name(kind: pa.DataType) -> str:
    """Return how a type is written in a schema.

    Raises:
        UnsupportedType: It is not the form of a type that Spark has.
    """
    if kind in _NAMES:
        return _NAMES[kind]
    if t.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if t.is_list(kind):
        return f"array<{sql_name(kind.value_type)}>"
    if t.is_map(kind):
        return f"map<{sql_name(kind.key_type)},{sql_name(kind.item_type)}>"
    if t.is_struct(kind):
        return f"struct<{','.join(f'{f.name}:{sql_name(f.type)}' for f in kind.fields)}>"
    raise UnsupportedType(f"Arrow type {kind} is not one that a lookup can have")


def shown(value: object, scrub: Callable[[str], str] = str) -> str:
    """Return a value for an error: the beginning of its text, and its type."""
    if value is None:
        return "null"
    text = scrub(value.text if isinstance(value, Fraction) else repr(value))
    kind = "float" if isinstance(value, float) else type(value).__name__
    return f"{text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'} ({kind})"


def read_column(
    values: list[Any], field: pa.Field, rows: Sequence[Any], rules: Rules, where: str = "", fill: Any = None
) -> pa.Array:
    """Return what rows have under a field's name, or by its path, as an array of the field's type.

    ``values`` has one for each of ``rows``, ``ABSENT`` where it has none. That is ``fill``, an Arrow scalar,
    or without one null or an error, as the rules say. ``where`` is the column that the rows are of, with a
    point behind it, for errors.

    Raises:
        Unfit: A row lacks it, or a value is not of the type.
    """
    if Absent not in set(map(type, values)):
        return array_of(values, field.type, where + field.name, rules)
    absent = [value is ABSENT for value in values]
    if fill is None and rules.absent == "error":
        row = rows[absent.index(True)]
        hint = f": {near(field.name, map(str, row))}" if isinstance(row, Mapping) else ""
        raise Unfit(f"column {where + field.name!r} is not in the row {shown(row, rules.scrub)}{hint}")
    found = array_of(values, field.type, where + field.name, rules)
    return found if fill is None else pc.if_else(pa.array(absent), fill, found)


def array_of(values: list[Any], kind: pa.DataType, where: str, rules: Rules) -> pa.Array:
    """Return the values as an array of exactly ``kind``, one of Millrace's Arrow types.

    None is null, and so are ``ABSENT`` and pandas' nulls.

    Raises:
        Unfit: A value is not of that type; names the column, which is ``where``.
    """
    owns = set(map(type, values)) - {NoneType}
    if any(own.__name__ in _NULLS or issubclass(own, np.generic) for own in owns):
        values = list(map(_plain, values))
        owns = set(map(type, values)) - {NoneType}
    if t.is_nested(kind):
        return _nested(owns, values, kind, where, rules)
    try:
        return _leaves(owns, values, kind, rules)
    except _FAILURES:
        for value in values:
            try:
                _leaves({type(value)} - {NoneType}, [value], kind, rules)
            except _FAILURES as error:
                raise _unfit(value, kind, where, rules, error) from None
        raise


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return None if type(value).__name__ in _NULLS else value


def _unfit(value: object, kind: pa.DataType, where: str, rules: Rules, error: object = None) -> Unfit:
    why = "out of range" if isinstance(error, OverflowError) else error if isinstance(error, _Refused) else ""
    said = f"column {where!r}: expected {sql_name(kind)}, got {shown(value, rules.scrub)}: {why}"
    return Unfit(said.removesuffix(": "))


def _nested(owns: set[type], values: list[Any], kind: pa.DataType, where: str, rules: Rules) -> pa.Array:
    wanted = (list, tuple, np.ndarray) if t.is_list(kind) else (Mapping,)
    if not all(issubclass(own, wanted) for own in owns):
        values = [value._asdict() if hasattr(value, "_asdict") else value for value in values]
        for value in values:
            if value is not None and not isinstance(value, wanted):
                raise _unfit(value, kind, where, rules)
    nulls = pa.array([value is None for value in values], pa.bool_())
    if t.is_struct(kind):
        fields = list(kind.fields)
        read = [[v if v is None else v.get(f.name, ABSENT) for v in values] for f in fields]
        children = [read_column(v, f, values, rules, f"{where}.") for v, f in zip(read, fields, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
    present = [value for value in values if value is not None]
    sizes = [0, *(0 if value is None else len(value) for value in values)]
    offsets = pa.array(np.cumsum(sizes).astype(np.int32))
    if t.is_list(kind):
        parts = array_of([part for value in present for part in value], kind.value_type, f"{where}[]", rules)
        return pa.ListArray.from_arrays(offsets, parts, type=kind, mask=nulls)
    keys = array_of([key for value in present for key in value], kind.key_type, f"{where}{{key}}", rules)
    if keys.null_count:
        raise Unfit(f"column {where!r}: a key of a map is null")
    items = [item for value in present for item in value.values()]
    parts = array_of(items, kind.item_type, f"{where}{{}}", rules)
    return pa.MapArray.from_arrays(offsets, keys, parts, kind, mask=nulls)


def _leaves(owns: set[type], values: list[Any], kind: pa.DataType, rules: Rules) -> pa.Array:
    """Return values of a type without parts; ``owns`` are the Python types that they have, beside None's."""
    if len(owns) == 1:
        return _leaves_of_one(next(iter(owns)), values, kind, rules)
    arrays = [
        _leaves_of_one(own, [value if type(value) is own else None for value in values], kind, rules)
        for own in owns
    ]
    return pc.coalesce(*arrays) if arrays else pa.nulls(len(values), kind)


def _leaves_of_one(own: type, values: list[Any], kind: pa.DataType, rules: Rules) -> pa.Array:
    """Return values that are all of one Python type, or None."""
    accepted = (native if rules.native else sent for is_kind, sent, native in _ACCEPTED if is_kind(kind))
    if not issubclass(own, next(accepted, ())) or (own is bool and not t.is_boolean(kind)):
        raise _Refused
    if t.is_floating(kind):
        return _floats(own, values, kind, rules)
    if t.is_decimal(kind):
        return _decimals(own, values, kind)
    if t.is_integer(kind) and issubclass(own, Decimal):
        return _decimals(own, values, pa.decimal128(38, 0)).cast(kind)
    if t.is_temporal(kind) and issubclass(own, str):
        return _read_times(values, kind)
    if t.is_timestamp(kind):
        if {value.tzinfo is None for value in values if value is not None} != {kind.tz is None}:
            given, right = ("without", "timestamp_ntz") if kind.tz else ("with", "timestamp")
            raise _Refused(f"a time {given} a time zone is of type {right}")
    elif t.is_date(kind) and issubclass(own, dt.datetime):
        values = _each(_read_day, values)
    elif t.is_boolean(kind) and own is not bool:
        values = _each({0: False, 1: True}.__getitem__, values)
    elif t.is_binary(kind) and issubclass(own, str):
        values = _each(_read_base64, values)
    elif issubclass(own, UUID):
        values = _each(str, values)
    return pa.array(values, kind)


def _each(function: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    return [None if value is None else function(value) for value in values]


def _floats(own: type, values: list[Any], kind: pa.DataType, rules: Rules) -> pa.Array:
    # Arrow refuses whole numbers that a float does not hold exactly; JSON knows no such difference.
    wide = pa.array(values if issubclass(own, float) else _each(float, values), pa.float64())
    array = wide if kind == wide.type else wide.cast(kind)
    infinite = pc.is_inf(array)
    may_be_infinite = rules.native or own is Named  # else it was a number too large for a float
    if pc.any(infinite).as_py() and not (may_be_infinite and infinite.equals(pc.is_inf(wide))):
        raise OverflowError
    return array


def _decimals(own: type, values: list[Any], kind: pa.DataType) -> pa.Array:
    if issubclass(own, float):
        values = _each(attrgetter("text") if own is Fraction else _write_float, values)
    texts = [str(value) for value in values if value is not None]
    if max(map(len, texts)) > _MOST_DIGITS or "E" in "".join(texts).upper():
        # Arrow makes 0 of numbers with many more digits behind the point than the type has.
        return pa.array(_each(partial(_rescale, kind), values), kind)
    if issubclass(own, int | Decimal):
        return pa.array(values, kind)
    return pa.array(values, pa.string()).cast(kind)


def _rescale(kind: pa.DataType, value: object) -> Decimal:
    """Return a number with exactly as many digits behind the point as a type of decimals has."""
    if not _DECIMAL.fullmatch(str(value)):
        raise _Refused
    exactly = decimal.Context(prec=kind.precision, traps=[decimal.Inexact, decimal.InvalidOperation])
    return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), context=exactly)


def _write_float(value: float) -> str:
    text = f"{value:.15g}"  # so many significant digits survive the way through a float and back
    if float(text) != value:
        raise _Refused("a float does not tell its digits for certain: a Decimal or a text does")
    return text


def _read_base64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise _Refused("binary is sent as base64") from None


def _read_day(value: dt.datetime) -> dt.date:
    if value.tzinfo is not None or value.time() != dt.time():
        raise _Refused("it has a time of day")
    return value.date()


def _read_times(values: list[str | None], kind: pa.DataType) -> pa.Array:
    texts = pa.array(values, pa.string())
    zone = ""
    if t.is_timestamp(kind):
        # Spark cuts digits behind microseconds off, Arrow does not accept them.
        texts = pc.replace_substring_regex(texts, _MORE_THAN_MICROS, r"\1")
        zone = " with a time zone or Z" if kind.tz else " without a time zone"
    try:
        return texts.cast(kind)
    except ValueError:
        raise _Refused(f"expected ISO 8601{zone}") from None
