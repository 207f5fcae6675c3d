"""What makes two tuples match: key codes by attribute class, verified where codes cannot decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc

from millrace.engine.arrays import Array, is_true
from millrace.engine.kernels import combine
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.stems.windows import Windows
from millrace.engine.tuples import BATCH_BYTES, KeyLayout, RelationStore, slices

Classes = tuple[int, ...]
Tuples = tuple[Mapping[int, RelationStore], Mapping[int, Array]]
"""Per spanned relation, the store and the row numbers in it."""


class Matching:
    """Key codes of tuples of one block, and the conjuncts that a hash cannot decide.

    Args:
        graph: The block's query graph.
    """

    def __init__(self, graph: QueryGraph) -> None:
        self.graph = graph
        self.layouts = [KeyLayout.of(graph, r) for r in range(graph.relations)]
        self.windows = Windows(graph, self.layouts)

    def member(self, relations: Mapping[int, Array], attribute: int) -> tuple[int, int]:
        """Return the relation of a tuple, and its key, that have the attribute class."""
        for relation in relations:
            key = self.layouts[relation].of_class.get(attribute)
            if key is not None:
                return relation, key
        raise AssertionError("a bound class has a member in the tuple")

    def codes(self, tuples: Tuples, classes: Classes) -> Array:
        """Return one ``int64`` code per tuple for all of these classes together, shape ``(n,)``."""
        stores, rows = tuples
        coded = []
        for attribute in classes:
            relation, key = self.member(rows, attribute)
            coded.append(stores[relation].coded(key, rows[relation]))
        return combined(coded)

    def decides(self, relation: int, classes: Classes) -> bool:
        """Whether equal codes alone prove that tuples agree on these classes."""
        layout = self.layouts[relation]
        return len(classes) == 1 and layout.keys[layout.of_class[classes[0]]].exact

    def verified(
        self, one: Tuples, other: Tuples, classes: Classes, left: Array | None, right: Array | None
    ) -> Array:
        """Return which pairs of tuples agree on every one of the classes, null agreeing with nothing.

        Args:
            one: Tuples of one side.
            other: Tuples of the other side.
            classes: What to compare.
            left: Position in ``one`` of each pair's tuple; None if they stand in the order of the pairs.
            right: The same for ``other``.
        """
        keep: Array | None = None
        for attribute in classes:
            a, mine = self.member(one[1], attribute)
            b, theirs = self.member(other[1], attribute)
            rows_a = one[1][a] if left is None else one[1][a][left]
            rows_b = other[1][b] if right is None else other[1][b][right]
            equal = one[0][a].coded(mine, rows_a) == other[0][b].coded(theirs, rows_b)
            key = self.layouts[a].keys[mine]
            if not key.exact:
                name = self.layouts[b].keys[theirs].name
                widths = (
                    one[0][a].widths([key.name], rows_a, BATCH_BYTES),
                    other[0][b].widths([name], rows_b, BATCH_BYTES),
                )
                for part in slices(widths, len(equal), BATCH_BYTES):
                    x = pc.cast(one[0][a].gather(key.name, rows_a[part]), key.type)
                    y = pc.cast(other[0][b].gather(name, rows_b[part]), key.type)
                    equal[part] &= is_true(pc.equal(x, y))
            keep = equal if keep is None else keep & equal
        assert keep is not None, "at least one class is to be verified"
        return keep


def combined(coded: Sequence[Array]) -> Array:
    """Return one code for several."""
    result = coded[0]
    for codes in coded[1:]:
        result = combine(result, codes)
    return result
