"""Join state as SteMs: base tuples only, so that nothing depends on where earlier tuples were sent.

Raman, Deshpande & Hellerstein 2003.

* A tuple goes to a relation's SteM only once, and only to relations it does not span
  (BoundedRepetition); as long as some attribute class ties it to another relation, cross
  products wait.
* A SteM of a relation without a scan may only be probed by tuples that bind one of its indexes.
* ProbeCompletion: a tuple that a SteM bounced back may go to no other SteM. If it cannot wait for a scan, it
  leaves only after it has been sent to an index AM of that relation.
* Where a relation has both, a tuple may ask an index AM ahead of the scan, each AM once.
* Where one relation is left unbuilt, its tuples arrive last by definition, so each result is made
  by a tuple of that relation; all others are done once they are built (TimeStamp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from millrace.engine.access.paths import Paths
from millrace.engine.eddy.operator import Operator
from millrace.engine.eddy.output import Output
from millrace.engine.operators.stems import IndexLookup, SteMProbe
from millrace.engine.plan.expressions import Call
from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stems.conditions import Matching
from millrace.engine.stems.join_state import Held, JoinState, StateTotals, held_by
from millrace.engine.stems.stem import LiveRows, SteM
from millrace.engine.stems.waiting import PriorProbers
from millrace.engine.tuples.batch import Signature, TupleBatch

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext


def stems_of(spec: JoinSpec, graph: QueryGraph, paths: Paths) -> list[SteM]:
    """Return the SteMs of a block, by relation; relations that are the same data share their tuples."""
    stems: list[SteM] = []
    matching = Matching(graph)
    for number, relation in enumerate(spec.relations):
        shared = stems[graph.leads[number]] if relation.same_as is not None else None
        stems.append(SteM(number, spec, matching, paths, shared))
    return stems


class SteMs(JoinState):
    """The SteMs of a block: their state does not depend on decisions, and has no intermediate tuples."""

    grouped = True

    def __init__(self, context: RunContext) -> None:
        self.stems: Sequence[SteM] = context.stems
        self._paths, self._graph = context.methods.paths, context.graph
        self._requests = context.arrivals.requests
        self._unbuilt = context.schedule.unbuilt
        self._windows = context.watermark.windows
        self._waiting = PriorProbers()
        self._stamp = 0
        self._peak = 0
        live = find_live_rows(context)
        self._probes = [SteMProbe(stem, context, self._waiting, live) for stem in self.stems]
        lookups = range(len(self._paths.lookups))
        self._lookups = [IndexLookup(i, context, self._waiting) for i in lookups]

    def build(self, relation: int, batch: TupleBatch) -> TupleBatch:
        """Insert singletons; they get timestamps where all relations are built."""
        stamp = self._stamp if self._unbuilt is None else None
        self._stamp += batch.size * len(self.stems[relation].roles)
        return self.stems[relation].build(batch, stamp)

    def joins(self, signature: Signature) -> Sequence[Operator]:
        """Return the SteMs that tuples may probe, and the indexes that they may ask.

        Where there are none, others will find these tuples.
        """
        span, graph, paths = signature.span, self._graph, self._paths
        if signature.prior is not None:
            return self._completions(signature, signature.prior)
        if self._unbuilt is not None and not span >> self._unbuilt & 1:
            return ()
        rest = [r for r in range(graph.relations) if not span >> r & 1 and paths.is_open(span, r, graph)]
        tied = graph.neighbours(span)
        reachable = [r for r in rest if r in tied] or rest
        ahead = [
            self._lookups[i]
            for r in reachable
            if paths.scanned >> r & 1
            for i in paths.bound(span, r, graph)
            if not signature.asked >> i & 1
        ]
        return (*(self._probes[r] for r in reachable), *ahead)

    def _completions(self, signature: Signature, prior: int) -> Sequence[Operator]:
        """Return what a prior prober may still do: ask one index, and probe again if it is not in SteMs."""
        mine = self._paths.bound(signature.span, prior, self._graph)
        asked = any(signature.asked >> i & 1 for i in mine)
        found = () if asked else tuple(self._lookups[i] for i in mine)
        cached = self._unbuilt is None or not signature.span >> self._unbuilt & 1
        if cached or not (asked or self._paths.scanned >> prior & 1):
            return found
        return (self._probes[prior], *found)

    def on_build(self, relation: int) -> Sequence[TupleBatch]:
        """Return prior probers of the relation's SteM that it has more for."""
        roles = self.stems[relation].roles
        return [batch for role in roles for batch in self._waiting.release(role, self.stems[role])]

    def expire(self, below: Mapping[int, int], watermark: int) -> None:
        """Drop the base tuples below these row numbers, and first the tuples that refer to them."""
        if below:
            self._waiting.expire(self._windows, watermark)
        for relation, row in below.items():
            if relation == self._graph.leads[relation]:
                self.stems[relation].evict(row)

    def at_stasis(self) -> bool:
        self._peak = max(self._peak, sum(stem.store.held for stem in self._bases()))
        return False

    def waiting(self) -> Sequence[TupleBatch]:
        return self._waiting.held

    def waits(self) -> int:
        return self._waiting.size

    def held(self) -> Held:
        return held_by(self.stems, (), self._requests.bindings)

    def figures(self) -> StateTotals:
        return StateTotals(tuple(stem.figures() for stem in self._bases() if stem.rows), self._peak)

    def _bases(self) -> list[SteM]:
        """Return the SteMs that have tuples of their own."""
        return [stem for stem in self.stems if stem.number == stem.roles[0]]


def find_live_rows(context: RunContext) -> LiveRows | None:
    """Return what tells of whose components something may be read yet; None: perhaps of all.

    The output reads columns; predicates do until they are met, and those that may raise until the end. Of
    relations that share an attribute class one is asked for its key, while another is to be joined by it.

    All are read where every relation is built, for base tuples may be let go of there; by windows, by left
    joins, by other outputs, and by those who may go on with the run elsewhere.
    """
    spec, graph, unbuilt = context.spec, context.graph, context.schedule.unbuilt
    elsewhere = context.watch is not None or graph.later or not isinstance(context.output, Output)
    if unbuilt is None or graph.windows or graph.outer or elsewhere:
        return None
    shown = () if spec.count_only else spec.output
    always = {spec.aliases.index(each.source.relation) for each in shown}
    reads = [(1 << i, set(members(span))) for i, span in enumerate(graph.residual_spans)]
    for predicate, (_, read) in zip(spec.residuals, reads, strict=True):
        always |= read if isinstance(predicate, Call) else set()

    @cache
    def live(span: int, done: int) -> frozenset[int]:
        keys = (members(c.span & span) for c in graph.classes if c.span & ~span)
        asked = {min(each, key=lambda r: (r != unbuilt, r not in always, r)) for each in keys if each}
        return frozenset(always.union(asked, *(read for bit, read in reads if not done & bit)))

    return live
