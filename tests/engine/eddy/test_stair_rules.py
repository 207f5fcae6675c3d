"""Every rule that keeps join state right is needed: without it, an answer or an invariant is wrong.

As in ``test_rules.py``, each test takes one rule away and lets random routing and random moves search a
fixed set of small blocks. With the rule in place there is nothing to find; without it there is, and what
is found is what the rule is for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.architectures.stairs import StairState
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.state.binary_join import BinaryJoin
from millrace.engine.state.matching import Matching
from millrace.engine.state.stair import STAIR, Segment, StairProbe
from millrace.engine.state.stairs import Stairs
from millrace.errors import MillraceError
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.blocks import Rows, batches, block
from tests.engine.eddy.oracle import Case, multiset
from tests.engine.eddy.test_rules import weak_hashes
from tests.engine.eddy.unrest import MOVES, Unrest

Patch = pytest.MonkeyPatch

WRONG = "a wrong answer"
FAILED = "no answer at all"
A, B, BEYOND = "invariant A", "invariant B", "invariant B+"


def probe_only(patch: Patch) -> None:
    """Dual Routing: a tuple probes without being inserted on its own side."""
    route = BinaryJoin.route
    patch.setattr(
        BinaryJoin, "route", lambda self, batch, **how: route(self, batch, **{**how, "kept": False})
    )


def insert_only(patch: Patch) -> None:
    """Dual Routing: a tuple is inserted without probing the dual STAIR."""
    patch.setattr(STAIR, "start", lambda self, batch, *_: StairProbe(batch, []))


def close_early(patch: Patch) -> None:
    """A STAIR is closed when one relation on the other side has ended, although another one has not."""

    def is_open(self: Stairs, edge: int, owner: int) -> bool:
        beyond = self.tree.beyond(edge, 1 << owner)
        return all(not stem.complete for stem in self._stems if beyond >> stem.number & 1)

    patch.setattr(Stairs, "is_open", is_open)


def skip_merge(patch: Patch) -> None:
    """Invariant B is not asked for after state was moved: what agrees stays side by side."""
    patch.setattr(STAIR, "merge", lambda self, batch, *_: self.insert(batch))


def first_come(patch: Patch) -> None:
    """Invariant B by dropping whatever agrees with something stored, rather than by demotion."""

    def merge(self: STAIR, batch: Any, *_: Any) -> None:
        for segment in list(self.segments.values()):
            batch = batch.take(np.setdiff1d(np.arange(batch.size), segment.agreeing(batch)[0]))
        self.insert(batch)

    patch.setattr(STAIR, "merge", merge)


def insert_loosely(patch: Patch) -> None:
    """While B+ does not hold, insertions do not ask for B: the flaw of a merely local invariant."""
    route = Stairs.route

    def careless(self: Stairs, *given: Any, **named: Any) -> StairProbe:
        enforcing, self.enforcing = self.enforcing, False
        try:
            return route(self, *given, **named)
        finally:
            self.enforcing = enforcing

    patch.setattr(Stairs, "route", careless)


def trust_any_place(patch: Patch) -> None:
    """Tuples are compared with none, as if all that is stored were where present routing puts it."""
    route = Stairs._route

    def careless(self: Stairs, *given: Any, **named: Any) -> StairProbe:
        self._places = lambda: frozenset((span, edge) for span in range(16) for edge in range(8))
        return route(self, *given, **named)

    patch.setattr(Stairs, "_route", careless)


def forget_loose(patch: Patch) -> None:
    """State that was moved is taken to be as routing would have left it."""
    for name in ("demote", "promote"):
        move = getattr(Stairs, name)

        def careless(self: Stairs, *given: Any, move: Callable[..., None] = move) -> None:
            move(self, *given)
            self.enforcing = False

        patch.setattr(Stairs, name, careless)


def demote_owner(patch: Patch) -> None:
    """Demotion keeps the STAIR's relation: without it there is nothing to index the rest by."""
    part = STAIR.part

    def careless(self: STAIR, batch: Any, span: int) -> Any:
        without = batch.signature.span & ~(1 << self.owner)
        return part(self, batch, without or span)

    patch.setattr(STAIR, "part", careless)


def demote_away(patch: Patch) -> None:
    """Demotion puts the part in the tuple's place; here it is only taken out."""
    demote = Stairs.demote

    def careless(self: Stairs, *given: Any) -> None:
        with patched(STAIR, "merge", lambda *_: None):
            demote(self, *given)

    patch.setattr(Stairs, "demote", careless)


