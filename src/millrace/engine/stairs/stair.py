"""STAIRs: the state of the sides of a join, open to the eddy; and the join of two of them.

Deshpande & Hellerstein 2004, section 3.1. A STAIR on relation R and the join attributes of one edge
holds tuples that contain a component of R, base tuples and intermediate ones, indexed by those
attributes. Its *dual* is the STAIR at the edge's other end.

What it holds is kept in segments, one for each signature, so that insertion, probe, demotion, promotion and
eviction work on whole sets of tuples: arrays of row numbers of base tuples, which stay in their stores.

Invariant B (appendix A.1): no two tuples of a STAIR agree on all components that they share. Routing
keeps it (see :mod:`millrace.engine.stairs.invariants`); what moves state has to ask for it:
:meth:`STAIR.merge`.

A tuple that is *routed to a join* is inserted on its own side and probes the other (Dual Routing,
section 3.1). With join attributes that is a symmetric hash join; without any it is a block ripple join, whose
pairs the block's other predicates thin out. Once everything on one side has arrived, tuples of the other only
probe, for nobody will come to look for them: an index join, or the second phase of a hash join.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from millrace.engine.arrays import Array, extend
from millrace.engine.figures import StateFigures
from millrace.engine.kernels import Multimap, Walk
from millrace.engine.plan.graph import members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import Edge, side_name
from millrace.engine.stems.conditions import Classes, Matching, combine_codes
from millrace.engine.stems.index import Cursor, Product
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples import MOST_ROOM, RelationStore
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.engine.tuples.keys import group

_PIECE = 65_536
"""Pairs that are looked at in one go."""

_SPREAD = 16
"""Row numbers spread over no more than so many times their number are sorted by counting."""


class Segment:
    """The tuples of one signature in a STAIR, by position in the order of insertion.

    They are not ``indexed`` where a join has no attributes. ``room`` is the number of tuples expected.
    """

    def __init__(self, signature: Signature, *, indexed: bool, room: int = 0) -> None:
        self.signature = signature
        self.size = 0
        self.dead = 0
        room = min(room, MOST_ROOM)
        self.index = Multimap(room) if indexed else None
        self._rows = {r: np.empty(room, np.int32) for r in members(signature.span)}
        self._failures: dict[int, Array] = {}
        self._gone: Array | None = None
        self._shared: dict[tuple[int, ...], Multimap] = {}

    @property
    def live(self) -> int:
        """Tuples that have not been removed."""
        return self.size - self.dead

    @property
    def _indexes(self) -> list[Multimap]:
        return [i for i in (self.index, *self._shared.values()) if i is not None]

    @property
    def nbytes(self) -> int:
        """Memory of row numbers and indexes in bytes."""
        arrays = sum(a.itemsize * self.size for a in self._rows.values())
        return arrays + sum(i.nbytes for i in self._indexes) + (0 if self._gone is None else self.size)

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that indexes take however few tuples they have."""
        return sum(i.least for i in self._indexes)

    def append(self, batch: TupleBatch, codes: Array | None) -> None:
        """Add tuples of the segment's signature, with the codes of their join attributes."""
        for relation, rows in batch.rows.items():
            self._rows[relation] = extend(self._rows[relation], self.size, rows)
        for predicate, failures in batch.failures.items():
            held = self._failures.get(predicate, np.empty(0, object))
            self._failures[predicate] = extend(held, self.size, failures)
        if self._gone is not None:
            self._gone = extend(self._gone, self.size, np.zeros(batch.size, np.bool_))
        if self.index is not None:
            assert codes is not None
            self.index.insert(codes)
        self.size += batch.size

    def rows(self) -> dict[int, Array]:
        """Return the row numbers by relation, those of removed tuples among them."""
        return {relation: rows[: self.size] for relation, rows in self._rows.items()}

    def failures(self) -> dict[int, Array]:
        """Return what predicates raised, by predicate, aligned with the rows."""
        return {i: failures[: self.size] for i, failures in self._failures.items()}

    def batch(self, stores: Mapping[int, RelationStore], positions: Array | None = None) -> TupleBatch:
        """Return the tuples at these positions, or all that have not been removed."""
        if positions is None and self.dead:
            positions = self.positions()
        rows, failures = self.rows(), self.failures()
        if positions is not None:
            rows = {relation: r[positions] for relation, r in rows.items()}
            failures = {i: f[positions] for i, f in failures.items()}
        return TupleBatch(self.signature, rows, {r: stores[r] for r in rows}, failures=failures)

    def positions(self) -> Array:
        """Return where tuples are that have not been removed."""
        if self._gone is None:
            return np.arange(self.size)
        return np.flatnonzero(~self._gone[: self.size])

    def remove(self, positions: Array) -> None:
        """Remove tuples; their places stay empty."""
        if self._gone is None:
            self._gone = np.zeros(len(next(iter(self._rows.values()))), np.bool_)
        self.dead += int(np.count_nonzero(~self._gone[positions]))
        self._gone[positions] = True

    def present(self, positions: Array) -> Array | None:
        """Return which of these tuples have not been removed; None: all of them."""
        return None if not self.dead or self._gone is None else ~self._gone[positions]

    def agreeing(self, batch: TupleBatch) -> tuple[Array, Array]:
        """Return what agrees on all components that both sides share: positions in ``batch``, and here.

        A semi-join: each position once, however many tuples of the other side it agrees with. So no more
        pairs are looked at than there are tuples here that agree with something.
        """
        relations, index = self.by_shared(batch)
        codes = combine_codes([batch.rows[r].astype(np.int64) for r in relations])
        walk = index.probe(codes)
        known = walk.probes[: walk.active]
        order, is_first = group([batch.rows[r][known] for r in relations])
        different = known[order[is_first]]
        agreed = np.zeros(len(different), np.bool_)
        found = [np.empty(0, np.int32)]
        walk = index.probe(codes[different])
        while not walk.is_done:
            left, right = walk.pairs(_PIECE)
            # Codes of several components may collide.
            keep = np.ones(len(left), np.bool_) if (present := self.present(right)) is None else present
            for r in relations:
                keep &= batch.rows[r][different[left]] == self._rows[r][right]
            agreed[left[keep]] = True
            found.append(right[keep])
        return known[order[agreed[np.cumsum(is_first) - 1]]], np.concatenate(found)

    def by_shared(self, batch: TupleBatch) -> tuple[tuple[int, ...], Multimap]:
        """Return the relations shared with tuples, and an index by all of their components together."""
        relations = tuple(r for r in self._rows if r in batch.rows)
        index = self._shared.setdefault(relations, Multimap())
        if index.rows < self.size:  # it is brought up to date when it is asked for
            new = [self._rows[r][index.rows : self.size].astype(np.int64) for r in relations]
            index.insert(combine_codes(new))
        return relations, index

    def forget_shared(self) -> None:
        """Let go of the indexes that agreement is found by."""
        self._shared.clear()


