"""All STAIRs of a block: routing through them, and moving what they hold.

Deshpande & Hellerstein 2004, sections 3.1, 3.3 and appendix A. Two invariants make any mixture of routing
and moving right, at points of stasis (no tuple in flight):

* **A**: for every connected span C, each result of joining what has arrived of it is present as a sub-tuple
  in a STAIR at the border of C; hence a later arrival from outside meets it. Here it is asked only of spans
  beyond all of whose borders something may still arrive: a STAIR whose far side has ended
  is *closed* and holds nothing.
* **B**: no two tuples of a STAIR agree on all components that they share; hence it is met only once.

The paper enforces B inside each STAIR after moving state. That is not enough: demote ``r1s1`` in S.b to
``s1`` while ``s1`` is in S.a too. Both STAIRs obey B, but a new ``r2`` finds ``s1`` in S.a and is inserted
as ``r2s1`` beside ``s1`` in S.b, and then a ``t`` makes ``r2s1t`` twice. What routing really preserves is

* **B+**: if two stored tuples share a relation and agree on all components that they share, one of them
  reaches across the join that the other is stored at.

(B is the case of one STAIR. Proof for routing: a new tuple that clashed with a stored one was made by a
match that clashed with it before.) Whoever moves only part of what belongs together breaks B+, so until it
holds again (:attr:`Stairs.enforcing`), insertions enforce B one by one: a tuple that agrees with a stored one
is demoted to the part they share, which loses nothing.

Most comparisons can be spared. If tuples of each span always went to the same join, state would hold
certain spans at certain joins (:data:`Places`), and every tuple of these; B+ would hold. So two tuples that
are both where present routing puts them never clash, however they came there, and only with others is a new
one compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import Edge, JoinTree, edge_names
from millrace.engine.stairs.stair import STAIR, BinaryJoin, Segment, StairProbe, distinct
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import StateError

Places = frozenset[tuple[int, int]]
"""Pairs of a span and the edge that its tuples are stored at."""

Route = Callable[[int], int]
"""Returns the edge that tuples of a span, which leaves some relation out, are routed to."""

_PIECE = 65_536

_STEPS = 16
"""Segments to promote one after the other, per relation, before the rest is left for later."""


class Stairs:
    """The joins of a spanning tree with their state.

    Args:
        stems: Base tuples by relation; they also know which relations have ended.
        make: Makes the joins, where index joins lead to relations that are leaves of the tree. What these
            hold is the answer to what was asked: it is not to be moved.
        grown: Called whenever moving state has made tuples. What it raises leaves no state to go on with.
        places: Returns where present routing puts tuples; nothing where that is not known.
        intermediate: Store intermediate tuples. Else an inserted tuple is demoted at once to the component of
            the STAIR's own relation (section 3.3), and what is not stored is made again when it is asked for.
            That breaks B+: insertions have to enforce B.

    Attributes:
        joins: Those of the present tree, by the numbers of their edges.
        enforcing: Whether state has been moved in a way that leaves B+ to insertions.
        enforced: Tuples that were inserted with B enforced, since it was last looked whether B+ holds again.
        moved: Stored tuples demoted or promoted so far.
        recomputed: Tuples made by moving state so far.
    """

    def __init__(
        self,
        spec: JoinSpec,
        graph: QueryGraph,
        tree: JoinTree,
        stems: Sequence[SteM],
        make: Callable[[Edge], BinaryJoin] | None = None,
        grown: Callable[[], None] | None = None,
        places: Callable[[], Places] = frozenset,
        *,
        intermediate: bool = True,
    ) -> None:
        self.stores = {stem.number: stem.store for stem in stems}
        self.enforcing = False
        self.enforced = self.moved = self.recomputed = 0
        self._spec = spec
        self._graph = graph
        self._stems = stems
        self._make = make or (lambda edge: BinaryJoin(edge, spec, stems))
        self._grown = grown or (lambda: None)
        self._places = places
        self._intermediate = intermediate
        self._grow(tree)

    def _grow(self, tree: JoinTree) -> None:
        self.tree = tree
        self.joins = {edge.number: self._make(edge) for edge in tree.edges}

    def stairs(self) -> Iterator[tuple[int, STAIR]]:
        """Yield every STAIR with the number of its edge."""
        for edge, join in self.joins.items():
            for stair in join.stairs.values():
                yield edge, stair

    def segment(self, edge: int, owner: int, signature: Signature) -> Segment | None:
        return self.joins[edge].stairs[owner].segments.get(signature)

    @property
    def tuples(self) -> int:
        return sum(stair.tuples for _, stair in self.stairs())

    def is_open(self, edge: int, owner: int) -> bool:
        """Whether something may still arrive on the other side of an edge than ``owner``'s."""
        beyond = self.tree.beyond(edge, 1 << owner)
        return any(beyond >> stem.number & 1 and not stem.complete for stem in self._stems)

    def close(self) -> None:
        """Let go of what nobody will look for any more, after a relation has ended."""
        for edge, stair in self.stairs():
            if stair.segments and not self.is_open(edge, stair.owner):
                stair.segments.clear()

    def expire(self, relation: int, below: int) -> None:
        """Remove tuples with a component of a relation whose row number is below this one, everywhere.

        To be called before base tuples are evicted: nothing held refers to one that is gone.
        """
        for _, stair in self.stairs():
            stair.expire(relation, below)

    # Routing

    def route(self, edge: int, batch: TupleBatch) -> StairProbe:
        """Insert tuples into a STAIR and begin to probe its dual."""
        return self._route(edge, batch, kept=self.is_open(edge, self.tree.near(edge, batch.signature.span)))

    def _route(self, edge: int, batch: TupleBatch, *, kept: bool, skip: int = 0) -> StairProbe:
        join, span = self.joins[edge], batch.signature.span
        apart: frozenset[int] | None = None
        # A base tuple that has just come agrees with nothing stored.
        if kept and span & (span - 1):
            if not self._intermediate:
                near = join.near(batch)
                near.merge(near.demoted_to_base(batch))
                self.enforcing, kept = True, False
            elif self.enforcing:
                apart = self._apart(edge, span, join.near(batch))
                self.enforced += 0 if apart is None else batch.size
        return join.route(batch, kept=kept, apart=apart, skip=skip)

    def _apart(self, edge: int, span: int, near: STAIR) -> frozenset[int] | None:
        """Return the spans of stored tuples that one of a span cannot agree with; None if those are all."""
        places = self._places()
        if (span, edge) not in places:
            return frozenset()
        apart = frozenset(each for each, at in places if at == edge)
        held = (one.signature.span for one in near.segments.values() if one.live)
        return None if apart.issuperset(held) else apart

    # State management

    def demote(
        self, edge: int, owner: int, signature: Signature, span: int, positions: Array | None = None
    ) -> None:
        """Replace tuples of a STAIR by sub-tuples of a span (``Demotion(R.a, t, t')``, section 3.1.1).

        The STAIR is that of relation ``owner`` at the edge. ``positions`` are in the segment of the
        signature, all of them by default.

        Raises:
            StateError: A precondition does not hold.
        """
        stair = self._stair(edge, owner, signature, positions)
        whole = signature.span
        if span & ~whole or span == whole or not span >> owner & 1 or not self.tree.is_connected(span):
            raise StateError(
                f"cannot demote tuples of {self._named(whole)} in {stair.name} to {self._named(span)}: "
                f"expected a smaller connected part of them that keeps {self._spec.aliases[owner]!r}"
            )
        self.enforcing = True
        batch = stair.take_out(signature, positions)
        self.moved += batch.size
        stair.demoted += batch.size
        stair.merge(distinct(stair.part(batch, span)))

    def promote(
        self, edge: int, owner: int, signature: Signature, via: int, positions: Array | None = None
    ) -> None:
        """Replace tuples of a STAIR by their matches in another join (``Promotion(R.a, t, S.b)``, 3.1.1).

        The tuples are named as in :meth:`demote`. ``via`` is the join's edge; it leads out of their span.

        Raises:
            StateError: A precondition does not hold.
        """
        stair = self._stair(edge, owner, signature, positions)
        border = self.tree.border(signature.span)
        if via == edge or via not in border:
            names = edge_names(self._spec, self._graph)
            usable = [names[e] for e in border if e != edge]
            told = names[via] if via in self.joins else f"join number {via}"
            raise StateError(
                f"cannot promote tuples of {self._named(signature.span)} in {stair.name} by {told}: "
                "expected a join of one of their relations with another one, not the STAIR's own, here one "
                f"of {usable}"
            )
        self.enforcing = True
        batch = stair.take_out(signature, positions)
        self.moved += batch.size
        stair.promoted += batch.size
        join = self.joins[via]
        near = self.tree.near(via, signature.span)
        probe = join.route(batch, kept=self.is_open(via, near), apart=())
        needed = self.is_open(edge, owner)
        while needed and not probe.is_done:
            found = join.matches(probe, _PIECE)
            self.recomputed += found.size
            stair.merge(found)
            self._grown()

    def rebuild(self, tree: JoinTree, route: Route) -> None:
        """Exchange the spanning tree (section 3.3, cyclic queries): rebuild all state from base tuples."""
        self.moved += self.tuples
        self.enforcing = False
        self._grow(tree)
        coming = self._graph.everything
        for stem in self._stems:
            for low in range(stem.store.first, stem.rows, _PIECE):
                rows = np.arange(low, min(low + _PIECE, stem.rows), dtype=np.int32)
                base = TupleBatch(Signature(1 << stem.number), {stem.number: rows}, {stem.number: stem.store})
                self._replay(base, route, coming)
            coming &= ~(1 << stem.number)
        self.close()

    def _replay(self, batch: TupleBatch, route: Route, coming: int) -> None:
        """Route tuples again, and what comes of them piece by piece; results are out already.

        ``coming`` spans the relations whose base tuples are still to be routed again.
        """
        # Only what later arrivals need is made again.
        edge = route(batch.signature.span)
        near = self.tree.near(edge, batch.signature.span)
        kept = bool(coming & self.tree.beyond(edge, 1 << near)) or self.is_open(edge, near)
        probe = self._route(edge, batch, kept=kept, skip=self._graph.everything)
        self._grown()
        while not probe.is_done:
            found = self.joins[edge].matches(probe, _PIECE)
            self.recomputed += found.size
            if found.size:
                self._replay(found, route, coming)

    def precompute(self, missing: int) -> None:
        """Join what waits for relations that have stalled, as far as the other relations can (section 3.3).

        Every tuple in a STAIR that faces a missing relation, and has components of others alone, becomes its
        matches with all others that the tree connects without the missing ones. By invariant A, each result
        of joining those is then in one of these STAIRs. Cross products are left for later, and so is the rest
        after some steps.
        """
        steps = _STEPS * self.tree.relations
        for edge, stair in self.stairs():
            far = self.tree.far(edge, 1 << stair.owner)
            if missing >> stair.owner & 1 or not missing >> far & 1:
                continue
            whole = self.tree.reached(stair.owner, self._graph.everything & ~missing)
            while steps and (found := self._unfinished(stair, whole)):
                self.promote(edge, stair.owner, *found)
                steps -= 1

    def _unfinished(self, stair: STAIR, whole: int) -> tuple[Signature, int] | None:
        """Return a segment that could be joined with more of a span, and by which edge."""
        for signature, segment in stair.segments.items():
            if segment.live and not signature.span & ~whole:
                for via in self.tree.border(signature.span):
                    inside = whole >> self.tree.far(via, signature.span) & 1
                    if inside and self.tree.by_number[via].classes:
                        return signature, via
        return None

    def _stair(self, edge: int, owner: int, signature: Signature, positions: Array | None) -> STAIR:
        if edge not in self.joins or owner not in self.joins[edge].stairs:
            raise StateError(
                f"there is no STAIR of relation number {owner} on edge {edge}; edges and relations are "
                f"{[(e.number, e.ends) for e in self.tree.edges]}"
            )
        stair = self.joins[edge].stairs[owner]
        segment = stair.segments.get(signature)
        if segment is None:
            held = [self._named(s.span) for s in stair.segments]
            raise StateError(
                f"{stair.name} holds no tuples of {self._named(signature.span)} with the signature "
                f"{signature}; it holds {held or 'nothing'}"
            )
        if positions is not None:
            places = np.asarray(positions)
            present = len(places) == 0 or (places.min() >= 0 and places.max() < segment.size)
            keep = segment.present(places) if present else None
            if not present or len(np.unique(places)) != len(places) or (keep is not None and not keep.all()):
                raise StateError(
                    f"positions given for {stair.name} are not those of different tuples it holds: expected "
                    f"some of the segment's positions below {segment.size}"
                )
        return stair

    def _named(self, span: int) -> str:
        return (
            "".join(f"({alias})" for i, alias in enumerate(self._spec.aliases) if span >> i & 1) or "nothing"
        )
