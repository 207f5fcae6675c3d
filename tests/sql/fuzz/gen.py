"""Types, scopes, choices and names: what every part of the grammar draws from.

A kind is a set of types that stand in the same places. ``digits`` are strings that hold numbers, so
that they may be compared with numbers; ``large`` are numbers too large to be added.

Spark takes ``x.y.z`` for column ``y`` of a relation ``x``, and only where there is none, for field
``y`` of a column ``x``. A USING key is shown once; the other side's can still be named with its
relation in front, if that names nothing else.

Every choice is a whole number, and smaller numbers make plainer queries: a query is a list of them, and one
that fails gets smaller as its list does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from string import Formatter
from typing import Any

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
_NAMES = {"bool": "boolean", "real": "double", "decimal": "decimal(10,2)", "digits": "string"}
_NAMES |= {"ntz": "timestamp_ntz", "large": "bigint"}
OF_KIND = {kind: Type(kind, _NAMES.get(kind, kind)) for kind in (*PLAIN, "binary", "large")}
OF_KIND |= {"array": array(OF_KIND["int"]), "texts": array(OF_KIND["string"])}
OF_KIND |= {"bigint": Type("int", "bigint"), "struct": Type("other", "?")}
"""The type that an expression of a kind is taken to have; of a struct's fields the grammar follows none."""

SPECIAL = {("e", "large"): OF_KIND["large"], ("e", "k"): OF_KIND["digits"]}


def columns(table: str) -> list[tuple[str | None, Type]]:
    return [
        (field.name, SPECIAL.get((table, field.name), of_spark(field.dataType)))
        for field in tables.schema(table)
    ]


# What a FROM clause lets its query name

Parts = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Attr:
    """A column that a relation gives: ``name`` is None for one that has no name to call it by."""

    qualifier: str | None
    name: str | None
    type: Type

    @cached_property
    def whole(self) -> Parts:
        """Qualifier and name, in small letters, by which it is found."""
        return (self.qualifier or "").lower(), (self.name or "").lower()


@dataclass(frozen=True)
class Ref:
    """A way to name a column, or a field inside it."""

    parts: Parts
    type: Type
    attr: Attr
    whole: bool


class Scope:
    """The columns of a FROM clause, in the order of its star, and the hidden halves of USING keys."""

    def __init__(self, shown: Iterable[Attr] = (), hidden: Iterable[Attr] = ()) -> None:
        self.shown = tuple(shown)
        self.hidden = tuple(hidden)

    @property
    def qualifiers(self) -> list[str]:
        return list(dict.fromkeys(attr.qualifier for attr in self.shown if attr.qualifier))

    def beside(self, other: Scope) -> Scope:
        return Scope(self.shown + other.shown, self.hidden + other.hidden)

    def of(self, qualifier: str) -> list[Attr]:
        """Return what ``qualifier.*`` gives."""
        return [a for a in (*self.hidden, *self.shown) if a.whole[0] == qualifier.lower()]

    def find(self, parts: Parts) -> list[tuple[Attr, Parts]]:
        """Return the columns that a name may mean, each with the path inside it."""
        head = tuple(part.lower() for part in parts[:2])
        found = [(attr, parts[2:]) for attr in self.shown if attr.whole == head]
        found = found or [(attr, parts[1:]) for attr in self.shown if attr.whole[1] == head[0]]
        return found or [(attr, parts[2:]) for attr in self.hidden if attr.whole == head]

    @cached_property
    def refs(self) -> list[Ref]:
        """All names that mean exactly one column, or one field of a column."""
        return [
            Ref((*head, *path), type_, attr, not path)
            for attr in (*self.shown, *self.hidden)
            for head, path, type_ in paths(attr)
            if self.find((*head, *path)) == [(attr, path)]
        ]

    def naming(self, attr: Attr) -> list[Ref]:
        return [ref for ref in self.refs if ref.attr is attr and ref.whole]

    def one(self, name: str) -> Attr | None:
        """Return the only shown column of a name, or None."""
        found = [attr for attr in self.shown if attr.whole[1] == name.lower()]
        return found[0] if len(found) == 1 else None


def paths(attr: Attr) -> Iterator[tuple[Parts, Parts, Type]]:
    """Give every way to write a column and the fields inside it, whatever else is in scope."""
    if attr.name is None:
        return
    heads = [(attr.name,)] if attr.qualifier is None else [(attr.name,), (attr.qualifier, attr.name)]
    for head in heads:
        for path, type_ in _parts_of(attr.type, 2):
            yield head, path, type_


def _parts_of(type_: Type, deep: int) -> Iterator[tuple[Parts, Type]]:
    """Give the type itself and what is ``deep`` steps inside it, each with the way there."""
    yield (), type_
    if type_.kind == "struct" and deep:
        for name, part in type_.parts:
            for path, inner in _parts_of(part, deep - 1):
                yield (name, *path), inner
    elif type_.kind == "array" and type_.parts[0][1].kind == "struct":
        for name, part in type_.parts[0][1].parts:
            yield (name,), array(part)


# Choices, names and layout

