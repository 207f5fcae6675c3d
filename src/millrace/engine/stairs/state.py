"""Join state as STAIRs: binary joins inside an eddy, whose state the eddy may move.

Deshpande & Hellerstein 2004. With migration this is the STAIRs architecture; without it the joins keep
what earlier decisions put into them (EddyJoins; Avnur & Hellerstein 2000).

Whoever moves only a part of what belongs together may break B+ (:mod:`millrace.engine.stairs.invariants`),
and until it holds again every intermediate tuple that is inserted is compared with what is stored. Once
nothing is misplaced B+ holds by itself. But what does not pay to be moved stays misplaced for good; mostly
it clashes with nothing.

To look takes about as long as to insert all tuples, so it is done after an eighth as many insertions
that enforced B, and after twice as many the next time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from millrace.engine.arrays import Array
from millrace.engine.eddy.context import RunContext
from millrace.engine.eddy.operator import Estimate, Kind, Operator, Step
from millrace.engine.plan.trees import JoinTree, edge_names, spanning_tree
from millrace.engine.stairs import DEFAULT_MIGRATION, MIGRATION_POLICIES, Change, MigrationPolicy
from millrace.engine.stairs.estimate import FOUND, MOVED, REPLACED, MigrationEstimator, gain
from millrace.engine.stairs.fanout import FanoutModel
from millrace.engine.stairs.index_join import IndexJoin, IndexJoins
from millrace.engine.stairs.invariants import Places, Stairs
from millrace.engine.stairs.migration import (
    DominantRoute,
    Misplaced,
    TreeChoice,
    clashing,
    misplaced,
    move,
    places_of,
    settle,
)
from millrace.engine.stairs.stair import StairProbe
from millrace.engine.stems.join_state import Held, JoinState, StateTotals, held_by
from millrace.engine.stems.stem import SteM
from millrace.engine.tuples.batch import Signature, TupleBatch

_STEADY = 32
"""What was estimated is looked at again when one out of so many tuples is new, and twice as late after each
look that moved nothing. In 80 random queries that halved the estimates and left the work as it was."""

_LOOKING, _FREE_LOOKS = 1 / 32, 0.001
"""Share of the run's time that looking for what is worth moving may take, and seconds beyond that."""

_CALMEST = 4
"""Looks that moved nothing after which the next ones wait no longer, in shares of what has arrived."""

_SHARE = 8
"""To look for clashes is worth it when an insertion for one out of so many stored tuples has enforced B."""