def promote_unseen(patch: Patch) -> None:
    """Promotion, step 2: the tuple is not inserted at the join that promotes it."""
    promote, route = Stairs.promote, BinaryJoin.route

    def careless(self: Stairs, *given: Any) -> None:
        unkept = lambda join, batch, **how: route(join, batch, **{**how, "kept": False})  # noqa: E731
        with patched(BinaryJoin, "route", unkept):
            promote(self, *given)

    patch.setattr(Stairs, "promote", careless)


def promote_away(patch: Patch) -> None:
    """Promotion, step 4: the matches are not put back in the tuple's place."""
    promote, matches = Stairs.promote, BinaryJoin.matches

    def careless(self: Stairs, *given: Any) -> None:
        none = lambda *probed: matches(*probed).take(np.empty(0, np.int64))  # noqa: E731
        with patched(BinaryJoin, "matches", none):
            promote(self, *given)

    patch.setattr(Stairs, "promote", careless)


def promote_first(patch: Patch) -> None:
    """Promotion, step 4, half of it: only the first piece of the matches is put back."""
    promote, matches = Stairs.promote, BinaryJoin.matches

    def careless(self: Stairs, *given: Any) -> None:
        def first(join: BinaryJoin, probe: StairProbe, _: int) -> Any:
            found = matches(join, probe, 1)
            probe.open.clear()
            return found

        with patched(BinaryJoin, "matches", first):
            promote(self, *given)

    patch.setattr(Stairs, "promote", careless)


def revive(patch: Patch) -> None:
    """What has been taken out of a segment is still found there."""
    patch.setattr(Segment, "present", lambda *_: None)


def forget_base(patch: Patch) -> None:
    """Another spanning tree: state is made of the base tuples of all relations but one."""
    rebuild = Stairs.rebuild

    def careless(self: Stairs, *given: Any) -> None:
        stems = self._stems
        self._stems = stems[1:]
        try:
            rebuild(self, *given)
        finally:
            self._stems = stems

    patch.setattr(Stairs, "rebuild", careless)


def replant_bare(patch: Patch) -> None:
    """Another spanning tree: base tuples go to their joins, but what they make there goes nowhere."""
    rebuild, matches = Stairs.rebuild, BinaryJoin.matches

    def careless(self: Stairs, *given: Any) -> None:
        none = lambda *probed: matches(*probed).take(np.empty(0, np.int64))  # noqa: E731
        with patched(BinaryJoin, "matches", none):
            rebuild(self, *given)

    patch.setattr(Stairs, "rebuild", careless)


def trust_tree(patch: Patch) -> None:
    """Conjuncts that close a cycle are not verified on what joins along the tree return."""

    def careless(self: STAIR, segment: Segment, batch: Any, left: Any, right: Any) -> Any:
        present = segment.present(right)
        return (left, right) if present is None else (left[present], right[present])

    patch.setattr(STAIR, "_kept", careless)


def trust_hashes(patch: Patch) -> None:
    """Equal hashes are taken for equal keys."""
    patch.setattr(Matching, "verified", lambda *given: np.ones(len(given[-1]), np.bool_))


def keep_table(patch: Patch) -> None:
    """After a change of the spanning tree, the routing table still names joins of the old one."""
    rest = Unrest.at_stasis
    patch.setattr(Unrest, "at_stasis", lambda self: rest(self) and False)


@contextmanager
def patched(where: type, name: str, what: Callable[..., Any]) -> Iterator[None]:
    """Replace an attribute for a while."""
    with Patch.context() as patch:
        patch.setattr(where, name, what)
        yield


def random_table(draw: random.Random, columns: str, kind: pa.DataType) -> pa.Table:
    """Return two to five rows whose keys repeat."""
    n = draw.randint(2, 5)
    texts = pa.types.is_string(kind)

    def values() -> pa.Array:
        drawn = [draw.randint(0, 2) for _ in range(n)]
        return pa.array([f"k{v}" for v in drawn] if texts else drawn, kind)

    return pa.table({"id": pa.array(range(n), pa.int32()), **{column: values() for column in columns}})


def path(seed: int, kind: pa.DataType | None = None) -> Case:
    """Return ``a.x = b.x AND b.y = c.y AND c.z = d.z``."""
    draw = random.Random(seed)
    columns = {"a": "x", "b": "xy", "c": "yz", "d": "z"}
    tables = {alias: random_table(draw, names, kind or pa.int64()) for alias, names in columns.items()}
    return block(tables, ["a.x = b.x", "b.y = c.y", "c.z = d.z"])


