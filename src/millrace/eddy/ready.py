"""Which destinations are legal for a signature: the rules that no policy can break.

* BuildFirst: a singleton of a relation that is built goes to its own SteM before anywhere else.
* A tuple goes to a relation's SteM only once, and only to relations it does not span
  (BoundedRepetition); as long as some attribute class ties it to another relation, cross
  products wait.
* ProbeCompletion: a tuple that a SteM bounced back may go to no other SteM.
* Where one relation is left unbuilt, its tuples arrive last by definition, so each result is made
  by a tuple of that relation; all others are done once they are built (TimeStamp).
"""

from __future__ import annotations

from millrace.graph import QueryGraph
from millrace.modules import Destination
from millrace.tuples import Signature


def is_result(signature: Signature, graph: QueryGraph) -> bool:
    """Whether tuples of the signature span the query and have passed every predicate."""
    passed = signature.done == (1 << len(graph.residual_spans)) - 1
    return signature.built and signature.span == graph.everything and passed


def destinations(signature: Signature, graph: QueryGraph, unbuilt: int | None) -> tuple[Destination, ...]:
    """Return every legal destination; none means that the tuples leave the dataflow.

    Args:
        signature: Of the tuples to route; not a result.
        graph: The block's query graph.
        unbuilt: The relation without a SteM, or None when every relation is built.
    """
    span = signature.span
    if not signature.built:
        return (Destination("build", span.bit_length() - 1),)
    if signature.prior is not None:
        return (Destination("probe", signature.prior),)
    if unbuilt is not None and not span >> unbuilt & 1:
        return ()
    selections = tuple(
        Destination("select", i)
        for i, needed in enumerate(graph.residual_spans)
        if needed & span == needed and not signature.done >> i & 1
    )
    reachable = graph.neighbours(span) or tuple(r for r in range(graph.relations) if not span >> r & 1)
    return selections + tuple(Destination("probe", r) for r in reachable)
