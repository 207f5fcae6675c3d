"""Asking an index: its answers arrive like other base tuples (Raman et al. 2003, section 2.1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millrace.engine.arrivals.access_methods import AccessMethods
from millrace.engine.arrivals.arrivals import Arrivals
from millrace.engine.operator import Estimate, Lookup, Step
from millrace.engine.state.stem import SteM
from millrace.engine.state.waiting import Waiting
from millrace.engine.tuples import Signature, TupleBatch


class IndexLookup(Lookup):
    """One way to ask an index access module.

    Args:
        number: Of the lookup among the block's.
        methods: The block's access methods.
        arrivals: Where it is asked.
        stems: Where answers are built, by relation.
        unbuilt: The relation without a SteM, or None when every relation is built.
        waiting: Where tuples wait for the answers.
    """

    def __init__(
        self,
        number: int,
        methods: AccessMethods,
        arrivals: Arrivals,
        stems: Sequence[SteM],
        unbuilt: int | None,
        waiting: Waiting,
    ) -> None:
        name = methods.name(number)
        super().__init__(number, name, name)
        self._methods = methods
        self._arrivals = arrivals
        self._stem = stems[methods.paths.lookups[number].relation]
        self._unbuilt = unbuilt
        self._waiting = waiting

    def estimate(self, signature: Signature, *, alone: bool) -> Estimate:
        """Return how little the lookup is worth beside others."""
        return Estimate(self.label, self._methods.outlook(self.target, ahead=signature.prior is None))

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Submit the bindings of tuples that the index was not asked for yet, and bounce the tuples back.

        Where a scan returns the matches too, the bindings are submitted when that pays, if ever. A prior
        prober whose components are all in SteMs has then done its part: what the index returns will find them
        there. One with a component that is not built waits, and probes again.
        """
        stem, signature = self._stem, work.signature
        if not stem.complete:
            self._arrivals.ask(self.target, work)
        asked = replace(work, signature=signature.having(asked=signature.asked | 1 << self.target))
        streamed = self._unbuilt is not None and signature.span >> self._unbuilt & 1
        has_more = stem.base.scanned and stem.rows > work.seen
        if signature.prior is not None and streamed and not has_more:
            self._waiting.hold(asked, stem.number, work.seen)
            return Step((), work.size)
        return Step((asked,), work.size)
