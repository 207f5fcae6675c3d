"""Join state as SteMs: base tuples only, so that nothing depends on where earlier tuples were sent.

Raman, Deshpande & Hellerstein 2003.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.eddy.buffer import Buffer
from millrace.eddy.ready import probes
from millrace.eddy.schedule import Schedule
from millrace.eddy.state import Outlook, StateTotals
from millrace.graph import QueryGraph
from millrace.modules import Destination, Probe, SteM
from millrace.spec import JoinSpec
from millrace.tuples import Signature, TupleBatch


class SteMs:
    """The SteMs of a block.

    Args:
        spec: The block.
        graph: Its query graph.
        schedule: Which relation is left unbuilt.
    """

    grouped = True

    def __init__(self, spec: JoinSpec, graph: QueryGraph, schedule: Schedule) -> None:
        self.stems: Sequence[SteM] = [SteM(i, r, graph) for i, r in enumerate(spec.relations)]
        self._spec = spec
        self._graph = graph
        self._unbuilt = schedule.unbuilt
        self._stamp = 0
        self._peak = 0

    def build(self, relation: int, batch: TupleBatch) -> TupleBatch:
        """Insert singletons; they get timestamps where all relations are built."""
        stamp = self._stamp if self._unbuilt is None else None
        self._stamp += batch.size
        return self.stems[relation].build(batch, stamp)

    def joins(self, signature: Signature) -> tuple[Destination, ...]:
        """Return the SteMs that tuples of a signature may probe."""
        return probes(signature, self._graph, self._unbuilt)

    def outlook(self, signature: Signature, destination: Destination, *, alone: bool) -> Outlook:
        """Return what the sizes and keys of a SteM lead to expect."""
        name = self._spec.aliases[destination.target]
        if alone:
            return Outlook(name, 1.0)
        return Outlook(name, self.stems[destination.target].expected_matches(signature.span))

    def start(self, destination: Destination, batch: TupleBatch) -> Probe:
        """Begin to probe a SteM."""
        return self.stems[destination.target].start(batch)

    def matches(self, destination: Destination, probe: Probe, limit: int) -> TupleBatch:
        """Return the next matches."""
        return self.stems[destination.target].probe(probe, limit)

    def leave(self, destination: Destination, probe: Probe, buffer: Buffer) -> None:
        """Hold a tuple of the unbuilt relation that some matches may still come for."""
        if self._unbuilt is not None and not self.stems[destination.target].complete:
            # Only a tuple of the unbuilt relation gets here: what is still to come must meet it.
            buffer.hold(probe.batch, destination.target, probe.end)

    def grown(self, relation: int, buffer: Buffer) -> None:
        """Release prior probers of the relation's SteM."""
        buffer.release(relation, self.stems[relation])

    def decided(self, signature: Signature, shares: Sequence[tuple[Destination, float]]) -> None:
        """Nothing: the state of SteMs does not depend on decisions."""

    def rest(self) -> bool:
        """Nothing to move."""
        self._peak = max(self._peak, sum(stem.rows for stem in self.stems))
        return False

    def figures(self) -> StateTotals:
        """Return the tuples and bytes of every SteM."""
        return StateTotals(tuple(stem.figures() for stem in self.stems if stem.rows), self._peak)
