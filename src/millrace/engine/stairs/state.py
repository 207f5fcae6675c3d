"""Join state as STAIRs: binary joins inside an eddy, whose state the eddy may move.

Deshpande & Hellerstein 2004. With migration this is the STAIRs architecture; without it the joins keep
what earlier decisions put into them (EddyJoins; Avnur & Hellerstein 2000).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from millrace.engine.access.schedule import Schedule
from millrace.engine.arrays import Array
from millrace.engine.eddy.operator import Estimate, Join, Operator, Step
from millrace.engine.operators.index_join import IndexJoin
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import JoinTree, edge_names, spanning_tree, spanning_trees
from millrace.engine.stairs import Change, MigrationPolicy
from millrace.engine.stairs.enforcement import Enforcement
from millrace.engine.stairs.estimate import FOUND, MOVED, REPLACED, MigrationEstimator, gain
from millrace.engine.stairs.fanout import Forecast, TreeChoice
from millrace.engine.stairs.index_join import IndexJoins
from millrace.engine.stairs.invariants import Places, Stairs
from millrace.engine.stairs.majority import Majority
from millrace.engine.stairs.migration import Misplaced, misplaced, move, places_of, settle
from millrace.engine.stairs.stair import Segment, StairProbe
from millrace.engine.stems.conditions import Matching
from millrace.engine.stems.join_state import Held, StateTotals, Watch, held_by
from millrace.engine.stems.state import joined
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.limits.clock import Clock, WallClock

_STEADY = 32
"""What was estimated is looked at again when one out of so many tuples is new."""

_LOOKING, _FREE_LOOKS = 1 / 32, 0.001
"""Share of the run's time that looking for what is worth moving may take, and seconds beyond that."""


