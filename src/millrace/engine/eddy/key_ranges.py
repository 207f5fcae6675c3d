"""Ranges of keys: what relations that have been read say of those that have not.

When all tuples of a relation have come, others that it is joined with need no tuple whose key lies outside
of the range of its keys. Files tell the ranges of their row groups, and folders the values of partition
columns, so what lies outside is not even read. Where a large table is in the order of its keys, as tables of
events mostly are in that of their dates, a filter on a small one thus spares most of the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from millrace.engine.figures import ModuleFigures
from millrace.engine.plan.expressions import Column, ColumnRef, Compare, Literal, Predicate
from millrace.engine.plan.graph import QueryGraph


class KeyRanges:
    """Predicates that joins imply for relations of one task, more of them as relations end."""

    def __init__(self) -> None:
        self._implied: dict[str, list[Predicate]] = {}
        self._groups: dict[str, tuple[int, int]] = {}

    def keeps(self, alias: str, may_match: Callable[[Predicate], bool]) -> bool:
        """Whether a row group of a relation may have tuples that are part of a result, by what is known now.

        Args:
            alias: Of the relation.
            may_match: Tells of a predicate whether it may hold for a row of that group.
        """
        kept = all(map(may_match, self._implied.get(alias, ())))
        seen, read = self._groups.get(alias, (0, 0))
        self._groups[alias] = seen + 1, read + kept
        return kept

    def ended(
        self,
        graph: QueryGraph,
        relation: int,
        aliases: Sequence[str],
        ends_of: Callable[[str], tuple[pa.Scalar, pa.Scalar] | None],
    ) -> None:
        """Learn from a relation of which all tuples have come.

        A relation whose tuples several roles of a self-join share tells nothing and is told nothing: a tuple
        may be of use in one role and not in another.

        Args:
            graph: The block's query graph.
            relation: Its number.
            aliases: The relations' aliases.
            ends_of: Returns the least and the greatest value of a column; None where nothing tells.
        """
        if len(graph.roles(relation)) > 1:
            return
        for known in graph.classes:
            others = [(n, c) for n, c in known.members if n != relation and len(graph.roles(n)) == 1]
            if not others or pa.types.is_floating(known.type):
                continue
            for column in known.columns(relation):
                ends = ends_of(column)
                if ends is None:
                    continue
                for other, theirs in others:
                    key = Column(ColumnRef(aliases[other], theirs))
                    self._implied.setdefault(aliases[other], []).extend(
                        Compare(op, key, Literal(end, end.type), known.type)  # type: ignore[arg-type]
                        for op, end in zip((">=", "<="), ends, strict=True)
                    )

    def figures(self) -> tuple[ModuleFigures, ...]:
        """Return how many row groups of each relation were looked at, and how many of them were read."""
        return tuple(
            ModuleFigures(f"RowGroups({alias})", "prune", seen, read, seen, 0.0)
            for alias, (seen, read) in self._groups.items()
            if read < seen
        )
