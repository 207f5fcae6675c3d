"""The eddy: a router in the middle of the dataflow.

Avnur & Hellerstein 2000, with the SteMs of Raman, Deshpande & Hellerstein 2003. The whole
of it is :meth:`Eddy.run`: take a piece of work, ask the routing table where it goes, let the
module there do its part, and put what comes back into the buffer. A tuple that spans the query
and has passed every predicate is a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millrace.clock import Clock, WallClock
from millrace.eddy.access import Access, AccessModules
from millrace.eddy.admission import singletons
from millrace.eddy.architectures import policy_of, state_of
from millrace.eddy.books import Books
from millrace.eddy.buffer import Buffer, Work
from millrace.eddy.candidates import Candidates
from millrace.eddy.index_joins import refuse_shared
from millrace.eddy.lessons import Lessons, recall, share
from millrace.eddy.memory import Watch
from millrace.eddy.output import Output, Sink
from millrace.eddy.pace import Pace
from millrace.eddy.partial import collected, passed, remaining, undisturbed
from millrace.eddy.preference import Preference
from millrace.eddy.queues import Backpressure, QueuedBuffer
from millrace.eddy.ready import destinations, is_result
from millrace.eddy.routing import RoutingTable
from millrace.eddy.schedule import STALLED, Arrival, Schedule, Source
from millrace.eddy.selecting import Selecting, selections_of
from millrace.eddy.sharing import unshared
from millrace.eddy.watermark import Watermark
from millrace.errors import StateError
from millrace.expressions import Call, Predicate
from millrace.figures import CellFigures
from millrace.graph import QueryGraph
from millrace.modules import Destination
from millrace.options import Options
from millrace.policies import POLICIES, Policy
from millrace.predicates import Caller
from millrace.spec import JoinSpec
from millrace.trees import edge_names
from millrace.tuples import Signature, TupleBatch

_CALLED_WINDOW = 4096
"""Tuples that statistics of users' predicates look back on, so that drifting data are followed."""


