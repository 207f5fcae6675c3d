"""Where present routing would have put stored tuples, and moving those that are elsewhere.

If tuples of each span always go to the same join, the spans that occur, and the STAIRs they end up in,
follow from that: base tuples at the joins they are routed to, and with every pair that meets at a join its
concatenation, at the join that *it* is routed to. State is *settled* when it holds nothing else;
invariants A, B and B+ of :mod:`millrace.engine.stairs.invariants` hold then as if routing had never been
different, for any order of arrival would have led there.

Moving (Deshpande & Hellerstein 2004, section 3.2 and figure 6): by invariant A, some part V of a misplaced
tuple belongs to the border of its span, at a join f. If that is the join the tuple is stored at, it is
demoted to V; else it is promoted by f, and what it has become is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.plan.trees import JoinTree
from millrace.engine.stairs.invariants import Places, Route, Stairs
from millrace.engine.tuples.batch import Signature

_STEPS = 64
"""Sections to move one after the other, per relation, before all state is made anew instead."""


@dataclass(frozen=True)
class Misplaced:
    """Tuples of one segment that are not where present routing would have put them.

    Attributes:
        edge: The edge,
        owner: and the relation whose STAIR they are in.
        signature: Of the tuples.
        tuples: Their number.
        part: Span of the part of them that belongs elsewhere,
        place: and the edge that it belongs to; the same edge means demotion.
    """

    edge: int
    owner: int
    signature: Signature
    tuples: int
    part: int
    place: int


def places_of(tree: JoinTree, route: Route) -> Places:
    """Return what is stored where if tuples of every span follow ``route``."""
    everything = (1 << tree.relations) - 1
    stored: dict[tuple[int, int], list[int]] = {}
    waiting = [1 << r for r in range(tree.relations)]
    seen = set()
    while waiting:
        span = waiting.pop()
        if span == everything or span in seen:
            continue
        seen.add(span)
        edge = route(span)
        stored.setdefault((edge, tree.near(edge, span)), []).append(span)
        waiting += [span | other for other in stored.get((edge, tree.far(edge, span)), ())]
    return frozenset((span, edge) for (edge, _), spans in stored.items() for span in spans)


def misplaced(stairs: Stairs, places: Places) -> Iterator[Misplaced]:
    """Yield the segments that are to be moved, demotions first: they make room for what is promoted.

    Args:
        stairs: The state.
        places: Where tuples belong.
    """
    found = []
    for edge, stair in stairs.stairs():
        for signature, segment in stair.segments.items():
            if not segment.live or (signature.span, edge) in places:
                continue
            border = stairs.tree.border(signature.span)
            parts = [
                (place != edge, -span.bit_count(), span, place)
                for span, place in places
                if span & ~signature.span == 0 and place in border
            ]
            # A demotion has to keep the STAIR's own relation; a part at the STAIR's edge always does.
            _, _, part, place = min(parts)
            found.append(Misplaced(edge, stair.owner, signature, segment.live, part, place))
    yield from sorted(found, key=lambda m: (m.place != m.edge, m.edge, m.signature.span))


def clashing(stairs: Stairs) -> dict[tuple[int, int, Signature], Array]:
    """Return the positions of tuples that break B+, by the edge and the owner of their STAIR and signature.

    None: insertions need not enforce B any more, however many tuples are misplaced.
    """
    held = [
        (edge, stair, one) for edge, stair in stairs.stairs() for one in stair.segments.values() if one.live
    ]
    held.sort(key=lambda place: place[2].live)  # an index is made of the smaller one of two segments
    beyond = {(edge, stair.owner): stairs.tree.beyond(edge, 1 << stair.owner) for edge, stair, _ in held}
    found: dict[tuple[int, int, Signature], list[Array]] = {}
    for (edge, stair, one), (via, other_stair, other) in combinations(held, 2):
        here, there = (edge, stair.owner), (via, other_stair.owner)
        mine, theirs = one.signature.span, other.signature.span
        if here == there or not mine & theirs or theirs & beyond[here] or mine & beyond[there]:
            continue
        positions = other.positions()
        left, right = one.agreeing(other.batch(stairs.stores, positions))
        if len(left):
            found.setdefault((*here, one.signature), []).append(right)
            found.setdefault((*there, other.signature), []).append(positions[left])
    for _, _, one in held:
        one.forget_shared()
    return {place: np.unique(np.concatenate(parts)) for place, parts in found.items()}


def move(stairs: Stairs, wrong: Misplaced, positions: Array | None = None) -> None:
    """Move misplaced tuples of a segment, all of them by default."""
    if wrong.place == wrong.edge:
        stairs.demote(wrong.edge, wrong.owner, wrong.signature, wrong.part, positions)
    else:
        stairs.promote(wrong.edge, wrong.owner, wrong.signature, wrong.place, positions)


def settle(stairs: Stairs, route: Route, places: Places, most: int) -> int:
    """Move misplaced tuples, at most ``most`` of them; return how many were moved.

    When nothing is left to move, B+ holds by itself again and insertions are as cheap as before.

    Args:
        stairs: The state.
        route: Where tuples of each span go,
        places: and what follows from it.
        most: Tuples to move.
    """
    moved = 0
    steps = _STEPS * stairs.tree.relations
    while moved < most:
        if not steps:
            # Parts that overlap may push each other to and fro; from base tuples it is certain.
            stairs.rebuild(stairs.tree, route)
            break
        steps -= 1
        wrong = next(misplaced(stairs, places), None)
        if wrong is None:
            stairs.enforcing = False
            break
        stair = stairs.joins[wrong.edge].stairs[wrong.owner]
        count = min(wrong.tuples, most - moved)
        positions = None
        if count < wrong.tuples:
            positions = stair.segments[wrong.signature].positions()[:count]
        move(stairs, wrong, positions)
        moved += count
    return moved
