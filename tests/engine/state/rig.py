"""The STAIRs of a small block without an eddy: tuples are named, and the test says where they go."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.eddy.context import RunContext
from millrace.engine.stairs.stair import STAIR
from millrace.engine.stairs.state import StairState
from millrace.engine.stems.stem import singletons
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.invariants import Invariants
from tests.engine.eddy.oracle import block

Tables = dict[str, dict[str, list[Any]]]


class Rig:
    """STAIRs, and the counts that tell what they have cost.

    Columns are given by relation; the first tuple of ``r`` is ``r1``. A probe returns ``limit`` matches
    at a time. Invariants are checked after each arrival, by enumeration, unless it is said not to.

    Attributes:
        state_of_eddy: What an eddy would keep them in.
        results: Names of the results so far, in the order in which they were made.
    """

    def __init__(self, tables: Tables, equalities: Sequence[str], limit=1000, *, is_checked=True) -> None:
        self.is_checked = is_checked
        self._tables = {alias: pa.table(columns) for alias, columns in tables.items()}
        case = block(self._tables, equalities)
        self.aliases = case.spec.aliases
        options = Options(architecture="joins", online=True, reoptimize_every=50)
        context = RunContext(case.spec, dict.fromkeys(self.aliases, ()), options, {"clock": VirtualClock()})
        self.graph, self.state_of_eddy = context.graph, StairState(context)
        self.stairs = self.state_of_eddy.stairs
        self._invariants = Invariants(case.spec, self.stairs)
        self._limit = limit
        self._names: list[list[str]] = [[] for _ in self.aliases]
        self.results: list[str] = []

    def edge(self, pair: str) -> int:
        """Return the number of the edge between two relations, such as ``rs``."""
        ends = {self.aliases.index(alias) for alias in pair}
        return next(e.number for e in self.stairs.tree.edges if set(e.ends) == ends)

    def span(self, relations: str) -> int:
        """Return the span of relations, such as ``rs``."""
        return sum(1 << self.aliases.index(alias) for alias in relations)

    def stair(self, owner: str, pair: str) -> STAIR:
        """Return a STAIR by its relation and its join."""
        return self.stairs.joins[self.edge(pair)].stairs[self.aliases.index(owner)]

    def arrive(self, names: str, **to: str) -> None:
        """Let tuples of one relation arrive, such as ``r1 r2``, as one batch.

        Tuples of a span go to a join, such as ``s="rs", st="rs"``.
        """
        alias = names[0]
        relation = self.aliases.index(alias)
        rows = [int(name[1:]) - 1 for name in names.split()]
        (arrived,) = self._tables[alias].take(rows).combine_chunks().to_batches()
        batch = self.state_of_eddy.build(
            relation, singletons(self.state_of_eddy.stems[relation], arrived, alias, built=False)
        )
        self._names[relation] += names.split()
        route = self.route(**to)
        waiting = [batch]
        while waiting:
            batch = waiting.pop()
            if batch.signature.span == self.graph.everything:
                self.results += self.named(batch)
                continue
            edge = route(batch.signature.span)
            probe = self.stairs.route(edge, batch)
            while not probe.is_done:
                found = self.stairs.joins[edge].matches(probe, self._limit)
                assert found.size <= self._limit
                waiting += [found] * bool(found.size)
        self.check()

    def route(self, **to: str) -> Callable[[int], int]:
        """Return where spans go; those with only one way need not be given."""
        given = {self.span(relations): self.edge(pair) for relations, pair in to.items()}

        def route(span: int) -> int:
            border = self.stairs.tree.border(span)
            return given[span] if len(border) > 1 else border[0]

        return route

    def end(self, alias: str) -> None:
        self.state_of_eddy.stems[self.aliases.index(alias)].complete = True
        self.stairs.close()

    def check(self) -> None:
        if self.is_checked:
            self._invariants.check()

    def _places(self, owner: str, pair: str, *names: str) -> tuple[int, int, Signature, np.ndarray]:
        """Return where tuples of one segment are: edge, owner, segment, and positions in it."""
        stair = self.stair(owner, pair)
        (relations,) = {re.sub(r"\d", "", name) for name in names}
        signature = Signature(self.span(relations))
        segment = stair.segments[signature]
        held = dict(zip(self.named(segment.batch(stair._stores)), segment.positions().tolist(), strict=True))
        places = np.asarray([held[name] for name in names])
        return self.edge(pair), self.aliases.index(owner), signature, places

    def demote(self, owner: str, pair: str, relations: str, *names: str) -> None:
        """Demote tuples, such as ``r1s1``, to their parts within ``relations``."""
        *where, places = self._places(owner, pair, *names)
        self.stairs.demote(*where, self.span(relations), places)

    def promote(self, owner: str, pair: str, via: str, *names: str) -> None:
        *where, places = self._places(owner, pair, *names)
        self.stairs.promote(*where, self.edge(via), places)

    def held(self, owner: str, pair: str) -> list[str]:
        """Return the names of the tuples in a STAIR, in alphabetical order."""
        return sorted(
            name
            for each in self.stair(owner, pair).segments.values()
            for name in self.named(each.batch(self.stairs.stores))
        )

    def state(self) -> dict[str, list[str]]:
        pairs = ["".join(self.aliases[end] for end in edge.ends) for edge in self.stairs.tree.edges]
        return {f"{owner} in {pair}": self.held(owner, pair) for pair in pairs for owner in pair}

    def named(self, batch: TupleBatch) -> list[str]:
        columns = [[self._names[r][row] for row in batch.rows[r]] for r in sorted(batch.rows)]
        return ["".join(parts) for parts in zip(*columns, strict=True)]


EQUALITIES = ["r.a = s.a", "s.b = t.b"]


def three() -> Rig:
    """Return the running example; r1 and r2 match s1 and s3, r3 matches s2; t1 matches s1, t2 and t3 s3."""
    s = {"a": [1, 2, 1], "b": [5, 6, 7]}
    return Rig({"r": {"a": [1, 1, 2]}, "s": s, "t": {"b": [5, 7, 7]}}, EQUALITIES)
