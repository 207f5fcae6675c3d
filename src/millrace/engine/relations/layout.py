"""Which keys each relation of a block keeps codes of, and how they belong to attribute classes."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.engine.graph import QueryGraph
from millrace.engine.relations.store import KeyColumn


@dataclass(frozen=True)
class KeyLayout:
    """The keys of one relation.

    Attributes:
        keys: One for each column in an attribute class of this relation or of one that shares its tuples.
        of_class: Key number by class number (the first column, should a class hold several).
        same: Pairs of key numbers that one class ties together; they must be equal in every row.
        time: Number of the key that a sliding window goes by; a null in it matches nothing.
    """

    keys: tuple[KeyColumn, ...]
    of_class: dict[int, int]
    same: tuple[tuple[int, int], ...]
    time: int | None = None

    @classmethod
    def of(cls, graph: QueryGraph, relation: int) -> KeyLayout:
        """Lay out the keys of relation number ``relation``."""
        keys: list[KeyColumn] = []
        numbers: dict[tuple[str, str], int] = {}
        of_class: dict[int, int] = {}
        same: list[tuple[int, int]] = []
        for role in graph.roles(relation):
            for number, attribute in enumerate(graph.classes):
                for column in attribute.columns(role):
                    key = numbers.setdefault((column, str(attribute.type)), len(keys))
                    if key == len(keys):
                        keys.append(KeyColumn(column, attribute.type))
                    if role != relation:
                        continue
                    first = of_class.setdefault(number, key)
                    if first != key:
                        same.append((first, key))
        time: int | None = None
        if graph.windows and (window := graph.windows[relation]) is not None:
            time = numbers.setdefault((window.column, str(window.type)), len(keys))
            if time == len(keys):
                keys.append(KeyColumn(window.column, window.type))
        return cls(tuple(keys), of_class, tuple(same), time)
