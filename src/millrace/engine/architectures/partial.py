"""Joins of base tuples for the occasion: what partial results are made of where state has none ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from millrace.engine.graph import QueryGraph, members
from millrace.engine.state.stem import SteM
from millrace.engine.tuples import Signature, TupleBatch


def joined(stems: Sequence[SteM], graph: QueryGraph, span: int, limit: int) -> Iterator[TupleBatch]:
    """Yield the join of the base tuples of some relations, by probing their SteMs one after the other.

    Args:
        stems: Base tuples by relation.
        graph: The block's query graph.
        span: The relations; join predicates connect them.
        limit: Tuples of a batch.
    """
    first = min(members(span), key=lambda r: (stems[r].store.held, r))
    stem = stems[first]
    for low in range(stem.store.first, stem.rows, limit):
        rows = np.arange(low, min(low + limit, stem.rows), dtype=np.int32)
        (lead,) = {stems[r].roles[0] for r in stem.roles}
        base = TupleBatch(Signature(1 << lead), {lead: rows}, {lead: stem.store})
        yield from _completed(stem.in_role(base), stems, graph, span, limit)


def _completed(
    batch: TupleBatch, stems: Sequence[SteM], graph: QueryGraph, span: int, limit: int
) -> Iterator[TupleBatch]:
    """Yield what tuples join to, each piece of a probe's matches before the next one is made."""
    if batch.signature.span == span:
        yield batch
        return
    reachable = [r for r in graph.neighbours(batch.signature.span) if span >> r & 1]
    target = stems[min(reachable, key=lambda r: (stems[r].store.held, r))]
    probe = target.start(batch)
    while not probe.is_done:
        found = target.probe(probe, limit)
        if found.size:
            yield from _completed(found, stems, graph, span, limit)


def each_once(batches: Sequence[TupleBatch]) -> Iterator[TupleBatch]:
    """Yield the tuples of batches of one span, those that are there several times once."""
    if not batches:
        return
    relations = sorted(batches[0].rows)
    rows = np.concatenate([np.stack([b.rows[r] for r in relations], axis=1) for b in batches])
    _, first = np.unique(rows, axis=0, return_index=True)
    ends = np.cumsum([batch.size for batch in batches])
    batch_of = np.searchsorted(ends, first, side="right")
    for number, batch in enumerate(batches):
        positions = np.sort(first[batch_of == number]) - (ends[number] - batch.size)
        yield batch.take(positions)
