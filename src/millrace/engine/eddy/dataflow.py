"""A block run by an eddy: what arrives, the dataflow it goes through, and what is done between.

Sources are read as the schedule says. Each round of arrivals is admitted to the eddy, which works until
nothing is in flight; then windows let go of tuples, and state may be moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from millrace.engine.access.schedule import STALLED, Arrival
from millrace.engine.eddy.constraints import Legality
from millrace.engine.eddy.context import Given, RunContext
from millrace.engine.eddy.decisions import Candidates, RoutingTable
from millrace.engine.eddy.eddy import Buffer, Eddy
from millrace.engine.eddy.ingest import Admission
from millrace.engine.eddy.operator import Operator
from millrace.engine.eddy.statistics import recall, share
from millrace.engine.operators.stems import StateBuild
from millrace.engine.policies import Candidate, Policy, policy_from
from millrace.engine.stairs.choice import policy_of, state_of
from millrace.engine.start_up import work_time
from millrace.engine.stems.join_state import StateTotals
from millrace.engine.tuples.batch import Signature, TupleBatch


class EddyDataflow:
    """An eddy with its operators and join state, between arrivals and the output.

    What makes a part of it is a method of its own, so that a subclass can have another (``Given.eddy``).
    """

    def __init__(self, context: RunContext, given: Given) -> None:
        spec, options = context.spec, context.options
        self._context, self._arrivals = context, context.arrivals
        self._schedule, self._output = context.schedule, context.output
        self.stems = context.stems
        self.state = state_of(context)
        self._warm_start = given.get("warm_start")
        recall(self._warm_start, context.statistics.accounts)
        policy = given.get("policy") or policy_from(policy_of(spec, options), options)
        self._admission = Admission(context, self.state, policy)
        # What a user's predicate says of a few tuples is worth more than what small batches take.
        self._buffer = self._make_buffer(1 if context.called else context.limit)
        builds = [
            StateBuild(stem.number, alias, self.state, context.filters)
            for stem, alias in zip(self.stems, spec.aliases, strict=True)
        ]
        legality = Legality(context.graph, builds, context.filters, self.state.joins)
        candidates = Candidates(context.graph, legality, context.statistics.accounts).of
        self._eddy = self._make_eddy(self._make_table(policy, candidates))
        if context.watch is not None:
            state, buffer = self.state, self._buffer
            context.watch.attach(self.stems, state.held, lambda: (*buffer.works(), *state.waiting()))
        for probe in context.filters.asking:
            # Windows let go of what a tuple is made of.
            probe.sets_aside = not context.graph.windows
            probe.unbuilt = self._schedule.unbuilt
        self._known_stalled = 0  # the span of relations that had stalled when all that had not ended had

    def _make_buffer(self, limit: int) -> Buffer:
        return Buffer(limit)

    def _make_table(self, policy: Policy, candidates: Callable[[Signature], list[Candidate]]) -> RoutingTable:
        context, statistics = self._context, self._context.statistics
        busy = (lambda: statistics.busy) if context.called else None
        every = context.options.reoptimize_every
        return RoutingTable(policy, candidates, every, self._note_decision, busy, context.clock)

    def _make_eddy(self, table: RoutingTable) -> Eddy:
        return Eddy(self._context, self._buffer, table)

    def _note_decision(self, signature: Signature, shares: Sequence[tuple[Operator, float]]) -> None:
        self._context.statistics.note_decision(signature, shares)
        self.state.note_decision(signature, shares)

    @property
    def is_flying(self) -> bool:
        """Whether tuples are in flight."""
        return self._buffer.is_flying

    # What arrives

    def results(self) -> Iterator[Any]:
        """Yield output as it becomes ready."""
        eddy = self._eddy
        for arrivals in self._rounds_of_arrivals():
            if any(n == self._schedule.unbuilt and (b is STALLED or b is None) for n, b in arrivals):
                eddy.push(self._admission.rest())
            if any(batch is None for _, batch in arrivals):  # an end holds once nothing is in flight
                yield from self._work()
            self.admit(arrivals)
            self._take_back()
            yield from self._work()
            if not self.is_flying:
                yield from self._output.rest()
            if self._is_empty():
                break
            if not self.is_flying:
                yield from self._rest(arrivals)
        while self._take_back(waits=True):
            yield from self._work()
        share(self._warm_start, self._context.statistics.accounts)

    def _work(self) -> Iterator[Any]:
        """Let the eddy do what there is to do before more tuples are asked for, and yield output."""
        for batch in self._eddy.results():
            yield from self._context.emit(batch)

    def _take_back(self, *, waits: bool = False) -> bool:
        """Let tuples go on whose answers left joins have got; tell whether there are any."""
        asking = self._context.filters.asking
        back = [(probe, work) for probe in asking for work in probe.take_back(waits=waits)]
        for probe, work in back:
            self._buffer.resume(probe, work)
        return bool(back)

    def _rounds_of_arrivals(self) -> Iterator[list[Arrival]]:
        """Yield rounds of arrivals, with the time spent in the sources booked."""
        context = self._context
        rounds = self._arrivals.rounds(self._schedule, context.limit, self.state.waits)
        while True:
            began = work_time(context.clock)
            arrivals = next(rounds, None)
            if arrivals is None:
                return
            seconds = (work_time(context.clock) - began) / max(1, len(arrivals))
            for relation, batch in arrivals:
                rows = batch.num_rows if isinstance(batch, pa.RecordBatch) else 0
                context.statistics.accounts.update(("scan", relation), rows, rows, seconds)
            if self.state.grouped or all(batch is STALLED for _, batch in arrivals):
                yield arrivals
            else:
                yield from ([arrival] for arrival in arrivals if arrival[1] is not STALLED)

    def admit(self, arrivals: list[Arrival]) -> None:
        """Make singletons of the base tuples that arrived, or note that a source has ended."""
        for relation, batch in arrivals:
            if batch is STALLED:
                continue
            if batch is None:
                self.stems[relation].complete = True
                if self._admission.transfers is not None:
                    self._admission.transfers.learn(relation)
            if not batch:  # an EOT, of the relation or of a binding
                self._eddy.push(self.state.on_build(relation))
                continue
            self._eddy.push(self._admission.admit(relation, self._context.arrive(relation, batch)))

    def finish(self, tuples: TupleBatch) -> Iterator[Any]:
        """Yield output of tuples that span all relations, from another run of the block."""
        self._eddy.push((tuples,))
        yield from self._work()

    def push(self, arrivals: list[Arrival]) -> Iterator[Any]:
        """Yield the results of base tuples with those that have come before."""
        for each in [arrivals] if self.state.grouped else [[arrival] for arrival in arrivals]:
            self.admit(each)
            yield from self._work()
        if self.state.at_stasis():
            self._eddy.forget()
        yield from self._output.idle()

    def build(self, relation: int, batch: pa.RecordBatch) -> None:
        """Keep base tuples whose results are out already."""
        self.state.build(relation, self._context.arrive(relation, batch))

    @property
    def sampled(self) -> int:
        """Number of probes that were made only to find an attribute to divide tuples by."""
        divide = self._admission.divide
        return 0 if divide is None else divide.sampled

    def _is_empty(self) -> bool:
        """Whether some relation has ended without a tuple: no result can come any more."""
        return any(
            stem.complete and not stem.rows and stem.scanned
            for stem in self.stems
            if stem.number != self._schedule.unbuilt
        )

    # When nothing is in flight

    def _rest(self, arrivals: list[Arrival]) -> Iterator[Any]:
        """Evict what windows have passed, and do what is best done when nothing is in flight."""
        watermark = self._context.watermark.value()
        if watermark is not None:
            self.state.expire(self._context.watermark.due(watermark), watermark)
        idle = all(batch is STALLED for _, batch in arrivals)
        stalled = sum({1 << role for r, _ in arrivals for role in self.stems[r].roles}) if idle else 0
        known, self._known_stalled = self._known_stalled, stalled
        if stalled not in (0, known):  # what can be done before a source goes on, once for each stall
            self.state.precompute(stalled)
        elif not stalled and self.state.at_stasis():
            self._eddy.forget()
        if idle:
            yield from self._output.idle(stalled=stalled not in (0, known))

    def held(self) -> StateTotals:
        return self.state.figures()