class StairState(JoinState):
    """The STAIRs of a block, where present routing sends tuples, and when state follows it.

    Without intermediate tuples memory is what SteMs need, and state does not follow routing.

    Raises:
        InputError: A relation has indexes alone, and no join with one scanned relation binds them.
    """

    grouped = False

    def __init__(self, context: RunContext) -> None:
        spec, graph, options, clock = context.spec, context.graph, context.options, context.clock
        self.stems: Sequence[SteM] = context.stems
        self._window = window = 2 * options.reoptimize_every
        self.forecast = FanoutModel(spec, graph, self.stems, window, clock)
        index_joins = IndexJoins.of(context)
        index_joins.check_leaves()
        index_joins.end()
        # A tuple that is made again would be judged again, and a second verdict may differ. What an index
        # join holds are answers, and outer tuples are not in it.
        movable = spec.is_repeatable and not index_joins.inner
        self._migration: MigrationPolicy | None = None
        if options.architecture == "stairs" and movable:
            self._migration = MIGRATION_POLICIES[options.migration or DEFAULT_MIGRATION]()
        self._intermediate = options.intermediate or not movable
        leaves, sizes = index_joins.inner, [r.rows or 0 for r in spec.relations]
        # The pre-optimizer's; it may be exchanged while the query runs.
        tree = spanning_tree(graph, sizes, leaves, index_joins.barred)
        self.stairs = Stairs(
            spec,
            graph,
            tree,
            self.stems,
            lambda edge: index_joins.join(edge, [1 << end for end in edge.ends], self.forecast.add),
            None if context.watch is None else partial(context.watch.look, at_stasis=True),
            self._placed,
            intermediate=self._intermediate,
        )
        self.peak = self.worked = 0
        names = edge_names(spec, graph, leaves)
        self._joins = [StairJoin(edge, name, self, spec.aliases) for edge, name in enumerate(names)]
        self._spec, self._graph = spec, graph
        self._unbuilt = context.schedule.unbuilt
        self._paths, self._indexes = context.methods.paths, context.methods.indexes
        self._requests = context.arrivals.requests
        # Where tuples of spans are decided to go; what follows from that; how often it has changed.
        self._latest: dict[int, int] = {}
        self._dominant = DominantRoute(window)
        self._places: Places | None = None
        self._serial, self._changed = 0, False
        self._tree_choice = TreeChoice(graph, self.forecast, window)
        self._estimator = MigrationEstimator(self.stairs, self.stems, self.forecast, self.edge_of)
        self._next_look, self._looked_at, self._calm = 0, -1, 0
        self._next_check = 0
        self._clock, self._began, self._looking = clock, clock.now(), 0.0

    # Routing

    def build(self, relation: int, batch: TupleBatch) -> TupleBatch:
        """Keep base tuples; STAIRs hold pointers to them."""
        built = self.stems[relation].build(batch, None)
        self.forecast.add(built)
        return built

    def joins(self, signature: Signature) -> Sequence[Operator]:
        return [self._joins[edge] for edge in self.stairs.tree.border(signature.span)]

    def route(self, edge: int, batch: TupleBatch) -> StairProbe:
        if self._unbuilt is not None and batch.signature.span == 1 << self._unbuilt:
            self.forecast.add(batch)
        self.worked += 2 * batch.size  # it is inserted, and it probes
        if self._migration is not None:
            self._dominant.count(batch.signature, batch.size)
        if self._paths.lookups:
            self._ask(batch, self.stairs.tree.far(edge, batch.signature.span))
        return self.stairs.route(edge, batch)

    def _ask(self, batch: TupleBatch, relation: int) -> None:
        """Let the fastest index of a scanned relation that tuples bind be asked, where that pays.

        They need not wait: they are in their STAIR, where the answers find them.
        """
        if self._paths.scanned >> relation & 1 and not self.stems[relation].complete:
            lookups = self._paths.bound(batch.signature.span, relation, self._graph)
            indexes = {self._indexes[self._paths.lookups[i].module][1]: i for i in lookups}
            if indexes:
                best = min(indexes, key=lambda index: (index.spent is not None, index.expect()))
                self._requests.ask(indexes[best], batch)

    def on_build(self, relation: int) -> Sequence[TupleBatch]:
        """When a relation has ended, let go of what only it would have looked for; nothing waits."""
        if self.stems[relation].complete:
            self.stairs.close()
        elif not self.forecast.arrived[relation]:
            self.forecast.miss(relation)
        return ()

    def note_decision(self, signature: Signature, shares: Sequence[tuple[Operator, float]]) -> None:
        """Note where most tuples of a span go from now on."""
        operator, share = max(shares, key=lambda pair: pair[1])
        if operator.kind is Kind.JOIN and share >= 1 / 2:
            present = self._latest.get(signature.span)
            place = self._dominant.decide(signature, operator.target, present)
            if place != present:
                self._changed |= present is not None
                self._latest[signature.span] = place
                self._places = None

    def edge_of(self, span: int) -> int:
        """Return the edge that tuples of a span are routed to at present, or would be."""
        border = self.stairs.tree.border(span)
        if (latest := self._latest.get(span, -1)) in border:
            return latest
        if len(border) == 1:
            return border[0]
        tree = self.stairs.tree
        return min(border, key=lambda edge: (self.forecast.cumulative(tree, edge, span), edge))

    def _placed(self) -> Places:
        """Return where present routing puts tuples."""
        if self._places is None:
            self._places = places_of(self.stairs.tree, self.edge_of)
        return self._places

    # Moving

    def precompute(self, stalled: int) -> None:
        """Promote what waits for stalled relations (query scrambling), if state may be moved at all."""
        if self._migration is not None and self._intermediate:
            self.stairs.precompute(stalled)
            self._note_peak()

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
        stairs, arrived = self.stairs, sum(self.forecast.arrived)
        if not stairs.enforcing:
            stairs.enforced = self._next_check = 0
        checks = stairs.enforcing and stairs.enforced >= max(stairs.tuples / _SHARE, self._next_check)
        if self._looked_at != self._serial:
            self._next_look, self._calm = 0, 0
        if policy.weighs:
            if arrived < self._next_look and not checks:
                return
            pause = max(1, self._window // 4, arrived // _STEADY)
            self._next_look = arrived + (pause << self._calm)
            self._looked_at, self._calm = self._serial, min(self._calm + 1, _CALMEST)
        places = self._placed()
        wrong = misplaced(stairs, places)
        if not wrong:
            stairs.enforcing = False
        if not self._intermediate:
            return
        breaking = self._breaking(wrong) if wrong and checks else {}
        if policy.weighs:
            self._move(breaking or self._worthy(policy, wrong))
        elif wrong:
            everything = self._change(sum(one.tuples for one in wrong), 0.0, 0.0)
            settle(stairs, self.edge_of, places, policy.allowance(everything))

    def _breaking(self, wrong: Sequence[Misplaced]) -> dict[Misplaced, Array]:
        """Let insertions enforce B no longer if B+ holds, whatever is misplaced.

        Else return the positions of misplaced tuples that break it, as soon as to move them is expected to
        cost no more than to enforce B has. Of two tuples that clash at least one is misplaced.
        """
        self._next_check = 2 * self.stairs.enforced
        clashes = clashing(self.stairs)
        if not clashes:
            self.stairs.enforcing = False
        found = {one: clashes[one.where] for one in wrong if one.where in clashes}
        costs = sum(self._estimator.cost(one, positions) for one, positions in found.items())
        return found if costs <= self.stairs.enforced else {}

    def _worthy(self, policy: MigrationPolicy, wrong: Sequence[Misplaced]) -> dict[Misplaced, Array]:
        """Return the slices of misplaced segments, and of settled ones, that are worth promoting.

        To estimate that takes time, of which no more is spent than a share of the run's.
        """
        began = self._clock.now()
        if self._looking > _FREE_LOOKS + _LOOKING * (began - self._began):
            self._calm = max(0, self._calm - 1)  # that was no look
            return {}
        # A demotion alone spares nothing; those that a promotion needs come with it.
        promoted = [one for one in wrong if one.place != one.edge]
        estimated = [a for one in promoted for a in self._estimator.estimate(one)]
        for places in self._undecided(promoted):
            estimated += max([self._estimator.estimate(one) for one in places], key=gain)
        worthy = sorted((a for a in estimated if a.saving > a.cost), key=lambda a: a.cost / a.saving)
        most = 0
        if worthy:
            tuples = sum(len(a.positions) for a in worthy)
            change = self._change(tuples, sum(a.cost for a in worthy), sum(a.saving for a in worthy))
            most = policy.allowance(change)
        chosen: dict[Misplaced, list[Array]] = {}
        for one in worthy:
            if most <= 0:
                break
            chosen.setdefault(one.misplaced, []).append(one.positions[-most:])
            most -= len(one.positions)
        self._looking += self._clock.now() - began
        return {one: np.concatenate(slices) for one, slices in chosen.items()}

    def _move(self, chosen: Mapping[Misplaced, Array]) -> None:
        """Move tuples at these positions of misplaced segments."""
        held = {one: self.stairs.segment(*one.where) for one in chosen}
        for one, positions in chosen.items():
            # What a move inserts may have demoted some of the next segment's tuples.
            found = self.stairs.segment(*one.where)
            if found is None or found is not held[one]:
                continue
            present = found.present(positions)
            move(self.stairs, one, positions if present is None else positions[present])
            if one.place != one.edge:
                self._latest[one.signature.span] = one.place
            self._places = None
            self._next_look, self._calm = 0, 0  # what they have become may be worth another move

    def _undecided(self, wrong: Sequence[Misplaced]) -> Iterator[list[Misplaced]]:
        """Yield the other joins of segments of spans that routing decides nothing about any more.

        Once its relations have ended no tuple of a span is routed; the last decision would stand for good.
        Estimates judge then: each of the joins at the border is a place for its tuples.
        """
        known = {one.where for one in wrong}
        for edge, stair in self.stairs.stairs():
            for signature, segment in stair.segments.items():
                ended = all(s.complete for s in self.stems if signature.span >> s.number & 1)
                if not ended or not segment.live or (edge, stair.owner, signature) in known:
                    continue
                there = edge, stair.owner, signature, segment.live, signature.span
                if others := [via for via in self.stairs.tree.border(signature.span) if via != edge]:
                    yield [Misplaced(*there, via) for via in others]

    def _change(self, tuples: int, cost: float, saving: float) -> Change:
        coming = [(s, self._spec.relations[s.number]) for s in self.stems if not s.complete]
        return Change(
            tuples=tuples,
            cost=cost,
            saving=saving,
            arrived=sum(self.forecast.arrived),
            remaining=sum(self.forecast.remaining(s.number) for s, _ in coming),
            decision=self._serial,
            guessed=any(relation.guessed or relation.rows is None for _, relation in coming),
            worked=self.worked,
            spent=FOUND * self.stairs.recomputed
            + sum(MOVED * stair.promoted + REPLACED * stair.demoted for _, stair in self.stairs.stairs()),
        )

    def switch(self, tree: JoinTree) -> None:
        """Go on with another spanning tree; to be called when no tuple is in flight."""
        self._latest.clear()
        self._dominant.forget()
        self._places = None
        self._serial += 1
        self.stairs.rebuild(tree, self.edge_of)

    def held(self) -> Held:
        return held_by(self.stems, (stair for _, stair in self.stairs.stairs()), self._requests.bindings)

    def figures(self) -> StateTotals:
        self._note_peak()
        bases = [stem.figures() for stem in self.stems if stem.rows]
        stairs = [stair.figures() for _, stair in self.stairs.stairs()]
        asked = tuple(j.figures() for j in self.stairs.joins.values() if isinstance(j, IndexJoin))
        return StateTotals((*bases, *stairs), self.peak, self.stairs.moved, self.stairs.recomputed, asked)


class StairJoin(Operator):
    """The join along an edge that is, at present, one of the spanning tree's."""

    kind = Kind.JOIN

    def __init__(self, edge: int, name: str, state: StairState, aliases: Sequence[str]) -> None:
        super().__init__(edge, name, name)
        self._state = state
        self._aliases = aliases

    def estimate(self, signature: Signature) -> Estimate:
        """Return the matches that samples lead to expect, at the join and in all."""
        edge, span, tree = self.target, signature.span, self._state.stairs.tree
        near, far, forecast = tree.near(edge, span), tree.far(edge, span), self._state.forecast
        return Estimate(self._aliases[far], forecast.fan(near, far), forecast.cumulative(tree, edge, span))

    def start(self, batch: TupleBatch) -> StairProbe:
        """Insert into a STAIR and begin to probe its dual (Dual Routing)."""
        return self._state.route(self.target, batch)

    def step(self, work: StairProbe, limit: int) -> Step:
        """Return the next matches; what is to come will find the tuples in their STAIR."""
        state = self._state
        found = state.stairs.joins[self.target].matches(work, limit)
        state.worked += found.size
        found = found.walked(self._aliases[state.stairs.tree.far(self.target, work.batch.signature.span)])
        return Step((found,), found.size, None if work.is_done else work)
