"""A block run by an eddy: what arrives, the dataflow it goes through, and what is done between.

Sources are read as the schedule says. Each round of arrivals is admitted to the eddy, which works until
nothing is in flight; then windows let go of tuples, and state may be moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import pyarrow as pa

from millrace.engine.access.schedule import STALLED, Arrival, Source
from millrace.engine.eddy.back_pressure import Backpressure, QueuedBuffer
from millrace.engine.eddy.constraints import Legality
from millrace.engine.eddy.decisions import Candidates, RoutingTable
from millrace.engine.eddy.eddy import Buffer, Eddy
from millrace.engine.eddy.ingest import Admission
from millrace.engine.eddy.operator import Operator, Step
from millrace.engine.eddy.partial import collected, passed, remaining, undisturbed
from millrace.engine.eddy.preference import Preference, Wanted
from millrace.engine.eddy.run import BlockRun, Given, Run
from millrace.engine.eddy.statistics import WarmStart, recall, share
from millrace.engine.eddy.transfer import KeyRanges
from millrace.engine.operators.stems import StateBuild
from millrace.engine.plan.expressions import Call
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.policies import Policy, policy_from
from millrace.engine.stairs.choice import policy_of, settled, state_of
from millrace.engine.static_plan import StaticPlan
from millrace.engine.stems.join_state import StateTotals, Watch
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import InputError, StateError
from millrace.options import Options

_CALLED_WINDOW = 4096
"""Tuples that statistics of users' predicates look back on, so that drifting data are followed."""