@dataclass(eq=False)
class StairProbe:
    """A probe into a STAIR that may be under way, and ``is_new`` until matches are asked for.

    ``open`` has segments with how far their matches have been returned, the present one last.
    """

    batch: TupleBatch
    open: list[tuple[Segment, Cursor]]
    is_new: bool = True

    @property
    def is_done(self) -> bool:
        return not self.open


class STAIR:
    """Tuples that contain a component of one relation, indexed on the attributes of one join.

    Without attribute classes the join is a cross product, whose probes are steps of a block ripple join.
    ``room`` is the number of base tuples expected.
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
        self.inserted = self.demoted = self.promoted = self.evicted = 0
        self._matching = matching
        self._stores = stores
        self._room = room
        # Classes on which equal codes prove that tuples agree.
        self._decided = classes if matching.decides(owner, classes) else ()

    @property
    def tuples(self) -> int:
        return sum(segment.live for segment in self.segments.values())

    @property
    def nbytes(self) -> int:
        """Memory in bytes, that of base tuples not included."""
        return sum(segment.nbytes for segment in self.segments.values())

    def figures(self) -> StateFigures:
        return StateFigures(
            self.name, self.tuples, self.nbytes, self.inserted, self.demoted, self.promoted, self.evicted
        )

    def codes(self, batch: TupleBatch) -> Array | None:
        """Return the codes of the join attributes of tuples that contain the owner."""
        if not self.classes:
            return None
        return self._matching.codes((batch.stores, {self.owner: batch.rows[self.owner]}), self.classes)

    def insert(self, batch: TupleBatch, codes: Array | None = None) -> None:
        """Store tuples (``insert(R.a, t)``), with the codes of their join attributes if those are known.

        The tuples contain the owner, and nothing from the other side of the join.
        """
        if not batch.size:
            return
        signature = batch.signature
        segment = self.segments.get(signature)
        if segment is None:
            room = self._room if signature.span == 1 << self.owner else 0
            segment = Segment(signature, indexed=bool(self.classes), room=room)
            self.segments[signature] = segment
        segment.append(batch, self.codes(batch) if codes is None else codes)
        self.inserted += batch.size

    def start(self, batch: TupleBatch, codes: Array | None, skip: int = 0) -> StairProbe:
        """Begin to look for matches (``probe(R.a, val)``) of tuples that share no component with those held.

        ``codes`` are of their join attributes, None for a cross product. Matches that would together span the
        relations of ``skip`` are left out.
        """
        opened: list[tuple[Segment, Cursor]] = []
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
        is_new = walk.is_new and len(probe.open) == 1
        left, right = walk.pairs(limit)
        in_order = is_new and isinstance(walk, Walk) and walk.table.unique and walk.is_done
        if walk.is_done:
            probe.open.pop()
        left, right = self._kept(segment, batch, left, right)
        one, other, mine = batch.signature, segment.signature, segment.rows()
        rows, failures = dict(batch.rows), dict(batch.failures)
        if not in_order or len(left) < batch.size:
            rows = {relation: numbers[left] for relation, numbers in rows.items()}
            failures = {i: f[left] for i, f in failures.items()}
        rows |= {relation: numbers[right] for relation, numbers in mine.items()}
        failures |= {i: f[right] for i, f in segment.failures().items()}
        stores = {**batch.stores, **{r: self._stores[r] for r in mine}}
        signature = one.having(
            span=one.span | other.span, done=one.done | other.done, raised=one.raised | other.raised
        )
        return TupleBatch(signature, rows, stores, path=batch.path, origin=origin, failures=failures)

    def _kept(self, segment: Segment, batch: TupleBatch, left: Array, right: Array) -> tuple[Array, Array]:
        """Drop removed tuples, and pairs that conjuncts or windows between the two sides reject."""
        present = segment.present(right)
        if present is not None:
            left, right = left[present], right[present]
        mine, theirs = batch.signature.span, segment.signature.span
        undecided = tuple(
            i
            for i, c in enumerate(self._matching.graph.classes)
            if c.span & mine and c.span & theirs and i not in self._decided
        )
        sides = (batch.stores, batch.rows), (self._stores, segment.rows())
        keep = self._matching.agree(*sides, undecided, left, right)
        return (left, right) if keep is None else (left[keep], right[keep])

    def take_out(self, signature: Signature, positions: Array | None = None) -> TupleBatch:
        """Remove tuples of a segment and return them; all of them if no positions are given."""
        segment = self.segments[signature]
        batch = segment.batch(self._stores, positions)
        self._remove(segment, positions)
        return batch

    def expire(self, relation: int, below: int) -> None:
        """Remove the tuples whose component of a relation has a row number below this one: it has expired."""
        for segment in list(self.segments.values()):
            if not segment.signature.span >> relation & 1:
                continue
            positions = np.flatnonzero(segment.rows()[relation] < below)
            present = segment.present(positions)
            positions = positions if present is None else positions[present]
            self.evicted += len(positions)
            if len(positions):
                self._remove(segment, positions)

    def _remove(self, segment: Segment, positions: Array | None) -> None:
        """Remove tuples of a segment, which is made anew when it has lost more than a half of its tuples."""
        if positions is None or len(positions) >= segment.live:
            del self.segments[segment.signature]
            return
        segment.remove(positions)
        if 2 * segment.dead > segment.size:
            batch = segment.batch(self._stores)
            fresh = Segment(segment.signature, indexed=bool(self.classes))
            fresh.append(batch, self.codes(batch))
            self.segments[segment.signature] = fresh

    def merge(self, batch: TupleBatch, apart: Collection[int] = ()) -> None:
        """Insert different tuples and keep Invariant B: those that agree are demoted to what they share.

        The part that two agreeing tuples share is a sub-tuple of both, hence Invariant A, if it held, holds
        still (theorem A.3). With stored tuples whose spans are in ``apart`` none of them can agree.
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
                theirs = segment.signature.span
                if not segment.live or theirs in apart:
                    continue
                mine, held = segment.agreeing(batch)
                if not len(mine):
                    continue
                shared = theirs & span
                if shared != theirs:
                    out = self.take_out(segment.signature, held)
                    self.demoted += len(held)
                    if shared != span:
                        waiting.append((distinct(self.part(out, shared)), ()))
                if shared != span or shared == theirs:
                    # Shorter ones stand for longer ones, and what is held for what comes.
                    left = np.ones(batch.size, np.bool_)
                    left[mine] = False
                    batch = batch.take(np.flatnonzero(left))
            self.insert(batch)

    def demoted_to_base(self, batch: TupleBatch) -> TupleBatch:
        """Return the components of the STAIR's own relation in tuples, each once."""
        self.demoted += batch.size
        return distinct(self.part(batch, 1 << self.owner))

    def part(self, batch: TupleBatch, span: int) -> TupleBatch:
        """Return sub-tuples, with what was done about predicates that they still contain."""
        spans = self._matching.graph.residual_spans
        kept = sum(1 << i for i, needed in enumerate(spans) if needed & span == needed)
        whole = batch.signature
        signature = replace(whole, span=span, done=whole.done & kept, raised=whole.raised & kept)
        rows = {r: rows for r, rows in batch.rows.items() if span >> r & 1}
        failures = {i: f for i, f in batch.failures.items() if signature.raised >> i & 1}
        return TupleBatch(signature, rows, {r: batch.stores[r] for r in rows}, failures=failures)


