"""The types that the grammar tells apart: enough to write queries that Spark accepts.

A kind is a set of types that stand in the same places. ``digits`` are strings that hold numbers, so
that they may be compared with numbers; ``large`` are numbers too large to be added.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

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


def array(element: Type) -> Type:
    return Type("array", f"array<{element.sql}>", (("element", element),))


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


def of_spark(type_: DataType) -> Type:
    """Return what the grammar knows of a type of Spark's."""
    parts: list[tuple[str, DataType]] = []
    if isinstance(type_, StructType):
        parts = [(field.name, field.dataType) for field in type_]
    elif isinstance(type_, ArrayType):
        parts = [("element", type_.elementType)]
    elif isinstance(type_, MapType):
        parts = [("key", type_.keyType), ("value", type_.valueType)]
    inside = tuple((name, of_spark(part)) for name, part in parts)
    return Type(KINDS.get(type_.typeName(), type_.typeName()), type_.simpleString(), inside)


KINDS = {"boolean": "bool", "timestamp_ntz": "ntz", "float": "real", "double": "real"}
KINDS |= dict.fromkeys(("byte", "short", "integer", "long"), "int")
_KNOWN = (BOOL, INT, DOUBLE, DECIMAL, STRING, DIGITS, BINARY, DATE, TIMESTAMP, NTZ, LARGE)
OF_KIND = {type_.kind: type_ for type_ in _KNOWN} | {"bigint": BIGINT, "struct": OTHER}
OF_KIND |= {"array": array(INT), "texts": array(STRING)}
"""The type that an expression of a kind is taken to have."""

SPECIAL = {("e", "large"): LARGE, ("e", "k"): DIGITS}


def columns(table: str) -> list[tuple[str, Type]]:
    return [
        (field.name, SPECIAL.get((table, field.name), of_spark(field.dataType)))
        for field in tables.schema(table)
    ]
