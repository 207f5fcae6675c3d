"""Constraints on routing: which operators are legal for a signature. No policy can break them.

Raman, Deshpande & Hellerstein 2003, Table 2 (SteMs), and Deshpande & Hellerstein 2004 (STAIRs); where each
constraint is kept:

* **BuildFirst** (SteMs, sections 3.1 and 3.5): a singleton of a relation that is built goes to its own SteM
  before any other. :meth:`Legality._build_first`.
* **ProbeCompletion** (SteMs, section 3.4): a prior prober goes nowhere but to what completes it.
  :meth:`Legality._probe_completion`; what that is, join state says.
* **BoundedRepetition** (SteMs, sections 3.1 and 3.5): spans, done bits and the lookups that were asked only
  grow, and nothing is legal that a tuple has been through. A prior prober probes again only when there is
  more for it. :mod:`millrace.engine.stems`.
* **SteM BounceBack** (SteMs, sections 3.1 to 3.3): duplicates are dropped when they are built, and tuples are
  bounced where matches may still come. :mod:`millrace.engine.operators.stems`.
* **TimeStamp** (SteMs, section 3.1) and **LastMatchTimeStamp** (section 3.5): a tuple gets the matches that
  came before it, and none of them again. :mod:`millrace.engine.stems.stem`.
* **Dual Routing** (STAIRs, section 3.1): what probes a STAIR is inserted into its dual. Both are one
  operator, a join. :mod:`millrace.engine.stairs`.

Of predicates and left joins:

* Tuples that several relations of a self-join share are built before anything rejects them.
* A predicate that is not deterministic keeps its place among the predicates. Where several are
  ready at once, a tuple may meet them all in one go (a profile).
* Tuples that span all relations are widened by left joins, in any order that their conditions allow: once
  they are built, for a SteM would get them as often as they have matches.
* What a predicate raised for a tuple is settled when nothing is left that could reject the tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millrace.engine.eddy.operator import Operator
from millrace.engine.operators.select import Filters
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.tuples.batch import Signature, is_complete, ready_outer, ready_predicates


class Legality:
    """Knows every operator of a block, and when tuples may go there; join state allows ``joins``."""

    def __init__(
        self,
        graph: QueryGraph,
        builds: Sequence[Operator],
        filters: Filters,
        joins: Callable[[Signature], Sequence[Operator]],
    ) -> None:
        self._graph, self._builds, self._filters, self._joins = graph, builds, filters, joins

    def of(self, signature: Signature) -> Sequence[Operator]:
        """Return every legal operator for tuples that are no results; none: they leave the dataflow."""
        for rule in (self._build_first, self._probe_completion, self._settle_last, self._widen_last):
            legal = rule(signature)
            if legal is not None:
                return legal
        joins = self._joins(signature)
        return (*self._ready(signature), *joins) if joins else ()

    def _build_first(self, signature: Signature) -> Sequence[Operator] | None:
        """BuildFirst: its SteM; predicates on the singleton alone may come before that or after."""
        if signature.built:
            return None
        relation = signature.span.bit_length() - 1
        shared = len(self._graph.roles(relation)) > 1
        return (self._builds[relation], *(() if shared else self._ready(signature)))

    def _probe_completion(self, signature: Signature) -> Sequence[Operator] | None:
        """ProbeCompletion: the index lookups of the SteM that bounced the tuple back, and this SteM again."""
        return None if signature.prior is None else self._joins(signature)

    def _settle_last(self, signature: Signature) -> Sequence[Operator] | None:
        """What raised for tuples that have met everything; without that they would be results."""
        return (self._filters.settlement,) if is_complete(signature, self._graph) else None

    def _widen_last(self, signature: Signature) -> Sequence[Operator] | None:
        """Left joins of tuples that span all relations, and the predicates that they may still meet."""
        if signature.span != self._graph.everything:
            return None
        outer = (self._filters.outer[i] for i in ready_outer(signature, self._graph))
        return (*self._ready(signature), *outer)

    def _ready(self, signature: Signature) -> tuple[Operator, ...]:
        """Return the predicates that are ready, one by one and, where there are several, together."""
        ready = tuple(self._filters.selects[i] for i in ready_predicates(signature, self._graph))
        return (*ready, self._filters.profile) if len(ready) > 1 else ready
