"""Selections by whether a relation beside the join has a match: semijoins and antijoins.

A tuple is asked about, never multiplied: this is a predicate of what the tuple has already, legal wherever
its columns are, and its place among joins and other predicates is the policy's to choose.

``NOT IN`` has nulls of its own (``Exists.null_aware``): with a null among the keys nothing is certainly not
in, and a null is certainly not in an empty relation only.

Several may stand in one predicate, with others: ``EXISTS (…) OR a.x = 1``. Each then marks the tuples, and
the predicate is evaluated over the marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, is_true, to_arrow, to_numpy
from millrace.engine.operators.beside import BesideRelation, Search
from millrace.engine.operators.selection import CompiledSelection
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import (
    And,
    Column,
    ColumnRef,
    Exists,
    Or,
    Predicate,
    Truth,
    exists_in,
)
from millrace.engine.start_up import work_time
from millrace.engine.tuples.batch import TupleBatch

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext

_PAIRS = 16_384
"""Pairs that are looked at together, at least."""


class MatchedRelation(BesideRelation):
    """A relation beside the join that tells which tuples have a match in it, or have none."""

    def __init__(self, predicate: Exists, schema: pa.Schema, aliases: Sequence[str]) -> None:
        name = f"{'Anti' if predicate.negated else 'Semi'}({predicate.relation})"
        super().__init__(predicate, schema, aliases, name)
        self.label = f"{'¬' if predicate.negated else ''}∃{predicate.relation}"
        self._predicate = predicate

    def truth(self, batch: TupleBatch) -> Array:
        search = self.search(batch)
        found = self._found(search)
        if self.marks is not None:
            found = self.marks.add(batch, found)
        if not self._predicate.negated:
            return found
        if not self._predicate.null_aware or not self.rows:
            return ~found
        valid = np.zeros(batch.size, np.bool_)
        valid[search.asking] = True
        return valid & ~found & (not self.has_null)

    def _found(self, search: Search) -> Array:
        found, walk = search.matched, search.walk
        if self.decided:
            found[search.asking[walk.probes[: walk.active]]] = True  # a chain is a match
            return found
        while not walk.is_done:
            for left, _ in self.matches(search, max(walk.active, _PAIRS)):
                found[left] = True
            walk.narrow(~found[search.asking[walk.probes[: walk.active]]])
        return found


class ExistsSelection(CompiledSelection):
    """A selection by whether relations beside the join have matches.

    The predicate is one Exists, or ANDs and ORs of some and of other predicates.

    Attributes:
        relations: Those beside the join that it asks, by alias.
    """

    is_attached = False

    def __init__(self, number: int, predicate: Predicate, context: RunContext) -> None:
        super().__init__(number, predicate, context)
        spec = context.spec
        self.relations = {
            p.relation: MatchedRelation(p, spec.relation(p.relation).schema, spec.visible)
            for p in exists_in(predicate)
        }
        self._places = {r.alias: n for n, r in enumerate(spec.sources) if r.alias in self.relations}
        if isinstance(predicate, Exists):
            one = self.relations[predicate.relation]
            self.name, self.label = one.name, one.label
        self._predicate = _marked(predicate)

    def _judge(self, batch: TupleBatch) -> Array:
        began = work_time(self._clock)
        truths = {mark_of(alias): self._truth(alias, batch) for alias in self.relations}
        if isinstance(self._predicate, Truth):
            truth = truths[self._predicate.operand.ref]
        else:
            marks = {ref: to_arrow(each) for ref, each in truths.items()}
            truth = is_true(evaluate(self._predicate, self._values(batch) | marks))
        self.worked += work_time(self._clock) - began
        if any(each.marks and not each.marks.is_last for each in self.relations.values()):
            truth = np.zeros_like(truth)
        return truth.astype(np.int8)

    def _truth(self, alias: str, batch: TupleBatch) -> Array:
        """Return what matches in a relation say of tuples, which an earlier run may have marked with it."""
        number = self._places[alias]
        if number not in batch.stores:
            return self.relations[alias].truth(batch)
        return to_numpy(batch.stores[number].gather("", batch.rows[number]))


def mark_of(alias: str) -> ColumnRef:
    """Return the column that marks each tuple by what its matches in a relation say."""
    return ColumnRef(alias, "")


def _marked(node: Predicate) -> Predicate:
    """Return a predicate over the marks that its Exists make."""
    match node:
        case Exists(relation):
            return Truth(Column(mark_of(relation)))
        case And(arguments) | Or(arguments):
            return type(node)(tuple(map(_marked, arguments)))
    return node
