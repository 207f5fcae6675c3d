"""Probing a SteM, and what becomes of tuples that it cannot answer completely."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from millrace.engine.arrivals.paths import Paths
from millrace.engine.graph import QueryGraph
from millrace.engine.operator import Estimate, Probe, Step
from millrace.engine.state.stem import Probe as Matches, SteM
from millrace.engine.state.waiting import Waiting
from millrace.engine.tuples import Signature, TupleBatch


class SteMProbe(Probe):
    """Joins tuples with a SteM.

    Args:
        stem: The SteM.
        alias: Its relation's alias.
        graph: The block's query graph.
        paths: Where the relation's tuples come from.
        unbuilt: The relation without a SteM, or None when every relation is built.
        waiting: Where tuples wait that the SteM bounces back.
    """

    def __init__(
        self, stem: SteM, alias: str, graph: QueryGraph, paths: Paths, unbuilt: int | None, waiting: Waiting
    ) -> None:
        super().__init__(stem.number, stem.name, alias)
        self._stem = stem
        self._graph = graph
        self._paths = paths
        self._unbuilt = unbuilt
        self._waiting = waiting

    def estimate(self, signature: Signature, *, alone: bool) -> Estimate:
        """Return what the sizes and keys of the SteM lead to expect."""
        return Estimate(self.label, 1.0 if alone else self._stem.expected_matches(signature))

    def asking(self, signature: Signature) -> Hashable:
        """Return the attribute classes that are bound, and how tuples are divided: other matches by each."""
        return self._graph.bound(signature.span, self.target), signature.order

    def start(self, batch: TupleBatch) -> Matches:
        """Begin to probe."""
        return self._stem.start(batch)

    def step(self, work: Matches, limit: int) -> Step:
        """Return the next matches, and at the end the tuples that may have more."""
        found = self._stem.probe(work, limit)
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
        if waits and stem.base.scanned and not signature.preferred:
            asks = False
        if not waits and not asks:
            return ()
        # Where a scan returns matches too, it is asked later which of them are missing.
        scanned = stem.base.scanned and not waits
        missing = np.arange(probe.batch.size) if scanned else stem.missing(probe.batch)
        if not len(missing):
            return ()
        batch = probe.batch if len(missing) == probe.batch.size else probe.batch.take(missing)
        if not asks:
            self._waiting.hold(batch, self.target, probe.end)
            return ()
        return (replace(batch, signature=signature.having(prior=self.target), seen=probe.end, origin=0),)
