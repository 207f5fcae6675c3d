"""STAIRs: the state of one side of a join, open to the eddy.

Deshpande & Hellerstein 2004, section 3.1. A STAIR on relation R and the join attributes of one edge
holds tuples that contain a component of R, base tuples and intermediate ones, indexed by those
attributes. Its *dual* is the STAIR at the edge's other end.

What it holds is kept in segments, one for each signature, so that insertion, probe, demotion and
promotion work on whole sets of tuples: arrays of row numbers of base tuples, which stay in their stores.

Invariant B (appendix A.1): no two tuples of a STAIR agree on all components that they share. Routing
keeps it (see :mod:`millrace.engine.stairs.invariants`); what moves state has to ask for it:
:meth:`STAIR.merge`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.figures import StateFigures
from millrace.engine.kernels import Walk
from millrace.engine.stairs.segment import Segment, grouped
from millrace.engine.stems.conditions import Classes, Matching
from millrace.engine.stems.index import Product
from millrace.engine.tuples import RelationStore
from millrace.engine.tuples.batch import Signature, TupleBatch

__all__ = ["STAIR", "Segment", "StairProbe", "distinct"]

_SPREAD = 16
"""Row numbers spread over no more than so many times their number are sorted by counting."""


@dataclass(eq=False)
class StairProbe:
    """A probe into a STAIR that may be under way: which segments are still to be walked.

    Attributes:
        batch: The probing tuples.
        open: Sections with how far their matches have been returned, the present one last.
        is_new: Whether no match has been asked for yet.
    """

    batch: TupleBatch
    open: list[tuple[Segment, Walk | Product]]
    is_new: bool = True

    @property
    def is_done(self) -> bool:
        """Whether every match has been returned."""
        return not self.open


class STAIR:
    """Tuples that contain a component of one relation, indexed on the attributes of one join.

    Args:
        owner: The relation's number.
        classes: The attribute classes of the join; none for a cross product, whose probes
            are steps of a block ripple join.
        matching: Codes of the block's keys.
        stores: Base tuples by relation.
        name: For reports.
        room: Base tuples that are expected.
    """

    def __init__(
        self,
        owner: int,
        classes: Classes,
        matching: Matching,
        stores: Mapping[int, RelationStore],
        name: str,
        room: int = 0,
    ) -> None:
        self.owner = owner
        self.classes = classes
        self.name = name
        self.segments: dict[Signature, Segment] = {}
        self.inserted = 0
        self.demoted = 0
        self.promoted = 0
        self.evicted = 0
        self._matching = matching
        self._stores = stores
        self._room = room

    @property
    def tuples(self) -> int:
        """Number of tuples held."""
        return sum(segment.live for segment in self.segments.values())

    @property
    def nbytes(self) -> int:
        """Memory in bytes, that of base tuples not included."""
        return sum(segment.nbytes for segment in self.segments.values())

    def figures(self) -> StateFigures:
        """Return what is held, and what went through."""
        return StateFigures(
            self.name, self.tuples, self.nbytes, self.inserted, self.demoted, self.promoted, self.evicted
        )

    def insert(self, batch: TupleBatch, codes: Array | None = None) -> None:
        """Store tuples (``insert(R.a, t)``).

        Args:
            batch: Tuples that contain the owner, and nothing from the other side of the join.
            codes: Of their join attributes, if they are known already.
        """
        if not batch.size:
            return
        signature = batch.signature
        segment = self.segments.get(signature)
        if segment is None:
            room = self._room if signature.span == 1 << self.owner else 0
            segment = Segment(signature, self.owner, indexed=bool(self.classes), room=room)
            self.segments[signature] = segment
        segment.append(batch, self.codes(batch) if codes is None else codes)
        self.inserted += batch.size

    def codes(self, batch: TupleBatch) -> Array | None:
        """Return the codes of the join attributes of tuples that contain the owner."""
        if not self.classes:
            return None
        return self._matching.codes((batch.stores, {self.owner: batch.rows[self.owner]}), self.classes)

    def start(self, batch: TupleBatch, codes: Array | None, skip: int = 0) -> StairProbe:
        """Begin to look for matches (``probe(R.a, val)``).

        Args:
            batch: Tuples that share no component with those held here.
            codes: Of their join attributes; None for a cross product.
            skip: Leave out matches that would together span these relations.
        """
        opened: list[tuple[Segment, Walk | Product]] = []
        for segment in self.segments.values():
            if not segment.live or (skip and segment.signature.span | batch.signature.span == skip):
                continue
            if segment.index is not None:
                assert codes is not None
                opened.append((segment, segment.index.probe(codes)))
            else:
                opened.append((segment, Product(batch.size, 0, segment.size, None)))
        return StairProbe(batch, opened)

    def matches(self, probe: StairProbe, limit: int) -> TupleBatch:
        """Return the next concatenated matches of one signature, at most ``limit``; maybe none."""
        batch = probe.batch
        origin = batch.origin if probe.is_new else 0
        probe.is_new = False
        if not probe.open:
            return batch.take(np.empty(0, np.int64), origin=origin)
        segment, walk = probe.open[-1]
        in_order = walk.is_new and len(probe.open) == 1
        if isinstance(walk, Product):
            left, right = walk.pairs(limit)
        else:
            assert segment.index is not None
            left, right = segment.index.matches(walk, limit)
            in_order = in_order and segment.index.unique and walk.is_done
        if walk.is_done:
            probe.open.pop()
        left, right = self._kept(segment, batch, left, right)
        if self._matching.windows.decide(batch.signature.span, segment.signature.span):
            sides = (batch.stores, batch.rows), (self._stores, segment.rows())
            near = self._matching.windows.agree(*sides, left, right)
            left, right = left[near], right[near]
        mine, signature = segment.rows(), batch.signature
        signature = signature.having(
            span=signature.span | segment.signature.span,
            done=signature.done | segment.signature.done,
            raised=signature.raised | segment.signature.raised,
        )
        if in_order and len(left) == batch.size and not isinstance(walk, Product):
            rows, failures = dict(batch.rows), dict(batch.failures)
        else:
            rows = {relation: numbers[left] for relation, numbers in batch.rows.items()}
            failures = {i: f[left] for i, f in batch.failures.items()}
        for relation, numbers in mine.items():
            rows[relation] = numbers[right]
        for predicate, found in segment.failures().items():
            failures[predicate] = found[right]
        stores = {**batch.stores, **{r: self._stores[r] for r in mine}}
        return TupleBatch(signature, rows, stores, path=batch.path, origin=origin, failures=failures)

    def _kept(self, segment: Segment, batch: TupleBatch, left: Array, right: Array) -> tuple[Array, Array]:
        """Drop removed tuples, and pairs that conjuncts between the two sides reject."""
        present = segment.present(right)
        if present is not None:
            left, right = left[present], right[present]
        shared = tuple(
            i
            for i, c in enumerate(self._matching.graph.classes)
            if c.span & batch.signature.span and c.span & segment.signature.span
        )
        if shared == self.classes and (not shared or self._matching.decides(self.owner, shared)):
            return left, right
        if len(self.classes) == 1 and self._matching.decides(self.owner, self.classes):
            shared = tuple(c for c in shared if c != self.classes[0])
        one = batch.stores, batch.rows
        other = self._stores, segment.rows()
        keep = self._matching.verified(one, other, shared, left, right)
        return left[keep], right[keep]

    def demoted_to_base(self, batch: TupleBatch) -> TupleBatch:
        """Return the components of the STAIR's own relation in tuples, each once."""
        self.demoted += batch.size
        return distinct(self.part(batch, 1 << self.owner))

    def take_out(self, signature: Signature, positions: Array | None = None) -> TupleBatch:
        """Remove tuples of a segment and return them; all of them if no positions are given."""
        segment = self.segments[signature]
        batch = segment.batch(self._stores, positions)
        if positions is None or len(positions) >= segment.live:
            del self.segments[signature]
        else:
            segment.remove(positions)
            if 2 * segment.dead > segment.size:
                self._compact(segment)
        return batch

    def expire(self, relation: int, below: int) -> None:
        """Remove the tuples whose component of a relation has a row number below this one: it has expired."""
        for segment in list(self.segments.values()):
            if not segment.signature.span >> relation & 1:
                continue
            positions = np.flatnonzero(segment.rows()[relation] < below)
            present = segment.present(positions)
            positions = positions if present is None else positions[present]
            if not len(positions):
                continue
            self.evicted += len(positions)
            if len(positions) == segment.live:
                del self.segments[segment.signature]
                continue
            segment.remove(positions)
            if 2 * segment.dead > segment.size:
                self._compact(segment)

    def _compact(self, segment: Segment) -> None:
        """Rebuild a segment of which more than half has been removed."""
        batch = segment.batch(self._stores)
        fresh = Segment(segment.signature, self.owner, indexed=bool(self.classes))
        self.segments[segment.signature] = fresh
        if batch.size:
            fresh.append(batch, self.codes(batch))
        else:
            del self.segments[segment.signature]

    def merge(self, batch: TupleBatch, apart: Collection[int] = ()) -> None:
        """Insert different tuples and keep Invariant B: those that agree are demoted to what they share.

        The part that two agreeing tuples share is a sub-tuple of both, hence Invariant A, if it held, holds
        still (theorem A.3).

        Args:
            batch: The tuples.
            apart: Spans of stored tuples that none of them can agree with.
        """
        waiting: list[tuple[TupleBatch, Collection[int]]] = [(batch, apart)]
        while waiting:
            batch, apart = waiting.pop()
            # What contains a stored tuple agrees with no other one (B), so it is dropped before those are
            # looked through.
            span = batch.signature.span
            parts_first = sorted(self.segments.values(), key=lambda s: s.signature.span & ~span != 0)
            for segment in parts_first:
                if not batch.size:
                    break
                if not segment.live or segment.signature.span in apart:
                    continue
                mine, theirs = segment.agreeing(batch)
                if not len(mine):
                    continue
                shared = segment.signature.span & batch.signature.span
                if shared != segment.signature.span:
                    held = self.take_out(segment.signature, theirs)
                    self.demoted += len(theirs)
                    if shared != batch.signature.span:
                        waiting.append((distinct(self.part(held, shared)), ()))
                if shared != batch.signature.span or shared == segment.signature.span:
                    # Shorter ones stand for longer ones, and what is held for what comes.
                    left = np.ones(batch.size, np.bool_)
                    left[mine] = False
                    batch = batch.take(np.flatnonzero(left))
            self.insert(batch)

    def part(self, batch: TupleBatch, span: int) -> TupleBatch:
        """Return sub-tuples, with what was done about predicates that they still contain."""
        spans = self._matching.graph.residual_spans
        kept = sum(1 << i for i, needed in enumerate(spans) if needed & span == needed)
        signature = replace(
            batch.signature, span=span, done=batch.signature.done & kept, raised=batch.signature.raised & kept
        )
        rows = {r: rows for r, rows in batch.rows.items() if span >> r & 1}
        failures = {i: f for i, f in batch.failures.items() if signature.raised >> i & 1}
        return TupleBatch(signature, rows, {r: batch.stores[r] for r in rows}, failures=failures)

    def contents(self) -> Iterator[TupleBatch]:
        """Yield everything held, a batch for each signature."""
        for segment in self.segments.values():
            if segment.live:
                yield segment.batch(self._stores)


def distinct(batch: TupleBatch) -> TupleBatch:
    """Return each tuple of a batch once."""
    if batch.size < 2:
        return batch
    numbers = list(batch.rows.values())
    if len(numbers) == 1 and (spread := int(np.ptp(numbers[0])) + 1) <= _SPREAD * batch.size:
        first = np.full(spread, -1, np.int64)
        first[numbers[0] - numbers[0].min()] = np.arange(batch.size)
        kept = first[first >= 0]
        return batch if len(kept) == batch.size else batch.take(kept)
    first, _ = grouped(numbers)
    return batch if len(first) == batch.size else batch.take(np.sort(first))
