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
from millrace.engine.eddy.partial import collect_rows, remaining
from millrace.engine.eddy.preference import Preference, Wanted
from millrace.engine.eddy.statistics import recall, share
from millrace.engine.eddy.transfer import KeyRanges
from millrace.engine.operators.stems import StateBuild
from millrace.engine.policies import Candidate, Policy, policy_from
from millrace.engine.stairs.choice import policy_of, state_of
from millrace.engine.stems.join_state import StateTotals
from millrace.engine.stems.state import join_base_tuples
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import InputError, StateError


class EddyDataflow:
    """An eddy with its operators and join state, between arrivals and the output."""

    def __init__(self, context: RunContext, given: Given) -> None:
        spec, options = context.spec, context.options
        self._context, self._arrivals = context, context.arrivals
        self._schedule, self._output = context.schedule, context.output
        self.stems = context.stems
        self.state = state_of(context)
        self._warm_start = given.get("warm_start")
        recall(self._warm_start, context.statistics.accounts)
        self._preference = Preference(spec)
        policy = given.get("policy") or policy_from(policy_of(spec, options), options)
        own = given.get("watch"), given.get("output")
        gathers = own == (None, None) and not context.graph.windows
        ranges = given.get("ranges") or KeyRanges()
        self._admission = Admission(context, self.state, policy, ranges, gathers=gathers)
        self._buffer = self._make_buffer()
        builds = [
            StateBuild(stem.number, alias, self.state, context.filters)
            for stem, alias in zip(self.stems, spec.aliases, strict=True)
        ]
        legality = Legality(context.graph, builds, context.filters, self.state.joins)
        self._eddy = self._make_eddy(
            policy, Candidates(context.graph, legality, context.statistics.accounts).of
        )
        if context.watch is not None:
            state, buffer = self.state, self._buffer
            context.watch.attach(self.stems, state.held, lambda: (*buffer.works(), *state.waiting()))
        for probe in context.filters.asking:
            # Windows let go of what a tuple is made of.
            probe.sets_aside = not context.graph.windows
            probe.unbuilt = self._schedule.unbuilt
        self._rounds = 0
        self._known_stalled = 0

    def _make_buffer(self) -> Buffer:
        # What a user's predicate says of a few tuples is worth more than what small batches take.
        return Buffer(self._preference, 1 if self._context.called else self._context.limit)

    def _make_eddy(self, policy: Policy, candidates: Callable[[Signature], list[Candidate]]) -> Eddy:
        context, statistics = self._context, self._context.statistics
        table = RoutingTable(
            policy,
            candidates,
            context.options.reoptimize_every,
            self._note_decision,
            (lambda: statistics.busy) if context.called else None,
            context.clock,
        )
        return Eddy(context, self._buffer, table)

    def _note_decision(self, signature: Signature, shares: Sequence[tuple[Operator, float]]) -> None:
        self._context.statistics.note_decision(signature, shares)
        self.state.note_decision(signature, shares)

    # What arrives

    def results(self) -> Iterator[Any]:
        """Yield output as it becomes ready."""
        eddy = self._eddy
        for arrivals in self._rounds_of_arrivals():
            self._rounds += 1
            if any(n == self._schedule.unbuilt and (b is STALLED or b is None) for n, b in arrivals):
                eddy.push(self._admission.rest())
            if any(batch is None for _, batch in arrivals):  # an end holds once nothing is in flight
                yield from self._work()
            self.admit(arrivals)
            self._take_back()
            yield from self._work()
            if not eddy.is_flying:
                yield from self._output.rest()
            if self._is_empty():
                break
            if not eddy.is_flying:
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
        eddy, state, context = self._eddy, self.state, self._context
        rounds = self._arrivals.rounds(self._schedule, context.limit, lambda: eddy.is_flying, state.waits)
        while True:
            began = context.clock.now()
            arrivals = next(rounds, None)
            if arrivals is None:
                return
            seconds = (context.clock.now() - began) / max(1, len(arrivals))
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
                self._admission.ended(relation)
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

    def prefer(self, wanted: Wanted) -> None:
        """Let results of other tuples come first; see :meth:`millrace.engine.eddy.run.Run.prefer`."""
        self._preference.change(wanted)
        self._buffer.regrade()
        self._arrivals.requests.regrade(self._preference.graded)

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
        if stalled := self._stalled(arrivals):
            yield from self._pause(stalled)
        elif self.state.at_stasis():
            self._eddy.forget()
        if all(batch is STALLED for _, batch in arrivals):
            yield from self._output.idle()

    def _stalled(self, arrivals: list[Arrival]) -> int:
        """Return the span of stalled relations if all that have not ended have stalled."""
        if not arrivals or any(batch is not STALLED for _, batch in arrivals):
            self._known_stalled = 0
            return 0
        return sum({1 << role for r, _ in arrivals for role in self.stems[r].roles})

    def _pause(self, stalled: int) -> Iterator[Any]:
        """Do what can be done before a source goes on, and give out what there is; once for each stall."""
        if stalled != self._known_stalled:
            self._known_stalled = stalled
            self.state.precompute(stalled)
            yield from self._output.pause()

    def partial(self, missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield results without some relations; see :meth:`millrace.engine.eddy.run.Run.partial`."""
        if self._eddy.is_flying:
            raise StateError(
                "partial results were asked for while tuples are in flight, so some of them might be "
                "missing; ask when run() has yielded a batch because all sources stalled, or from a source"
            )
        context, rounds = self._context, self._rounds
        span = remaining(context.spec, context.graph, missing, self._schedule.unbuilt)
        if self._admission.dropped:
            raise InputError(
                "partial results are not complete: tuples without a match in a relation that had been read "
                "were dropped; set option online to read all relations side by side, or transfer to False"
            )
        rows = collect_rows(context, join_base_tuples(self.stems, context.graph, span, context.limit))

        def take_undisturbed() -> Iterator[pa.RecordBatch]:
            for batch in rows:
                if self._rounds != rounds:
                    raise StateError(
                        "run() has gone on before all partial results were taken; ask for them again"
                    )
                yield batch

        return take_undisturbed()

    def held(self) -> StateTotals:
        return self.state.figures()
