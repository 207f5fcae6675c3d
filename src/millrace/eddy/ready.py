"""Which destinations are legal for a signature: the rules that no policy can break.

* BuildFirst: a singleton of a relation that is built goes to its own SteM before any other; predicates
  on it alone may come before that or after.
* A tuple goes to a relation's SteM only once, and only to relations it does not span
  (BoundedRepetition); as long as some attribute class ties it to another relation, cross
  products wait.
* ProbeCompletion: a tuple that a SteM bounced back may go to no other SteM.
* Where one relation is left unbuilt, its tuples arrive last by definition, so each result is made
  by a tuple of that relation; all others are done once they are built (TimeStamp).
* A predicate that is not deterministic keeps its place among the predicates. Where several are
  ready at once, a tuple may meet them all in one go (a profile).
* What a predicate raised for a tuple is settled when nothing is left that could reject the tuple.
"""

from __future__ import annotations

from collections.abc import Callable

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
        return (Destination("build", span.bit_length() - 1), *selections(signature, graph))
    if signature.prior is not None:
        return joins(signature)
    if is_complete(signature, graph):
        return (Destination("settle", (signature.raised & -signature.raised).bit_length() - 1),)
    if span == graph.everything:
        return selections(signature, graph)
    legal = joins(signature)
    return selections(signature, graph) + legal if legal else ()


def probes(signature: Signature, graph: QueryGraph, unbuilt: int | None) -> tuple[Destination, ...]:
    """Return the SteMs that tuples of a signature may probe; none: others will find these tuples.

    Args:
        signature: Of tuples that are built and do not span the query.
        graph: The block's query graph.
        unbuilt: The relation without a SteM, or None when every relation is built.
    """
    span = signature.span
    if signature.prior is not None:
        return (Destination("probe", signature.prior),)
    if unbuilt is not None and not span >> unbuilt & 1:
        return ()
    reachable = graph.neighbours(span) or tuple(r for r in range(graph.relations) if not span >> r & 1)
    return tuple(Destination("probe", r) for r in reachable)


def selections(signature: Signature, graph: QueryGraph) -> tuple[Destination, ...]:
    """Return the predicates that are ready, one by one and, where there are several, together."""
    ready = tuple(
        Destination("select", i)
        for i, needed in enumerate(graph.residual_spans)
        if needed & signature.span == needed
        and not signature.done >> i & 1
        and not graph.residuals_before[i] & ~signature.done
    )
    return (*ready, Destination("profile", 0)) if len(ready) > 1 else ready
