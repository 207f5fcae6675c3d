"""What tuples do at SteMs: they are built, probe, are bounced back, and ask an index.

* **Build**: base tuples are kept and come back (BuildFirst, SteM BounceBack).
* **Probe**: a tuple that a SteM cannot answer completely is bounced back, and waits or asks.
* **Lookup**: what an index answers arrives like other base tuples (Raman et al. 2003, section 2.1.3).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from millrace.engine.eddy.operator import Estimate, Kind, Operator, Step
from millrace.engine.operators.select import Filters
from millrace.engine.stems.join_state import JoinState
from millrace.engine.stems.stem import LiveRows, Probe as Matches, SteM
from millrace.engine.stems.waiting import PriorProbers
from millrace.engine.tuples.batch import Signature, TupleBatch

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext


class StateBuild(Operator):
    """Puts base tuples of a relation, which may have met predicates before, into join state."""

    kind = Kind.BUILD

    def __init__(self, relation: int, alias: str, state: JoinState, filters: Filters) -> None:
        super().__init__(relation, f"SteM({alias})", alias)
        self._state = state
        self._filters = filters

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples that were not here yet, once for each role, and those that waited for them."""
        built = self._state.build(self.target, work)
        self._filters.remember(built)
        stems = self._state.stems
        batches = [stems[role].in_role(built) for role in stems[self.target].roles]
        return Step((*batches, *self._state.on_build(self.target)), built.size)


class SteMProbe(Operator):
    """Joins tuples with a SteM; those that it bounces back may have to be ``waiting``.

    Matches have the row numbers of ``live`` relations, all where that is None.
    """

    kind = Kind.PROBE

    def __init__(self, stem: SteM, context: RunContext, waiting: PriorProbers, live: LiveRows | None) -> None:
        super().__init__(stem.number, stem.name, context.spec.aliases[stem.number])
        self._stem, self._live = stem, live
        self._graph, self._paths = context.graph, context.methods.paths
        self._unbuilt = context.schedule.unbuilt
        self._waiting = waiting

    def estimate(self, signature: Signature) -> Estimate:
        """Return what the sizes and keys of the SteM lead to expect."""
        return Estimate(self.label, self._stem.expected_matches(signature))

    def asking(self, signature: Signature) -> Hashable:
        """Return the attribute classes that are bound, and how tuples are divided: other matches by each."""
        return self._graph.bound(signature.span, self.target), signature.order

    def start(self, batch: TupleBatch) -> Matches:
        return self._stem.start(batch)

    def step(self, work: Matches, limit: int) -> Step:
        """Return the next matches, and at the end the tuples that may have more."""
        found = self._stem.probe(work, limit, self._live)
        if not work.is_done:
            return Step((found,), found.size, work)
        return Step((*self._bounced(work), found), found.size)

    def _bounced(self, probe: Matches) -> Sequence[TupleBatch]:
        """Bounce probe tuples back that some matches may be missing for (SteM BounceBack).

        What a scan will bring finds the tuples in their own SteMs, if all of their components are
        there. They are bounced all the same where an index can be asked, which may be sooner (section 4.3).
        """
        stem, signature = self._stem, probe.batch.signature
        if stem.complete:
            return ()
        waits = self._unbuilt is not None and bool(signature.span >> self._unbuilt & 1)
        lookups = self._paths.bound(signature.span, self.target, self._graph)
        asks = bool(lookups) and not any(signature.asked >> i & 1 for i in lookups)
        if waits and stem.scanned and not signature.preferred:
            asks = False
        if not waits and not asks:
            return ()
        # Where a scan returns matches too, it is asked later which of them are missing.
        scanned = stem.scanned and not waits
        missing = np.arange(probe.batch.size) if scanned else stem.missing(probe.batch)
        if not len(missing):
            return ()
        batch = probe.batch if len(missing) == probe.batch.size else probe.batch.take(missing)
        if not asks:
            self._waiting.hold(batch, self.target, probe.end)
            return ()
        return (replace(batch, signature=signature.having(prior=self.target), seen=probe.end, origin=0),)


class IndexLookup(Operator):
    """One way to ask an index access module, by its number; tuples may be ``waiting`` for the answers."""

    kind = Kind.LOOKUP

    def __init__(self, number: int, context: RunContext, waiting: PriorProbers) -> None:
        self._methods, self._requests = context.methods, context.arrivals.requests
        name = self._methods.name(number)
        super().__init__(number, name, name)
        self._stem = context.stems[self._methods.paths.lookups[number].relation]
        self._unbuilt = context.schedule.unbuilt
        self._waiting = waiting

    def estimate(self, signature: Signature) -> Estimate:
        """Return the latency of the index beside that of others."""
        latency = self._methods.relative_latency(self.target, ahead=signature.prior is None)
        return Estimate(self.label, latency)

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Submit the bindings of tuples that the index was not asked for yet, and bounce the tuples back.

        Where a scan returns the matches too, the bindings are submitted when that pays, if ever. A prior
        prober whose components are all in SteMs has then done its part: what the index returns will find them
        there. One with a component that is not built waits, and probes again.
        """
        stem, signature = self._stem, work.signature
        if not stem.complete:
            self._requests.ask(self.target, work)
        asked = replace(work, signature=signature.having(asked=signature.asked | 1 << self.target))
        streamed = self._unbuilt is not None and signature.span >> self._unbuilt & 1
        has_more = stem.scanned and stem.rows > work.seen
        if signature.prior is not None and streamed and not has_more:
            self._waiting.hold(asked, stem.number, work.seen)
            return Step((), work.size)
        return Step((asked,), work.size)