class StairState:
    """The STAIRs of a block, where present routing sends tuples, and when state follows it.

    Args:
        spec: The block.
        graph: Its query graph.
        schedule: Which relation is left unbuilt.
        stems: Base tuples, by relation.
        window: Tuples that decisions look back on.
        migration: When state is moved; None for joins that keep it.
        tree: The spanning tree to begin with; by default the pre-optimizer's.
        index_joins: Relations that are asked by index alone. Where there are some, state is not moved: what
            an index join holds are answers, and outer tuples are not in it.
        watch: Told of what moving state makes.
        clock: What looking for misplaced state is measured by.
        intermediate: Store intermediate tuples. Without them memory is what SteMs need, and state does not
            follow routing.
    """

    grouped = False

    def __init__(
        self,
        spec: JoinSpec,
        graph: QueryGraph,
        schedule: Schedule,
        stems: Sequence[SteM],
        window: int,
        migration: MigrationPolicy | None = None,
        tree: JoinTree | None = None,
        index_joins: IndexJoins | None = None,
        watch: Watch | None = None,
        clock: Clock | None = None,
        *,
        intermediate: bool = True,
    ) -> None:
        self.stems = stems
        sizes = [r.rows or 0 for r in spec.relations]
        self._clock = clock or WallClock()
        self.forecast = Forecast(spec, graph, self.stems, window, self._clock)
        self._migrating = self.forecast.apart()
        leaves, barred, make = 0, frozenset[int](), {}
        if index_joins is not None and index_joins.inner:
            migration = None
            leaves, barred = index_joins.inner, index_joins.barred
            index_joins.end(self.stems)
            make = index_joins.makers(self.stems, self.forecast.add)
        tree = tree or spanning_tree(graph, sizes, leaves, barred)
        made = None if watch is None else partial(watch.look, at_stasis=True)
        self.stairs = Stairs(
            spec, graph, tree, self.stems, make, made, self._placed, intermediate=intermediate
        )
        self.peak = 0
        names = edge_names(spec, graph, leaves)
        self._joins = [StairJoin(edge, name, self) for edge, name in enumerate(names)]
        self._spec, self._graph = spec, graph
        self._unbuilt = schedule.unbuilt
        self._migration = migration
        self._intermediate = intermediate
        self._latest: dict[int, int] = {}
        self._majority = Majority(window)
        self._serial = 0
        self._changed = False
        self._worked = 0
        self._places: Places | None = None
        self._window = window
        self._tree_choice = TreeChoice(graph, self.forecast, window)
        self._next_look, self._looked_at = 0, -1
        self._began, self._looking = self._clock.now(), 0.0
        self._estimator = MigrationEstimator(
            self.stairs, self.stems, Matching(graph), self._migrating, self.edge_of
        )
        self._enforcement = Enforcement(self.stairs, self._estimator)

    # Routing

    def build(self, relation: int, batch: TupleBatch) -> TupleBatch:
        """Keep base tuples; STAIRs hold pointers to them."""
        built = self.stems[relation].build(batch, None)
        self.forecast.add(built)
        return built

    def joins(self, signature: Signature) -> Sequence[Operator]:
        """Return the joins of the spanning tree that lead out of a tuple's span."""
        return [self._joins[edge] for edge in self.stairs.tree.border(signature.span)]

    def estimate(self, edge: int, span: int, *, alone: bool) -> Estimate:
        """Return the matches that samples lead to expect, at a join and in all; ``alone``: none are asked."""
        tree = self.stairs.tree
        near, far = tree.near(edge, span), tree.far(edge, span)
        name = self._spec.aliases[far]
        if alone:
            return Estimate(name, 1.0, 1.0)
        return Estimate(name, self.forecast.fan(near, far), self.forecast.cumulative(tree, edge, span))

    def start(self, edge: int, batch: TupleBatch) -> StairProbe:
        """Insert into a STAIR and begin to probe its dual (Dual Routing)."""
        if self._unbuilt is not None and batch.signature.span == 1 << self._unbuilt:
            self.forecast.add(batch)
        self._worked += 2 * batch.size  # it is inserted, and it probes
        self._majority.count(batch.signature, batch.size)
        return self.stairs.route(edge, batch)

    def matches(self, edge: int, probe: StairProbe, limit: int) -> TupleBatch:
        """Return the next matches."""
        found = self.stairs.joins[edge].matches(probe, limit)
        self._worked += found.size
        return found.walked(self._spec.aliases[self.stairs.tree.far(edge, probe.batch.signature.span)])

    def on_build(self, relation: int) -> Sequence[TupleBatch]:
        """When a relation has ended, let go of what only it would have looked for; nothing waits."""
        if self.stems[relation].complete:
            self.stairs.close()
        elif not self.forecast.arrived[relation]:
            self.forecast.miss(relation)
        return ()

    def decided(self, signature: Signature, shares: Sequence[tuple[Operator, float]]) -> None:
        """Note where most tuples of a span go from now on."""
        operator, share = max(shares, key=lambda pair: pair[1])
        if isinstance(operator, Join) and share >= 1 / 2:
            span = signature.span
            present = self._latest.get(span)
            place = self._majority.decide(signature, operator.target, present)
            if place != present:
                self._changed = self._changed or present is not None
                self._latest[span] = place
                self._places = None

    def edge_of(self, span: int) -> int:
        """Return the edge that tuples of a span are routed to at present, or would be."""
        border = self.stairs.tree.border(span)
        latest = self._latest.get(span)
        if latest in border:
            assert latest is not None
            return latest
        if len(border) == 1:
            return border[0]
        tree, forecast = self.stairs.tree, self._migrating
        return min(border, key=lambda edge: (forecast.cumulative(tree, edge, span), edge))

    def _placed(self) -> Places:
        """Return where present routing puts tuples."""
        if self._places is None:
            self._places = places_of(self.stairs.tree, self.edge_of)
        return self._places

    # Moving

    @property
    def is_serial(self) -> bool:
        """Whether moving state has broken B+.

        Insertions then enforce B, each in its own STAIR. That is right for one arrival after the other. But
        where ``r`` is stored at two joins, a new ``s`` and a new ``t`` that are in flight at once meet twice:
        ``rs`` finds ``t`` at one of the joins, and ``rt`` finds ``s`` at the other.
        """
        return self.stairs.enforcing

    def precompute(self, stalled: int) -> None:
        """Promote what waits for stalled relations (query scrambling), if state may be moved at all."""
        if self._migration is not None and self._intermediate:
            self.stairs.precompute(stalled)
            self._note_peak()

    def partial(self, span: int, limit: int) -> Iterator[TupleBatch]:
        """Return what STAIRs that face the missing relations hold when everything else is precomputed.

        Where they hold no such tuples, for nothing is waited for there or state may not be moved, base tuples
        are joined for the occasion.
        """
        missing = self._graph.everything & ~span
        moves = self._migration is not None and self._intermediate
        tree = self._connecting(span) if moves else None
        if not missing or tree is None or not self._are_waited_for(tree, span):
            return joined(self.stems, self._graph, span, limit)
        if tree != self.stairs.tree:
            self.switch(tree)
        if not self.stairs.precompute(missing):
            return joined(self.stems, self._graph, span, limit)
        self._note_peak()
        return self._facing(span)

    def _are_waited_for(self, tree: JoinTree, span: int) -> bool:
        """Whether something may still arrive beyond every edge out of a span, so that STAIRs hold state."""
        open_ = sum(1 << stem.number for stem in self.stems if not stem.complete)
        return all(tree.beyond(e, 1 << tree.near(e, span)) & open_ for e in tree.border(span))

    def _connecting(self, span: int) -> JoinTree | None:
        """Return a spanning tree that holds a span together and may be taken, the present one if it does."""
        if self.stairs.tree.connected(span):
            return self.stairs.tree
        if self._migration is None or not self._migration.follows:
            return None
        return next((tree for tree in spanning_trees(self._graph) if tree.connected(span)), None)

    def _facing(self, span: int) -> Iterator[TupleBatch]:
        """Yield the tuples of a span, each once, from the STAIRs at its border."""
        tree = self.stairs.tree
        facing = [self.stairs.joins[edge].stairs[tree.near(edge, span)] for edge in tree.border(span)]
        return each_once([b for stair in facing for b in stair.contents() if b.signature.span == span])

    def expire(self, below: Mapping[int, int], watermark: int) -> None:
        """Drop what has expired from STAIRs, then from SteMs."""
        self._note_peak()
        for relation, row in below.items():
            self.stairs.expire(relation, row)
            self.stems[relation].evict(row)

    def at_stasis(self) -> bool:
        """Let state follow routing as far as the migration policy allows."""
        if self._migration is None:
            return False
        self._note_peak()  # moving state may let go of some of it
        # Decisions for several spans that change together are one change.
        self._serial += self._changed
        self._changed = False
        tree = self._tree_choice.better(self.stairs.tree) if self._migration.follows else None
        if tree is not None:
            self.switch(tree)
        self._follow(self._migration)
        return tree is not None

    def _note_peak(self) -> None:
        self.peak = max(self.peak, self.stairs.tuples + sum(stem.store.held for stem in self.stems))

    def _follow(self, policy: MigrationPolicy) -> None:
        """Move misplaced tuples, all of them or those that are worth it, as far as the policy allows."""
        if policy.weighs:
            arrived = sum(self.forecast.arrived)
            if arrived < self._next_look and self._looked_at == self._serial:
                return
            self._next_look = arrived + max(self._window // 4, arrived // _STEADY)
            self._looked_at = self._serial
        places = self._placed()
        wrong = list(misplaced(self.stairs, places))
        if not wrong:
            self.stairs.enforcing = False
        if not self._intermediate:
            return
        breaking = self._enforcement.find(wrong)
        if not policy.weighs:
            everything = sum(one.tuples for one in wrong)
            if not wrong:
                return
            most = policy.allowance(self._change(everything, 0.0, 0.0))
            settle(self.stairs, self.edge_of, places, most)
            return
        self._move(breaking or self._worthy(policy, wrong))

    def _worthy(self, policy: MigrationPolicy, wrong: Sequence[Misplaced]) -> dict[Misplaced, Array]:
        """Return the slices of misplaced segments, and of settled ones, that are worth promoting.

        To estimate that takes time, of which no more is spent than a share of the run's.
        """
        began = self._clock.now()
        if self._looking > _FREE_LOOKS + _LOOKING * (began - self._began):
            return {}
        chosen = self._chosen(policy, wrong)
        self._looking += self._clock.now() - began
        return {one: np.concatenate(slices) for one, slices in chosen.items()}

    def _chosen(self, policy: MigrationPolicy, wrong: Sequence[Misplaced]) -> dict[Misplaced, list[Array]]:
        # A demotion alone spares nothing; those that a promotion needs come with it.
        wrong = [one for one in wrong if one.place != one.edge]
        estimated = [a for one in wrong for a in self._estimator.estimate(one)]
        for places in self._undecided(wrong):
            estimated += max([self._estimator.estimate(one) for one in places], key=gain)
        worthy = sorted((a for a in estimated if a.saving > a.cost), key=lambda a: a.cost / a.saving)
        if not worthy:
            return {}
        tuples = sum(len(a.positions) for a in worthy)
        change = self._change(tuples, sum(a.cost for a in worthy), sum(a.saving for a in worthy))
        most = policy.allowance(change)
        chosen: dict[Misplaced, list[Array]] = {}
        for one in worthy:
            taken = one.positions[-most:] if most < len(one.positions) else one.positions
            if len(taken) and most > 0:
                chosen.setdefault(one.misplaced, []).append(taken)
            most -= len(taken)
        return chosen

    def _move(self, chosen: Mapping[Misplaced, Array]) -> None:
        """Move tuples at these positions of misplaced segments."""
        held = {one: self._segment(one) for one in chosen}
        for one, positions in chosen.items():
            # What a move inserts may have demoted some of the next segment's tuples.
            found = self._segment(one)
            if found is None or found is not held[one]:
                continue
            present = found.present(positions)
            move(self.stairs, one, positions if present is None else positions[present])
            if one.place != one.edge:
                self._latest[one.signature.span] = one.place
            self._places = None
            self._next_look = 0  # what they have become may be worth another move

    def _undecided(self, wrong: Sequence[Misplaced]) -> Iterator[list[Misplaced]]:
        """Yield the other joins of segments of spans that routing decides nothing about any more.

        Once its relations have ended no tuple of a span is routed; the last decision would stand for good.
        Estimates judge then: each of the joins at the border is a place for its tuples.
        """
        known = {(one.edge, one.owner, one.signature) for one in wrong}
        for edge, stair in self.stairs.stairs():
            for signature, segment in stair.segments.items():
                ended = all(s.complete for s in self.stems if signature.span >> s.number & 1)
                if not ended or not segment.live or (edge, stair.owner, signature) in known:
                    continue
                others = [via for via in self.stairs.tree.border(signature.span) if via != edge]
                if others:
                    one = Misplaced(edge, stair.owner, signature, segment.live, signature.span, edge)
                    yield [replace(one, place=via) for via in others]

    def _segment(self, wrong: Misplaced) -> Segment | None:
        return self.stairs.joins[wrong.edge].stairs[wrong.owner].segments.get(wrong.signature)

    def _change(self, tuples: int, cost: float, saving: float) -> Change:
        return Change(
            tuples=tuples,
            cost=cost,
            saving=saving,
            arrived=sum(self.forecast.arrived),
            remaining=sum(self.forecast.remaining(r) for r in range(len(self.stems))),
            decision=self._serial,
            guessed=any(self._is_guessed(s.number) for s in self.stems if not s.complete),
            worked=self._worked,
            spent=FOUND * self.stairs.recomputed
            + sum(MOVED * stair.promoted + REPLACED * stair.demoted for _, stair in self.stairs.stairs()),
        )

    def _is_guessed(self, relation: int) -> bool:
        spec = self._spec.relations[relation]
        return spec.guessed or spec.rows is None

    def switch(self, tree: JoinTree) -> None:
        """Go on with another spanning tree; to be called when no tuple is in flight."""
        self._latest.clear()
        self._majority.forget()
        self._places = None
        self._serial += 1
        self.stairs.rebuild(tree, self.edge_of)

    def waiting(self) -> Sequence[TupleBatch]:
        return ()  # nothing waits

    def waits(self) -> int:
        return 0

    def held(self) -> Held:
        """Return how much memory SteMs and STAIRs take."""
        return held_by(self.stems, (stair for _, stair in self.stairs.stairs()))

    def figures(self) -> StateTotals:
        """Return the tuples and bytes of every SteM and STAIR."""
        self._note_peak()
        bases = [stem.figures() for stem in self.stems if stem.rows]
        stairs = [stair.figures() for _, stair in self.stairs.stairs()]
        asked = tuple(j.figures() for j in self.stairs.joins.values() if isinstance(j, IndexJoin))
        return StateTotals((*bases, *stairs), self.peak, self.stairs.moved, self.stairs.recomputed, asked)


class StairJoin(Join):
    """The join along an edge that is, at present, one of the spanning tree's.

    Args:
        edge: The edge's number.
        name: What the join is called.
        state: The block's STAIRs.
    """

    def __init__(self, edge: int, name: str, state: StairState) -> None:
        super().__init__(edge, name, name)
        self._state = state

    def estimate(self, signature: Signature, *, alone: bool) -> Estimate:
        """Return the matches that samples lead to expect, at the join and in all."""
        return self._state.estimate(self.target, signature.span, alone=alone)

    def due(self, batch: TupleBatch) -> float | None:
        """Return until when an index join has to wait for its index."""
        join = self._state.stairs.joins[self.target]
        return join.due(batch) if isinstance(join, IndexJoin) else None

    def start(self, batch: TupleBatch) -> StairProbe:
        """Insert into a STAIR and begin to probe its dual (Dual Routing)."""
        return self._state.start(self.target, batch)

    def step(self, work: StairProbe, limit: int) -> Step:
        """Return the next matches; what is to come will find the tuples in their STAIR."""
        found = self._state.matches(self.target, work, limit)
        return Step((found,), found.size, None if work.is_done else work)


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
