"""Which relations of a FROM clause make a block together."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Groups(Generic[Item]):
    """Disjoint sets of items, joined pair by pair."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._parent = {item: item for item in items}

    @classmethod
    def tied(cls, pairs: Collection[Collection[Item]]) -> Groups[Item]:
        """Return the items of some pairs, those of a pair together."""
        groups = cls(item for pair in pairs for item in pair)
        for pair in pairs:
            groups.join(pair)
        return groups

    def find(self, item: Item) -> Item:
        """Return the representative of the item's set."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, items: Iterable[Item]) -> None:
        """Put all the items into one set."""
        known = [item for item in items if item in self._parent]
        for item in known[1:]:
            self._parent[self.find(item)] = self.find(known[0])

    def are_together(self, items: Iterable[Item]) -> bool:
        """Tell whether all the items are in one set."""
        found = {self.find(item) if item in self._parent else None for item in items}
        return len(found) == 1 and None not in found

    def sets(self) -> list[list[Item]]:
        """Return the sets, and their members, in the order the items were given."""
        found: dict[Item, list[Item]] = {}
        for item in self._parent:
            found.setdefault(self.find(item), []).append(item)
        return list(found.values())


def split(
    members: list[str],
    others: list[str],
    within: Iterable[Iterable[str]],
    above: Iterable[Iterable[str]],
) -> list[list[str]]:
    """Return the blocks, each a list of at least two members.

    Args:
        members: Relations that a block may take.
        others: Relations that stay with Spark.
        within: Sets of members that a predicate of the block links.
        above: Sets of relations that something evaluated by Spark links.

    Relations that only something above links are no block: inside it they would be a cross
    product, which Spark does not compute either, as it joins by what links them. What nothing
    links at all is a cross product in Spark too, and is taken.
    """
    inner, outer = Groups(members), Groups([*members, *others])
    for linked in within:
        names = list(linked)
        inner.join(names)
        outer.join(names)
    for linked in above:
        outer.join(linked)
    parts = inner.sets()
    whole = {frozenset(part) for part in outer.sets()}
    free = [part for part in parts if frozenset(part) in whole]
    bound = [part for part in parts if frozenset(part) not in whole]
    if free:
        order = {name: place for place, name in enumerate(members)}
        bound.append(sorted((name for part in free for name in part), key=order.__getitem__))
    return [part for part in bound if len(part) >= 2]
