"""Which destinations are legal for a signature: the rules that no policy can break.

* BuildFirst: a singleton of a relation that is built goes to its own SteM before any other; predicates
  on it alone may come before that or after.
* A tuple goes to a relation's SteM only once, and only to relations it does not span
  (BoundedRepetition); as long as some attribute class ties it to another relation, cross
  products wait.
* A SteM of a relation without a scan may only be probed by tuples that bind one of its indexes.
* ProbeCompletion: a tuple that a SteM bounced back may go to no other SteM. If it cannot wait for a scan, it
  leaves only after it has been sent to an index AM of that relation.
* Where a relation has both, a tuple may ask an index AM ahead of the scan, each AM once.
* Tuples that several relations of a self-join share are built before anything rejects them.
* Where one relation is left unbuilt, its tuples arrive last by definition, so each result is made
  by a tuple of that relation; all others are done once they are built (TimeStamp).
* A predicate that is not deterministic keeps its place among the predicates. Where several are
  ready at once, a tuple may meet them all in one go (a profile).
* What a predicate raised for a tuple is settled when nothing is left that could reject the tuple.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.eddy.paths import Paths
from millrace.graph import QueryGraph
from millrace.modules import Destination
from millrace.tuples import Signature

Joins = Callable[[Signature], tuple[Destination, ...]]


def is_result(signature: Signature, graph: QueryGraph) -> bool:
    """Whether tuples of the signature span the query and have passed every predicate."""
    return is_complete(signature, graph) and not signature.raised


def is_complete(signature: Signature, graph: QueryGraph) -> bool:
    """Whether tuples of the signature span the query and have met every predicate."""
    met = signature.done == (1 << len(graph.residual_spans)) - 1
    return signature.built and signature.span == graph.everything and met


def destinations(signature: Signature, graph: QueryGraph, joins: Joins) -> tuple[Destination, ...]:
    """Return every legal destination; none means that the tuples leave the dataflow.

    Args:
        signature: Of the tuples to route; not a result.
        graph: The block's query graph.
        joins: Returns the joins that are legal for a signature.
    """
    span = signature.span
    if not signature.built:
        relation = span.bit_length() - 1
        shared = len(graph.roles(relation)) > 1
        return (Destination("build", relation), *(() if shared else selections(signature, graph)))
    if signature.prior is not None:
        return joins(signature)
    if is_complete(signature, graph):
        return (Destination("settle", (signature.raised & -signature.raised).bit_length() - 1),)
    if span == graph.everything:
        return selections(signature, graph)
    legal = joins(signature)
    return selections(signature, graph) + legal if legal else ()


def probes(
    signature: Signature, graph: QueryGraph, unbuilt: int | None, paths: Paths
) -> tuple[Destination, ...]:
    """Return the SteMs that tuples of a signature may probe, and the indexes that they may ask.

    None: others will find these tuples.

    Args:
        signature: Of tuples that are built and do not span the query.
        graph: The block's query graph.
        unbuilt: The relation without a SteM, or None when every relation is built.
        paths: Where tuples of each relation come from.
    """
    span = signature.span
    if signature.prior is not None:
        return _completions(signature, graph, unbuilt, paths)
    if unbuilt is not None and not span >> unbuilt & 1:
        return ()
    rest = [r for r in range(graph.relations) if not span >> r & 1 and paths.is_open(span, r, graph)]
    tied = graph.neighbours(span)
    reachable = [r for r in rest if r in tied] or rest
    ahead = [
        i
        for r in reachable
        if paths.scanned >> r & 1
        for i in paths.bound(span, r, graph)
        if not signature.asked >> i & 1
    ]
    return (
        *(Destination("probe", r) for r in reachable),
        *(Destination("lookup", i) for i in ahead),
    )


def _completions(
    signature: Signature, graph: QueryGraph, unbuilt: int | None, paths: Paths
) -> tuple[Destination, ...]:
    """Return what a prior prober may still do: ask one index AM, and probe again if it is not in SteMs."""
    assert signature.prior is not None
    mine = paths.bound(signature.span, signature.prior, graph)
    asked = any(signature.asked >> i & 1 for i in mine)
    found = () if asked else tuple(Destination("lookup", i) for i in mine)
    cached = unbuilt is None or not signature.span >> unbuilt & 1
    if cached or not (asked or paths.scanned >> signature.prior & 1):
        return found
    return (Destination("probe", signature.prior), *found)


def ready_predicates(signature: Signature, graph: QueryGraph) -> tuple[int, ...]:
    """Return the predicates that tuples of a signature can meet, and have not met."""
    return tuple(
        i
        for i, needed in enumerate(graph.residual_spans)
        if needed & signature.span == needed
        and not signature.done >> i & 1
        and not graph.residuals_before[i] & ~signature.done
    )


def selections(signature: Signature, graph: QueryGraph) -> tuple[Destination, ...]:
    """Return the predicates that are ready, one by one and, where there are several, together."""
    ready = tuple(Destination("select", i) for i in ready_predicates(signature, graph))
    return (*ready, Destination("profile", 0)) if len(ready) > 1 else ready
