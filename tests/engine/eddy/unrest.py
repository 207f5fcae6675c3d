"""Moving join state at random at points of stasis, with the invariants checked after every step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import JoinTree, spanning_trees
from millrace.engine.stairs.estimate import MigrationEstimate
from millrace.engine.stairs.migration import Misplaced, places_of, settle
from millrace.engine.stairs.policies import Eager
from millrace.engine.stairs.stair import STAIR, Segment
from millrace.engine.stairs.state import StairState
from millrace.engine.tuples.batch import Signature
from tests.engine.eddy.invariants import Invariants

Moved = tuple[int, STAIR, Signature, Segment]
MOVES = ("demote", "promote", "promote", "settle", "switch", "precompute")


@dataclass(frozen=True)
class Moves:
    """How state is moved.

    Attributes:
        often: Chance that anything is moved at a point of stasis; 0 leaves it to the migration policy.
        hope: What the migration policy takes to be worth moving: ``"all"``, ``"some"`` slices of some
            segments while the rest stays for good, or ``""`` for what is.
    """

    seed: int
    often: float = 0.5
    chosen: tuple[str, ...] = MOVES
    hope: str = ""


class Unrest:
    """Takes the place of ``rest`` of join state: moves state, checks it, and does not care for use.

    Attributes:
        steps: What was done so far, in words.
        broken: Gets the first words of what the checker finds; where it is strict, that is raised.
    """

    def __init__(self, state: StairState, spec: JoinSpec, moves: Moves, broken: set[str], *, strict=True):
        self.steps: list[str] = []
        self.broken = broken
        self._invariants = Invariants(spec, state.stairs)
        self._state = state
        self._at_stasis = state.at_stasis
        self._draw = random.Random(moves.seed)
        self._often = moves.often
        self._hope = moves.hope
        self._strict = strict
        self._chosen = [getattr(self, f"_{name}") for name in moves.chosen]
        self._trees = tuple(spanning_trees(state.stairs._graph))
        if moves.hope:
            hope(state, some=self._draw.randrange(3) if moves.hope == "some" else None)
        state.at_stasis = self.at_stasis  # type: ignore[method-assign]

    def at_stasis(self) -> bool:
        """Check what routing has left, let the state rest as it would, then move something."""
        self._check("routing")
        moved = self._state.stairs.moved
        if self._hope == "some":  # whether B+ holds is looked at every time
            self._state.stairs.enforced += 1 << 20
            self._state._next_check = 0
        switched = self._at_stasis()
        if self._state.stairs.moved != moved or self._hope == "some":
            self._check("its own migration")
        if self._draw.random() >= self._often:
            return switched
        for _ in range(self._draw.randint(1, 3)):
            did = self._draw.choice(self._chosen)()
            if did:
                self.steps.append(did)
                self._check(did)
        # Another tree may have been taken: then the routing table must forget what it has decided.
        return True

    def _check(self, after: str) -> None:
        try:
            self._invariants.check()
        except AssertionError as error:
            if self._strict:
                raise AssertionError(f"{error}; after {after}; so far: {self.steps}") from error
            self.broken.add(str(error).partition(":")[0])

    def _segments(self) -> list[Moved]:
        return [
            (edge, stair, signature, segment)
            for edge, stair in self._state.stairs.stairs()
            for signature, segment in stair.segments.items()
            if segment.live
        ]

    def _some(self, segment: Segment) -> np.ndarray | None:
        """Return all positions, as None, or a random subset of them."""
        if self._draw.random() < 0.5:
            return None
        positions = segment.positions().tolist()
        count = self._draw.randint(0, len(positions))
        return np.asarray(self._draw.sample(positions, count), np.int64)

    def _demote(self) -> str:
        tree = self._state.stairs.tree
        return self._move(
            "demote",
            [
                (moved, span)
                for moved in self._segments()
                for span in parts(tree, moved[2].span)
                if span >> moved[1].owner & 1
            ],
        )

    def _promote(self) -> str:
        tree = self._state.stairs.tree
        return self._move(
            "promote", [(m, via) for m in self._segments() for via in tree.border(m[2].span) if via != m[0]]
        )

    def _move(self, name: str, choices: list[tuple[Moved, int]]) -> str:
        """Demote some tuples to a span, or promote some via an edge, whichever there is a choice of."""
        if not choices:
            return ""
        (edge, stair, signature, segment), to = self._draw.choice(choices)
        some = self._some(segment)
        getattr(self._state.stairs, name)(edge, stair.owner, signature, to, some)
        shown = "all" if some is None else some.tolist()
        return f"{name}({stair.name} on edge {edge}, {signature.span:b}, {to}, {shown})"

    def _settle(self) -> str:
        state = self._state
        route = self._route()
        most = self._draw.choice([1, 2, 5, 1000])
        settle(state.stairs, route, places_of(state.stairs.tree, route), most)
        return f"settle(at most {most})"

    def _route(self) -> Callable[[int], int]:
        """Return where tuples go at present, or a decision for each span that is as good as any."""
        if self._draw.random() < 0.5:
            return self._state.edge_of
        tree, seed = self._state.stairs.tree, self._draw.random()
        return lambda span: random.Random(f"{seed} {span}").choice(tree.border(span))

    def _switch(self) -> str:
        if self._draw.random() < 0.5:
            return ""
        tree = self._draw.choice(self._trees)
        self._state.switch(tree)
        return f"switch({[edge.ends for edge in tree.edges]})"

    def _precompute(self) -> str:
        span = self._draw.randrange(1, 1 << len(self._state.stems))
        self._state.stairs.precompute(span)
        return f"precompute({span:b})"


def hope(state: StairState, some: int | None = None) -> None:
    """Let every move seem worth it, or, by a number, only one half of each segment or none."""
    estimate = state._estimator.estimate

    def hopeful(wrong: Misplaced) -> list[MigrationEstimate]:
        if some is None:
            return [replace(each, cost=1.0, saving=1e9) for each in estimate(wrong)]
        chosen = (wrong.signature.span + wrong.edge + some) % 3
        return [
            replace(each, positions=part, cost=1.0, saving=1e9 if i == chosen else -1.0)
            for each in estimate(wrong)
            for i, part in enumerate(np.array_split(each.positions, 2))
            if len(part)
        ]

    state._estimator.estimate = hopeful  # type: ignore[method-assign]
    if some is not None:
        state._migration = Eager()
        state._migration.weighs = True


def parts(tree: JoinTree, span: int) -> Iterator[int]:
    """Yield the smaller spans within a span that the tree holds together."""
    part = (span - 1) & span
    while part:
        if tree.is_connected(part):
            yield part
        part = (part - 1) & span
