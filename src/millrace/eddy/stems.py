"""Join state as SteMs: base tuples only, so that nothing depends on where earlier tuples were sent.

Raman, Deshpande & Hellerstein 2003.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from millrace.eddy.buffer import Buffer
from millrace.eddy.memory import Held, held_by
from millrace.eddy.partial import joined
from millrace.eddy.paths import Paths
from millrace.eddy.ready import probes
from millrace.eddy.schedule import Schedule
from millrace.eddy.state import Outlook, StateTotals
from millrace.graph import QueryGraph
from millrace.modules import Destination, Probe, SteM
from millrace.modules.inequalities import inequalities
from millrace.spec import JoinSpec
from millrace.tuples import Signature, TupleBatch


class SteMs:
    """The SteMs of a block.

    Args:
        spec: The block.
        graph: Its query graph.
        schedule: Which relation is left unbuilt.
        paths: Where tuples of each relation come from; by default from one scan each.
    """

    grouped = True

    def __init__(
        self, spec: JoinSpec, graph: QueryGraph, schedule: Schedule, paths: Paths | None = None
    ) -> None:
        stems: list[SteM] = []
        for i, relation in enumerate(spec.relations):
            lead = stems[graph.leads[i]] if relation.same_as is not None else None
            stems.append(SteM(i, relation, graph, lead, inequalities(spec, i)))
        self.stems: Sequence[SteM] = stems
        self._paths = paths or Paths.scans(graph)
        self._spec = spec
        self._graph = graph
        self._unbuilt = schedule.unbuilt
        self._stamp = 0
        self._peak = 0

    def build(self, relation: int, batch: TupleBatch) -> TupleBatch:
        """Insert singletons; they get timestamps where all relations are built."""
        stamp = self._stamp if self._unbuilt is None else None
        self._stamp += batch.size * len(self.stems[relation].roles)
        return self.stems[relation].build(batch, stamp)

    def joins(self, signature: Signature) -> tuple[Destination, ...]:
        """Return the SteMs that tuples of a signature may probe."""
        return probes(signature, self._graph, self._unbuilt, self._paths)

    def outlook(self, signature: Signature, destination: Destination, *, alone: bool) -> Outlook:
        """Return what the sizes and keys of a SteM lead to expect."""
        name = self._spec.aliases[destination.target]
        if alone:
            return Outlook(name, 1.0)
        return Outlook(name, self.stems[destination.target].expected_matches(signature))

    def due(self, destination: Destination, batch: TupleBatch) -> float | None:
        """Never wait: what SteMs do not have is asked for by lookups."""
        return None

    def start(self, destination: Destination, batch: TupleBatch) -> Probe:
        """Begin to probe a SteM."""
        return self.stems[destination.target].start(batch)

    def matches(self, destination: Destination, probe: Probe, limit: int) -> TupleBatch:
        """Return the next matches."""
        return self.stems[destination.target].probe(probe, limit)

    def leave(self, destination: Destination, probe: Probe, buffer: Buffer) -> None:
        """Bounce probe tuples back that some matches may be missing for (SteM BounceBack).

        What a scan will bring finds the tuples in their own SteMs, if all of their components are
        there. They are bounced all the same where an index can be asked, which may be sooner (section 4.3).
        """
        relation, signature = destination.target, probe.batch.signature
        stem = self.stems[relation]
        if stem.complete:
            return
        waits = self._unbuilt is not None and bool(signature.span >> self._unbuilt & 1)
        lookups = self._paths.bound(signature.span, relation, self._graph)
        asks = bool(lookups) and not any(signature.asked >> i & 1 for i in lookups)
        if waits and stem.base.scanned and not signature.preferred:
            asks = False
        if not waits and not asks:
            return
        # Where a scan returns matches too, it is asked later which of them are missing.
        scanned = stem.base.scanned and not waits
        missing = np.arange(probe.batch.size) if scanned else stem.missing(probe.batch)
        if not len(missing):
            return
        batch = probe.batch if len(missing) == probe.batch.size else probe.batch.take(missing)
        if asks:
            prior = replace(signature, prior=relation)
            buffer.push([replace(batch, signature=prior, seen=probe.end, origin=0)])
        else:
            buffer.hold(batch, relation, probe.end)

    def grown(self, relation: int, buffer: Buffer) -> None:
        """Release prior probers of the relation's SteM."""
        for role in self.stems[relation].roles:
            buffer.release(role, self.stems[role])

    def decided(self, signature: Signature, shares: Sequence[tuple[Destination, float]]) -> None:
        """Nothing: the state of SteMs does not depend on decisions."""

    def precompute(self, stalled: int) -> None:
        """Nothing: SteMs hold no intermediate tuples."""

    def partial(self, span: int, limit: int) -> Iterator[TupleBatch]:
        """Join base tuples by probing the SteMs."""
        return joined(self.stems, self._graph, span, limit)

    def expire(self, below: Mapping[int, int], watermark: int) -> None:
        """Drop the base tuples below these row numbers."""
        for relation, row in below.items():
            if relation == self._graph.leads[relation]:
                self.stems[relation].evict(row)

    def rest(self) -> bool:
        """Nothing to move."""
        self._peak = max(self._peak, sum(stem.store.held for stem in self._bases()))
        return False

    def held(self) -> Held:
        """Return how much memory the SteMs take."""
        return held_by(self._bases(), ())

    def figures(self) -> StateTotals:
        """Return the tuples and bytes of every SteM."""
        return StateTotals(tuple(stem.figures() for stem in self._bases() if stem.rows), self._peak)

    def _bases(self) -> list[SteM]:
        """Return the SteMs that have tuples of their own."""
        return [stem for stem in self.stems if stem.number == stem.roles[0]]