def ring(seed: int) -> Case:
    """Return ``a.x = b.x AND b.y = c.y AND c.z = a.z`` with ``d`` beside ``a``."""
    draw = random.Random(seed)
    columns = {"a": "xzw", "b": "xy", "c": "yz", "d": "w"}
    tables = {alias: random_table(draw, names, pa.int64()) for alias, names in columns.items()}
    return block(tables, ["a.x = b.x", "b.y = c.y", "c.z = a.z", "a.w = d.w"])


def texts(seed: int) -> Case:
    """Return the path with keys that have to be verified."""
    return path(seed, pa.string())


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        away: Takes it away.
        found: What the search finds then, at least.
        cases: The blocks to search.
        before: What else to patch, with and without the rule.
        moves: How state is moved.
    """

    away: Callable[[Patch], None]
    found: frozenset[str]
    cases: Callable[[int], Case] = path
    before: Callable[[Patch], None] | None = None
    moves: tuple[str, ...] = MOVES


def rule(away: Callable[[Patch], None], *found: str, **how: Any) -> Rule:
    """Return a rule with what its loss is caught by."""
    return Rule(away, frozenset(found), **how)


RULES = [
    rule(probe_only, WRONG, A),
    rule(insert_only, WRONG, A),
    rule(close_early, WRONG, A),
    rule(skip_merge, WRONG, B),
    rule(first_come, WRONG, A),
    rule(insert_loosely, WRONG, B, moves=("demote", "promote")),
    rule(trust_any_place, WRONG, B, moves=("demote", "promote")),
    rule(forget_loose, WRONG, B, BEYOND, moves=("demote", "promote")),
    rule(demote_owner, FAILED),
    rule(demote_away, WRONG, A),
    rule(promote_unseen, WRONG, A),
    rule(promote_away, WRONG, A),
    rule(promote_first, WRONG, A),
    rule(revive, WRONG, A),
    rule(forget_base, WRONG, A, cases=ring),
    rule(replant_bare, WRONG, A, cases=ring),
    rule(trust_tree, WRONG, cases=ring),
    rule(trust_hashes, WRONG, cases=texts, before=weak_hashes),
    rule(keep_table, FAILED, cases=ring),
]


@lru_cache
def expected(cases: Callable[[int], Case], seed: int) -> tuple[Case, Rows]:
    """Return a block with DuckDB's answer."""
    case = cases(seed)
    return case, case.expected()


def search(cases: Callable[[int], Case], moves: tuple[str, ...]) -> set[str]:
    """Return what is wrong in any of 16 runs with random routing and random moves."""
    wrong: set[str] = set()
    for seed in range(8):
        case, rows = expected(cases, seed)
        for batch_size in (1, 3):
            options = Options(
                architecture="stairs", policy="random", batch_size=batch_size, reoptimize_every=2, seed=seed
            )
            schedule = Schedule(None, True, tuple(random.Random(seed).sample(range(4), 4)))
            eddy = EddyRun(case.spec, batches(case, 3), options, schedule=schedule, clock=VirtualClock())
            assert isinstance(eddy._state, StairState)
            unrest = Unrest(eddy._state, case.spec, seed, strict=False, moves=moves)
            try:
                got = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
            except (LookupError, MillraceError, ValueError):
                wrong.add(FAILED)
            else:
                wrong |= {WRONG} if got != rows else set()
            wrong |= unrest.broken
    return wrong


@lru_cache
def sound(cases: Callable[[int], Case], moves: tuple[str, ...]) -> set[str]:
    """Return what the search finds with all rules in place."""
    return search(cases, moves)


@pytest.mark.parametrize("lost", RULES, ids=lambda lost: f"{lost.away.__name__}-{lost.cases.__name__}")
def test_a_broken_rule_is_caught(lost: Rule, monkeypatch: Patch) -> None:
    """With the rule in place nothing is wrong; without it what the rule is for is."""
    if lost.before is None:
        assert sound(lost.cases, lost.moves) == set()
    else:
        lost.before(monkeypatch)
        assert search(lost.cases, lost.moves) == set()
    lost.away(monkeypatch)
    found = search(lost.cases, lost.moves)
    assert lost.found <= found, f"expected {set(lost.found)}, found {found}"
