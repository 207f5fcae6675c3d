"""State follows routing: by span rather than by signature, not at all, and without lasting costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.eddy.continuous import ContinuousRun
from millrace.engine.eddy.run import Run
from millrace.engine.stairs import MIGRATION_POLICIES
from millrace.engine.stairs.estimate import FOUND, MATCHES, MOVED, counts
from millrace.engine.stairs.fanout import FanoutModel
from millrace.engine.stairs.migration import Misplaced, clashing
from millrace.engine.stairs.stair import Segment
from millrace.engine.stems.stem import singletons
from millrace.engine.tuples.batch import Signature
from millrace.limits.clock import VirtualClock
from millrace.options import MIGRATIONS, Options
from tests.engine.eddy.blocks import rows_of
from tests.engine.eddy.oracle import block
from tests.engine.laws import same_examples
from tests.engine.state.rig import EQUALITIES, Rig, Tables, three
from tests.engine.state.test_segment import pairs, tuples_of


@pytest.mark.parametrize("migration", MIGRATIONS)
def test_only_state_that_follows_routing_changes_its_tree(migration: str) -> None:
    """However much better another tree seems: EddyJoins keep theirs."""
    keys = [i % 3 for i in range(12)]
    ring = {"r": "ac", "s": "ab", "t": "bc"}
    tables = {alias: pa.table(dict.fromkeys(columns, keys)) for alias, columns in ring.items()}
    case = block(tables, ["r.a = s.a", "s.b = t.b", "t.c = r.c"])
    options = Options(
        architecture="stairs", migration=migration, batch_size=4, reoptimize_every=2, online=True
    )
    eddy = Run(case.spec, case.batches(4), options, clock=VirtualClock())
    state = eddy.dataflow.state
    first = state.stairs.tree
    with mock.patch.object(FanoutModel, "work", lambda _, tree: 1e9 if tree == first else 1.0):
        assert rows_of(case, eddy) == case.expected()
    assert (state.stairs.tree == first) == (migration == "never")


def test_what_clashes_is_found_and_moved_when_that_is_cheaper() -> None:
    """s1 in S.b beside s1a1 in S.r, not worth moving: B+ does not hold until it is moved as well."""
    tables: Tables = {"s": {key: [1] for key in "abr"}, **{key: {key: [1, 1, 1]} for key in "abr"}}
    rig = Rig(tables, [f"s.{key} = {key}.{key}" for key in "abr"])
    rig.arrive("a1")
    rig.arrive("s1", s="as", sa="sr")
    rig.promote("s", "as", "bs", "s1")
    assert {place[0] for place in clashing(rig.stairs)} == {rig.edge("bs"), rig.edge("sr")}
    state = rig.state_of_eddy
    state._migration = MIGRATION_POLICIES["backoff"]()
    for span, pair in {"s": "bs", "sb": "as", "sab": "sr"}.items():
        state._latest[rig.span(span)] = rig.edge(pair)
    estimate = state._estimator.estimate
    state._estimator.estimate = lambda one: [replace(each, saving=0.0) for each in estimate(one)]
    for enforced, held in ((1, ["s1a1"]), (1000, [])):
        rig.stairs.enforced, state._next_look = enforced, 0
        state.at_stasis()
        assert rig.held("s", "sr") == held, "what enforcing B has cost so far decides"
    rig.check()
    assert not clashing(rig.stairs)


def test_looks_that_move_nothing_become_rarer() -> None:
    """Each waits twice as long as the one before it, until routing changes."""
    state = three().state_of_eddy
    state._migration, state._window, looks = MIGRATION_POLICIES["backoff"](), 4, []
    note = lambda *_: looks.append(state.forecast.arrived[0]) or {}  # noqa: E731
    with mock.patch.object(state, "_worthy", side_effect=note):
        for arrived in range(28):
            state.forecast.arrived[0], state._changed = arrived, arrived == 20
            state.at_stasis()
    assert looks == [0, 1, 3, 7, 15, 20, 21, 23, 27]


@pytest.mark.broken_rule
def test_clashes_are_what_the_checker_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a merely local invariant: s1 in S.a and, demoted, in S.b."""
    rig = three()
    rig.arrive("r1")
    rig.arrive("s1", s="rs", rs="st")
    assert clashing(rig.stairs) == {}
    rig.demote("s", "st", "s", "r1s1")
    assert {place[:2] for place in clashing(rig.stairs)} == {(rig.edge("rs"), 1), (rig.edge("st"), 1)}
    monkeypatch.setattr(rig.stairs, "enforcing", False)
    with pytest.raises(AssertionError, match="agree on"):
        rig.check()


