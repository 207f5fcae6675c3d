"""What a signature tells about predicates: which can be met now, and whether all have been."""

from __future__ import annotations

from millrace.engine.graph import QueryGraph
from millrace.engine.tuples import Signature


def is_result(signature: Signature, graph: QueryGraph) -> bool:
    """Whether tuples of the signature span the query and have passed every predicate."""
    return is_complete(signature, graph) and not signature.raised


def is_complete(signature: Signature, graph: QueryGraph) -> bool:
    """Whether tuples of the signature span the query and have met every predicate."""
    met = signature.done == (1 << len(graph.residual_spans)) - 1
    return signature.built and signature.span == graph.everything and met


def to_settle(signature: Signature) -> int:
    """Return the first of the predicates that raised for tuples of the signature."""
    return (signature.raised & -signature.raised).bit_length() - 1


def ready_predicates(signature: Signature, graph: QueryGraph) -> tuple[int, ...]:
    """Return the predicates that tuples of a signature can meet, and have not met."""
    return tuple(
        i
        for i, needed in enumerate(graph.residual_spans)
        if needed & signature.span == needed
        and not signature.done >> i & 1
        and not graph.residuals_before[i] & ~signature.done
    )
