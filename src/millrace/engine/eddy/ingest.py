"""What base tuples meet before they are routed: filters by relations that have been read, and division."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.engine.eddy.context import RunContext
from millrace.engine.eddy.operator import Kind
from millrace.engine.eddy.run_statistics import anywhere
from millrace.engine.eddy.transfer import Transfers
from millrace.engine.operators.content import Divide
from millrace.engine.policies import Greedy, Policy
from millrace.engine.stems.join_state import JoinState
from millrace.engine.tuples import RelationStore
from millrace.engine.tuples.batch import Signature, TupleBatch

_FEW = 1 / 8
"""Share of a full batch below which what filters have left waits for more: an operator takes about as long
for ten tuples as for a thousand, and decisions are made for tuples that come together."""


class Admission:
    """Admits base tuples to the dataflow.

    Args:
        policy: A fixed order leaves nothing to divide tuples for.
        gathers: Whether what filters leave of the streamed relation may wait until it makes a batch. Not
            where a run may be given up and gone on with, for what has been read has to be out then, nor where
            the output knows batches as they arrived, nor with windows, which let go of what it would meet.
    """

    def __init__(self, context: RunContext, state: JoinState, policy: Policy, *, gathers: bool) -> None:
        schedule, options = context.schedule, context.options
        self._statistics, self._state, self._visit = context.statistics, state, context.visit
        self._few = int(options.batch_size * _FEW)
        self._waiting: list[TupleBatch] = []
        self._transfers: Transfers | None = None
        # Who reads all sources side by side may ask for partial results, which dropped tuples are part of.
        if options.transfer and not schedule.interleaved:
            aliases, accounts = context.spec.aliases, context.statistics.accounts
            self._transfers = Transfers(
                context.graph, schedule.unbuilt, state.stems, aliases, accounts, context.visit, context.ranges
            )
        self.divide: Divide | None = None
        stream = schedule.unbuilt
        self._gathered = stream if gathers and self._transfers is not None else None
        near = () if stream is None else context.graph.neighbours(1 << stream)
        learns = options.by_content and isinstance(policy, Greedy) and state.grouped
        if stream is not None and learns and len(near) > 1 and len(context.graph.roles(stream)) == 1:
            stems = [state.stems[relation] for relation in near]
            begin = options.batch_size + 1
            self.divide = Divide(stream, context.spec.aliases[stream], stems, begin, self._told)

    def ended(self, relation: int) -> None:
        if self._transfers is not None:
            self._transfers.ended(relation)

    def admit(self, relation: int, found: TupleBatch) -> Iterator[TupleBatch]:
        """Yield what is to be routed of base tuples that have arrived."""
        if self._transfers is not None:
            found = self._transfers.reduce(relation, found)
            if not found.size:
                self._statistics.end(found)
                return
        if relation != self._gathered or not found.stores[relation].schema.names:
            yield from self._divided(found)
            return
        self._waiting.append(found)
        if sum(each.size for each in self._waiting) >= self._few:
            yield from self.rest()

    def rest(self) -> Iterator[TupleBatch]:
        """Yield what has been waiting for more; to be asked for when there is no more, or not at present."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) < 2:
            found = waiting
        else:
            relation = self._gathered
            assert relation is not None
            parts = [(each.stores[relation], each.rows[relation]) for each in waiting]
            rows = pa.concat_batches([store.chunk(rows) for store, rows in parts])
            keys = parts[0][0].keys
            coded = [
                np.concatenate([store.coded(n, rows) for store, rows in parts]) for n in range(len(keys))
            ]
            whole = {relation: RelationStore.single(rows, keys, coded)}
            numbers = {relation: np.arange(rows.num_rows, dtype=np.int32)}
            origin = sum(each.origin for each in waiting)
            found = [replace(waiting[0], stores=whole, rows=numbers, origin=origin)]
        for each in found:
            yield from self._divided(each)

    def _divided(self, found: TupleBatch) -> Iterator[TupleBatch]:
        divide = self.divide
        if divide is not None and divide.target in found.rows and divide.divides(found):
            yield from self._visit(divide, found).batches
        else:
            yield found

    def _told(self, signature: Signature, relation: int, tuples: int, matches: int) -> None:
        """Believe what a sample says of a join."""
        for operator in self._state.joins(signature):
            if operator.kind is Kind.PROBE and operator.target == relation:
                self._statistics.accounts.update(anywhere(signature, operator), tuples, matches, 0.0)
