"""The eddy: a router in the middle of the dataflow.

Avnur & Hellerstein 2000, with the SteMs of Raman, Deshpande & Hellerstein 2003. The whole
of it is :meth:`Eddy.run`: take a piece of work, ask the routing table where it goes, let the
module there do its part, and put what comes back into the buffer. A tuple that spans the query
and has passed every predicate is a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import psutil
import pyarrow as pa

from millrace.clock import Clock, WallClock
from millrace.eddy.buffer import Buffer, Work
from millrace.eddy.output import Output
from millrace.eddy.ready import destinations, is_result
from millrace.eddy.routing import RoutingTable
from millrace.eddy.schedule import Schedule
from millrace.errors import InputError
from millrace.figures import CellFigures, ModuleFigures
from millrace.graph import QueryGraph
from millrace.modules import Destination, Probe, Selection, SteM
from millrace.options import Options
from millrace.policies import POLICIES, Candidate, Policy
from millrace.relations import RelationStore, keyed
from millrace.spec import JoinSpec
from millrace.statistics import Statistics
from millrace.tuples import Signature, TupleBatch

_SELECTION_GUESS = 1 / 3
"""Share of tuples a residual predicate is taken to pass before any was seen (System R's guess)."""


class Eddy:
    """Runs one select-project-join block over the tuples of one task.

    Args:
        spec: The block.
        sources: Record batches by alias, each with exactly the schema of its relation.
        options: Policy, batch size and the other settings.
        stream: The relation to leave unbuilt; the largest by estimate when it is None.
        schedule: Overrides what ``options.online`` and ``stream`` would choose.
        policy: Overrides ``options.policy``.
        clock: What module times are measured by.

    Raises:
        InputError: A relation with set semantics is to be left unbuilt, or not all of it is joined on.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Mapping[str, Iterable[pa.RecordBatch]],
        options: Options | None = None,
        *,
        stream: str | None = None,
        schedule: Schedule | None = None,
        policy: Policy | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = options or Options()
        self._spec = spec
        self._sources = {i: sources[alias] for i, alias in enumerate(spec.aliases)}
        self._limit = options.batch_size
        self._graph = QueryGraph.of(spec)
        self._schedule = schedule or Schedule.of(spec, online=options.online, stream=stream)
        unbuilt = self._schedule.unbuilt
        if unbuilt is not None and spec.relations[unbuilt].distinct:
            raise InputError(
                f"relation {spec.aliases[unbuilt]!r} has set semantics and must be built, for duplicates "
                "are dropped in its SteM; stream another relation"
            )
        self._stems = [SteM(i, r, self._graph) for i, r in enumerate(spec.relations)]
        self._selections = [Selection(i, p, spec.aliases) for i, p in enumerate(spec.residuals)]
        self._output = Output(spec, options.batch_size)
        self._statistics = Statistics(2 * options.reoptimize_every)
        self._table = RoutingTable(
            policy or POLICIES[options.policy](options), self._candidates, options.reoptimize_every
        )
        self._buffer = Buffer()
        self._clock = clock or WallClock()
        self._orders: Counter[str] = Counter()
        self._stamp = 0
        self._seconds = 0.0
        self._routed = 0
        self._intermediate = 0

    def run(self) -> Iterator[pa.RecordBatch]:
        """Yield the block's result, in batches of ``spec.output_schema`` and in no certain order."""
        began = self._clock.now()
        for arrivals in self._arrivals():
            self._admit(arrivals)
            while (work := self._buffer.pop()) is not None:
                if isinstance(work, TupleBatch) and is_result(work.signature, self._graph):
                    yield from self._emit(work)
                else:
                    self._advance(work)
            if self._is_empty():
                break
        yield from self._output.finish()
        self._seconds = self._clock.now() - began

    def _advance(self, work: Work) -> None:
        """Route a batch, or go on with a probe, and buffer what comes back."""
        if not isinstance(work, TupleBatch):
            self._probe(*work)
            return
        pieces, rest = self._table.route(work)
        if rest is not None:
            self._buffer.push([rest])
        for destination, piece in pieces:
            self._routed += piece.size
            self._send(destination, piece)

    def _send(self, destination: Destination, batch: TupleBatch) -> None:
        if destination.action == "build":
            self._build(destination.target, batch)
        elif destination.action == "probe":
            self._probe(destination.target, self._stems[destination.target].start(batch))
        else:
            began = self._clock.now()
            passed = self._selections[destination.target].select(batch)
            self._book(batch.signature, destination, batch.size, passed.size, began)
            self._return(passed)

    def _build(self, relation: int, batch: TupleBatch) -> None:
        began = self._clock.now()
        stamp = self._stamp if self._schedule.unbuilt is None else None
        self._stamp += batch.size
        bounced = self._stems[relation].build(batch, stamp)
        self._book(batch.signature, Destination("build", relation), batch.size, bounced.size, began)
        self._buffer.push([bounced])
        self._buffer.release(relation, self._stems[relation])

    def _probe(self, relation: int, probe: Probe) -> None:
        began = self._clock.now()
        stem = self._stems[relation]
        tuples_in = probe.batch.size if probe.walk.is_new else 0
        matches = stem.probe(probe, self._limit)
        self._book(probe.batch.signature, Destination("probe", relation), tuples_in, matches.size, began)
        if not probe.walk.is_done:
            self._buffer.resume(relation, probe)
        elif not stem.complete and self._schedule.unbuilt is not None:
            # Only a tuple of the unbuilt relation gets here: what is still to come must meet it.
            self._buffer.hold(probe.batch, relation, probe.end)
        if not is_result(matches.signature, self._graph):
            self._intermediate += matches.size
        self._return(matches)

    def _return(self, batch: TupleBatch) -> None:
        if not batch.size:
            self._orders[self._path(batch)] += batch.origin
        self._buffer.push([batch])

    def _emit(self, batch: TupleBatch) -> Iterator[pa.RecordBatch]:
        began = self._clock.now()
        self._orders[self._path(batch)] += batch.origin
        yield from self._output.add(batch)
        self._statistics.update("output", batch.size, batch.size, self._clock.now() - began)

    def _arrivals(self) -> Iterator[list[tuple[int, pa.RecordBatch | None]]]:
        """Yield rounds of arrivals, with the time spent in the sources booked."""
        rounds = self._schedule.arrivals(self._sources, self._limit)
        while True:
            began = self._clock.now()
            arrivals = next(rounds, None)
            if arrivals is None:
                return
            seconds = (self._clock.now() - began) / len(arrivals)
            for relation, batch in arrivals:
                rows = 0 if batch is None else batch.num_rows
                self._statistics.update(("scan", relation), rows, rows, seconds)
            yield arrivals

    def _admit(self, arrivals: list[tuple[int, pa.RecordBatch | None]]) -> None:
        """Make singletons of the base tuples that arrived, or note that a source has ended."""
        for relation, batch in arrivals:
            stem = self._stems[relation]
            if batch is None:
                stem.complete = True
                self._buffer.release(relation, stem)
                continue
            batch, coded = keyed(batch, stem.layout.keys, stem.layout.same)
            built = relation == self._schedule.unbuilt
            store = RelationStore.single(batch, stem.layout.keys, coded)
            rows = np.arange(batch.num_rows, dtype=np.int32)
            alias = self._spec.aliases[relation]
            singletons = TupleBatch(
                Signature(1 << relation, built=built),
                {relation: rows},
                {relation: store},
                path=(alias,),
                origin=len(rows),
            )
            self._buffer.push([singletons])

    def _is_empty(self) -> bool:
        """Whether some relation has ended without a tuple: no result can come any more."""
        return any(
            stem.complete and not stem.rows for stem in self._stems if stem.number != self._schedule.unbuilt
        )

    def _candidates(self, signature: Signature) -> list[Candidate]:
        legal = destinations(signature, self._graph, self._schedule.unbuilt)
        found = []
        for destination in legal:
            account = self._statistics.get((signature, destination))
            if destination.action == "select":
                name, guess = self._selections[destination.target].name, _SELECTION_GUESS
            elif len(legal) > 1:
                name = self._spec.aliases[destination.target]
                guess = self._stems[destination.target].expected_matches(signature.span)
            else:
                name, guess = self._spec.aliases[destination.target], 1.0
            found.append(Candidate(destination, name, account, guess))
        return found

    def _book(
        self, signature: Signature, destination: Destination, tuples_in: int, tuples_out: int, began: float
    ) -> None:
        self._statistics.update((signature, destination), tuples_in, tuples_out, self._clock.now() - began)

    def _path(self, batch: TupleBatch) -> str:
        return " → ".join(batch.path)

    def figures(self, cell: int = 0) -> CellFigures:
        """Return what this eddy has done so far."""
        totals: dict[tuple[str, str], ModuleFigures] = {}
        for key, account in self._statistics.items():
            name, action = self._describe(key)
            old = totals.get((name, action), ModuleFigures(name, action, 0, 0, 0, 0.0))
            totals[name, action] = ModuleFigures(
                name,
                action,
                old.tuples_in + account.tuples_in,
                old.tuples_out + account.tuples_out,
                old.calls + account.calls,
                old.seconds + account.seconds,
            )
        return CellFigures(
            cell=cell,
            seconds=self._seconds,
            modules=tuple(m for m in totals.values() if m.calls),
            orders=tuple((order, count) for order, count in self._orders.most_common() if count),
            tuples_routed=self._routed,
            intermediate_tuples=self._intermediate,
            output_tuples=self._output.counted,
            peak_bytes=peak_memory(),
        )

    def _describe(self, key: object) -> tuple[str, str]:
        """Return the module's name and what it did, from the key of its account."""
        match key:
            case ("scan", int(relation)):
                return f"Scan({self._spec.aliases[relation]})", "scan"
            case (Signature(), Destination("select", target)):
                return self._selections[target].name, "select"
            case (Signature(), Destination(action, target)):
                return self._stems[target].name, action
            case _:
                return self._output.name, "output"


def peak_memory() -> int:
    """Return the largest resident memory that this process has had, in bytes."""
    process = psutil.Process()
    try:
        import resource
    except ImportError:  # Windows has its own counter
        return int(process.memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