class Eddy:
    """Runs one select-project-join block over the tuples of one task.

    Args:
        spec: The block.
        sources: Record batches by alias, each with exactly the schema of its relation, and ``STALLED``, or
            None, wherever there is nothing at present.
        access: More access modules by alias, scans and indexes, that work asynchronously beside the sources
            or instead of them. A relation with several gets set semantics. Without SteMs a relation has one
            scan, or only indexes, one of which an index join asks (:mod:`millrace.modules.index_join`).
        prefer: Over columns of one relation: results of such tuples are wanted first.
        options: Policy, batch size and the other settings.
        stream: The relation to leave unbuilt; the largest by estimate when it is None.
        schedule: Overrides what ``options.online`` and ``stream`` would choose.
        policy: Overrides ``options.policy``.
        clock: What module times are measured by.
        output: What becomes of result tuples; by default they become the block's record batches.
        callers: Returns what calls a user's predicate, by its number among the residual predicates;
            by default limits hold within this eddy.
        lessons: Where eddies of the same run leave what they learned for those that come later.
        backpressure: Let tuples wait in bounded queues in front of modules; without it modules work at once.
        watch: Told whenever there may be more in memory than before.

    Raises:
        InputError: A relation with set semantics is to be left unbuilt, or not all of it is joined on.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Mapping[str, Source],
        options: Options | None = None,
        *,
        stream: str | None = None,
        schedule: Schedule | None = None,
        policy: Policy | None = None,
        clock: Clock | None = None,
        output: Sink | None = None,
        callers: Callable[[int, Call], Caller] | None = None,
        lessons: Lessons | None = None,
        access: Access | None = None,
        prefer: Predicate | None = None,
        backpressure: Backpressure | None = None,
        watch: Watch | None = None,
    ) -> None:
        options = options or Options()
        if options.architecture != "stems":
            refuse_shared(spec, access, options.architecture)
            spec, sources = unshared(spec, sources)
        self._spec, self._sources = spec, sources
        self._limit = options.batch_size
        self._graph = QueryGraph.of(spec)
        self._clock = clock or WallClock()
        self._access = AccessModules(spec, self._graph, sources, access or {}, self._clock)
        online = options.online or self._access.is_asynchronous
        built = self._access.paths.built(self._graph)
        self._schedule = schedule or Schedule.of(spec, online=online, stream=stream, built=built)
        if options.architecture != "stems":
            self._schedule = self._schedule.for_joins()
        self._schedule.check(spec, built)
        self._state = state_of(spec, self._graph, self._schedule, options, self._access, self._clock, watch)
        self._access.attach(self._state.stems)
        self._watermark = Watermark(spec, self._graph, self._state.stems)
        self._access.check_windows()
        self._preference = Preference(prefer, spec)
        selections = selections_of(spec, self._clock, options, callers)
        self._output: Sink = output or Output(spec, options.batch_size)
        called = any(isinstance(p, Call) for p in spec.residuals)
        window = _CALLED_WINDOW if called else 2 * options.reoptimize_every
        asked = self._graph.everything & ~self._access.paths.scanned
        names = edge_names(spec, self._graph, asked)
        self._books = Books([r.alias for r in spec.sources], names, selections, window, traced=called)
        self._books.lookups = [self._access.name(i) for i in range(len(self._access.paths.lookups))]
        self._selecting = Selecting(self._graph, selections, self._books.statistics)
        self._lessons = lessons
        recall(lessons, self._books.statistics)
        self._buffer, tickets, is_full = Buffer(), None, None
        if backpressure is not None:
            self._buffer = queues = QueuedBuffer(backpressure, self._clock, self._state.due, self._access.due)
            tickets, is_full = queues.tickets, queues.is_full
        self._watch = watch or Watch()
        self._watch.attach(self._state.stems, self._state.held, self._buffer.works)
        self._table = RoutingTable(
            policy or POLICIES[policy_of(spec, options)](options),
            Candidates(self._graph, self._state, self._access, self._books, tickets).of,
            Pace(options.reoptimize_every, (lambda: self._books.busy) if called else None).lasting,
            options.reoptimize_every,
            self._decided,
            is_full,
        )
        self._rounds = 0
        self._known_stalled = 0
        self._seconds = 0.0

    def run(self) -> Iterator[Any]:
        """Yield the block's result, in batches of ``spec.output_schema`` and in no certain order.

        Raises:
            ExecutionError: A user's predicate raised for a tuple that nothing else rejects.
            PredicateError: A user's predicate returned what is no truth value.
        """
        began = self._clock.now()
        try:
            self._selecting.fill(self._spec, self._sources, self._clock)
            for arrivals in self._arrivals():
                self._rounds += 1
                if any(batch is None for _, batch in arrivals):  # an end holds once nothing is in flight
                    yield from self._work(draining=True)
                self._admit(arrivals)
                yield from self._work()
                yield from self._output.rest()
                if self._is_empty():
                    break
                if not self._buffer.is_flying:
                    self._expire()
                    if stalled := self._stalled(arrivals):
                        yield from self._pause(stalled)
                    elif self._state.rest():
                        self._table.clear()
                    if all(batch is STALLED for _, batch in arrivals):
                        yield from self._output.idle()
            yield from self._output.finish()
            share(self._lessons, self._books.statistics)
        finally:
            self._selecting.close()
            self._access.close()
        self._seconds = self._clock.now() - began

    def _work(self, *, draining: bool = False) -> Iterator[Any]:
        """Do what there is to do before more tuples are asked for, and yield results."""
        while (work := self._buffer.pop(draining=draining)) is not None:
            if isinstance(work, TupleBatch) and is_result(work.signature, self._graph):
                yield from self._emit(work)
            else:
                self._advance(work)
            self._watch.look()

    def partial(self, missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield what the data that have arrived join to without some relations, whose columns are null.

        To be called when no tuple is in flight: before or after the run, while a source is asked for more (by
        the source itself), and when ``run()`` has yielded a batch because every source has stalled. After
        other batches of ``run()`` there mostly are tuples in flight. The rows have to be taken before
        ``run()`` goes on. Where windows are, what has been evicted is not part of them.

        Args:
            missing: Aliases of the relations to do without; join predicates connect the others.

        Raises:
            InputError: The others are not connected, or one of them is not kept.
            StateError: Tuples are in flight, or ``run()`` has gone on meanwhile.
        """
        if self._buffer.is_flying:
            raise StateError(
                "partial results were asked for while tuples are in flight, so some of them might be "
                "missing; ask when run() has yielded a batch because all sources stalled, or from a source"
            )
        span = remaining(self._spec, self._graph, missing, self._schedule.unbuilt)
        batches = self._state.partial(span, self._limit)
        self._table.clear()  # other joins may be legal now
        chosen = (b for batch in batches for b in passed(batch, self._graph, self._selecting))
        return undisturbed(collected(self._spec, chosen), lambda: self._rounds)

    def _stalled(self, arrivals: list[Arrival]) -> int:
        """Return the span of stalled relations if all that have not ended have stalled."""
        if not arrivals or any(batch is not STALLED for _, batch in arrivals):
            self._known_stalled = 0
            return 0
        return sum({1 << role for r, _ in arrivals for role in self._state.stems[r].roles})

    def _pause(self, stalled: int) -> Iterator[Any]:
        """Do what can be done before a source goes on, and give out what there is; once for each stall."""
        if stalled != self._known_stalled:
            self._known_stalled = stalled
            self._state.precompute(stalled)
            yield from self._output.pause()

    def _advance(self, work: Work) -> None:
        """Route a batch, or go on with what has been routed, and buffer what comes back."""
        if not isinstance(work, TupleBatch):
            destination, routed = work
            (self._send if isinstance(routed, TupleBatch) else self._match)(destination, routed)
            return
        pieces, rest = self._table.route(work)
        if rest is not None:
            self._buffer.put_back(rest, refused=not pieces)
        for destination, piece in pieces:
            self._books.route(piece)
            if not self._buffer.line_up(destination, piece):
                self._send(destination, piece)

    def _send(self, destination: Destination, batch: TupleBatch) -> None:
        if destination.action == "build":
            self._build(destination.target, batch)
        elif destination.action in ("probe", "join"):
            self._join(destination, batch)
        elif destination.action == "lookup":
            self._look_up(destination, batch)
        elif destination.action == "settle":
            self._settle(destination, batch)
        else:
            self._select(destination, batch)

    def _select(self, destination: Destination, batch: TupleBatch) -> None:
        """Let a batch meet one predicate, or all that are ready (a profile)."""
        began = self._clock.now()
        met = [destination]
        if destination.action == "profile":
            legal = destinations(batch.signature, self._graph, self._state.joins)
            met = [each for each in legal if each.action == "select"]
        label = self._books.label(destination)
        pieces = self._selecting.meet(batch, [each.target for each in met], label)
        self._book(batch.signature, destination, batch.size, sum(p.size for p in pieces), began)
        for piece in pieces:
            self._return(piece)

    def _settle(self, destination: Destination, batch: TupleBatch) -> None:
        """Give a predicate that raised its last word."""
        began = self._clock.now()
        kept = self._selecting.settle(batch, destination.target)
        self._book(batch.signature, destination, batch.size, kept.size, began)
        self._return(kept)

    def _build(self, relation: int, batch: TupleBatch) -> None:
        began = self._clock.now()
        bounced = self._state.build(relation, batch)
        self._book(batch.signature, Destination("build", relation), batch.size, bounced.size, began)
        self._selecting.remember(bounced)
        for role in self._state.stems[relation].roles:
            self._buffer.push(self._preference.split(self._state.stems[role].in_role(bounced)))
        self._state.grown(relation, self._buffer)

    def _look_up(self, destination: Destination, batch: TupleBatch) -> None:
        """Ask an index for what a batch binds; its answers will arrive like other base tuples."""
        began = self._clock.now()
        self._access.look_up(destination, batch, self._buffer, self._schedule.unbuilt)
        self._book(batch.signature, destination, batch.size, batch.size, began)

    def _join(self, destination: Destination, batch: TupleBatch) -> None:
        began = self._clock.now()
        probe = self._state.start(destination, batch)
        self._match(destination, probe, began)

    def _match(self, destination: Destination, probe: Any, began: float | None = None) -> None:
        """Take the next matches of a probe, and go on with it later if there are more."""
        began = self._clock.now() if began is None else began
        tuples_in = probe.batch.size if probe.is_new else 0
        matches = self._state.matches(destination, probe, self._limit)
        self._book(probe.batch.signature, destination, tuples_in, matches.size, began)
        if probe.is_done:
            self._state.leave(destination, probe, self._buffer)
        else:
            self._buffer.resume(destination, probe)
        if not is_result(matches.signature, self._graph):
            self._books.intermediate += matches.size
        self._return(matches)

    def _return(self, batch: TupleBatch) -> None:
        if not batch.size:
            self._books.end(batch)
        self._buffer.push([batch])

    def _emit(self, batch: TupleBatch) -> Iterator[pa.RecordBatch]:
        began = self._clock.now()
        self._books.end(batch)
        yield from self._output.add(batch)
        self._books.statistics.update("output", batch.size, batch.size, self._clock.now() - began)

    def _arrivals(self) -> Iterator[list[Arrival]]:
        """Yield rounds of arrivals, with the time spent in the sources booked."""
        rounds = self._access.rounds(self._schedule, self._limit, lambda: self._buffer.is_flying)
        while True:
            began = self._clock.now()
            arrivals = next(rounds, None)
            if arrivals is None:
                return
            seconds = (self._clock.now() - began) / max(1, len(arrivals))
            for relation, batch in arrivals:
                rows = batch.num_rows if isinstance(batch, pa.RecordBatch) else 0
                self._books.statistics.update(("scan", relation), rows, rows, seconds)
            if self._state.grouped or all(batch is STALLED for _, batch in arrivals):
                yield arrivals
            else:
                yield from ([arrival] for arrival in arrivals if arrival[1] is not STALLED)

    def _admit(self, arrivals: list[Arrival]) -> None:
        """Make singletons of the base tuples that arrived, or note that a source has ended."""
        for relation, batch in arrivals:
            if batch is STALLED:
                continue
            stem = self._state.stems[relation]
            if batch is None:
                stem.complete = True
            if not batch:  # an EOT, of the relation or of a binding
                self._state.grown(relation, self._buffer)
                continue
            found = self._singletons(relation, batch)
            self._buffer.push(self._preference.split(found) if found.signature.built else [found])

    def _expire(self) -> None:
        """Evict what windows have passed, from the buffer first: it may refer to what is in state."""
        watermark = self._watermark.value()
        if watermark is None:
            return
        below = self._watermark.due(watermark)
        if below:
            self._buffer.expire(self._watermark.windows, watermark)
        self._state.expire(below, watermark)

    def _singletons(self, relation: int, batch: pa.RecordBatch) -> TupleBatch:
        self._watermark.arrive(relation, batch)
        built = relation == self._schedule.unbuilt
        found = singletons(self._state.stems[relation], batch, self._spec.aliases[relation], built=built)
        self._output.arrive(found.size)
        return found

    def _is_empty(self) -> bool:
        """Whether some relation has ended without a tuple: no result can come any more."""
        return any(
            stem.complete and not stem.rows and stem.base.scanned
            for stem in self._state.stems
            if stem.number != self._schedule.unbuilt
        )

    def _decided(self, signature: Signature, shares: list[tuple[Destination, float]]) -> None:
        self._books.decided(signature, shares)
        self._state.decided(signature, shares)
        self._buffer.weigh(shares)

    def _book(
        self, signature: Signature, destination: Destination, tuples_in: int, tuples_out: int, began: float
    ) -> None:
        self._clock.spend(destination, tuples_in, tuples_out)
        self._books.visit(signature, destination, tuples_in, tuples_out, self._clock.now() - began)

    def figures(self, cell: int = 0) -> CellFigures:
        """Return what this eddy has done so far."""
        figures = self._books.figures(cell, self._seconds, type(self._output).__name__, self._output.counted)
        held, beside = self._state.figures(), self._selecting.figures()
        return replace(
            figures,
            modules=(*figures.modules, *held.lookups),
            state=(*held.state, *beside),
            peak_state=held.peak + sum(each.tuples for each in beside),
            migrated_tuples=held.migrated,
            recomputed_tuples=held.recomputed,
        )
