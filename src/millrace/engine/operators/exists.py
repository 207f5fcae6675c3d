"""Selections by whether a relation beside the join has a match: semijoins and antijoins.

A tuple is asked about, never multiplied: this is a predicate of what the tuple has already, legal wherever
its columns are, and its place among joins and other predicates is the policy's to choose.

``NOT IN`` has nulls of its own (``Exists.null_aware``): with a null among the keys nothing is certainly not
in, and a null is certainly not in an empty relation only.

Several may stand in one predicate, with others: ``EXISTS (…) OR a.x = 1``. Each then marks the tuples, and
the predicate is evaluated over the marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, is_true, to_arrow
from millrace.engine.operators.beside import BesideRelation, Search, gather
from millrace.engine.operators.selection import Verdict, columns_by_relation
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import (
    And,
    Column,
    ColumnRef,
    Exists,
    Or,
    Predicate,
    Truth,
    columns_of,
    exists_in,
    show,
)
from millrace.engine.tuples import BATCH_BYTES
from millrace.engine.tuples.batch import TupleBatch
from millrace.limits.clock import Clock

_PAIRS = 16_384
"""Pairs that are looked at together, at least."""


class Matches:
    """Which tuples have a match in a relation beside the join.

    Args:
        predicate: What a match is, and whether there must be one or none.
        schema: The columns of the relation.
        aliases: The block's relations, by number.

    Attributes:
        relation: The relation.
    """

    def __init__(self, predicate: Exists, schema: pa.Schema, aliases: Sequence[str]) -> None:
        name = f"{'Anti' if predicate.negated else 'Semi'}({predicate.relation})"
        self.label = f"{'¬' if predicate.negated else ''}∃{predicate.relation}"
        self.relation = BesideRelation(predicate, schema, aliases, name)
        self._predicate = predicate

    def truth(self, batch: TupleBatch) -> Array:
        """Return for every tuple whether the predicate is true."""
        search = self.relation.search(batch)
        found = self._found(search)
        if not self._predicate.negated:
            return found
        if not self._predicate.null_aware or not self.relation.rows:
            return ~found
        valid = np.zeros(batch.size, np.bool_)
        valid[search.asking] = True
        return valid & ~found & (not self.relation.has_null)

    def _found(self, search: Search) -> Array:
        """Return which tuples have a match."""
        found, walk = np.zeros(search.batch.size, np.bool_), search.walk
        if self.relation.decided:
            found[search.asking[walk.probes[: walk.active]]] = True  # a chain is a match
            return found
        while not walk.is_done:
            for left, _ in self.relation.matches(search, max(walk.active, _PAIRS)):
                found[left] = True
            walk.narrow(~found[search.asking[walk.probes[: walk.active]]])
        return found


class ExistsSelection:
    """A selection by whether relations beside the join have matches.

    Args:
        number: Place among the block's residual predicates.
        predicate: What is asked of them; one Exists, or ANDs and ORs of some and of other predicates.
        schemas: The columns of the relations beside the join, by alias.
        aliases: The block's relations, by number.
        clock: What its time is measured by.

    Attributes:
        matches: The relations beside the join that it asks, by alias.
    """

    evaluated = 0

    def __init__(
        self,
        number: int,
        predicate: Predicate,
        schemas: Mapping[str, pa.Schema],
        aliases: Sequence[str],
        clock: Clock,
    ) -> None:
        self.number = number
        self.worked = 0.0
        asked = exists_in(predicate)
        self.matches = {each.relation: Matches(each, schemas[each.relation], aliases) for each in asked}
        one = self.matches[predicate.relation] if isinstance(predicate, Exists) else None
        self.name = f"Selection({show(predicate)})" if one is None else one.relation.name
        self.label = f"σ{number + 1}" if one is None else one.label
        self._clock = clock
        self._predicate = _marked(predicate)
        self._number = {alias: i for i, alias in enumerate(aliases)}
        self._columns = set(columns_of(predicate))
        self._reads = columns_by_relation(columns_of(predicate), aliases)

    def judge(self, batch: TupleBatch) -> Verdict:
        """Return the truth for every tuple."""
        began = self._clock.now()
        truths = [self._judge(piece) for piece in batch.pieces(self._reads, BATCH_BYTES)]
        self.worked += self._clock.now() - began
        return (truths[0] if len(truths) == 1 else np.concatenate(truths)).astype(np.int8), None

    def _judge(self, batch: TupleBatch) -> Array:
        truths = {_mark(alias): each.truth(batch) for alias, each in self.matches.items()}
        if isinstance(self._predicate, Truth):
            return truths[self._predicate.operand.ref]
        values = {ref: gather(batch, ref, self._number) for ref in self._columns}
        marks = {ref: to_arrow(each) for ref, each in truths.items()}
        return is_true(evaluate(self._predicate, values | marks))

    def remember(self, built: TupleBatch) -> None:
        """Nothing: asking again costs little."""

    def close(self) -> None:
        """Nothing to let go of."""


def _mark(alias: str) -> ColumnRef:
    """Return the column that marks each tuple by what its matches in a relation say."""
    return ColumnRef(alias, "")


def _marked(node: Predicate) -> Predicate:
    """Return a predicate over the marks that its Exists make."""
    match node:
        case Exists(relation):
            return Truth(Column(_mark(relation)))
        case And(arguments) | Or(arguments):
            return type(node)(tuple(map(_marked, arguments)))
    return node
