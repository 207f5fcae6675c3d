"""The types that the grammar tells apart: enough to write queries that Spark accepts.

A kind is a set of types that stand in the same places. ``digits`` are strings that hold numbers, so
that they may be compared with numbers; ``large`` are numbers too large to be added.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tests.sql.fuzz import tables


@dataclass(frozen=True)
class Type:
    """A type as SQL writes it, its kind, and what it is made of.

    Parts are a struct's fields, an array's ``element``, a map's ``key`` and ``value``, by name.
    """

    kind: str
    sql: str
    parts: tuple[tuple[str, Type], ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether values can be grouped, ordered and made distinct."""
        return self.kind not in ("map", "other") and all(part.comparable for _, part in self.parts)


BOOL = Type("bool", "boolean")
INT = Type("int", "int")
BIGINT = Type("int", "bigint")
LARGE = Type("large", "bigint")
DOUBLE = Type("real", "double")
DECIMAL = Type("decimal", "decimal(10,2)")
STRING = Type("string", "string")
DIGITS = Type("digits", "string")
BINARY = Type("binary", "binary")
DATE = Type("date", "date")
TIMESTAMP = Type("timestamp", "timestamp")
NTZ = Type("ntz", "timestamp_ntz")
OTHER = Type("other", "?")
"""A struct or such whose fields the grammar does not follow."""

NUMBERS = ("int", "real", "decimal")
TEXTS = ("string", "digits")
MOMENTS = ("date", "timestamp", "ntz")
PLAIN = (*NUMBERS, *TEXTS, *MOMENTS, "bool")


def struct(parts: list[tuple[str, Type]]) -> Type:
    """Return the struct of these fields."""
    inside = ", ".join(f"`{name}`: {part.sql}" for name, part in parts)
    return Type("struct", f"struct<{inside}>", tuple(parts))


def array(element: Type) -> Type:
    """Return the array of these elements."""
    return Type("array", f"array<{element.sql}>", (("element", element),))


def mapping(key: Type, value: Type) -> Type:
    """Return the map between these."""
    return Type("map", f"map<{key.sql}, {value.sql}>", (("key", key), ("value", value)))


def meet(one: Type, other: Type) -> bool:
    """Whether ``one = other`` is a condition that Spark accepts and that cannot fail.

    Strings with numbers do not meet other strings: where they also meet a number, Spark infers that
    the other strings do, and fails.
    """
    kinds = {one.kind, other.kind}
    if one.parts or other.parts:
        return one.sql == other.sql and one.comparable
    numbers = kinds <= {*NUMBERS, "large"} or kinds == {"int", "digits"}
    return len(kinds) == 1 or numbers or kinds <= set(MOMENTS)


def of_arrow(type_: pa.DataType) -> Type:
    """Return the type that Spark reads an Arrow type as."""
    if pa.types.is_struct(type_):
        return struct([(field.name, of_arrow(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return array(of_arrow(type_.value_type))
    if pa.types.is_map(type_):
        return mapping(of_arrow(type_.key_type), of_arrow(type_.item_type))
    if pa.types.is_decimal(type_):
        return Type("decimal", f"decimal({type_.precision},{type_.scale})")
    if pa.types.is_timestamp(type_):
        return NTZ if type_.tz is None else TIMESTAMP
    return _ATOMS[str(type_)]


_ATOMS = {
    "bool": BOOL,
    "int8": Type("int", "tinyint"),
    "int16": Type("int", "smallint"),
    "int32": INT,
    "int64": BIGINT,
    "float": Type("real", "float"),
    "double": DOUBLE,
    "string": STRING,
    "binary": BINARY,
    "date32[day]": DATE,
}

_KINDS = {("e", "large"): LARGE, ("e", "k"): DIGITS}


def columns(table: str) -> list[tuple[str, Type]]:
    """Return the columns of one of the tables."""
    schema = tables.TABLES[table].schema
    return [(field.name, _KINDS.get((table, field.name), of_arrow(field.type))) for field in schema]