class BinaryJoin:
    """The join along one edge of the spanning tree: two STAIRs, by their owners, each other's duals."""

    def __init__(self, edge: Edge, spec: JoinSpec, stems: Sequence[SteM]) -> None:
        self.edge = edge
        matching, stores = stems[0].matching, {stem.number: stem.store for stem in stems}
        names = {end: f"STAIR({side_name(spec, matching.graph, edge, end)})" for end in edge.ends}
        self.stairs = {
            end: STAIR(end, edge.classes, matching, stores, name, spec.relations[end].rows or 0)
            for end, name in names.items()
        }

    def near(self, batch: TupleBatch) -> STAIR:
        """Return the STAIR that tuples are inserted into."""
        a, b = self.edge.ends
        return self.stairs[a if batch.signature.span >> a & 1 else b]

    def dual(self, stair: STAIR) -> STAIR:
        a, b = self.edge.ends
        return self.stairs[b if stair.owner == a else a]

    def route(
        self, batch: TupleBatch, *, kept: bool = True, apart: Collection[int] | None = None, skip: int = 0
    ) -> StairProbe:
        """Insert tuples on their side and begin to probe the other.

        Args:
            batch: Tuples with a component of exactly one of the two relations.
            kept: False when nothing will ever look for them, as when all on the other side has arrived.
            apart: Enforce Invariant B, for state has been moved. With stored tuples of these spans none of
                them can agree. None: they agree with nothing stored.
            skip: Leave out matches that would span these relations.
        """
        near = self.near(batch)
        codes = near.codes(batch)
        if kept and apart is not None:
            near.merge(batch, apart)
        elif kept:
            near.insert(batch, codes)
        return self.dual(near).start(batch, codes, skip)

    def matches(self, probe: StairProbe, limit: int) -> TupleBatch:
        return self.dual(self.near(probe.batch)).matches(probe, limit)


def distinct(batch: TupleBatch) -> TupleBatch:
    """Return each tuple of a batch once."""
    if batch.size < 2:
        return batch
    numbers = list(batch.rows.values())
    if len(numbers) == 1 and (spread := int(np.ptp(numbers[0])) + 1) <= _SPREAD * batch.size:
        first = np.full(spread, -1, np.int64)
        first[numbers[0] - numbers[0].min()] = np.arange(batch.size)
        kept = first[first >= 0]
    else:
        order, is_first = group(numbers)
        kept = np.sort(order[is_first])
    return batch if len(kept) == batch.size else batch.take(kept)