ALIASES = ["a", "b", "c", "t", "k", "e", "st", "x", "y", "q", "l", "r", "b", "s", "id", "n", "items"]
ALIASES += ["A", "B", "odd alias", "a.id", "merge", "order", "p"]
OUTPUTS = ["id", "k", "s", "v", "w", "n", "d", "a", "b", "t", "st", "x", "y", "z", "f", "Id", "K", "flag"]
OUTPUTS += ["total", "my col", "merge", "order", "p.q", "a`b", "insert", "left", "b.id", "a_id", "b__id"]
_PLAIN = re.compile(r"[A-Za-z_]\w*\Z")
# Spark takes them for names everywhere but as a table's alias; the grammar always quotes those.
_SPOKEN = {"order", "merge", "left", "insert"}


@dataclass(frozen=True)
class Relation:
    """A table by its name, or a query by its text: its columns, and about how many rows it has."""

    text: str
    columns: list[tuple[str | None, Type]]
    rows: int = 6


BASE = {name: Relation(name, columns(name)) for name in tables.TABLES}


class Gen:
    """One query in the making.

    Args:
        draw: Returns a number below the one that it is given.
        block: Makes a SELECT; the parts of the grammar that need one get it from here.
    """

    def __init__(self, draw: Callable[[int], int], block: Callable[..., Any]) -> None:
        self._draw = draw
        self.block = block
        self.relations = 0
        self.plain_layout = not self.chance(0.3)
        self.ctes: dict[str, Relation] = {}

    def number(self, least: int, most: int) -> int:
        return least + self._draw(most - least + 1)

    def chance(self, share: float) -> bool:
        if share < 0.01:
            return self.number(0, 99) == 99 and self.chance(100 * share)
        return self.number(1, 100) > 100 - 100 * share

    def pick(self, values: Sequence[Any]) -> Any:
        return values[self.number(0, len(values) - 1)]

    def some(self, values: Sequence[Any], least: int, most: int) -> list[Any]:
        rest, most = list(values), min(most, len(values))
        return [rest.pop(self.number(0, len(rest) - 1)) for _ in range(self.number(min(least, most), most))]

    def shuffled(self, values: Sequence[Any]) -> list[Any]:
        return self.some(values, len(values), len(values))

    def weigh(self, **weights: float) -> str:
        """Return one of the names, more often those that weigh more."""
        left = self.number(1, round(10 * sum(weights.values()))) / 10
        for name, weight in weights.items():
            left -= weight
            if left < 0.05 and weight:
                return name
        raise AssertionError(weights)

    @contextmanager
    def within(self, ctes: dict[str, Relation]) -> Iterator[None]:
        """Let relations be chosen from these CTEs too, before tables of the same name."""
        outer, self.ctes = self.ctes, ctes
        try:
            yield
        finally:
            self.ctes = outer

    def table(self) -> Relation:
        if self.ctes and self.chance(0.6):
            return self.pick(list(self.ctes.values()))
        relation = self.pick(list(BASE.values()))
        return self.ctes.get(relation.text.lower(), relation)

    def spell(self, parts: Parts) -> str:
        """Return a name as SQL: in another letter case now and then, quoted where needed or at will.

        Seldom its relation is left out, whether the rest is clear or not.
        """
        if len(parts) > 1 and self.chance(0.003):
            parts = parts[1:]
        return ".".join(self._word(part) for part in parts)

    def _word(self, name: str) -> str:
        if self.chance(0.08):
            name = self.pick([name.upper(), name.lower(), name.swapcase()])
        if name.lower() in _SPOKEN:
            return name if self.chance(0.1) else quote(name)
        return name if _PLAIN.match(name) and not self.chance(0.08) else quote(name)

    def alias(self, used: set[str], pool: Sequence[str] = ALIASES) -> str:
        """Return a name that is not used yet, and remember it."""
        for _ in range(20):
            name = self.pick(pool)
            if name.lower() not in used:
                break
        else:
            name = f"z{len(used)}"
        used.add(name.lower())
        return name

    def quoted(self, name: str) -> str:
        """Return a new name as SQL, quoted where Spark wants it."""
        safe = _PLAIN.match(name) and name.lower() not in _SPOKEN
        return name if safe and not self.chance(0.1) else quote(name)

    def gap(self) -> str:
        """Return what separates two clauses: a blank, a line's end or a comment."""
        if self.plain_layout or self.chance(0.8):
            return " "
        return self.pick(["\n", "\n  ", " /* FROM b, {x} WHERE ' */ ", " -- it's, a JOIN {c} ON\n", "\t"])

    def join(self, texts: Sequence[str]) -> str:
        return "".join(text + self.gap() for text in texts[:-1]) + texts[-1]

    def all_of(self, conditions: Sequence[str]) -> str:
        word = self.pick([" AND ", " AND ", " and "])
        return word.join(f"({text})" if " OR " in text.upper() else text for text in conditions)


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def fill(template: str, made: Callable[[str], str]) -> str:
    """Replace each ``{name}`` of a template by what is made for it, one after the other."""
    return "".join(text + (made(name) if name else "") for text, name, _, _ in Formatter().parse(template))
