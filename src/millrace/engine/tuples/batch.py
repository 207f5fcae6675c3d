"""Batches of tuples that share a signature.

A tuple is an array of pointers to base tuples (Deshpande 2004, section 2.2): one row number for each relation
it spans that something will still read. What all tuples of a batch have in common stands once on the batch:
the span and the done bits, which together are the signature that routing decisions are made by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.tuples import RelationStore, slices


@dataclass(frozen=True)
class Signature:
    """What the router may look at.

    Attributes:
        span: Bit set of the relations in the tuple.
        done: Bit set of the residual predicates that it has passed, or that raised for it, and of the left
            joins that have widened it.
        raised: Bit set of those that raised: their exceptions surface only if nothing else rejects
            the tuple.
        built: Whether a singleton has been built into its SteM (or never will be).
        prior: The relation whose SteM bounced the tuple back because matches may still come, and
            the only one it may probe until then (ProbeCompletion); None otherwise.
        asked: Bit set of the index lookups that the tuple, or a part of it, has been sent to.
        order: Where tuples are divided by an attribute, the order of joins that those of its value seemed to
            want (:mod:`millrace.engine.operators.content`); it only tells them apart.
        preferred: How much the user wants results of these tuples first; 0 for no more than others.
    """

    span: int
    done: int = 0
    raised: int = 0
    built: bool = True
    prior: int | None = None
    preferred: int = 0
    asked: int = 0
    order: tuple[int, ...] = ()

    @cached_property
    def _hash(self) -> int:
        prior = -1 if self.prior is None else self.prior  # the hash of None differs between processes
        return hash(
            (self.span, self.done, self.raised, self.built, prior, self.preferred, self.asked, self.order)
        )

    def __hash__(self) -> int:
        """Return what was computed once: decisions and accounts are looked up for every batch."""
        return self._hash

    def having(self, **changes: Any) -> Signature:
        """Return the signature with other values of these attributes, the same object every time."""
        return _having(self, tuple(changes.items()))


@lru_cache(1 << 16)
def _having(signature: Signature, changes: tuple[tuple[str, Any], ...]) -> Signature:
    return replace(signature, **dict(changes))


@lru_cache(1 << 10)
def singleton(relation: int, *, built: bool = True) -> Signature:
    """Return the signature of tuples of one relation that have met nothing yet."""
    return Signature(1 << relation, built=built)


class Merged(str):
    """What stands for several paths, each with the source tuples that went there; equal to itself alone."""

    paths: Sequence[tuple[tuple[str, ...], int]]
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @classmethod
    def of(cls, batches: Sequence[TupleBatch]) -> tuple[str, ...]:
        """Return a path that stands for those of some batches: theirs if it is the same."""
        counts: dict[tuple[str, ...], int] = {}
        for batch in batches:
            counts[batch.path] = counts.get(batch.path, 0) + batch.origin
        if len(counts) == 1:
            return batches[0].path
        merged = cls("…")
        merged.paths = list(counts.items())
        return (merged,)


@dataclass(frozen=True, eq=False)
class TupleBatch:
    """Tuples of one signature.

    Attributes:
        rows: Row numbers per spanned relation, and per relation that widened it, each of shape ``(n,)``. Of
            relations that nothing reads any more they may be left out, but not of all.
        stores: Where those row numbers lead.
        stamps: Timestamp of each tuple, that of its last arriving component, shape ``(n,)``; None
            while every tuple is younger than whatever it can probe, so that no check is needed.
        seen: For a prior prober: rows of the SteM that it has been matched with already
            (LastMatchTimeStamp, as a row number).
        path: Names of the modules visited, for the report; where batches were merged, the first of them is a
            :class:`Merged` that stands for the paths that came together.
        origin: Number of source tuples that this batch stands for in the report.
        failures: For each predicate that raised, what each tuple has of it: a failure, or None where
            the predicate was called for many tuples at once; object arrays of shape ``(n,)``.
    """

    signature: Signature
    rows: Mapping[int, Array]
    stores: Mapping[int, RelationStore]
    stamps: Array | None = None
    seen: int = 0
    path: tuple[str, ...] = ()
    origin: int = 0
    failures: Mapping[int, Array] = field(default_factory=dict)

    @cached_property
    def size(self) -> int:
        return len(next(iter(self.rows.values())))

    def take(self, positions: Array, **changes: Any) -> TupleBatch:
        """Return the tuples at these positions, in their order."""
        rows = {relation: rows[positions] for relation, rows in self.rows.items()}
        stamps = None if self.stamps is None else self.stamps[positions]
        if self.failures:
            changes.setdefault("failures", {i: f[positions] for i, f in self.failures.items()})
        return replace(self, rows=rows, stamps=stamps, **changes)

    def cut(self, low: int, high: int) -> TupleBatch:
        """Return the tuples from position ``low`` up to ``high`` without copying them."""
        if low == 0 and high >= self.size:
            return self
        rows = {relation: rows[low:high] for relation, rows in self.rows.items()}
        stamps = None if self.stamps is None else self.stamps[low:high]
        origin = high - low if self.origin == self.size else self.origin if low == 0 else 0
        failures = {i: f[low:high] for i, f in self.failures.items()}
        return replace(self, rows=rows, stamps=stamps, origin=origin, failures=failures)

    def pieces(self, columns: Mapping[int, Sequence[str]], most: int) -> Iterator[TupleBatch]:
        """Yield the tuples in batches whose values in some columns take about ``most`` bytes at most.

        A single tuple may have more. The names of columns go by relation.
        """
        widths = [self.stores[n].widths(names, self.rows[n], most) for n, names in columns.items()]
        for part in slices(widths, self.size, most):
            yield self.cut(part.start, part.stop)

    @classmethod
    def merged(cls, batches: Sequence[TupleBatch]) -> TupleBatch:
        """Return batches of one signature, with the same stores and relations, without failures, as one."""
        first = batches[0]
        if len(batches) == 1:
            return first
        stamps = [batch.stamps for batch in batches]
        return cls(
            first.signature,
            {
                relation: np.concatenate([batch.rows[relation] for batch in batches])
                for relation in first.rows
            },
            first.stores,
            None if any(each is None for each in stamps) else np.concatenate(stamps),  # type: ignore[arg-type]
            path=Merged.of(batches),
            origin=sum(batch.origin for batch in batches),
        )

    def walked(self, name: str) -> TupleBatch:
        """Return the batch with one more step on its path."""
        return replace(self, path=(*self.path, name))


def is_result(signature: Signature, graph: QueryGraph) -> bool:
    """Whether tuples of the signature span the query and have passed every predicate."""
    return is_complete(signature, graph) and not signature.raised


def is_complete(signature: Signature, graph: QueryGraph) -> bool:
    """Whether tuples of the signature span the query and have met every predicate and left join."""
    whole = signature.built and signature.span == graph.everything
    return whole and signature.done | graph.later == (1 << len(graph.residual_spans)) - 1


def ready_predicates(signature: Signature, graph: QueryGraph) -> tuple[int, ...]:
    """Return the predicates that tuples of a signature can meet, and have not met."""
    return tuple(i for i in _ready(signature, graph) if not graph.outer >> i & 1)


def ready_outer(signature: Signature, graph: QueryGraph) -> tuple[int, ...]:
    """Return the left joins that tuples of a signature can meet, and have not met."""
    return tuple(i for i in _ready(signature, graph) if graph.outer >> i & 1)


def _ready(signature: Signature, graph: QueryGraph) -> Iterator[int]:
    for i, needed in enumerate(graph.residual_spans):
        if (
            needed & signature.span == needed
            and not (signature.done | graph.later) >> i & 1
            and not graph.residuals_before[i] & ~signature.done
        ):
            yield i
