"""State follows routing: by span rather than by signature, not at all, and without lasting costs."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import event, given, note, settings, strategies as st

from millrace.engine.architectures.enforcement import Enforcement
from millrace.engine.architectures.stairs import StairState
from millrace.engine.migration import MIGRATION_POLICIES
from millrace.engine.migration.estimate import MigrationEstimate
from millrace.engine.migration.forecast import Forecast
from millrace.engine.migration.placement import Misplaced, clashing
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.state.stairs import Stairs
from millrace.engine.trees import JoinTree
from millrace.engine.tuples import Signature
from millrace.limits.clock import VirtualClock
from millrace.options import MIGRATIONS, Options
from tests.engine.eddy.blocks import batches, block
from tests.engine.eddy.oracle import Case, multiset
from tests.engine.eddy.test_laws import schedules
from tests.engine.eddy.test_stairs_laws import All
from tests.engine.eddy.unrest import Unrest
from tests.engine.operators import Join
from tests.engine.state.rig import EQUALITIES, Rig, Tables


def test_signatures_of_one_span_that_disagree_are_one_decision() -> None:
    """What has passed a predicate goes to one join, what has not to the other: no change of routing."""
    rig = Rig({"r": {"a": [1]}, "s": {"a": [1], "b": [1]}, "t": {"b": [1]}}, EQUALITIES)
    state = rig.state_of_eddy
    changes = []
    state._migration = All()
    for turn in range(40):
        signature = Signature(rig.span("s"), done=turn % 2)
        to = Join(rig.edge("rs" if turn % 2 else "st"))
        state.decided(signature, [(to, 1.0)])
        state._majority.count(signature, 100)
        state.at_stasis()
        changes.append(state._serial)
    assert changes[-1] <= 1
    assert state.edge_of(rig.span("s")) == rig.edge("st")


def ring(n: int = 12) -> dict[str, pa.Table]:
    """Return tables of ``r.a = s.a AND s.b = t.b AND t.c = r.c``."""
    keys = [i % 3 for i in range(n)]
    return {
        name: pa.table(dict.fromkeys(columns, keys))
        for name, columns in (("r", "ac"), ("s", "ab"), ("t", "bc"))
    }


@pytest.mark.parametrize("migration", MIGRATIONS)
def test_only_state_that_follows_routing_changes_its_tree(migration: str) -> None:
    """However much better another tree seems: EddyJoins keep theirs."""
    case = block(ring(), ["r.a = s.a", "s.b = t.b", "t.c = r.c"])
    options = Options(
        architecture="stairs", migration=migration, batch_size=4, reoptimize_every=2, online=True
    )
    eddy = EddyRun(case.spec, batches(case, 4), options, clock=VirtualClock())
    state = eddy._state
    assert isinstance(state, StairState)
    first = state.stairs.tree

    def work(_: Forecast, tree: JoinTree) -> float:
        return 1e9 if tree == first else 1.0

    with mock.patch.object(Forecast, "work", work):
        rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    assert rows == case.expected()
    assert (state.stairs.tree == first) == (migration == "never")


def choosy(state: StairState, seed: int) -> None:
    """Let only some slices of some segments seem worth moving; the rest stays for good."""
    estimate = state._estimator.estimate

    def estimated(wrong: Misplaced) -> list[MigrationEstimate]:
        found = []
        for each in estimate(wrong):
            half = len(each.positions) // 2
            parts = each.positions[:half], each.positions[half:]
            chosen = (wrong.signature.span + wrong.edge + seed) % 3
            found += [
                replace(each, positions=part, cost=1.0, saving=1e9 if i == chosen else -1.0)
                for i, part in enumerate(parts)
                if len(part)
            ]
        return found

    state._estimator.estimate = estimated  # type: ignore[method-assign]


@st.composite
def stars(draw: st.DrawFn) -> Case:
    """Draw ``s.a = a.a AND s.b = b.b AND s.r = r.r AND s.t = t.t``; half of all keys are the same."""
    tables = {}
    for alias, columns in (("s", "abrt"), ("a", "a"), ("b", "b"), ("r", "r"), ("t", "t")):
        n = draw(st.integers(4, 8))
        tables[alias] = pa.table(
            {c: pa.array([0 if i % 2 else draw(st.integers(1, 6)) for i in range(n)]) for c in columns}
        )
    return block(tables, [f"s.{key} = {key}.{key}" for key in "abrt"], count_only=True)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.data())
def test_insertions_stop_enforcing_b_only_when_they_may(data: st.DataObject) -> None:
    """Slices that are not worth it stay where they are; still B+ holds whenever state is not enforcing."""
    case = data.draw(stars())
    options = Options(
        architecture="stairs",
        policy="random",
        batch_size=data.draw(st.sampled_from([1, 2, 4])),
        reoptimize_every=data.draw(st.sampled_from([1, 3])),
        online=True,
        seed=data.draw(st.integers(0, 1000)),
    )
    eddy = EddyRun(
        case.spec, batches(case, 2), options, schedule=data.draw(schedules(case)), clock=VirtualClock()
    )
    state = eddy._state
    assert isinstance(state, StairState)
    state._migration = All()
    choosy(state, data.draw(st.integers(0, 2)))
    unrest = Unrest(
        state, case.spec, data.draw(st.integers(0, 1 << 30)), often=data.draw(st.sampled_from([0.0, 0.3]))
    )
    find, looked = Enforcement.find, []

    def eager(self: Enforcement, wrong: list[Misplaced]) -> object:
        """Look every time, as often as it would after many more insertions."""
        self._stairs.enforced += 1 << 20
        self._next = 0
        was = self._stairs.enforcing
        found = find(self, wrong)
        looked.append((was, self._stairs.enforcing, bool(found)))
        return found

    with mock.patch.object(Enforcement, "find", eager):
        rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    note(f"{case.sql()}\n{options}\n{unrest.steps}")
    event(
        f"no longer enforced: {(True, False, False) in looked}; moved for it: {any(one[2] for one in looked)}"
    )
    assert rows == case.expected()


def kept(n: int) -> Rig:
    """Return STAIRs that hold ``s`` at its join with ``r``; half of it is then promoted, the rest is kept."""
    tables: Tables = {
        "r": {"a": [i % n for i in range(4 * n)]},
        "s": {"a": list(range(n)), "b": list(range(n))},
        "t": {"b": [i % n for i in range(4 * n)]},
    }
    rig = Rig(tables, EQUALITIES)
    rig.arrive(" ".join(f"s{i + 1}" for i in range(n)), s="rs")
    places = rig.positions("s", "rs", *(f"s{i + 1}" for i in range(n // 2)))
    rig.stairs.promote(rig.edge("rs"), rig.aliases.index("s"), rig.signature("s"), rig.edge("st"), places)
    return rig


def test_slices_that_are_kept_do_not_make_insertions_dear_for_good() -> None:
    """After as many insertions as there are tuples it is seen that what is misplaced clashes with nothing."""
    n = 8
    rig = kept(n)
    state = rig.state_of_eddy
    state._migration = MIGRATION_POLICIES["backoff"](Options())
    state._estimator.estimate = lambda _: []  # type: ignore[method-assign]
    state._latest[rig.span("s")] = rig.edge("st")
    assert rig.stairs.enforcing
    for i in range(4 * n):
        rig.arrive(f"r{i + 1}", rs="st")
        rig.arrive(f"t{i + 1}", st="rs")
        state._next_look = 0
        state.at_stasis()
        rig.check()
    assert not rig.stairs.enforcing
    held = rig.held("s", "rs")
    assert [name for name in held if "t" not in name] == [f"s{i + 1}" for i in range(n // 2, n)], (
        "still misplaced"
    )


def test_what_clashes_is_found_and_moved_when_that_is_cheaper() -> None:
    """s1 in S.b beside s1a1 in S.r, not worth moving: B+ does not hold until it is moved as well."""
    tables: Tables = {"s": {key: [1] for key in "abr"}, **{key: {key: [1, 1, 1]} for key in "abr"}}
    rig = Rig(tables, [f"s.{key} = {key}.{key}" for key in "abr"])
    rig.arrive("a1")
    rig.arrive("s1", s="as", sa="sr")
    rig.promote("s", "as", "bs", "s1")
    assert {place[0] for place in clashing(rig.stairs)} == {rig.edge("bs"), rig.edge("sr")}
    state = rig.state_of_eddy
    state._migration = MIGRATION_POLICIES["backoff"](Options())
    for span, pair in {"s": "bs", "sb": "as", "sab": "sr"}.items():
        state._latest[rig.span(span)] = rig.edge(pair)
    estimate = state._estimator.estimate
    state._estimator.estimate = lambda one: [  # type: ignore[method-assign]
        replace(each, saving=0.0) for each in estimate(one)
    ]
    rig.stairs.enforced = 1
    state.at_stasis()
    assert rig.held("s", "sr") == ["s1a1"], "enforcing B has cost less so far"
    rig.stairs.enforced = 1000
    state._next_look = 0
    state.at_stasis()
    assert rig.held("s", "sr") == []
    rig.check()
    assert not clashing(rig.stairs)


def test_clashes_are_what_the_checker_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a merely local invariant: s1 in S.a and, demoted, in S.b."""
    rig = Rig({"r": {"a": [1]}, "s": {"a": [1], "b": [1]}, "t": {"b": [1]}}, EQUALITIES)
    rig.arrive("r1")
    rig.arrive("s1", s="rs", rs="st")
    assert clashing(rig.stairs) == {}
    rig.demote("s", "st", "s", "r1s1")
    assert {place[:2] for place in clashing(rig.stairs)} == {(rig.edge("rs"), 1), (rig.edge("st"), 1)}
    monkeypatch.setattr(rig.stairs, "enforcing", False)
    with pytest.raises(AssertionError, match="agree on"):
        rig.check()
    assert isinstance(rig.stairs, Stairs)
