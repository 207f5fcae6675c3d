"""State migration: where present routing would have put stored tuples, and moving those that are elsewhere.

If tuples of each span always go to the same join, the spans that occur, and the STAIRs they end up in,
follow from that: base tuples at the joins they are routed to, and with every pair that meets at a join its
concatenation, at the join that *it* is routed to. State is *settled* when it holds nothing else;
invariants A, B and B+ of :mod:`millrace.engine.stairs.invariants` hold then as if routing had never been
different, for any order of arrival would have led there.

Moving (Deshpande & Hellerstein 2004, section 3.2 and figure 6): by invariant A, some part V of a misplaced
tuple belongs to the border of its span, at a join f. If that is the join the tuple is stored at, it is
demoted to V; else it is promoted by f, and what it has become is looked at again.

Cyclic queries have several spanning trees. Another one is taken when it is expected to leave less than half
of the work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.trees import JoinTree, spanning_trees
from millrace.engine.stairs.fanout import FanoutModel
from millrace.engine.stairs.invariants import Places, Route, Stairs
from millrace.engine.tuples.batch import Signature

_STEPS = 64
"""Segments to move one after the other, per relation, before all state is made anew instead."""

_MARGIN = 2.0
"""A place is left for another one to which more than so many times as many tuples go."""

_BACK = 8
"""One out of so many of a span's tuples is looked back on, the latest ones: however they are mixed, chance
moves the shares less and less, and what has become different is still noticed."""

_SWITCH_GAIN = 2.0
"""Another spanning tree is taken if it is expected to leave less than half of the work."""

_REBUILD_COST = 3
"""Tuples' worth of work to put one base tuple into the state of another tree."""


class DominantRoute:
    """Where most of the tuples of each span go, however decisions about them differ.

    Routing decides by signature, so tuples of one span that have passed different predicates may go to
    different joins, side by side and for good. Where state belongs follows from spans alone; it would move to
    and fro if it followed whichever decision came last.

    It looks back on at least ``window`` tuples of a span.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: Counter[int] = Counter()
        self._recent: dict[int, dict[Signature, float]] = {}
        self._decided: dict[int, dict[Signature, int]] = {}

    def count(self, signature: Signature, tuples: int) -> None:
        self._seen[signature.span] += tuples
        recent = self._recent.setdefault(signature.span, {})
        recent[signature] = recent.get(signature, 0.0) + tuples
        whole, most = sum(recent.values()), max(self._window, self._seen[signature.span] / _BACK)
        if whole > most:
            for each in recent:
                recent[each] *= most / whole

    def decide(self, signature: Signature, place: int, present: int | None) -> int:
        """Return where tuples of a span belong, now that those of one signature go to ``place``.

        Until now they have belonged at ``present``; None if that is not decided yet.
        """
        decided = self._decided.setdefault(signature.span, {})
        decided[signature] = place
        recent, tuples = self._recent.get(signature.span, {}), Counter[int]()
        for each, there in decided.items():
            tuples[there] += 1 + int(recent.get(each, 0))
        best, most = tuples.most_common(1)[0]
        return best if present is None or most > _MARGIN * tuples[present] else present

    def forget(self) -> None:
        """Forget all decisions: places have other names now."""
        self._decided.clear()


Where = tuple[int, int, Signature]
"""A segment: an edge, the relation whose STAIR there it is in, and its signature."""


@dataclass(frozen=True)
class Misplaced:
    """Tuples of one segment that are not where present routing would have put them.

    The segment is in the STAIR of relation ``owner`` at ``edge``. What belongs elsewhere spans ``part``, and
    belongs to the edge ``place``; the same edge means demotion.
    """

    edge: int
    owner: int
    signature: Signature
    tuples: int
    part: int
    place: int

    @property
    def where(self) -> Where:
        return self.edge, self.owner, self.signature


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


def misplaced(stairs: Stairs, places: Places) -> list[Misplaced]:
    """Return the segments that are to be moved, demotions first: they make room for what is promoted."""
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
    return sorted(found, key=lambda m: (m.place != m.edge, m.edge, m.signature.span))


def clashing(stairs: Stairs) -> dict[Where, Array]:
    """Return the positions of tuples that break B+, by their segment.

    None: insertions need not enforce B any more, however many tuples are misplaced.
    """
    held = [
        (edge, stair, one) for edge, stair in stairs.stairs() for one in stair.segments.values() if one.live
    ]
    held.sort(key=lambda place: place[2].live)  # an index is made of the smaller one of two segments
    beyond = {(edge, stair.owner): stairs.tree.beyond(edge, 1 << stair.owner) for edge, stair, _ in held}
    found: dict[Where, list[Array]] = {}
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
        stairs.demote(*wrong.where, wrong.part, positions)
    else:
        stairs.promote(*wrong.where, wrong.place, positions)


def settle(stairs: Stairs, route: Route, places: Places, most: int) -> int:
    """Move misplaced tuples, at most ``most`` of them; return how many were moved.

    When nothing is left to move, B+ holds by itself again and insertions are as cheap as before. ``places``
    follows from ``route`` (:func:`places_of`).
    """
    moved = 0
    steps = _STEPS * stairs.tree.relations
    while moved < most:
        if not steps:
            # Parts that overlap may push each other to and fro; from base tuples it is certain.
            stairs.rebuild(stairs.tree, route)
            break
        steps -= 1
        wrong = next(iter(misplaced(stairs, places)), None)
        if wrong is None:
            stairs.enforcing = False
            break
        count = min(wrong.tuples, most - moved)
        positions = None
        if count < wrong.tuples:
            stair = stairs.joins[wrong.edge].stairs[wrong.owner]
            positions = stair.segments[wrong.signature].positions()[:count]
        move(stairs, wrong, positions)
        moved += count
    return moved


class TreeChoice:
    """Looks from time to time whether another spanning tree would leave much less work.

    ``patience`` is the base tuples that arrive between two looks; twice as many after each change.
    """

    def __init__(self, graph: QueryGraph, forecast: FanoutModel, patience: int) -> None:
        self._graph = graph
        self._forecast = forecast
        self._patience = patience
        self._looked = 0

    @cached_property
    def _trees(self) -> tuple[JoinTree, ...]:
        return tuple(spanning_trees(self._graph))

    def better(self, present: JoinTree) -> JoinTree | None:
        """Return the tree to go on with, None for the present one."""
        arrived = sum(self._forecast.arrived)
        if arrived - self._looked < self._patience:
            return None
        self._looked = arrived
        if len(self._trees) < 2:
            return None
        work = self._forecast.work(present)
        best = min(self._trees, key=self._forecast.work)
        least = self._forecast.work(best)
        if work <= _SWITCH_GAIN * least or work - least <= _REBUILD_COST * arrived:
            return None
        self._patience *= 2
        return best
