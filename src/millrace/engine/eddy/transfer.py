"""What relations that have been read say of those that have not: filters of tuples, and ranges of keys.

**Transfer.** When every tuple of a relation has come, its SteM knows which keys have a match. Tuples of a
relation that is read later and is tied to it by a join class meet that before they are built: what finds
nothing can be part of no result. What is left of the later relation filters those that come after it, so that
filters travel along the join graph (Yang, Zhao, Yu & Koutris 2024, "Predicate transfer"; Yannakakis 1981 for
trees). State gets smaller, and no order of joins that follows makes tuples that die later on.

A transfer is a semijoin that the answer does not need. It is tried on some tuples, and dropped where it lets
nearly all of them pass; as data may change, it is tried again after a while. A hash decides: tuples that only
seem to match are kept, and the join drops them.

**Ranges.** Others that a relation is joined with need no tuple whose key lies outside of the range of its
keys. Files tell the ranges of their row groups, and folders the values of partition columns, so what lies
outside is not even read. Where a large table is in the order of its keys, as tables of events mostly are in
that of their dates, a filter on a small one thus spares most of the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from millrace.engine.eddy.operator import Kind, Operator, Step, Visit
from millrace.engine.eddy.statistics import Statistics
from millrace.engine.figures import ModuleFigures
from millrace.engine.plan.expressions import Column, ColumnRef, Compare, Literal, Predicate
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import TupleBatch

_TRIAL = 4096
"""Tuples after which it is asked whether a transfer pays."""

_REST = 64
"""Times as many tuples as a trial took, or more, after which a transfer that did not pay is tried again."""

_PASSING = 0.9
"""Share of the tuples up to which a transfer pays. To ask for a tuple costs about what an index takes to
enter it; one that is dropped is not entered, takes no room in a cache, and makes no tuples that die later."""


class Transfer(Operator):
    """Drops tuples of a relation that have no match in the SteM of another, which is complete."""

    kind = Kind.TRANSFER

    def __init__(self, stem: SteM, alias: str, relation: int, name: str, statistics: Statistics) -> None:
        super().__init__(relation, f"Filter({alias} on {name})", alias)
        self._stem = stem
        self._account = statistics.get(self)
        self._began = 0
        self._rests = 0

    def pays(self, tuples: int) -> bool:
        """Tell whether so many tuples, which have just arrived, should meet the filter."""
        if not self._stem.complete or not self._stem.rows or not self._stem.scanned:
            return False  # an index alone has told what it was asked for
        if self._rests > 0:
            self._rests -= tuples
            if self._rests > 0:
                return False
            self._began = self._account.tuples_in
        if self._account.tuples_in < self._began + _TRIAL or self.passing <= _PASSING:
            return True
        self._rests = _REST * (self._account.tuples_in - self._began)
        return False

    @property
    def passing(self) -> float:
        """Share of the tuples that have a match, as far as is known."""
        return self._account.selectivity

    def step(self, work: TupleBatch, limit: int) -> Step:
        met = self._stem.meets(work)
        left = work if len(met) == work.size else work.take(met)
        return Step((left,), left.size)


class Transfers:
    """The transfers of a block: from each relation to those that are tied to it.

    A relation whose tuples several roles of a self-join share is not filtered: a tuple may be of use in one
    role and not in another. Nor is one that is not kept (``unbuilt``) and joins with one other: the join does
    the same. ``ranges`` are told of relations that have ended, so that less is read of the others.
    """

    def __init__(
        self,
        graph: QueryGraph,
        unbuilt: int | None,
        stems: Sequence[SteM],
        aliases: Sequence[str],
        statistics: Statistics,
        visit: Visit,
        ranges: KeyRanges,
    ) -> None:
        self._visit = visit
        self._ranges = ranges
        self._graph, self._stems, self._aliases = graph, stems, aliases
        self._of: dict[int, list[Transfer]] = {}
        for relation in range(graph.relations):
            others = graph.neighbours(1 << relation)
            if len(graph.roles(relation)) == 1 and (relation != unbuilt or len(others) > 1):
                self._of[relation] = [
                    Transfer(stems[other], aliases[other], relation, aliases[relation], statistics)
                    for other in others
                ]

    def ended(self, relation: int) -> None:
        """Learn from a relation of which all tuples have come; an index alone told what it was asked for."""
        stem = self._stems[relation]
        if stem.scanned and stem.rows:
            self._ranges.ended(self._graph, relation, self._aliases, stem.store.ends)

    def reduce(self, relation: int, batch: TupleBatch) -> TupleBatch:
        """Return those of a relation's base tuples that may have matches in all relations that are complete.

        The filter that drops most comes first.
        """
        asked = [t for t in self._of.get(relation, ()) if t.pays(batch.size)]
        for transfer in sorted(asked, key=lambda each: each.passing):
            if not batch.size:
                break
            (batch,) = self._visit(transfer, batch).batches
        return batch


class KeyRanges:
    """Predicates that joins imply for relations of one task, more of them as relations end."""

    def __init__(self) -> None:
        self._implied: dict[str, list[Predicate]] = {}
        self._groups: dict[str, tuple[int, int]] = {}

    def keeps(self, alias: str, may_match: Callable[[Predicate], bool]) -> bool:
        """Whether a row group of a relation may have tuples that are part of a result, by what is known now.

        ``may_match`` tells of a predicate whether it may hold for a row of that group.
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

        ``ends_of`` returns the least and the greatest value of a column; None where nothing tells.
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
