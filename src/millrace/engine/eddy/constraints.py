"""Which operators are legal for a signature: the rules that no policy can break.

* BuildFirst: a singleton of a relation that is built goes to its own SteM before any other; predicates
  on it alone may come before that or after.
* Which joins a tuple may go to, join state says (:mod:`millrace.engine.stairs`).
* Tuples that several relations of a self-join share are built before anything rejects them.
* A predicate that is not deterministic keeps its place among the predicates. Where several are
  ready at once, a tuple may meet them all in one go (a profile).
* Tuples that span all relations are widened by left joins, in any order that their conditions allow: once
  they are built, for a SteM would get them as often as they have matches.
* What a predicate raised for a tuple is settled when nothing is left that could reject the tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from millrace.engine.eddy.operator import Build, Operator, Profiling, Select, Settle
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.tuples.batch import Signature, is_complete, ready_outer, ready_predicates


class Legality:
    """Knows every operator of a block, and when tuples may go there.

    Args:
        graph: The block's query graph.
        builds: By relation.
        selects: By predicate.
        profile: Of all predicates that are ready.
        settle: Of all predicates that raised.
        joins: Returns the joins that are legal for a signature.
        outer: By left join; their numbers follow those of the predicates.
    """

    def __init__(
        self,
        graph: QueryGraph,
        builds: Sequence[Build],
        selects: Sequence[Select],
        profile: Profiling,
        settle: Settle,
        joins: Callable[[Signature], Sequence[Operator]],
        outer: Mapping[int, Operator],
    ) -> None:
        self._graph = graph
        self._builds = builds
        self._selects = selects
        self._profile = profile
        self._settle = settle
        self._joins = joins
        self._outer = outer

    def of(self, signature: Signature) -> Sequence[Operator]:
        """Return every legal operator for tuples that are no results; none: they leave the dataflow."""
        graph = self._graph
        if not signature.built:
            relation = signature.span.bit_length() - 1
            shared = len(graph.roles(relation)) > 1
            return (self._builds[relation], *(() if shared else self._ready(signature)))
        if signature.prior is not None:
            return self._joins(signature)
        if is_complete(signature, graph):
            return (self._settle,)
        if signature.span == graph.everything:
            outer = (self._outer[i] for i in ready_outer(signature, graph))
            return (*self._ready(signature), *outer)
        legal = self._joins(signature)
        return (*self._ready(signature), *legal) if legal else ()

    def _ready(self, signature: Signature) -> tuple[Operator, ...]:
        """Return the predicates that are ready, one by one and, where there are several, together."""
        ready = tuple(self._selects[i] for i in ready_predicates(signature, self._graph))
        return (*ready, self._profile) if len(ready) > 1 else ready
