"""Choices, names and layout: what every part of the grammar draws from.

Every choice is a whole number, and smaller numbers make plainer queries: a query is a list of them, and one
that fails gets smaller as its list does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from string import Formatter
from typing import Any

from tests.sql.fuzz import types
from tests.sql.fuzz.scope import Parts
from tests.sql.fuzz.types import Type

ALIASES = ["a", "b", "c", "t", "k", "e", "st", "x", "y", "q", "l", "r", "b", "s", "id", "n", "items"]
ALIASES += ["A", "B", "odd alias", "a.id", "merge", "order", "p"]
OUTPUTS = ["id", "k", "s", "v", "w", "n", "d", "a", "b", "t", "st", "x", "y", "z", "f", "Id", "K", "flag"]
OUTPUTS += ["total", "my col", "merge", "order", "p.q", "a`b", "insert", "left", "b.id", "a_id", "b__id"]
_PLAIN = re.compile(r"[A-Za-z_]\w*\Z")
# Spark takes them for names everywhere but as a table's alias; the grammar always quotes those.
_SPOKEN = {"order", "merge", "left", "insert"}


@dataclass(frozen=True)
class Relation:
    """Something to select from by name: its columns, and about how many rows it has."""

    name: str
    columns: tuple[tuple[str | None, Type], ...]
    rows: int = 6


BASE = {name: Relation(name, tuple(types.columns(name))) for name in types.tables.TABLES}


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
        """Return True in that share of the cases."""
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
        return self.ctes.get(relation.name.lower(), relation)

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
    """Return a name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def fill(template: str, made: Callable[[str], str]) -> str:
    """Replace each ``{name}`` of a template by what is made for it, one after the other."""
    return "".join(text + (made(name) if name else "") for text, name, _, _ in Formatter().parse(template))
