"""Which keys each relation of a block keeps codes of, and how they belong to attribute classes."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.graph import QueryGraph
from millrace.relations.store import KeyColumn


@dataclass(frozen=True)
class KeyLayout:
    """The keys of one relation.

    Attributes:
        keys: One for each column in an attribute class.
        of_class: Key number by class number (the first column, should a class hold several).
        same: Pairs of key numbers that one class ties together; they must be equal in every row.
    """

    keys: tuple[KeyColumn, ...]
    of_class: dict[int, int]
    same: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, graph: QueryGraph, relation: int) -> KeyLayout:
        """Lay out the keys of relation number ``relation``."""
        keys: list[KeyColumn] = []
        of_class: dict[int, int] = {}
        same: list[tuple[int, int]] = []
        for number, attribute in enumerate(graph.classes):
            for column in attribute.columns(relation):
                keys.append(KeyColumn(column, attribute.type))
                first = of_class.setdefault(number, len(keys) - 1)
                if first != len(keys) - 1:
                    same.append((first, len(keys) - 1))
        return cls(tuple(keys), of_class, tuple(same))