# MigrationEstimate counts what it cannot look at: right under skew, in bounded work and memory.


@same_examples(150)
@given(st.data())
def test_few_matches_are_counted_exactly(data: st.DataObject) -> None:
    """By code and slice, with removed tuples left out: what plain enumeration says."""
    codes = data.draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 10**15]), min_size=1, max_size=60))
    gone = data.draw(st.sets(st.integers(0, len(codes) - 1), max_size=len(codes) - 1))
    asked = np.array(data.draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 10**15]), max_size=20)), np.int64)
    segment = Segment(Signature(1), indexed=True)
    segment.append(tuples_of(1, [{0: i} for i in range(len(codes))]), np.array(codes, np.int64))
    if gone:
        segment.remove(np.array(sorted(gone)))
    parts = np.array_split(segment.positions(), data.draw(st.integers(1, min(4, segment.live))))
    assert segment.index is not None
    found = counts(segment.index, segment, asked, np.array(codes).__getitem__, parts)
    expected = [[sum(codes[p] == code for p in part) for part in parts] for code in asked.tolist()]
    assert found.tolist() == expected if len(asked) else found.shape == (0, len(parts))
    whole = counts(segment.index, segment, asked, np.array(codes).__getitem__)
    assert whole[:, 0].tolist() == [sum(each) for each in expected]


def arrive_only(rig: Rig, alias: str) -> None:
    """Let all base tuples of a relation arrive, and be inserted where others look for them, not probe."""
    relation = rig.aliases.index(alias)
    (rows,) = rig._tables[alias].combine_chunks().to_batches()
    state = rig.state_of_eddy
    batch = state.build(relation, singletons(state.stems[relation], rows, alias, built=False))
    for edge in rig.stairs.tree.border(1 << relation):
        rig.stairs.joins[edge].stairs[relation].insert(batch)


@pytest.mark.parametrize("hot", [1, 300, 2000])
@pytest.mark.parametrize("far", ["r", "t"])
def test_cost_and_saving_grow_with_a_hot_key(far: str, hot: int) -> None:
    """One key has up to half of the rows of ``s`` and of one of its neighbours: enumeration's numbers."""
    n = 4000
    keys = [0 if i % 2 and i < 2 * hot else i + 1 for i in range(n)]
    other = [i + 1 for i in range(n)]
    tables: Tables = {
        "r": {"a": keys if far == "r" else other},
        "s": {"a": keys, "b": keys},
        "t": {"b": keys if far == "t" else other},
    }
    rig = Rig(tables, EQUALITIES, is_checked=False)
    rig.arrive(" ".join(f"s{i + 1}" for i in range(n)), s="rs")
    arrive_only(rig, "r")
    arrive_only(rig, "t")
    signature = Signature(rig.span("s"))
    wrong = Misplaced(rig.edge("rs"), 1, signature, n, signature.span, rig.edge("st"))
    with pairs() as looked:
        slices = rig.state_of_eddy._estimator.estimate(wrong)
    assert sum(looked) < 3 * MATCHES

    def found(alias: str, column: str) -> int:
        held = Counter(tables[alias][column])
        return sum(count * held[key] for key, count in Counter(keys).items())

    # As many are still to come of each relation as have come: n. A tuple is met, or made and met elsewhere.
    met, instead = found("r", "a"), found("t", "b")
    assert sum(each.cost for each in slices) == pytest.approx(MOVED * n + FOUND * instead, rel=0.25)
    saving = sum(each.saving for each in slices)
    assert saving == pytest.approx(3 * (met - instead), abs=3 * 0.25 * (met + instead))


def test_what_has_expired_is_met_no_more() -> None:
    """B goes where few matches are held: to what is kept for one micro-batch, not for sixteen."""
    rows, random = 200, np.random.default_rng(5)
    columns = {"a": "x", "b": "xy", "c": "y"}
    tables = {
        alias: pa.table({each: random.integers(0, 4 * rows, 32 * rows) for each in names})
        for alias, names in columns.items()
    }
    case = block(tables, ["a.x = b.x", "b.y = c.y"])
    made = {}
    for architecture in ("stems", "joins", "stairs"):
        options = Options(architecture=architecture, reoptimize_every=rows)
        run = ContinuousRun(case.spec, [*columns], {}, options, clock=VirtualClock())
        for low in range(0, 32 * rows, rows):
            (*_,) = run.extend({a: t.slice(low, rows).to_batches()[0] for a, t in tables.items()})
            run.evict({alias: max(0, low - 15 * rows * (alias == "c")) for alias in columns})
        made[architecture] = run.figures().intermediate_tuples
    assert max(made.values()) <= 1.2 * made["stems"], made
