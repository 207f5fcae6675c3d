"""State follows routing: by span rather than by signature, not at all, and without lasting costs."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pyarrow as pa
import pytest

from millrace.engine.architectures.stairs import StairState
from millrace.engine.migration import MIGRATION_POLICIES
from millrace.engine.migration.forecast import Forecast
from millrace.engine.migration.placement import clashing
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.state.stairs import Stairs
from millrace.engine.trees import JoinTree
from millrace.engine.tuples import Signature
from millrace.limits.clock import VirtualClock
from millrace.options import MIGRATIONS, Options
from tests.engine.eddy.blocks import batches, block, run
from tests.engine.eddy.oracle import multiset
from tests.engine.eddy.test_stalls import chain
from tests.engine.eddy.unrest import All, hope
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


@pytest.mark.broken_rule
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


def test_promotions_chosen_together_may_undo_each_other() -> None:
    """Promoting s1a1 in S.r by S join T inserts it beside s1b1r1, which was to be promoted next.

    They agree on s1, so s1 takes the place of both in S.t; nothing is left there that could be promoted.
    """
    tables: Tables = {"s": {key: [1] for key in "abrt"}, **{key: {key: [1]} for key in "abrt"}}
    rig = Rig(tables, [f"s.{key} = {key}.{key}" for key in "abrt"])
    for name in ("a1", "b1", "r1"):
        rig.arrive(name)
    rig.arrive("s1", s="sr", sr="st")
    rig.promote("s", "sr", "sa", "s1")
    rig.promote("s", "st", "sb", "s1r1")
    assert (rig.held("s", "sr"), rig.held("s", "st")) == (["s1a1"], ["s1b1r1"])
    hope(rig.state_of_eddy)
    for relations, pair in {"s": "sa", "sa": "st", "sat": "sr", "satr": "sb"}.items():
        rig.state_of_eddy._latest[rig.span(relations)] = rig.edge(pair)
    rig.state_of_eddy._follow(All())
    assert (rig.held("s", "sr"), rig.held("s", "st")) == ([], ["s1"])
    rig.check()
    rig.arrive("t1", st="sr", sat="sr", srt="sa", sart="sb", sbrt="sa", sbt="sr", sabt="sr")
    assert rig.results == ["s1a1b1r1t1"]


def test_the_footprint_without_intermediate_tuples_is_that_of_base_tuples() -> None:
    """At most each base tuple once, and a pointer to it in each STAIR of its relation: 2 + 3 + 2 times 40."""
    case, figures = chain(distinct=2), []
    for intermediate in (False, True):
        options = Options(
            architecture="stairs",
            online=True,
            batch_size=8,
            migration="never",
            policy="fixed",
            order=("r", "s", "t"),
            intermediate=intermediate,
        )
        rows, eddy = run(case, options, chunk=8)
        assert rows == case.expected()
        figures.append(eddy.figures())
    small, large = figures
    assert small.peak_state <= (2 + 3 + 2) * 40
    assert large.peak_state > 2 * small.peak_state
    assert sum(one.demoted for one in small.state) > 0