class EddyRun(BlockRun):
    """Runs one select-project-join block over the tuples of one task.

    Args:
        sources: Record batches by alias, each with exactly the schema of its relation, and ``STALLED``, or
            None, wherever there is nothing at present.
        prefer: What :meth:`prefer` takes.
        policy: Overrides ``options.policy``.
        warm_start: Where eddies of the same run leave what they learned for those that come later.
        backpressure: Let tuples wait in bounded queues in front of operators; without it they work at once.
        given: See :class:`millrace.engine.eddy.run.Given`.

    Raises:
        InputError: A relation with set semantics is to be left unbuilt, or not all of it is joined on; or
            tuples are to wait in queues though intermediate ones are not kept.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Mapping[str, Source],
        options: Options | None = None,
        *,
        policy: Policy | None = None,
        warm_start: WarmStart | None = None,
        prefer: Wanted = None,
        backpressure: Backpressure | None = None,
        **given: Unpack[Given],
    ) -> None:
        options = options or Options()
        schedule = given.get("schedule")
        side_by_side = None if schedule is None else schedule.interleaved
        options = settled(spec, options, side_by_side=side_by_side, looked_up=bool(given.get("access")))
        if backpressure is not None and not options.intermediate and options.architecture != "stems":
            # What arrives while a tuple waits would meet it, and the base tuples that stand for it in state.
            raise InputError(
                "back-pressure lets intermediate tuples wait, and intermediate=False keeps base tuples in "
                "their place, so that results would come twice; expected one of the two"
            )
        self._called = any(isinstance(p, Call) for p in spec.residuals)
        window = _CALLED_WINDOW if self._called else 2 * options.reoptimize_every
        super().__init__(spec, sources, options, options.architecture, window, given)
        spec, self._options = self.spec, options
        self.state = state_of(
            spec,
            self._graph,
            self._schedule,
            options,
            self.stems,
            self._methods,
            self._arrivals,
            self._clock,
            self._watch,
        )
        self._warm_start = warm_start
        recall(warm_start, self.statistics.accounts)
        self._preference = Preference(prefer, spec)
        policy = policy or policy_from(policy_of(spec, options), options)
        self._admission = Admission(
            spec,
            self._graph,
            self._schedule,
            self.state,
            self.statistics,
            options,
            policy,
            self._preference,
            given.get("ranges") or KeyRanges(),
            self._admitting,
            gathers=given.get("watch") is None and given.get("output") is None and not self._graph.windows,
        )
        self._eddy = self._routed(policy, backpressure)
        for probe in self._selecting.asking:
            # What waits in queues is counted there, and windows let go of what a tuple is made of.
            probe.sets_aside = backpressure is None and not self._graph.windows
            probe.unbuilt = self._schedule.unbuilt
        self._rounds = 0
        self._known_stalled = 0

    def _routed(self, policy: Policy, backpressure: Backpressure | None) -> Eddy:
        """Return the eddy, with its operators around it."""
        statistics, selecting, options = self.statistics, self._selecting, self._options
        builds = [
            StateBuild(stem.number, alias, self.state, selecting, self._preference.split)
            for stem, alias in zip(self.stems, self.spec.aliases, strict=True)
        ]
        legality = Legality(
            self._graph,
            builds,
            selecting.selects,
            selecting.profile,
            selecting.settlement,
            self.state.joins,
            selecting.outer,
        )
        called = self._called
        # What a user's predicate says of a few tuples is worth more than the time that small batches take.
        buffer, tickets, is_full = Buffer(1 if called else self._limit), None, None
        if backpressure is not None:
            buffer = queues = QueuedBuffer(backpressure, self._clock, self._arrivals.due)
            tickets, is_full = queues.tickets, queues.is_full
        self._watch.attach(self.stems, self.state.held, lambda: (*buffer.works(), *self.state.waiting()))

        def decided(signature: Signature, shares: list[tuple[Operator, float]]) -> None:
            statistics.decided(signature, shares)
            self.state.decided(signature, shares)
            buffer.weigh(shares)

        table = RoutingTable(
            policy,
            Candidates(self._graph, legality, statistics.accounts, tickets).of,
            options.reoptimize_every,
            decided,
            is_full,
            (lambda: statistics.busy) if called else None,
            self._clock,
        )
        self._buffer = buffer
        look = None if type(self._watch) is Watch else self._watch.look
        return Eddy(self._graph, buffer, table, self._step, statistics, look)

    def _admitting(self, operator: Operator, batch: TupleBatch) -> Step:
        """Let an operator work on tuples that are not in the dataflow yet."""
        return self._step(operator, batch.signature, batch, fresh=True)

    # What arrives

    def _results(self) -> Iterator[Any]:
        eddy = self._eddy
        for arrivals in self._rounds_of_arrivals():
            self._rounds += 1
            if any(n == self._schedule.unbuilt and (b is STALLED or b is None) for n, b in arrivals):
                eddy.push(self._admission.rest())
            if any(batch is None for _, batch in arrivals):  # an end holds once nothing is in flight
                yield from self._work(draining=True)
            self.admit(arrivals)
            self._take_back()
            # What an index answered may wait for a predicate; it has to be built before its binding ends.
            yield from self._work(draining=self.state.is_serial or self._arrivals.is_ending)
            if not eddy.is_flying:
                yield from self._output.rest()
            if self._is_empty():
                break
            if not eddy.is_flying:
                yield from self._rest(arrivals)
        while self._take_back(waits=True):
            yield from self._work(draining=True)
        share(self._warm_start, self.statistics.accounts)

    def _work(self, *, draining: bool = False) -> Iterator[Any]:
        """Let the eddy do what there is to do before more tuples are asked for, and yield output."""
        for batch in self._eddy.results(draining=draining):
            yield from self._emit(batch)

    def _take_back(self, *, waits: bool = False) -> bool:
        """Let tuples go on whose answers left joins have got; tell whether there are any."""
        back = [(probe, work) for probe in self._selecting.asking for work in probe.take_back(waits=waits)]
        for probe, work in back:
            self._buffer.resume(probe, work, preferred=work.batch.signature.preferred)
        return bool(back)

    def _rounds_of_arrivals(self) -> Iterator[list[Arrival]]:
        """Yield rounds of arrivals, with the time spent in the sources booked."""
        eddy, state = self._eddy, self.state
        rounds = self._arrivals.rounds(self._schedule, self._limit, lambda: eddy.is_flying, state.waits)
        while True:
            began = self._clock.now()
            arrivals = next(rounds, None)
            if arrivals is None:
                return
            seconds = (self._clock.now() - began) / max(1, len(arrivals))
            for relation, batch in arrivals:
                rows = batch.num_rows if isinstance(batch, pa.RecordBatch) else 0
                self.statistics.accounts.update(("scan", relation), rows, rows, seconds)
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
            self._eddy.push(self._admission.admit(relation, self._singletons(relation, batch)))

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
        self.state.build(relation, self._singletons(relation, batch))

    def prefer(self, wanted: Wanted) -> None:
        """Let results of other tuples come first from now on, also of those that wait already.

        To be called before the run, when ``run()`` has yielded a batch, from a source, or by who takes
        results. A user who looks at partial results may change their mind
        (Raman, Deshpande & Hellerstein 2003, section 1.2). Of several predicates the most wanted is first.

        Raises:
            InputError: A predicate reads columns of no relation or of several, or calls a user's function.
        """
        self._preference.change(wanted)
        self._buffer.regrade(self._preference.graded)
        self._arrivals.regrade(self._preference.graded)

    @property
    def sampled(self) -> int:
        """Number of probes that were made only to find an attribute to divide tuples by."""
        return self._admission.sampled

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
        watermark = self._watermark.value()
        if watermark is not None:
            self.state.expire(self._watermark.due(watermark), watermark)
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
        """Yield what the data that have arrived join to without some relations, whose columns are null.

        To be called when no tuple is in flight: before or after the run, while a source is asked for more (by
        the source itself), and when ``run()`` has yielded a batch because every source has stalled. After
        other batches of ``run()`` there mostly are tuples in flight. The rows have to be taken before
        ``run()`` goes on. Where windows are, what has been evicted is not part of them.

        Raises:
            InputError: No join predicates connect the other relations, one of them is not kept, or tuples
                were dropped.
            StateError: Tuples are in flight, or ``run()`` has gone on meanwhile.
        """
        if self._eddy.is_flying:
            raise StateError(
                "partial results were asked for while tuples are in flight, so some of them might be "
                "missing; ask when run() has yielded a batch because all sources stalled, or from a source"
            )
        span = remaining(self.spec, self._graph, missing, self._schedule.unbuilt)
        if self._admission.dropped:
            raise InputError(
                "partial results are not complete: tuples without a match in a relation that had been read "
                "were dropped; set option online to read all relations side by side, or transfer to False"
            )
        batches = self.state.partial(span, self._limit)
        self._eddy.forget()  # other joins may be legal now
        chosen = (b for batch in batches for b in passed(batch, self._graph, self._selecting))
        return undisturbed(collected(self.spec, chosen), lambda: self._rounds)

    def _held(self) -> StateTotals:
        return self.state.figures()


def run_of(
    spec: JoinSpec,
    sources: Mapping[str, Source],
    options: Options,
    *,
    warm_start: WarmStart | None = None,
    **given: Unpack[Given],
) -> Run:
    """Return what runs a block by the architecture that the options name: an eddy, or a static plan.

    The arguments are those of :class:`EddyRun`; a static plan learns nothing, so it has no warm start.
    """
    if options.architecture == "static":
        return StaticPlan(spec, sources, options, **given)
    return EddyRun(spec, sources, options, warm_start=warm_start, **given)
