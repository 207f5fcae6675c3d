"""What a FROM clause lets its query name, as Spark resolves names.

Spark takes ``x.y.z`` for column ``y`` of a relation ``x``, and only where there is none, for field
``y`` of a column ``x``. A USING key is shown once; the other side's can still be named with its
relation in front, if that names nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from tests.sql.fuzz.types import Type, array

Parts = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Attr:
    """A column that a relation gives: ``name`` is None for one that has no name to call it by."""

    qualifier: str | None
    name: str | None
    type: Type


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
        self._named: dict[str, list[Attr]] = defaultdict(list)
        for attr in self.shown:
            if attr.name is not None:
                self._named[attr.name.lower()].append(attr)
        self._qualified = _qualified(self.shown)
        self._behind = _qualified(self.hidden)

    @property
    def qualifiers(self) -> list[str]:
        return list(dict.fromkeys(attr.qualifier for attr in self.shown if attr.qualifier))

    def beside(self, other: Scope) -> Scope:
        return Scope(self.shown + other.shown, self.hidden + other.hidden)

    def of(self, qualifier: str) -> list[Attr]:
        """Return what ``qualifier.*`` gives."""
        low = qualifier.lower()
        return [
            a for a in (*self.hidden, *self.shown) if a.qualifier is not None and a.qualifier.lower() == low
        ]

    def find(self, parts: Parts) -> list[tuple[Attr, Parts]]:
        """Return the columns that a name may mean, each with the path inside it."""
        head = tuple(part.lower() for part in parts[:2])
        found = [(attr, parts[2:]) for attr in self._qualified.get(head, [])]
        found = found or [(attr, parts[1:]) for attr in self._named.get(head[0], [])]
        return found or [(attr, parts[2:]) for attr in self._behind.get(head, [])]

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
        """Return the ways to name a whole column."""
        return [ref for ref in self.refs if ref.attr is attr and ref.whole]

    def one(self, name: str) -> Attr | None:
        """Return the only shown column of a name, or None."""
        found = self._named.get(name.lower(), [])
        return found[0] if len(found) == 1 else None


def _qualified(attrs: Iterable[Attr]) -> dict[Parts, list[Attr]]:
    found: dict[Parts, list[Attr]] = defaultdict(list)
    for attr in attrs:
        if attr.name is not None and attr.qualifier is not None:
            found[attr.qualifier.lower(), attr.name.lower()].append(attr)
    return found


def paths(attr: Attr) -> Iterator[tuple[Parts, Parts, Type]]:
    """Give every way to write a column and the fields inside it, whatever else is in scope."""
    if attr.name is None:
        return
    heads = [(attr.name,)] if attr.qualifier is None else [(attr.name,), (attr.qualifier, attr.name)]
    for head in heads:
        for path, type_ in _inside(attr.type, 2):
            yield head, path, type_


def _inside(type_: Type, deep: int) -> Iterator[tuple[Parts, Type]]:
    """Give the type itself and what is ``deep`` steps inside it, each with the way there."""
    yield (), type_
    if type_.kind == "struct" and deep:
        for name, part in type_.parts:
            for path, inner in _inside(part, deep - 1):
                yield (name, *path), inner
    elif type_.kind == "array" and type_.parts[0][1].kind == "struct":
        for name, part in type_.parts[0][1].parts:
            yield (name,), array(part)


def requalified(attrs: Iterable[Attr], qualifier: str | None) -> list[Attr]:
    return [Attr(qualifier, attr.name, attr.type) for attr in attrs]
