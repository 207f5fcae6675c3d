"""Python values as Arrow arrays of a declared type, strictly: a value of another type is an error.

Sources answer with values whose types they choose: JSON, a database's driver, a user's function. What was
declared decides. Only what loses nothing is accepted: whole numbers where fractions are declared, texts in
ISO 8601 where dates and times are, texts of digits where decimals are; never a number in a text column, a
text in a number column, or a fraction in a column of whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from millrace.errors import UnsupportedType, near
from millrace.lookups.json_text import Fraction
from millrace.lookups.leaves import Leaf, NotOne, leaf

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


class Unfit(ValueError):
    """A value is not of the declared type; the text names the column, the type and the value."""


@dataclass(frozen=True)
class Rules:
    """What is accepted beside exactly what was declared.

    Attributes:
        native: The values are Python's own rather than JSON's: bytes are bytes, not base64; 0 and 1 may be
            truth values; a float may be a decimal if its digits are certain; tuples are lists.
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


def array_of(values: list[Any], kind: pa.DataType, where: str, rules: Rules) -> pa.Array:
    """Return the values as an array of exactly ``kind``, one of Millrace's Arrow types; None is null.

    Raises:
        Unfit: A value is not of that type; names the column, which is ``where``.
    """
    if t.is_struct(kind):
        return _structs(values, kind, where, rules)
    if t.is_list(kind):
        return _lists(values, kind, where, rules)
    if t.is_map(kind):
        return _maps(values, kind, where, rules)
    way = leaf(kind, native=rules.native)
    given = values
    if not set(map(type, values)) - {NoneType} <= way.plain:
        values = [
            v if v is None or type(v) in way.plain else _fit(v, way, kind, where, rules) for v in values
        ]
    try:
        return way.build(values)
    except (ValueError, TypeError, ArithmeticError):
        for original, value in zip(given, values, strict=True):
            try:
                way.build([value])
            except (ValueError, TypeError, ArithmeticError) as error:
                why = str(error) if isinstance(error, NotOne) else ""
                raise unfit(original, kind, where, rules, why) from None
        raise


def unfit(value: object, kind: pa.DataType, where: str, rules: Rules, why: str = "") -> Unfit:
    """Return the error for a value that is not of the type of its column."""
    got = shown(value, rules.scrub)
    return Unfit(f"column {where!r}: expected {sql_name(kind)}, got {got}{why and ': '}{why}")


def fields_of(objects: list[Any], name: str, where: str, rules: Rules) -> list[Any]:
    """Return what each object has under a name; ``ABSENT`` becomes null or an error, as the rules say.

    Objects are mappings, or None, which has nothing. ``where`` is the column that is read, for errors.

    Raises:
        Unfit: An object lacks it.
    """
    values = [None if each is None else each.get(name, ABSENT) for each in objects]
    if not lacks(values):
        return values
    if rules.absent == "error":
        lacking = objects[next(i for i, v in enumerate(values) if v is ABSENT)]
        raise Unfit(f"column {where!r}: field {name!r} is missing; {near(name, map(str, lacking))}")
    return [None if v is ABSENT else v for v in values]


def lacks(values: list[Any]) -> bool:
    """Whether ``ABSENT`` is among values."""
    return Absent in set(map(type, values))


def _fit(value: Any, way: Leaf, kind: pa.DataType, where: str, rules: Rules) -> Any:
    """Return a value as one that the column's arrays are built of."""
    original = value
    if rules.native:
        if type(value).__name__ in ("NaTType", "NAType"):
            return None  # pandas' nulls
        if isinstance(value, np.generic):
            value = value.item()
    try:
        return way.fit(value)
    except (NotOne, OverflowError) as error:
        raise unfit(original, kind, where, rules, str(error)) from None


def _structs(values: list[Any], kind: pa.DataType, where: str, rules: Rules) -> pa.Array:
    objects = [None if v is None else _mapping(v, kind, where, rules) for v in values]
    children = [
        array_of(fields_of(objects, f.name, where, rules), f.type, f"{where}.{f.name}", rules)
        for f in kind.fields
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind.fields), mask=_nulls(objects))


def _lists(values: list[Any], kind: pa.DataType, where: str, rules: Rules) -> pa.Array:
    allowed = (list, tuple, np.ndarray) if rules.native else (list,)
    for value in values:
        if value is not None and not isinstance(value, allowed):
            raise unfit(value, kind, where, rules)
    elements = [each for value in values if value is not None for each in value]
    inner = array_of(elements, kind.value_type, f"{where}[]", rules)
    return pa.ListArray.from_arrays(_offsets(values), inner, type=kind, mask=_nulls(values))


def _maps(values: list[Any], kind: pa.DataType, where: str, rules: Rules) -> pa.Array:
    objects = [None if v is None else _mapping(v, kind, where, rules) for v in values]
    keys = array_of([k for v in objects if v for k in v], kind.key_type, f"{where}{{key}}", rules)
    if keys.null_count:
        raise Unfit(f"column {where!r}: a key of a map is null")
    items = [each for v in objects if v for each in v.values()]
    inner = array_of(items, kind.item_type, f"{where}{{}}", rules)
    return pa.MapArray.from_arrays(_offsets(objects), keys, inner, kind, mask=_nulls(objects))


def _mapping(value: Any, kind: pa.DataType, where: str, rules: Rules) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    if rules.native and hasattr(value, "_asdict"):
        return value._asdict()  # type: ignore[no-any-return]
    raise unfit(value, kind, where, rules)


def _offsets(values: list[Any]) -> pa.Array:
    sizes = [0, *(0 if v is None else len(v) for v in values)]
    return pa.array(np.cumsum(sizes).astype(np.int32))


def _nulls(values: list[Any]) -> pa.Array:
    return pa.array([v is None for v in values], pa.bool_())
